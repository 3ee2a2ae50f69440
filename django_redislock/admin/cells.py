"""How single facts look on a page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe
from django.utils.timezone import is_aware, localtime

from ..inspection import HolderInfo, LockInfo
from ..inspection.sentences import translated
from ..inspection.words import clean, duration
from ..models import STATES

NOTHING = "–"


def broken(text: str) -> str:
    """In lines that end where one would end them; others' names may hold anything."""
    parts = ((part,) for part in re.split("(?<=[-:/._])", clean(text)))
    return format_html_join(mark_safe("<wbr>"), "{}", parts)


def badge(value: str, names: Iterable[tuple[str, Any]], why: str = "") -> str:
    return format_html(
        '<span class="redislock-state redislock-{}" title="{}">{}</span>',
        value,
        why,
        dict(names)[value],
    )


def state(of: HolderInfo | LockInfo) -> str:
    """With what it is due to, if that is worth a word."""
    why = translated(of.why)
    return format_html("{}{}", badge(of.state, STATES, why), quiet(why))


def person(owner: str, label: str) -> str:
    """Host and process; below it, where in the code."""
    return with_quiet(host_and_process(owner), label)


def host_and_process(owner: str) -> str:
    return " · ".join(owner.split(":", 2)[:2])


def with_quiet(text: str, more: str) -> str:
    return format_html("{}{}", text, quiet(more))


def quiet(text: str) -> str:
    return format_html('<div class="redislock-quiet">{}</div>', broken(text)) if text else ""


def number(value: int | None) -> str:
    """As it is: separators of thousands would hinder whoever searches a log for it."""
    return NOTHING if value is None else str(value)


def seconds(value: float | None) -> str:
    return NOTHING if value is None else duration(value)


def moment(time: datetime | None) -> str:
    """In the zone of the page, and to be found in a log."""
    if time is None:
        return NOTHING
    there = localtime(time) if is_aware(time) else time
    return f"{there:%Y-%m-%d %H:%M:%S %Z}"

"""The page of arguments and settings, and the help of `redis_lock`, have all of them."""

from __future__ import annotations

import re
from typing import Any, get_type_hints

import pytest

from django_redislock import redis_lock
from django_redislock.lease.lock import Options
from django_redislock.locks.once import OnceOptions
from django_redislock.settings import conf
from django_redislock.settings.policy import ARGUMENT_VALIDATORS, DEFAULTS, JOB_SETTINGS
from tests.docs.world import ROOT

PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")


def rows(title: str) -> dict[str, list[str]]:
    """The first table below a title: the first column → the other ones."""
    _, _, rest = PAGE.partition(f"\n{title}\n")
    (table,) = re.findall(r"(?m)(?:^\|.*\n)+", rest.split("\n## ")[0])[:1]
    lines = [[cell.strip() for cell in line.strip("|\n ").split(" | ")] for line in
             table.splitlines()[2:]]  # fmt: skip
    return {first.strip("`"): others for first, *others in lines}


def written(value: Any) -> str:
    """A default, as the page writes it."""
    if isinstance(value, float) and not isinstance(value, bool):
        value = int(value)
    return f"`{value!r}`".replace("'", '"')


def test_arguments() -> None:
    """Each argument of `redis_lock` with its default, and whether it is a setting."""
    table = rows("## Arguments of `redis_lock`")
    assert set(table) == {"name", "timestamp_key", *get_type_hints(Options)}
    for name in ARGUMENT_VALIDATORS:
        default, _, setting = table[name]
        assert default == written(DEFAULTS[name])
        assert setting == f"`{name.upper()}` |".rstrip(" |")


def test_settings() -> None:
    """Each key of `REDISLOCK` with its default."""
    table = rows("## Settings")
    assert set(table) == {"LOCKS", "JOBS", *map(str.upper, conf.PROJECT_VALIDATORS)}
    entries = rows("### Settings for some locks")
    of_locks = conf.ENTRY_VALIDATORS.keys() - conf.PROJECT_VALIDATORS.keys()
    assert set(entries) == {name.upper() for name in of_locks}
    for name, (default, _) in (table | entries).items():
        if name.lower() in DEFAULTS:
            assert default == written(DEFAULTS[name.lower()])


def test_jobs() -> None:
    section = PAGE.partition("### Settings for periodic jobs")[2]
    assert all(f"`{name.upper()}`" in section for name in JOB_SETTINGS)


def test_once() -> None:
    assert set(rows("## Arguments of `once`")) == {"name", "ttl", *get_type_hints(OnceOptions)}


@pytest.mark.parametrize("name", ["timestamp_key", *get_type_hints(Options)])
def test_help(name: str) -> None:
    """`help(redis_lock)` describes each argument."""
    assert redis_lock.__doc__ is not None
    assert re.search(rf"`{name}`[:,]", redis_lock.__doc__)

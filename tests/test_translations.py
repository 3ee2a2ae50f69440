"""What people read is translated: into German, completely, and as the compiled file has it."""

from __future__ import annotations

import gettext
import re
from pathlib import Path
from typing import Any

from django.test import Client
from django.utils.translation import override
from redis import Redis

import django_redislock
from tests.operations.calling import granted

CATALOGUE = Path(django_redislock.__file__).parent / "locale/de/LC_MESSAGES/django"


def test_the_compiled_file() -> None:
    """It has what the readable one has."""
    text = CATALOGUE.with_suffix(".po").read_text(encoding="utf-8")
    with CATALOGUE.with_suffix(".mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    pairs = re.findall(r'^msgid "(.+)"\nmsgstr "(.*)"$', text, re.MULTILINE)
    assert len(pairs) > 50
    for original, translation in pairs:
        assert translation
        assert compiled.gettext(original) == translation
    plurals = re.findall(
        r'^msgid "(.+)"\nmsgid_plural "(.+)"\nmsgstr\[0\] "(.*)"\nmsgstr\[1\] "(.*)"$',
        text,
        re.MULTILINE,
    )
    assert len(plurals) > 10
    for one, many, translated, translated_many in plurals:
        assert compiled.ngettext(one, many, 1) == translated
        assert compiled.ngettext(one, many, 2) == translated_many


def test_all_is_in_it() -> None:
    """Every text that templates and code mark is translated."""
    known = CATALOGUE.with_suffix(".po").read_text(encoding="utf-8")
    package = Path(django_redislock.__file__).parent
    marked: set[str] = set()
    for path in package.rglob("*.html"):
        marked.update(re.findall(r'{% translate "([^"]+)" %}', path.read_text(encoding="utf-8")))
    for path in package.rglob("*.py"):
        marked.update(re.findall(r'\b_\("([^"]+)"\)', path.read_text(encoding="utf-8")))
    assert len(marked) > 50
    assert not [text for text in sorted(marked) if f'msgid "{text}"' not in known]


def test_a_page(admin_client: Client, redis: Redis, settings: Any) -> None:
    """The admin speaks the language of whoever looks, plurals included."""
    settings.ROOT_URLCONF = "tests.admin.urls"
    granted(redis, "job")
    granted(redis, "old")
    with override("de"):
        page = admin_client.get("/admin/django_redislock/lock/").content.decode()
        assert "verwaist" in page
        assert "Der Doktor hat" in page
        ids = ["default:job", "default:old"]
        choice = {"action": "clear_locks", "_selected_action": ids, "index": "0"}
        page = admin_client.post("/admin/django_redislock/lock/", choice).content.decode()
        assert "2 Sperren aufheben" in page

"""What people read is marked, and translated: completely, and as the compiled files have it."""

from __future__ import annotations

import ast
import gettext
import json
import pickle
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.template.base import Lexer, TokenType
from django.test import Client
from django.utils.translation import override
from django.utils.translation.template import templatize
from redis import Redis

import django_redislock
from django_redislock.inspection.words import Sentence, translated
from tests.models import Product
from tests.operations.calling import granted

PACKAGE = Path(django_redislock.__file__).parent
LANGUAGES = {
    "de": "nplurals=2; plural=(n != 1);",
    "es": "nplurals=2; plural=(n != 1);",
    "fr": "nplurals=2; plural=(n > 1);",  # 0 is singular there
    "zh_Hans": "nplurals=1; plural=0;",
}
"""The languages, and their plural forms."""

MARKERS = {"_", "gettext", "gettext_lazy", "gettext_noop", "ngettext", "ngettext_lazy"}

PLACEHOLDER = re.compile(r"%(?:\(\w+\))?[a-z%]")


class Entry(NamedTuple):
    one: str
    many: str | None
    flags: str
    translations: list[str]


def catalogue(language: str) -> Path:
    return PACKAGE / "locale" / language / "LC_MESSAGES" / "django"


def entries(language: str) -> list[Entry]:
    """What is in the readable file; the header is the first."""
    found = []
    for block in catalogue(language).with_suffix(".po").read_text(encoding="utf-8").split("\n\n"):
        texts: list[tuple[str, str]] = []
        for line in block.splitlines():
            if match := re.match(r'(msg\w+(?:\[\d\])?) (".*")$', line):
                texts.append((match[1], json.loads(match[2])))
            elif line.startswith('"'):
                texts[-1] = (texts[-1][0], texts[-1][1] + json.loads(line))
        flags = "".join(line for line in block.splitlines() if line.startswith("#,"))
        known = dict(texts)
        translations = [text for name, text in texts if name.startswith("msgstr")]
        found.append(Entry(known["msgid"], known.get("msgid_plural"), flags, translations))
    return found


@cache
def marked() -> set[tuple[str, str | None]]:
    """Every text that code and templates mark, and its plural."""
    sources = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    found: set[tuple[str, str | None]] = set()
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in MARKERS:
                texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                if node.args and isinstance(node.args[0], ast.Constant):
                    many = node.func.id.startswith("ngettext")  # type: ignore[attr-defined]
                    found.add((texts[0], texts[1] if many else None))
    text = r"""u?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    for path in PACKAGE.rglob("*.html"):
        code = templatize(path.read_text(encoding="utf-8"))
        for call in re.finditer(rf"\bgettext\({text}\)|\b_\({text}\)", code):
            found.add((ast.literal_eval(call[1] or call[2]), None))
        for call in re.finditer(rf"\bngettext\({text}, {text},", code):
            found.add((ast.literal_eval(call[1]), ast.literal_eval(call[2])))
    return found


def test_the_languages() -> None:
    """All languages are tested."""
    there = {path.name for path in (PACKAGE / "locale").iterdir() if path.is_dir()}
    assert there == set(LANGUAGES)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_header(language: str) -> None:
    """The header names the language and its plural forms, and each entry has as many."""
    header, *others = entries(language)
    assert f"Language: {language}\n" in header.translations[0]
    assert f"Plural-Forms: {LANGUAGES[language]}\n" in header.translations[0]
    forms = int(LANGUAGES[language][len("nplurals=")])
    assert {len(one.translations) for one in others if one.many} == {forms}


@pytest.mark.parametrize("language", LANGUAGES)
def test_all_is_in_it(language: str) -> None:
    """The file has every text that templates and code mark, and nothing else. An entry with a
    plural is also that of the same text without one."""
    there = {(one.one, one.many) for one in entries(language)[1:]}
    assert len(there) > 100
    wanted = marked()
    with_plural = {one for one, many in wanted if many is not None}
    assert there == {(one, many) for one, many in wanted if many or one not in with_plural}


@pytest.mark.parametrize("language", LANGUAGES)
def test_all_is_translated(language: str) -> None:
    """Each form is filled in and sure, and has the values of the original, which may leave out
    those of one, but not of many: some languages know one form."""
    for one, many, flags, translations in entries(language)[1:]:
        assert "fuzzy" not in flags, one
        assert all(translations), one
        last = set(PLACEHOLDER.findall(many or one))
        assert set(PLACEHOLDER.findall(translations[-1])) == last, one
        if len(translations) > 1:
            assert set(PLACEHOLDER.findall(translations[0])) == set(PLACEHOLDER.findall(one))


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_compiled_file(language: str) -> None:
    """The compiled file has the same texts, and chooses the form by the number."""
    with catalogue(language).with_suffix(".mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    for one, many, _, translations in entries(language)[1:]:
        if many is None:
            assert compiled.gettext(one) == translations[0]
            continue
        assert compiled.ngettext(one, many, 1) == translations[0]
        assert compiled.ngettext(one, many, 2) == translations[-1]
        assert compiled.ngettext(one, many, 0) == translations[0 if language == "fr" else -1]


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.html")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_nothing_is_left_unmarked(path: Path) -> None:
    """A template has no words outside of tags, and none in attributes that are read."""
    bare, within = "", False
    for token in Lexer(path.read_text(encoding="utf-8")).tokenize():
        if token.token_type == TokenType.BLOCK:
            within = token.contents.startswith("blocktranslate") or (
                within and not token.contents.startswith("endblocktranslate")
            )
        elif token.token_type == TokenType.TEXT and not within:
            bare += token.contents
        elif token.token_type == TokenType.VAR:
            bare += "0"  # so that a tag around it stays one
    assert not re.findall(r'(?:title|alt|aria-label|placeholder)="[^"]*[a-z]{2}[^"]*"', bare)
    words = re.findall(r"[A-Za-z]{2,}", re.sub(r"<[^>]*>", " ", bare))
    assert not words


def test_a_sentence() -> None:
    """A sentence is English for programs; sentences within it are translated with it."""
    why = Sentence(
        "its process has shown no sign of life for %(seconds)s s",
        seconds="35",
    )
    both = Sentence("%(number)s of %(holding)s holders: %(why)s", number=1, holding=2, why=why)
    assert both == "1 of 2 holders: its process has shown no sign of life for 35 s"
    assert json.dumps(why) == '"its process has shown no sign of life for 35 s"'
    for sentence in (both, pickle.loads(pickle.dumps(both))):
        with override("fr"):
            assert translated(sentence) == (
                "1 sur 2 détenteurs\N{NO-BREAK SPACE}: "
                "son processus ne donne aucun signe de vie depuis 35 s"
            )
    with override("fr"):
        assert translated("100 % sure") == "100 % sure"


def test_the_field_of_a_model() -> None:
    """Forms show a translated name, and migrations don't contain it."""
    field = Product._meta.get_field("fencing_token")
    with override("de"):
        assert str(field.verbose_name) == "Fencing-Token"
    assert "verbose_name" not in field.deconstruct()[3]


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("de", ["verwaist", "Der Doktor hat", "sie hat keine TTL", "2 Sperren aufheben"]),
        ("es", ["huérfano", "El diagnóstico", "no tiene TTL", "Levantar 2 bloqueos"]),
        ("fr", ["orphelin", "Le diagnostic", "il n’a pas de TTL", "Lever 2 verrous"]),
        ("zh-hans", ["失效", "诊断发现", "没有 TTL", "清除 2 个锁"]),
    ],
)
def test_a_page(
    admin_client: Client, redis: Redis, settings: Any, language: str, words: list[str]
) -> None:
    """The admin speaks the user's language, plurals and the doctor's count included."""
    settings.ROOT_URLCONF = "tests.admin.urls"
    granted(redis, "job")
    granted(redis, "old")
    redis.persist("redislock:{old}")
    stale, doctor, why, clear = words
    with override(language):
        page = admin_client.get("/admin/django_redislock/lockstatus/").content.decode()
        assert stale in page
        assert doctor in page
        assert why in page
        ids = ["default:job", "default:old"]
        choice = {"action": "clear_locks", "_selected_action": ids, "index": "0"}
        page = admin_client.post("/admin/django_redislock/lockstatus/", choice).content.decode()
        assert clear in page

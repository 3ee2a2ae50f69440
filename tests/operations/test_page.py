"""docs/operations.md: its examples can be run, and its tables are complete."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import pytest

from django_redislock.inspection.clearing import ClearOutcome
from django_redislock.inspection.sheet import HOLDERS, LOCKS, PAST, SETTINGS, WAITERS, Column
from django_redislock.management.arguments import PLACEHOLDER
from django_redislock.management.commands.redislock import SUBCOMMANDS, Command, Parser
from tests.operations.schema import PAGE

OURS = ("list", "show", "clear", "forget-note", "watch", "fence", "config")
EXAMPLES = re.findall(r"^ *\$ python manage\.py redislock (.+)$", PAGE, re.MULTILINE)
PRINTED = re.findall(r"^  manage\.py redislock (.+)$", PAGE, re.MULTILINE)


def parser_of(subcommand: str) -> Parser:
    parser = Parser()
    SUBCOMMANDS[subcommand].add_arguments(parser)
    return parser


def section(title: str) -> str:
    return re.split(r"\n## ", PAGE.partition(f"\n## {title}\n")[2])[0]


def test_there_are_examples() -> None:
    """Each subcommand has an example."""
    assert {shlex.split(example)[0] for example in EXAMPLES} == set(OURS)
    assert PRINTED


@pytest.mark.parametrize("example", [*EXAMPLES, *PRINTED])
def test_examples(example: str) -> None:
    """The command accepts each example."""
    words = shlex.split(example.partition(" | ")[0].replace(PLACEHOLDER, "stuck"))
    parsed: Namespace = Command().create_parser("manage.py", "redislock").parse_args(words)
    assert parsed.subcommand == words[0]


@pytest.mark.parametrize("subcommand", OURS)
def test_options(subcommand: str) -> None:
    """The section of a subcommand documents exactly its options."""
    options = {
        option
        for action in parser_of(subcommand)._actions
        for option in action.option_strings
        if option.startswith("--") and option not in ("--help",)
    }
    base = {option for action in Parser()._actions for option in action.option_strings}
    options -= base
    text = section(subcommand)
    documented = set(re.findall(r"`(--[\w-]+)", text))
    if subcommand == "watch":
        documented |= set(re.findall(r"`(--[\w-]+)", section("list")))
    assert documented == options | ({"--pattern"} & documented)


@pytest.mark.parametrize("columns", [LOCKS, SETTINGS, HOLDERS, WAITERS, PAST])
def test_titles_of_columns(columns: Sequence[Column[Any]]) -> None:
    """The examples have the titles that are printed."""
    titles = (one.title.upper() for one in columns if not (one.wide or one.sparse))
    assert re.search(f"^{' +'.join(map(re.escape, titles))}$", PAGE, re.MULTILINE)


def test_outcomes() -> None:
    """All outcomes are documented."""
    table = PAGE.partition("\n### A clearing\n")[2]
    row = next(line for line in table.splitlines() if line.startswith("| `outcome` |"))
    assert set(re.findall(r"`([\w ]+)`", row)) == {"outcome", *ClearOutcome}

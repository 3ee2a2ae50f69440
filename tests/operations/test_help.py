"""`--help` of each subcommand has examples that can be run, and its exit codes."""

from __future__ import annotations

import re
import shlex

import pytest

from django_redislock.management.arguments import HELP
from django_redislock.management.commands.redislock import SUBCOMMANDS, Command
from tests.operations.schema import PAGE
from tests.operations.test_page import OURS


def test_each_has_one() -> None:
    assert HELP.keys() == SUBCOMMANDS.keys()


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_examples(name: str) -> None:
    """The command accepts each example, and shows it on a line of its own."""
    parser = Command().create_parser("manage.py", "redislock")
    for example in HELP[name].examples:
        words = shlex.split(example.partition(" > ")[0])
        assert parser.parse_args(words).subcommand == name
        assert f"\n  manage.py redislock {example}\n" in HELP[name].epilog()


@pytest.mark.parametrize("name", OURS)
def test_exit_codes(name: str) -> None:
    """They are those of docs/operations.md; but for signals, which are of the shell."""
    table = PAGE.partition("\n## Exit codes\n")[2].partition("\n## ")[0]
    head, _, *rows = [line for line in table.splitlines() if line.startswith("|")]
    column = [cell.strip() for cell in head.split("|")].index(name)
    documented = {
        int(row.split("|")[1])
        for row in rows
        if row.split("|")[column].strip() and "+" not in row.split("|")[1]
    }
    printed = map(int, re.findall(r"^  (\d+) ", HELP[name].epilog(), re.MULTILINE))
    assert set(printed) == documented - {141}

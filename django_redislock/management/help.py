"""What `--help` of each subcommand says after its options: examples and exit codes."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from ..commands import BUSY, LOST, UNAVAILABLE
from .failing import FREE, MISCONFIGURED, USAGE, WRONG

_CODES = {
    0: "done",
    WRONG: "something is wrong; stderr says what",
    USAGE: "wrong usage",
    FREE: "nobody holds the lock",
    UNAVAILABLE: "Redis could not be asked",
    BUSY: "somebody else holds the lock",
    LOST: "the lease was lost; another run may have overlapped",
    MISCONFIGURED: "wrong settings",
}
_ALWAYS = (0, USAGE, MISCONFIGURED)


class Help(NamedTuple):
    examples: tuple[str, ...]
    codes: tuple[int, ...] = ()
    """The exit codes besides those that all subcommands have."""

    def epilog(self) -> str:
        lines = ["examples:", *(f"  manage.py redislock {one}" for one in self.examples)]
        codes = sorted({*_ALWAYS, *self.codes})
        return "\n".join([*lines, "", "exit codes:", *(f"  {c:<3} {_CODES[c]}" for c in codes)])


HELP = {
    "list": Help(("list --state stale", "list --host web3: -o wide"), (WRONG, UNAVAILABLE)),
    "show": Help(("show invoice:42",), (WRONG, FREE, UNAVAILABLE)),
    "clear": Help(
        ("clear invoice:42", "clear --stale --host web3:"), (WRONG, FREE, UNAVAILABLE, BUSY)
    ),
    "watch": Help(("watch", "watch --pattern 'report:*' --interval 1"), (UNAVAILABLE,)),
    "fence": Help(("fence invoice:42 --model=shop.Invoice",), (WRONG, UNAVAILABLE, BUSY)),
    "config": Help(("config invoice:42",)),
    "doctor": Help(("doctor", "doctor --fail-level WARNING --json"), (WRONG, UNAVAILABLE)),
    "run": Help(("run backup --wait 0 -- ./backup.sh",), (UNAVAILABLE, BUSY, LOST)),
    "jobs": Help(("jobs", "jobs --overdue --failing"), (WRONG, UNAVAILABLE)),
    "pause": Help(
        ("pause shop.periodic.report --reason 'the printer is broken'",), (UNAVAILABLE,)
    ),
    "resume": Help(("resume shop.periodic.report",), (UNAVAILABLE,)),
    "metrics": Help(("metrics", "metrics --serve 127.0.0.1:9108"), (WRONG, UNAVAILABLE)),
    "completion": Help(("completion bash > ~/.redislock.bash",)),
}


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Leaves the lines of the examples as they are."""

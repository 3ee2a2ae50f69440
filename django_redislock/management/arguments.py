"""Arguments that several subcommands share, and what is made from them."""

from __future__ import annotations

import argparse
import getpass
import os
import shlex
import socket
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, SystemCheckError
from django.db import connections

from ..base import people
from ..base.exceptions import LockError, LockUnavailable
from ..base.servers import aliases_of
from ..commands import BUSY, LOST, UNAVAILABLE, USAGE, Stderr
from ..inspection import Inspector, Listing, LockInfo, inspectors
from ..inspection.inspector import RedlockInspector, inspector_of
from ..inspection.words import clean
from ..primitives.keys import validate_name
from ..settings import conf
from ..settings.validators import MAX_TTL

# How subcommands fail: one line on stderr, and an exit code from docs/operations.md.


WRONG = 1
"""argparse's exit code."""
FREE = 3
"""The exit code of service managers for a service that is not running."""
MISCONFIGURED = 78
"""EX_CONFIG of sysexits.h."""
_NOBODY_READS = 128 + 13
"""A shell's exit code for a program that SIGPIPE has ended."""


class OperatorCommand(BaseCommand):
    """Ends with an exit code. Known errors are one line, without a traceback."""

    def carry_out(self, options: dict[str, Any]) -> int:
        """Do it, and return the exit code."""
        raise NotImplementedError

    def check(self, *args: Any, **options: Any) -> None:
        try:
            super().check(*args, **options)
        except SystemCheckError as error:
            error.returncode = MISCONFIGURED
            raise

    def handle(self, *_args: Any, **options: Any) -> None:
        self.stderr = Stderr(self.stderr)
        try:
            code = self.carry_out(options)
            self.stdout.flush()
        except LockUnavailable as error:
            raise CommandError(clean(str(error)), returncode=UNAVAILABLE) from error
        except LockError as error:
            raise CommandError(clean(str(error)), returncode=WRONG) from error
        except ImproperlyConfigured as error:
            raise CommandError(clean(str(error)), returncode=MISCONFIGURED) from error
        except BrokenPipeError:
            # As with `| head`. The interpreter would flush once more at its end, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stdout.fileno())
            code = _NOBODY_READS
        if code:
            sys.exit(code)


def using_of(options: dict[str, Any], name: str = "") -> str:
    """The alias of the server of a name, or of most locks; of Redlocks, the first one."""
    using: str = options["using"] or aliases_of(conf.listed(name).using)[0]
    return using


def listing(options: dict[str, Any]) -> Listing:
    """List the locks of one server."""
    using = using_of(options)
    its = [Inspector(using, cache_locks=True)] if options["cache_locks"] else inspectors(using)
    return Listing(its)


def find(
    options: dict[str, Any], name: str
) -> tuple[Inspector | RedlockInspector, LockInfo | None]:
    """Find one lock, and what inspects it.

    It may have an alias of its own in the settings, or be a Redlock. If nobody holds a lock of
    that name, it may be the key of a `cache.lock()`.
    """
    using = options["using"] or conf.listed(name).using
    by_key = Inspector(aliases_of(using)[0], cache_locks=True)
    if options["cache_locks"]:
        return by_key, by_key.get(name)
    its = inspector_of(using)
    lock = its.get(name)
    if lock is None and (other := by_key.get(name)) is not None:
        return by_key, other
    return its, lock


PLACEHOLDER = "…"
"""Stands in commands to paste where a reason has to be written."""


def reason_argument(text: str) -> str:
    """Why an operator does it."""
    reason = people.clean(text).strip()
    if reason.casefold() in ("", "why", "reason", "...", PLACEHOLDER):
        raise ArgumentTypeError(f"write why, not {text!r}: the holder sees it, and the history")
    return reason


def operator() -> str:
    """Return who runs this command: user@host, as the operating system knows them."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # in a container users often have no names
        user = f"uid {os.getuid()}" if hasattr(os, "getuid") else "somebody"
    return people.clean(f"{user}@{socket.gethostname()}")


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Job = TypeVar("Job", bound=_Named)


NO_JOBS = "There are no jobs: no periodic.py of an installed app has an @periodic function."


def job_of_name(name: str, jobs: Sequence[Job]) -> Job:
    for job in jobs:
        if job.name == name:
            return job
    names = ", ".join(job.name for job in jobs)
    there = f"There is no job {name!r}. There are: {names}." if names else NO_JOBS
    raise CommandError(there, returncode=USAGE)


def command_line(subcommand: str, given: Mapping[str, Any], names: Sequence[str] = ()) -> str:
    """A command to paste into a shell; options that are None, False or "" are left out."""
    words = ["manage.py", "redislock", subcommand]
    for term, value in given.items():
        if value:
            words.append(f"--{term}" if value is True else f"--{term}={value}")
    if any(name.startswith("-") for name in names):
        words.append("--")
    return " ".join(map(_word, [*words, *names]))


def _word(text: str) -> str:
    """Quote a word for a shell; one with characters that can't be seen for bash, zsh and ksh."""
    if text.isprintable():
        return shlex.quote(text)
    seen = (c if c.isprintable() and c not in "\\'" else f"\\U{ord(c):08x}" for c in text)
    return f"$'{''.join(seen)}'"


# Types of arguments, for argparse.


def name_argument(text: str) -> str:
    """The name of a lock."""
    try:
        return validate_name(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def limit_argument(text: str) -> int | None:
    """A number of results; None: all."""
    if not text.isdecimal():
        raise ArgumentTypeError(f"write a number, 0 for all, not {text!r}")
    return int(text) or None


def number_argument(lowest: int, highest: int, what: str = "a number") -> Callable[[str], int]:
    def number(text: str) -> int:
        if not (text.isdecimal() and lowest <= int(text) <= highest):
            raise ArgumentTypeError(f"write {what} from {lowest} to {highest}, not {text!r}")
        return int(text)

    return number


def seconds_argument(text: str) -> float:
    return _seconds(text, 0, MAX_TTL, "write a number of seconds")


def interval_argument(text: str) -> float:
    return _seconds(text, 0.1, 3600, "write a number of seconds from 0.1 to 3600")


def _seconds(text: str, lowest: float, highest: float, advice: str) -> float:
    with suppress(ValueError):
        if lowest <= (seconds := float(text)) <= highest:
            return seconds
    raise ArgumentTypeError(f"{advice}, not {text!r}")


# What `--help` of each subcommand says after its options: examples and exit codes.


_CODES = {
    0: "done",
    WRONG: "something is wrong; stderr says what",
    USAGE: "wrong usage",
    FREE: "nobody holds the lock",
    UNAVAILABLE: "Redis could not be reached, or did not answer",
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
    "forget-note": Help(("forget-note export:7",), (WRONG, FREE, UNAVAILABLE)),
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
    "tasks": Help(
        ("tasks", "tasks reindex:7", "tasks reindex:7 --drop-claim"),
        (WRONG, FREE, UNAVAILABLE, BUSY),
    ),
    "sweep": Help(("sweep", "sweep api:acme"), (WRONG, UNAVAILABLE)),
    "records": Help(("records", "records --older-than 30d", "records --older-than 30d --delete")),
    "completion": Help(("completion bash > ~/.redislock.bash",)),
}


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Leaves the lines of the examples as they are."""


class Parser(CommandParser):
    """The parser of a subcommand, with arguments that several subcommands have.

    If it has a default for `program`, the arguments after the first `--` are the program: argparse
    itself would swallow a second `--`.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        if self.get_default("program") is None:
            return super().parse_known_args(args, namespace)
        given = list(args)
        end = given.index("--") if "--" in given else len(given)
        namespace, rest = super().parse_known_args(given[:end], namespace)
        namespace.program = given[end + 1 :]
        if not namespace.program:
            self.error("write the program after --")
        return namespace, rest

    def flag(self, name: str, help: str) -> None:
        self.add_argument(name, action="store_true", help=help)

    def name(self, help: str = "The lock.", **more: Any) -> None:
        """Take the name of a lock."""
        self.add_argument("name", metavar="NAME", type=name_argument, help=help, **more)

    def yes(self) -> None:
        self.flag("--yes", "Do it.")

    def json(self) -> None:
        self.flag("--json", "Write JSON, for programs.")

    def output(self) -> None:
        self.json()
        wide = "wide: more columns, and nothing is shortened."
        self.add_argument("-o", "--output", choices=["wide"], metavar="wide", help=wide)

    def server(self) -> None:
        which = "The CACHES alias of the locks; the default is in the settings."
        self.add_argument("--using", metavar="ALIAS", help=which)

    def using(self) -> None:
        self.server()
        which = "Only locks of cache.lock() and TimestampLocks, named by their keys in Redis."
        self.flag("--cache-locks", which)

    def host(self) -> None:
        who = "Only holders whose owner begins with this: 'web3:', 'web3:26138:'."
        self.add_argument("--host", default="", help=who)

    def database(self, help: str) -> None:
        """Take an alias of DATABASES."""
        self.add_argument("--database", choices=list(connections), help=help)

    def limit(self, what: str) -> None:
        most = f"Show at most this many {what}; 0: all; by default 100."
        self.add_argument("--limit", type=limit_argument, default=100, metavar="NUMBER", help=most)

    def by(self) -> None:
        who = "Your name, for the holder and the history; by default user@host of this process."
        self.add_argument("--by", metavar="WHO", type=people.clean, help=who)

    def reason(self, help: str) -> None:
        """Take why an operator does it."""
        self.add_argument("--reason", metavar="TEXT", type=reason_argument, help=help)

"""What all subcommands for operators have in common: where they ask, and how they fail."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from .. import conf
from ..commands import UNAVAILABLE
from ..exceptions import LockError, LockUnavailable
from ..inspection import Inspector
from ..keys import validate_name
from ..servers import aliases_of
from .formatting import clean

WRONG = 1
FREE = 3
"""As service managers say of a service: it is not running."""
MISCONFIGURED = 78
"""As in sysexits.h."""
_NOBODY_READS = 128 + 13
"""As a shell says of a program that SIGPIPE has ended."""


def add_using(parser: CommandParser) -> None:
    parser.add_argument(
        "--using",
        metavar="ALIAS",
        help="The alias of CACHES where the locks are; by default what the settings say.",
    )
    parser.add_argument(
        "--cache-locks",
        action="store_true",
        help="Those of cache.lock() and TimestampLocks, which are named by their keys in Redis.",
    )


def add_json(parser: CommandParser) -> None:
    parser.add_argument("--json", action="store_true", help="Write JSON, for programs.")


def name_argument(text: str) -> str:
    """For argparse: the name of a lock."""
    try:
        return validate_name(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def inspector(options: dict[str, Any], name: str = "") -> Inspector:
    """Where the locks are; a lock may have an alias of its own in the settings, and of the servers
    of a Redlock it is the first."""
    using = options["using"] or aliases_of(conf.policy(name, {}).using)[0]
    return Inspector(using, cache_locks=options["cache_locks"])


@contextmanager
def answering(command: BaseCommand) -> Iterator[None]:
    """Whatever goes wrong is one line on stderr and an exit code, without a traceback."""
    try:
        yield
        command.stdout.flush()
    except LockUnavailable as error:
        raise CommandError(clean(str(error)), returncode=UNAVAILABLE) from error
    except LockError as error:
        raise CommandError(clean(str(error)), returncode=WRONG) from error
    except ImproperlyConfigured as error:
        raise CommandError(clean(str(error)), returncode=MISCONFIGURED) from error
    except BrokenPipeError:
        # `| head`. At its end the interpreter would try once more, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), command.stdout.fileno())
        sys.exit(_NOBODY_READS)

"""How subcommands fail: one line on stderr, and an exit code from docs/operations.md."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from ..base.exceptions import LockError, LockUnavailable
from ..commands import UNAVAILABLE
from ..inspection.words import clean

WRONG = 1
USAGE = 2
"""argparse's exit code."""
FREE = 3
"""The exit code of service managers for a service that is not running."""
MISCONFIGURED = 78
"""EX_CONFIG of sysexits.h."""
_NOBODY_READS = 128 + 13
"""A shell's exit code for a program that SIGPIPE has ended."""


@contextmanager
def errors_as_exit_codes(command: BaseCommand) -> Iterator[None]:
    """Turn known errors into one line and an exit code, without a traceback."""
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
        # As with `| head`. The interpreter would flush once more at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), command.stdout.fileno())
        sys.exit(_NOBODY_READS)

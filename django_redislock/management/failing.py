"""How subcommands fail: one line on stderr, and an exit code that docs/operations.md tells."""

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
"""As argparse says it."""
FREE = 3
"""As service managers say of a service: it is not running."""
MISCONFIGURED = 78
"""As in sysexits.h."""
_NOBODY_READS = 128 + 13
"""As a shell says of a program that SIGPIPE has ended."""


@contextmanager
def errors_as_exit_codes(command: BaseCommand) -> Iterator[None]:
    """Whatever goes wrong within is told without a traceback."""
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

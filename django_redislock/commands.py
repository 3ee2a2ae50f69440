"""`LockedCommand`: a management command that runs in one place at a time."""

from __future__ import annotations

import inspect
import time
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, _SubParsersAction
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper

from .base.clock import now
from .base.exceptions import LeaseLost, LockNotAcquired, LockUnavailable
from .base.process import SIGNALLED, ended_by_signals
from .inspection.waiting_line import progress_line, waiting_line
from .lease.lease import Lease
from .lease.lock import Lock, OnConflict_co, Options
from .locks.decorate import NO_LOCK, acquire
from .primitives.keys import validate_name
from .settings.naming import name_maker
from .settings.validators import validate_seconds, validate_ttl, validate_wait

# Exit codes. The first two mean the same in sysexits.h: "try again later" and "a service is
# unavailable". The third is its "protocol error", the nearest one, which hardly any program uses.
BUSY = 75
UNAVAILABLE = 69
LOST = 76
USAGE = 2
"""Wrong usage, as argparse has it."""

INSIDE = 'write lock_options = {{"reentrant": True}} in the class of the inner command'

_LOOK = 0.5
"""Seconds between two looks whether the lease is lost."""

_RUNNING: ContextVar[tuple[tuple[BaseCommand, Callable[..., Any]], ...]] = ContextVar(
    "django_redislock_running", default=()
)
"""The commands in whose `handle()` we are, each with the function that took its lock."""


class Stderr(OutputWrapper):
    """A stderr that may be closed, full or a broken pipe. A message that can't be written must not
    change the exit code."""

    def __init__(self, stderr: OutputWrapper) -> None:
        out: Any = stderr._out
        super().__init__(out, stderr.ending)
        self.style_func = stderr.style_func

    def write(self, *args: Any, **options: Any) -> Any:
        if self._out is not None:  # sys.stderr is None if it was closed from the start
            with suppress(OSError, ValueError):  # ValueError: it has been closed since
                super().write(*args, **options)

    def isatty(self) -> bool:
        # Not by `suppress`: a signal's exception may be an OSError, too.
        there = self._out is not None and not getattr(self._out, "closed", False)
        return there and super().isatty()


def wait_argument(text: str) -> float | None:
    """Parse the `wait` of a lock, for argparse."""
    if text == "forever":
        return None
    try:
        return validate_wait(float(text))
    except ValueError:
        raise ArgumentTypeError(
            f"write a number of seconds (0: try once) or forever, not {text!r}"
        ) from None


def _seconds(text: str, validate: Callable[[float], float]) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise ArgumentTypeError(f"write a number of seconds, not {text!r}") from None
    try:
        return validate(seconds)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


ARGUMENTS: dict[str, dict[str, Any]] = {
    "wait": {
        "type": wait_argument,
        "metavar": "SECONDS",
        "help": "How long to wait for the lock; 0: try once; or: forever.",
    },
    "ttl": {
        "type": partial(_seconds, validate=validate_ttl),
        "metavar": "SECONDS",
        "help": "How long the lock outlives a crash; it is renewed while the command runs.",
    },
    "at_least_for": {
        "type": partial(_seconds, validate=partial(validate_seconds, name="at_least_for")),
        "metavar": "SECONDS",
        "help": "Hold the lock for at least this long, even if the command ends sooner.",
    },
    "on_conflict": {
        "choices": ["raise", "skip"],
        "help": f"If somebody else has the lock: fail, with exit code {BUSY}, or skip the run.",
    },
    "unavailable": {
        "choices": ["raise", "run", "skip"],
        "help": f"If Redis can't be reached: fail ({UNAVAILABLE}), run without the lock, or skip.",
    },
}
"""Options of `CommandOptions` that the command line has as well: `--lock-wait` and the others."""

_DESTS = {f"lock_{name}": name for name in ARGUMENTS}


class CommandOptions(Options[OnConflict_co], total=False):
    """The options of the lock of a command."""

    at_least_for: float
    """How long to hold the lock at least, in seconds, even if the command ends sooner."""


class LockedCommand(BaseCommand):
    """Takes a lock around `handle()`, whoever calls it. Put it before other base classes.

    An option of the command line beats `lock_options`, which beats the settings.
    """

    lock_name: str | Callable[..., str] | None = None
    """A template over the options, such as `"import:{source}"`, or a method that gets them;
    by default `command:` and the name of the command."""
    lock_options: CommandOptions[Any] = {}
    """Options of `redis_lock`, such as `{"ttl": 60, "wait": 0, "on_conflict": "skip"}`; and
    `at_least_for`, the seconds for which to hold the lock even if the command ends sooner."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        defined_in = next(kind for kind in cls.__mro__ if "handle" in vars(kind))
        if defined_in is cls:
            handle = cls.handle
        elif issubclass(defined_in, LockedCommand):
            return
        else:

            def handle(self: Any, *args: Any, **options: Any) -> Any:
                # Looked up at each call: a subclass may have put another class in between.
                return super(cls, self).handle(*args, **options)

        cls.handle = _under_lock(handle)  # type: ignore[method-assign]

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        # Not in add_arguments(), which commands override without calling super().
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        if isinstance(self.lock_name, str):
            # A template that names no option fails here, even for --help.
            name_maker(self.lock_name, _taking({*_dests(parser), *self.stealth_options}))
        if not isinstance(parser, ArgumentParser):
            # That of django-typer has only the options of its functions; code may pass these.
            self.stealth_options = (*self.stealth_options, *_DESTS, "no_lock")
            return parser
        group: Any = parser.add_argument_group("lock")
        # Options that are not given stay absent: None is a value, and means no limit.
        add = partial(self.add_base_argument, group, default=SUPPRESS)
        for name, given in ARGUMENTS.items():
            add(f"--lock-{name.replace('_', '-')}", **given)
        add("--no-lock", action="store_true", help="Run without the lock.")
        return parser

    def _locked(self, handle: Callable[..., Any], args: Any, given: Any, options: Any) -> Any:
        """Run `handle()` under the lock."""
        terms: Any = {"label": f"manage.py {self._command()}", **self.lock_options, **given}
        at_least_for = validate_seconds(terms.pop("at_least_for", 0.0), "at_least_for")
        name = self._lock_name({**options, "args": args})
        try:
            validate_name(name)
        except ValueError as error:  # of an option's value
            raise self._failure(str(error), USAGE) from error
        lock = Lock(name, **terms)._advising(INSIDE)
        lease = None
        quiet = not options.get("verbosity", 1)
        try:
            with ended_by_signals(), ExitStack() as stack:
                with waiting_line(lock, Stderr(self.stderr), quiet=quiet):
                    # The lock itself would refuse to skip the body of a with statement.
                    lease = stack.enter_context(acquire(lock))
                stack.push(partial(_linger, lease, now() + at_least_for))
                with progress_line(lease, Stderr(self.stderr), quiet=quiet):
                    return handle(self, *args, **options)
        except NO_LOCK as error:
            if lease is not None:  # it is about another lock, taken by the command
                raise
            return self._settle(lock, error, quiet=quiet)
        except LeaseLost as error:
            if lease is None or lease._lifetime.lost is None:
                raise
            raise self._failure(f"{error} Another run may have overlapped.", LOST) from error

    def _settle(self, lock: Lock, error: LockNotAcquired | LockUnavailable, *, quiet: bool) -> Any:
        """Return the result of a run that did not get its lock."""
        on_conflict: Any = lock._policy().on_conflict
        code = BUSY
        if isinstance(error, LockUnavailable):
            on_conflict, code = "skip" if error.skips else "raise", UNAVAILABLE
        if callable(on_conflict):
            return on_conflict(error)
        if on_conflict == "raise":
            raise self._failure(str(error), code) from error
        if not quiet:
            # On stderr, since stdout may be a file of data.
            Stderr(self.stderr).write(f"Skipped: {error}", self.style.WARNING)
        return None

    def _failure(self, text: str, code: int) -> CommandError:
        self.stderr = Stderr(self.stderr)  # Django writes the text there before it exits
        return CommandError(text, returncode=code)

    def _lock_name(self, options: dict[str, Any]) -> str:
        if callable(self.lock_name):
            return self.lock_name(**options)
        template = self.lock_name or f"command:{self._command()}"
        named = {dest: value for dest, value in options.items() if dest.isidentifier()}
        return name_maker(template, _taking(named))(*named.values())

    def _command(self) -> str:
        # Django names a command after its module, too.
        return type(self).__module__.rpartition(".")[2]


def _linger(lease: Lease, until: float, kind: type[BaseException] | None, *_: object) -> None:
    """Hold the lease until then, unless a signal ends the command or this, or the lease ends."""
    if kind is not None and issubclass(kind, SIGNALLED):
        return
    with suppress(*SIGNALLED):  # the command itself has ended
        while lease._lifetime.alive and (left := until - now()) > 0:
            time.sleep(min(left, _LOOK))


def _under_lock(handle: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(handle)
    def locked(self: LockedCommand, *args: Any, **options: Any) -> Any:
        running = _RUNNING.get()
        taken_by = [function for command, function in running if command is self]
        # Called by a subclass through super(), the command has the lock. Called by itself it is
        # another run, like that of another object.
        if taken_by and locked not in taken_by:
            return handle(self, *args, **options)
        given = {name: options.pop(dest) for dest, name in _DESTS.items() if dest in options}
        before = _RUNNING.set((*running, (self, locked)))
        try:
            if options.pop("no_lock", False):
                return handle(self, *args, **options)
            return self._locked(handle, args, given, options)
        finally:
            _RUNNING.reset(before)

    return locked


def _taking(dests: Iterable[str]) -> Callable[..., None]:
    """Return a function of these options, so that names are made as for a decorator."""

    def command() -> None: ...

    # Positional-only, since then an argument may be called `from` or `class`.
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(dest, inspect.Parameter.POSITIONAL_ONLY)
            for dest in dests
            if dest.isidentifier()
        ]
    )
    command.__qualname__ = "the command"
    return command


def _dests(parser: Any) -> Iterator[str]:
    """Yield the names of all options of a parser and of its subcommands."""
    yield from getattr(parser, "_defaults", ())
    for action in parser._actions:
        yield action.dest
        if isinstance(action, _SubParsersAction):
            for subparser in action.choices.values():
                yield from _dests(subparser)

"""LockedCommand: what a management command does with its lock, and without it."""

from __future__ import annotations

import inspect
import io
import multiprocessing
import os
import re
import signal
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import BaseCommand, LabelCommand, SystemCheckError
from redis import Redis

from django_redislock import (
    LeaseLost,
    LeaseRevoked,
    LockError,
    LockNotAcquired,
    LockReentered,
    LockUnavailable,
    current_lease,
    redis_lock,
)
from django_redislock.base.clock import now
from django_redislock.commands import BUSY, LOST, UNAVAILABLE, USAGE, LockedCommand
from django_redislock.management.arguments import MISCONFIGURED
from django_redislock.management.subcommands.run import NOT_EXECUTABLE, NOT_FOUND
from django_redislock.testing import redis_unavailable
from tests.docs.world import examples
from tests.manage import PROGRAM, Manage, with_stderr
from tests.test_decorators import held_elsewhere
from tests.waiting import eventually

NOWHERE = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere"}}
FIRST_PROCESS = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
DOCS = Path(__file__).parent.parent / "docs" / "commands.md"


def command(
    body: Callable[..., Any] = lambda: None, *, base: type = LockedCommand, **attributes: Any
) -> Any:
    """A command object whose `handle()` calls `body`."""

    def handle(self: BaseCommand, *args: Any, **options: Any) -> Any:
        return body(**{name: options[name] for name in inspect.signature(body).parameters})

    kind = type("Command", (base,), {"handle": handle, "__module__": __name__, **attributes})
    return kind()


def taking(*names: str) -> Callable[..., None]:
    """An `add_arguments` that does not call that of its base class, like many."""

    def add_arguments(self: BaseCommand, parser: Any) -> None:
        for name in names:
            parser.add_argument(name)

    return add_arguments


class TestTheLock:
    """The lock is held while `handle()` runs."""

    def test_is_held_and_released(self) -> None:
        """The lock has the name and label of the command, and its lease is the current one."""
        held = []
        call_command(command(lambda: held.append(current_lease())))
        (lease,) = held
        assert (lease.name, lease.label) == ("command:test_commands", "manage.py test_commands")
        assert lease.state == "released"
        assert redis_lock("command:test_commands").holder() is None

    def test_is_taken_after_the_checks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A command whose checks fail takes no lock."""
        held = []

        def check(self: Any, **_: Any) -> None:
            held.append(redis_lock("command:test_commands").holder())
            raise SystemCheckError("broken")

        monkeypatch.setattr(BaseCommand, "check", check)
        with pytest.raises(SystemCheckError):
            call_command(command(), skip_checks=False)
        assert held == [None]

    def test_of_a_command_that_calls_itself(self) -> None:
        """It raises LockReentered instead of waiting for itself."""
        inner: list[Any] = []
        outer = command(lambda: call_command(inner[0]))
        inner.append(outer)
        with pytest.raises(LockReentered):
            call_command(outer)
        assert redis_lock("command:test_commands").holder() is None

    def test_of_what_it_returns(self) -> None:
        """Django prints what `handle()` returns."""
        out = io.StringIO()
        assert call_command(command(lambda: "ten rows"), stdout=out) == "ten rows"
        assert out.getvalue() == "ten rows\n"

    def test_around_other_base_classes(self) -> None:
        """The base class may bring its own `handle()`."""
        seen: list[Any] = []

        class Each(LockedCommand, LabelCommand):
            def handle_label(self, label: str, **_: Any) -> None:
                seen.append((label, current_lease().name))

        call_command(Each(), "a", "b")
        assert seen == [("a", "command:test_commands"), ("b", "command:test_commands")]

    def test_behind_base_command(self) -> None:
        """Python refuses this order, which would run without a lock."""
        with pytest.raises(TypeError, match="MRO"):
            type("Command", (BaseCommand, LockedCommand), {})


class TestHandle:
    """The lock is taken around `handle()`, whoever calls it, and whichever class defines it."""

    def test_called_directly(self) -> None:
        """Tests may call `handle()` without Django's part."""
        held: list[Any] = []
        some = command(lambda: held.append(current_lease().ttl))
        some.handle()
        some.handle(lock_ttl=3)
        assert held[1] == 3
        with held_elsewhere("command:test_commands"):
            with pytest.raises(CommandError) as busy:
                some.handle(lock_wait=0)
            assert busy.value.returncode == 75
            with pytest.raises(LockError):
                some.handle(no_lock=True)  # it runs, and has no lease
        assert len(held) == 2

    def test_looks_like_the_command_s_own(self) -> None:
        """The wrapped `handle()` keeps its signature and its documentation."""

        class Some(LockedCommand):
            def handle(self, *args: Any, source: str = "", **options: Any) -> None:
                """Reads."""

        assert "source" in inspect.signature(Some.handle).parameters
        assert (Some.handle.__name__, Some.handle.__doc__) == ("handle", "Reads.")

    def test_replaced_by_a_mock(self) -> None:
        """The mock is called, and leaves nothing behind."""
        held: list[Any] = []
        some = command(lambda: held.append(current_lease().name))
        with mock.patch.object(some, "handle", return_value=None) as handle:
            call_command(some)
        handle.assert_called_once()
        assert not held
        call_command(some)
        assert held == ["command:test_commands"]

    def test_spied_on(self) -> None:
        """The class then has a function that calls the one that takes the lock."""
        held: list[Any] = []
        some = command(lambda: held.append(current_lease().name))
        handle = type(some).handle
        with mock.patch.object(type(some), "handle", autospec=True, side_effect=handle) as spy:
            call_command(some, stdout=io.StringIO())
        spy.assert_called_once()
        assert held == ["command:test_commands"]

    @pytest.mark.parametrize("no_lock", [False, True])
    def test_that_calls_that_of_its_base_class(self, no_lock: bool) -> None:
        """One run takes one lock, or none."""
        leases: list[Any] = []

        def see() -> None:
            try:
                leases.append(current_lease())
            except LockError:
                leases.append(None)

        class Base(LockedCommand):
            def handle(self, *args: Any, **options: Any) -> None:
                see()

        class Middle(Base):
            pass

        class Some(Middle):
            def handle(self, *args: Any, **options: Any) -> None:
                see()
                super().handle(*args, **options)
                see()

        call_command(Some(), no_lock=no_lock)
        assert len(leases) == 3
        assert len(set(leases)) == 1
        assert (leases[0] is None) == no_lock

    def test_of_base_classes_in_any_order(self) -> None:
        """Other base classes with a `handle()` are called in Python's order."""
        seen: list[Any] = []

        class First:
            def handle(self, *args: Any, **options: Any) -> None:
                seen.append(("first", current_lease().name))
                super().handle(*args, **options)  # type: ignore[misc]

        class Ours(LockedCommand):
            lock_name = "ours"

        class Labels(LabelCommand):
            def handle(self, *labels: str, **options: Any) -> None:
                seen.append(("labels", current_lease().name))
                super().handle(*labels, **options)

        class Some(First, Ours, Labels):
            def handle_label(self, label: str, **options: Any) -> None:
                seen.append((label, current_lease().name))

        call_command(Some(), "a", "b")
        assert seen == [(who, "ours") for who in ("first", "labels", "a", "b")]

    def test_in_two_threads_at_once(self) -> None:
        """While one thread runs an object's `handle()`, another thread does not get in."""
        errors: list[Any] = []

        def again() -> None:
            try:
                call_command(some, lock_wait=0)
            except CommandError as error:
                errors.append(error.returncode)

        def body() -> None:
            thread = threading.Thread(target=again)
            thread.start()
            thread.join()

        some = command(body)
        call_command(some)
        assert errors == [75]


class TestTheName:
    """The lock's name comes from the command or from its options."""

    def test_is_a_template_over_the_options(self) -> None:
        """Defaults and positional arguments count; an option may be a keyword of Python."""
        names: list[str] = []
        importer = command(
            lambda: names.append(current_lease().name),
            lock_name="import:{source}:{from!s}:{verbosity}",
            add_arguments=taking("source", "--from"),
        )
        call_command(importer, "bank", "--from", "2026")
        call_command(importer, "bank", verbosity=0, **{"from": 2025})
        call_command(importer, "post")
        assert names == ["import:bank:2026:1", "import:bank:2025:0", "import:post:None:1"]

    def test_of_options_of_subcommands(self) -> None:
        """Options of subcommands count, and so do defaults that a parser sets."""
        names: list[str] = []

        def add_arguments(self: Any, parser: Any) -> None:
            one = parser.add_subparsers().add_parser("one")
            one.add_argument("source")
            one.set_defaults(kind="x")

        importer = command(
            lambda: names.append(current_lease().name),
            lock_name="{kind}:{source}",
            add_arguments=add_arguments,
        )
        call_command(importer, "one", "bank")
        assert names == ["x:bank"]

    @pytest.mark.parametrize(
        "lock_name", ["label:{args[0]}", lambda self, args, **options: f"label:{args[0]}"]
    )
    def test_of_what_a_label_command_takes(self, lock_name: Any) -> None:
        """Its positional arguments count, which Django calls `args`."""
        names: list[str] = []

        class Each(LockedCommand, LabelCommand):
            def handle_label(self, label: str, **_: Any) -> None:
                names.append(current_lease().name)

        Each.lock_name = lock_name
        call_command(Each(), "a")
        assert names == ["label:a"]

    def test_of_an_option_that_is_not_there(self) -> None:
        """Every call fails, --help included, and the error says which options there are."""
        wrong = command(lock_name="import:{sorce}", add_arguments=taking("source"))
        with pytest.raises(ValueError, match=r"'sorce', which the command.*It has: .*source"):
            call_command(wrong, "bank")
        with pytest.raises(ValueError, match="'sorce'"):
            wrong.print_help("manage.py", "wrong")

    def test_from_a_method(self) -> None:
        """A method for the name gets the options."""
        names: list[str] = []
        importer = command(
            lambda: names.append(current_lease().name),
            lock_name=lambda self, source, **options: f"import:{source.lower()}",
            add_arguments=taking("source"),
        )
        call_command(importer, "BANK")
        assert names == ["import:bank"]

    @pytest.mark.parametrize(
        ("source", "says"), [("", "name is empty"), ("a\nb", "can't be printed")]
    )
    def test_that_is_no_name(self, source: str, says: str) -> None:
        """The rules for names are those of other locks. An option may break them, so that is wrong
        usage, and no traceback."""
        with pytest.raises(CommandError, match=says) as caught:
            call_command(command(lock_name="{source}", add_arguments=taking("source")), source)
        assert caught.value.returncode == USAGE


class TestOptions:
    """The command line, the class and the settings have options."""

    def test_beat_the_class_which_beats_the_settings(self, settings: Any) -> None:
        """The command line comes first, then the class, then the settings."""
        settings.REDISLOCK = {"LOCKS": {"command:*": {"TTL": 3}}}
        ttls = []
        call_command(command(lambda: ttls.append(current_lease().ttl)))
        from_class = command(lambda: ttls.append(current_lease().ttl), lock_options={"ttl": 4})
        call_command(from_class)
        call_command(from_class, "--lock-ttl", "5")
        call_command(from_class, lock_ttl=6)
        assert ttls == [3, 4, 5, 6]

    @pytest.mark.parametrize("given", [("--lock-wait", "0"), ("--lock-wait=0",)])
    def test_wait(self, given: tuple[str, ...]) -> None:
        """With 0, the command tries once."""
        with held_elsewhere("command:test_commands"), pytest.raises(CommandError) as busy:
            call_command(command(lock_options={"wait": None}), *given)
        assert busy.value.__cause__.waited < 5

    @pytest.mark.parametrize(
        ("given", "options"), [(("--lock-wait", "forever"), {}), ((), {"lock_wait": None})]
    )
    def test_wait_for_ever(self, given: Any, options: Any) -> None:
        """The command line has a word for it; from code, None means no limit."""
        ran = threading.Event()
        waiter = command(ran.set, lock_options={"wait": 0})
        with held_elsewhere("command:test_commands"):
            thread = threading.Thread(target=call_command, args=(waiter, *given), kwargs=options)
            thread.start()
            assert not ran.wait(0.1)
        thread.join()
        assert ran.is_set()

    def test_are_not_seen_by_handle(self) -> None:
        """`handle()` gets the options that it would get without the mixin."""
        seen: list[Any] = []

        def handle(self: BaseCommand, *args: Any, **options: Any) -> None:
            seen.append(set(options))

        call_command(command(base=BaseCommand, handle=handle))
        locked = command(handle=handle)
        call_command(locked, lock_wait=0, lock_ttl=5, lock_on_conflict="skip", no_lock=False)
        assert seen[0] == seen[1]

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            (["--lock-wait=soon"], "seconds"),
            (["--lock-wait=-1"], "seconds"),
            (["--lock-wait=nan"], "seconds"),
            (["--lock-ttl=0"], "between 0.1"),
            (["--lock-ttl=long"], "seconds"),
            (["--lock-at-least-for=-1"], "between 0"),
            (["--lock-at-least-for=long"], "seconds"),
            (["--lock-on-conflict=shrug"], "invalid choice"),
        ],
    )
    def test_of_wrong_values(self, given: list[str], says: str) -> None:
        """A wrong value is a usage error that says what to write."""
        with pytest.raises(CommandError, match=says):
            call_command(command(), *given)

    def test_stand_in_the_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The options have a group of their own; a command may hide one."""
        some = command(suppressed_base_arguments={"--lock-ttl"})
        some.print_help("manage.py", "some")
        help = capsys.readouterr().out
        assert "\nlock:\n" in help
        assert all(name in help for name in ("--lock-wait", "--lock-on-conflict", "--no-lock"))
        assert "How long the lock outlives" not in help

    def test_no_lock(self) -> None:
        """The command runs while somebody else has the lock, and has no lease."""
        ran = []

        def body() -> None:
            with pytest.raises(LockError):
                current_lease()
            ran.append(True)

        unlocked = command(body)
        with held_elsewhere("command:test_commands"):
            call_command(unlocked, lock_wait=0, lock_on_conflict="skip", verbosity=0)
            call_command(unlocked, "--no-lock")
            call_command(unlocked, no_lock=True)
        assert ran == [True, True]


class OwnParser:
    """As TyperCommand of django-typer makes it: it knows the options, and takes no more."""

    _mutually_exclusive_groups: ClassVar[list[Any]] = []
    _actions: ClassVar[list[Any]] = [
        SimpleNamespace(dest="source", option_strings=[], required=True, nargs=1)
    ]

    def parse_args(self, args: list[str] | None = None) -> Namespace:
        common = dict.fromkeys(("no_color", "force_color"), False)
        return Namespace(args=args, source=args[0] if args else None, **common)

    def add_argument(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError


class OwnParserCommand(BaseCommand):
    def create_parser(self, *_: Any, **__: Any) -> Any:
        return OwnParser()

    def handle(self, *args: Any, **options: Any) -> str:
        return f"{args} {sorted(options)} {current_lease().name}"


class TestOtherParsers:
    """A base class may parse the command line without argparse."""

    def test_the_lock(self) -> None:
        """The name is a template over its options; from code, it takes the options of locks."""
        bases = LockedCommand, OwnParserCommand
        its = type("Command", bases, {"lock_name": "import:{source}", "__module__": __name__})
        out = io.StringIO()
        call_command(its(), "bank", stdout=out, lock_wait=0)
        options = "['force_color', 'no_color', 'skip_checks', 'source', 'stdout']"
        assert out.getvalue() == f"('bank',) {options} import:bank\n"
        with held_elsewhere("import:bank"), pytest.raises(CommandError) as busy:
            call_command(its(), "bank", lock_wait=0)
        assert busy.value.returncode == BUSY
        with pytest.raises(TypeError, match=r"Unknown option.* wait"):
            call_command(its(), "bank", wait=0)

    def test_an_option_that_is_not_there(self) -> None:
        """Its options are known, so every call fails."""
        bases = LockedCommand, OwnParserCommand
        its = type("Command", bases, {"lock_name": "import:{sorce}", "__module__": __name__})
        with pytest.raises(ValueError, match=r"'sorce', which the command.*It has: .*source"):
            call_command(its(), "bank")


class TestConflict:
    """Somebody else has the lock."""

    def test_raises(self) -> None:
        """The exit code means "try again later", and the error names the holder."""
        ran: list[Any] = []
        with held_elsewhere("command:test_commands") as lease, pytest.raises(CommandError) as busy:
            call_command(command(lambda: ran.append(1)), lock_wait=0)
        assert busy.value.returncode == 75
        assert isinstance(busy.value.__cause__, LockNotAcquired)
        assert lease.owner in str(busy.value)
        assert not ran

    @pytest.mark.parametrize("how", ["option", "class", "settings"])
    def test_is_skipped(self, how: str, settings: Any) -> None:
        """A line on stderr says so, unless -v 0 is given."""
        ran: list[Any] = []
        skip: Any = command(lambda: ran.append(1))
        options: Any = {"lock_wait": 0}
        if how == "option":
            options["lock_on_conflict"] = "skip"
        elif how == "class":
            skip = command(lambda: ran.append(1), lock_options={"on_conflict": "skip"})
        else:
            settings.REDISLOCK = {"LOCKS": {"command:*": {"ON_CONFLICT": "skip"}}}
        out, loud, quiet = io.StringIO(), io.StringIO(), io.StringIO()
        with held_elsewhere("command:test_commands") as lease:
            assert call_command(skip, stdout=out, stderr=loud, **options) is None
            call_command(skip, stdout=out, stderr=quiet, verbosity=0, **options)
        assert loud.getvalue().startswith("Skipped: 'command:test_commands' is held by ")
        assert lease.owner in loud.getvalue()
        assert (out.getvalue(), quiet.getvalue(), ran) == ("", "", [])

    def test_is_settled_by_a_function(self) -> None:
        """The command returns what the function returns."""
        some = command(lock_options={"on_conflict": lambda conflict: conflict.name, "wait": 0})
        with held_elsewhere("command:test_commands"):
            assert call_command(some, stdout=io.StringIO()) == "command:test_commands"

    def test_of_a_wrong_answer(self) -> None:
        """`on_conflict` is validated when it comes from code, too."""
        with (
            held_elsewhere("command:test_commands"),
            pytest.raises(ValueError, match="on_conflict"),
        ):
            call_command(command(), lock_wait=0, lock_on_conflict="shrug")


class TestTrouble:
    """Redis is away, or the lease gets lost."""

    def test_redis_away(self, settings: Any) -> None:
        """The exit code is 69, and `handle()` does not run."""
        settings.CACHES = NOWHERE
        ran: list[Any] = []
        with pytest.raises(CommandError) as away:
            call_command(command(lambda: ran.append(1)), lock_wait=0)
        assert away.value.returncode == 69
        assert isinstance(away.value.__cause__, LockUnavailable)
        assert not ran

    @pytest.mark.parametrize("how", ["option", "class", "settings"])
    @pytest.mark.parametrize("unavailable", ["run", "skip"])
    def test_unavailable(self, settings: Any, how: str, unavailable: str) -> None:
        """It says whether `handle()` runs all the same, or is skipped with a line on stderr."""
        settings.CACHES = NOWHERE
        ran: list[str] = []
        options: Any = {"lock_wait": 0}
        its: Any = {"lock_options": {}}
        if how == "option":
            options["lock_unavailable"] = unavailable
        elif how == "class":
            its["lock_options"]["unavailable"] = unavailable
        else:
            settings.REDISLOCK = {"UNAVAILABLE": unavailable}
        said = io.StringIO()
        began = time.monotonic()
        its["lock_options"]["at_least_for"] = 60  # there is no lock to hold for so long
        some = command(lambda: ran.append(current_lease().state), **its)
        call_command(some, stderr=said, **options)
        assert time.monotonic() - began < 30
        assert ran == (["unlocked"] if unavailable == "run" else [])
        assert said.getvalue().startswith("Skipped: Redis 'default'") is (unavailable == "skip")

    def test_another_lock_away(self, settings: Any) -> None:
        """A lock that the command takes is no reason to skip the command."""
        settings.REDISLOCK = {"LOCKS": {"command:*": {"UNAVAILABLE": "skip"}}}

        def body() -> None:
            with redis_unavailable(), redis_lock("another", unavailable="raise"):
                pass

        with pytest.raises(LockUnavailable):
            call_command(command(body))

    @pytest.mark.parametrize("checking", [True, False])
    def test_lost(self, checking: bool) -> None:
        """The error says who cleared the lock, whether the command has noticed it or not."""

        def body() -> None:
            redis_lock("command:test_commands").clear(reason="too long", by="eva")
            if checking:
                current_lease().extend()

        with pytest.raises(CommandError, match=r"cleared by eva \(too long\)") as lost:
            call_command(command(body))
        assert lost.value.returncode == 76
        assert isinstance(lost.value.__cause__, LeaseRevoked)

    def test_lost_on_top_of_an_error(self) -> None:
        """The command's own error is raised, with a note."""

        def body() -> None:
            redis_lock("command:test_commands").clear(reason="test")
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as error:
            call_command(command(body))
        assert "lost" in error.value.__notes__[0]


def busy() -> None:
    with redis_lock("other", wait=0):
        pass


def unavailable() -> None:
    raise LockUnavailable("its own")


def lost() -> None:
    with redis_lock("other"):
        redis_lock("other").clear(reason="test")


@pytest.mark.parametrize(
    ("body", "error"),
    [(busy, LockNotAcquired), (unavailable, LockUnavailable), (lost, LeaseLost)],
)
def test_locks_that_the_command_takes_itself(body: Any, error: type[LockError]) -> None:
    """Errors of other locks are not translated."""
    others = held_elsewhere("other") if body is busy else nullcontext()
    with others, pytest.raises(error):
        call_command(command(body, lock_options={"on_conflict": "skip"}))


class TestAtLeastFor:
    """The lock is held for some time, even if the command takes less."""

    @pytest.mark.parametrize(
        ("in_class", "arguments", "options"),
        [
            ({"lock_options": {"at_least_for": 0.6}}, [], {}),
            ({}, ["--lock-at-least-for=0.6"], {}),
            ({"lock_options": {"at_least_for": 600}}, [], {"lock_at_least_for": 0.6}),
        ],
    )
    def test_it_ends_sooner(self, in_class: Any, arguments: list[str], options: Any) -> None:
        """A second host, whose clock is late, finds the lock held."""
        began = now()
        call_command(command(**in_class), *arguments, **options)
        assert now() - began >= 0.6
        assert redis_lock("command:test_commands").holder() is None

    def test_it_takes_longer(self) -> None:
        """The time counts from when the lock was acquired."""
        ends: list[float] = []

        def body() -> None:
            time.sleep(0.3)
            ends.append(now())

        call_command(command(body), lock_at_least_for=0.2)
        assert now() - ends[0] < 0.2

    @pytest.mark.parametrize("error", [CommandError("wrong"), ZeroDivisionError(), SystemExit(3)])
    def test_it_fails(self, error: BaseException) -> None:
        """A command that fails at once is not tried by the other host a second later."""

        def body() -> None:
            raise error

        began = now()
        with pytest.raises(type(error)):
            call_command(command(body), lock_at_least_for=0.3)
        assert now() - began >= 0.3

    def test_it_is_interrupted(self) -> None:
        """Ctrl-C ends it at once."""

        def body() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            call_command(command(body), lock_at_least_for=600)

    def test_its_lease_is_lost(self) -> None:
        """There is nothing to hold any more."""

        def body() -> None:
            redis_lock("command:test_commands").clear(reason="test")
            with pytest.raises(LeaseLost):
                current_lease().extend()

        with pytest.raises(CommandError) as lost:
            call_command(command(body), lock_at_least_for=600)
        assert lost.value.returncode == LOST


class TestSignals:
    """SIGTERM and SIGHUP end the command by an exception."""

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_they_release(self, number: int) -> None:
        """Also if something has swallowed a first one. Later, the handlers are those that were
        there."""
        ends: list[str] = []

        def body() -> None:
            with suppress(SystemExit):
                signal.raise_signal(number)
            try:
                signal.raise_signal(number)
            finally:
                ends.append(current_lease().state)

        before = signal.getsignal(number)
        with pytest.raises(SystemExit) as ended:
            call_command(command(body), lock_at_least_for=600)
        assert ended.value.code == 128 + number
        assert ends == ["held"]
        assert redis_lock("command:test_commands").holder() is None
        assert signal.getsignal(number) is before

    def test_after_its_work(self) -> None:
        """While it only holds the lock, they end that, and not the command."""
        out = io.StringIO()
        timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGTERM])

        def body() -> str:
            timer.start()
            return "done"

        call_command(command(body), lock_at_least_for=600, stdout=out)
        assert out.getvalue() == "done\n"

    @pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
    def test_a_handler_of_the_project(self, handler: Any) -> None:
        """It stays, also one that is set meanwhile. An ignored signal is ignored."""
        before = signal.signal(signal.SIGTERM, handler)
        try:
            call_command(command(lambda: signal.raise_signal(signal.SIGTERM)))
            assert signal.getsignal(signal.SIGTERM) == handler
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            call_command(command(lambda: signal.signal(signal.SIGTERM, handler) and None))
            assert signal.getsignal(signal.SIGTERM) == handler
        finally:
            signal.signal(signal.SIGTERM, before)

    def test_a_forked_child(self) -> None:
        """It ends as it would without the lock."""
        codes: list[Any] = []

        def body() -> None:
            child = multiprocessing.get_context("fork").Process(
                target=signal.raise_signal, args=[signal.SIGTERM]
            )
            child.start()
            child.join()
            codes.append(child.exitcode)

        call_command(command(body))
        assert codes == [-signal.SIGTERM]

    def test_in_another_thread(self) -> None:
        """Only the main thread gets signals, so there is nothing to do."""
        held: list[Any] = []
        thread = threading.Thread(
            target=call_command, args=[command(lambda: held.append(current_lease().name))]
        )
        thread.start()
        thread.join()
        assert held == ["command:test_commands"]


@pytest.mark.slow
class TestProcesses:
    """What the shell sees."""

    def test_one_at_a_time(self, manage: Callable[..., Manage]) -> None:
        """The second process exits with 75 and names the first one."""
        first = manage("nightly", "--until-told")
        first.holds()
        second = manage("nightly", "--lock-wait", "0")
        assert second.ends() == 75
        complaint = second.complains()
        assert f":{first.process.pid}:MainThread (manage.py nightly) since" in complaint
        assert "'command:nightly'" in complaint
        assert complaint.count("\n") == 1
        first.go_on()
        assert (first.ends(), first.complains()) == (0, "")
        assert first.rest() == "done\n"

    @pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
    def test_nobody_is_told(self, redirection: str, manage: Callable[..., Manage]) -> None:
        """The exit codes stay the same if stderr is closed or full."""
        program = with_stderr(redirection)
        assert manage("nightly", url="unix:///nowhere", program=program).ends() == 69
        with held_elsewhere("command:nightly"):
            busy = manage("nightly", "--lock-wait=0", program=program)
            assert busy.ends() == 75
            skipped = manage(
                "nightly", "--lock-wait=0", "--lock-on-conflict=skip", program=program
            )
            assert skipped.ends() == 0
        process = manage("nightly", "--until-told", program=program)
        process.holds()
        redis_lock("command:nightly").clear(reason="test")
        process.go_on()
        assert process.ends() == 76

    def test_usage(self, manage: Callable[..., Manage]) -> None:
        """A wrong option is a usage error."""
        assert manage("nightly", "--lock-wait=soon").ends() == 2

    @pytest.mark.parametrize("options", [(), ("--lock-at-least-for=600",)])
    @pytest.mark.parametrize("program", [PROGRAM, (*FIRST_PROCESS, *PROGRAM)], ids=["", "first"])
    def test_is_ended(
        self, program: tuple[str, ...], options: tuple[str, ...], manage: Callable[..., Manage]
    ) -> None:
        """SIGTERM releases the lock at once, also as the first process of a container, which the
        kernel would not end."""
        process = manage("nightly", "--until-told", *options, program=program)
        pid = process.process.pid
        try:
            process.holds()
        except ValueError:
            pytest.skip(f"no process may be the first: {process.complains()}")
        if program != PROGRAM:
            (pid,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        os.kill(pid, signal.SIGTERM)
        assert process.ends() == 128 + signal.SIGTERM
        assert "Traceback" not in process.complains()
        assert redis_lock("command:nightly").holder() is None

    def test_is_ended_while_it_waits(self, manage: Callable[..., Manage], redis: Redis) -> None:
        """It leaves the queue."""
        with held_elsewhere("command:nightly"):
            process = manage("nightly", "--lock-wait=forever")
            eventually(lambda: redis.zcard("redislock:{command:nightly}:queue"))
            process.signal(signal.SIGTERM)
            assert process.ends() == 128 + signal.SIGTERM
            assert not redis.exists("redislock:{command:nightly}:queue")

    def test_is_interrupted(self, manage: Callable[..., Manage]) -> None:
        """Ctrl-C releases the lock at once."""
        process = manage("nightly", "--until-told")
        process.holds()
        process.signal(2)
        assert process.ends() != 0
        assert redis_lock("command:nightly").holder() is None


class TestDocumentation:
    """docs/commands.md does what it says."""

    def example(self, *words: str, **names: Any) -> dict[str, Any]:
        """Run the one example that contains all of these words."""
        found = [
            block for block in examples("docs/commands.md") if all(word in block for word in words)
        ]
        (block,) = found
        namespace = {"LockedCommand": LockedCommand, "__name__": "nightly"} | names
        exec(compile(block, str(DOCS), "exec"), namespace)
        return namespace

    def test_a_command(self) -> None:
        """It runs, under its own name."""
        held: list[Any] = []
        names = {"shops": lambda: ["a", "b"], "tidy": lambda _: held.append(current_lease().name)}
        call_command(self.example("for shop in", **names)["Command"]())
        assert held == ["command:nightly"] * 2

    def test_a_template(self) -> None:
        """It is made from the options, and its options are accepted."""
        held: list[Any] = []

        def read(source: str) -> None:
            held.append((source, current_lease().name, current_lease().ttl))

        importer = self.example("lock_name = ", read=read)["Command"]
        call_command(importer(), "bank")
        assert held == [("bank", "import:bank", 60)]
        err = io.StringIO()
        with held_elsewhere("import:bank"):
            call_command(importer(), "bank", stderr=err)
        assert err.getvalue().startswith("Skipped: ")

    def test_a_method(self) -> None:
        """It gets the options."""
        base = self.example("def lock_name")["Command"]
        held: list[Any] = []
        named = command(
            lambda: held.append(current_lease().name), base=base, add_arguments=taking("source")
        )
        call_command(named, "BANK")
        assert held == ["import:bank"]

    def test_from_code(self, capsys: pytest.CaptureFixture[str]) -> None:
        """It tells who has the lock."""
        with held_elsewhere("command:nightly") as lease:
            self.example("returncode", call_command=call_command, CommandError=CommandError)
        assert f"later, after {lease.owner}" in capsys.readouterr().out

    def test_the_exit_codes(self) -> None:
        """The table shows those that there are."""
        text = DOCS.read_text(encoding="utf-8")
        shown = set(re.findall(r"^\| (\d+) \|", text, re.MULTILINE))
        ours = {USAGE, BUSY, LOST, UNAVAILABLE, MISCONFIGURED, NOT_FOUND, NOT_EXECUTABLE}
        assert shown == {str(code) for code in ours}

    def test_the_options(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The tables show those that there are."""
        with pytest.raises(SystemExit):
            call_command("redislock", "run", "--help")
        command().print_help("manage.py", "some")
        there = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help", "--version"}
        base = {"--verbosity", "--settings", "--pythonpath", "--traceback", "--skip-checks"}
        shown = re.findall(r"^\| `(--[a-z-]+)", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(shown) == there - base - {"--no-color", "--force-color"}

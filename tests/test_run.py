"""`manage.py redislock run`: real programs, real signals, real exit codes."""

from __future__ import annotations

import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from redis import Redis

from django_redislock import redis_lock
from django_redislock.base.process import Ended
from django_redislock.management.events import NUDGE, PASSED_ON, Events
from django_redislock.management.subcommands.run import Child
from tests.manage import PROGRAM, Manage, broken_project, environ, with_stderr
from tests.processes import ROOT
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

# Says which signals it gets, and ends with the last one; and in the end anyway, as all of these
# programs do, so that none is left by a test that fails.
LISTENER = """
import signal
def got(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        raise SystemExit(7)
for name in "HUP INT QUIT USR1 USR2 TERM".split():
    if signal.getsignal(getattr(signal, "SIG" + name)) is not signal.SIG_IGN:
        signal.signal(getattr(signal, "SIG" + name), got)
signal.alarm(60)
print("ready", flush=True)
while True:
    signal.pause()
"""
STUBBORN = 'trap "" TERM; echo ready; sleep 60'
PYTHON = (sys.executable, "-S", "-c")


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run it to its end."""
    env = environ(options.pop("url", ""))
    if fence := options.pop("fence", ""):
        env["REDISLOCK_FENCING_TOKEN"] = fence
    program = options.pop("program", PROGRAM)
    return subprocess.run(
        [*program, "redislock", "run", *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        start_new_session=True,
        timeout=PATIENCE,
        check=False,
        **options,
    )


@pytest.fixture
def start() -> Iterator[Callable[..., Manage]]:
    """Start `redislock run …` as processes; whatever becomes of the test, none is left."""
    processes: list[Manage] = []

    def start(*arguments: str, **options: Any) -> Manage:
        processes.append(Manage("redislock", "run", *arguments, **options))
        return processes[-1]

    yield start
    for process in processes:
        if process.process.poll() is None:
            # Unlike SIGKILL this one reaches the program, too.
            process.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.ends()
        process.close()


def is_free(name: str = "job") -> bool:
    return redis_lock(name).holder() is None


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


class TestTheProgram:
    """It runs as if it had been called directly, but for the lock."""

    @pytest.mark.parametrize(
        ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 128 + 9)]
    )
    def test_exit_code(self, script: str, code: int) -> None:
        """Its own; after a signal what a shell says then. Nothing else is said."""
        done = run("job", "--", "sh", "-c", script)
        assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")
        assert is_free()

    def test_stdin_and_stdout(self) -> None:
        """Bytes go through untouched, more than a pipe holds."""
        data = bytes(range(256)) * 4096
        done = run("job", "--", "cat", input=data)
        assert (done.returncode, done.stdout, done.stderr) == (0, data, b"")

    def test_arguments(self) -> None:
        """Whatever stands after -- is the program's, also what Django or argparse would take."""
        theirs = ["--settings=x", "--", "-h", "--wait", "--pythonpath", "/nowhere", "", "-v"]
        script = "import sys; print(sys.argv[1:])"
        done = run("job", "--", *PYTHON, script, *theirs)
        assert (done.returncode, done.stdout.decode()) == (0, f"{theirs}\n")

    def test_environment(self, start: Callable[..., Manage]) -> None:
        """It knows the name and the fencing token; others see what runs, and where."""
        process = start("job", "--", "sh", "-c", "env | grep ^REDISLOCK_[NF] | sort; read x")
        token, name = process.says(), process.says()
        holder = redis_lock("job").holder()
        assert token == f"REDISLOCK_FENCING_TOKEN={holder.fencing_token}"
        assert name == "REDISLOCK_NAME=job"
        assert holder.owner is not None
        assert f":{process.process.pid}:" in holder.owner
        assert holder.label.startswith("sh -c 'env | grep")
        process.go_on()
        assert process.ends() == 0

    def test_that_is_not_there(self) -> None:
        """As in a shell: 127, and 126 for what can't be run. The lock is free again."""
        done = run("job", "--", "no-such-program")
        assert (done.returncode, done.stderr) == (
            127,
            b"CommandError: no-such-program: not found\n",
        )
        done = run("job", "--", str(ROOT))
        assert (done.returncode, done.stdout) == (126, b"")
        assert is_free()

    def test_in_a_broken_project(self, tmp_path: Path) -> None:
        """It needs neither a database nor a project without errors."""
        # And Django's own options may stand after the subcommand.
        done = run(
            "job",
            *broken_project(tmp_path),
            "--",
            "printenv",
            "REDISLOCK_NAME",
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"job\n", b"")


class TestUsage:
    """What it says to those who can't know."""

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ([], "required: NAME"),
            (["job"], "write the program after --"),
            (["job", "--"], "write the program after --"),
            (["job", "true"], "write the program after --"),
            (["job", "true", "--", "true"], "unrecognized arguments: true"),
            (["a{b", "--", "true"], "contains a brace"),
            (["job", "--wait=soon", "--", "true"], "seconds"),
            (["job", "--ttl=0", "--", "true"], "between 0.1"),
            (["job", "--at-least-for=nan", "--", "true"], "seconds"),
            (["job", "--kill-after=-1", "--", "true"], "seconds"),
            (["job", "--conflict-exit-code=256", "--", "true"], "from 0 to 255"),
            (["job", "--conflict-exit-code=x", "--", "true"], "from 0 to 255"),
        ],
    )
    def test_errors(self, arguments: list[str], says: str) -> None:
        """A sentence that tells what to write; nothing is run."""
        with pytest.raises(CommandError, match=says):
            call_command("redislock", "run", *arguments)

    def test_exit_code(self) -> None:
        """That of usage errors, with the usage."""
        done = run("job")
        assert done.returncode == 2
        assert done.stderr.startswith(b"usage: manage.py redislock run NAME [options] -- program")

    def test_a_subcommand_is_needed(self) -> None:
        """There is no default."""
        with pytest.raises(CommandError, match="subcommand"):
            call_command("redislock")


class TestTheLock:
    """One at a time."""

    def test_two_at_once(self, start: Callable[..., Manage], redis: Redis) -> None:
        """The second one begins when the first one has ended."""
        first = start("job", "--", "sh", "-c", "echo first; read x")
        assert first.says() == "first"
        second = start("job", "--wait=forever", "--", "echo", "second")
        eventually(lambda: redis.zcard("redislock:{job}:queue"))
        assert second.process.poll() is None
        first.go_on()
        assert first.ends() == 0
        assert (second.says(), second.ends()) == ("second", 0)
        assert is_free()

    @pytest.mark.parametrize(
        ("given", "code"), [([], 75), (["--conflict-exit-code", "9"], 9)], ids=["default", "given"]
    )
    def test_conflict(self, given: list[str], code: int) -> None:
        """It says who has the lock, and the program does not run."""
        with redis_lock("job") as lease:
            done = run("job", "--wait=0", *given, "--", "echo", "ran")
        assert (done.returncode, done.stdout) == (code, b"")
        assert f"CommandError: 'job' is held by {lease.owner} ({lease.label}) since" in (
            done.stderr.decode()
        )
        assert done.stderr.count(b"\n") == 1

    def test_conflict_that_is_none(self) -> None:
        """Exit code 0 skips the run; with -v 0 silently, so that cron sends no mail."""
        with redis_lock("job"):
            loud = run("job", "--wait=0", "--conflict-exit-code=0", "--", "echo", "ran")
            quiet = run("job", "--wait=0", "--conflict-exit-code=0", "-v0", "--", "echo", "ran")
        assert (loud.returncode, loud.stdout) == (0, b"")
        assert loud.stderr.startswith(b"Skipped: 'job' is held by ")
        assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, b"", b"")

    @pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
    @pytest.mark.parametrize(("given", "code"), [("75", 75), ("0", 0)])
    def test_conflict_that_nobody_is_told(self, redirection: str, given: str, code: int) -> None:
        """The exit code is what it is, also with a stderr that is closed or full."""
        options = ("--wait=0", "--conflict-exit-code", given)
        with redis_lock("job"):
            done = run("job", *options, "--", "echo", "ran", program=with_stderr(redirection))
        assert (done.returncode, done.stdout) == (code, b"")

    def test_redis_away(self) -> None:
        """An exit code of its own, one line, and the program does not run."""
        done = run("job", "--wait=0", "--", "echo", "ran", url="unix:///nowhere")
        assert (done.returncode, done.stdout) == (69, b"")
        complaint = b"CommandError: Redis 'default' (/nowhere) could not be reached"
        assert done.stderr.startswith(complaint)
        assert done.stderr.count(b"\n") == 1

    @pytest.mark.parametrize("unavailable", ["run", "skip"])
    def test_unavailable(self, unavailable: str) -> None:
        """The program runs without the lock, and gets no fencing token, also not that of a run
        around this one; or it does not run, which is said, and no failure. There is no lock to
        hold for longer."""
        options = ("--wait=0", f"--unavailable={unavailable}", "--at-least-for=60")
        program = ("--", "sh", "-c", "env | grep REDISLOCK_F; exit 3")
        done = run("job", *options, *program, url="unix:///nowhere", fence="7")
        if unavailable == "run":
            assert (done.returncode, done.stdout) == (3, b"REDISLOCK_FENCING_TOKEN=\n")
        else:
            assert (done.returncode, done.stdout) == (0, b"")
            assert b"Skipped: Redis 'default'" in done.stderr

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_signal_while_waiting(
        self, number: int, start: Callable[..., Manage], redis: Redis
    ) -> None:
        """It gives up, leaves the queue, and ends as if the signal had killed it."""
        with redis_lock("job"):
            process = start("job", "--wait=forever", "--", "echo", "ran")
            eventually(lambda: redis.zcard("redislock:{job}:queue"))
            process.signal(number)
            assert process.ends() == 128 + number
            assert redis.zcard("redislock:{job}:queue") == 0
            assert redis.hlen("redislock:{job}:waiters") == 0
        assert (process.rest(), process.complains()) == ("", "")


class TestSignals:
    """They reach the program, and what it has started."""

    def test_are_passed_on(self, start: Callable[..., Manage]) -> None:
        """Each of them, once, and the program decides what becomes of it."""
        process = start("job", "--", *PYTHON, LISTENER)
        assert process.says() == "ready"
        for name in ("HUP", "INT", "QUIT", "USR1", "USR2", "TERM"):
            process.signal(signal.Signals[f"SIG{name}"])
            assert process.says() == f"SIG{name}"
        assert process.ends() == 7
        assert (process.rest(), process.complains()) == ("", "")
        assert is_free()

    def test_that_are_ignored_stay_so(self, start: Callable[..., Manage]) -> None:
        """nohup protects the program as well."""
        program = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh", *PROGRAM)
        process = start("job", "--", *PYTHON, LISTENER, program=program)
        assert process.says() == "ready"
        process.signal(signal.SIGHUP)
        process.signal(signal.SIGTERM)
        assert process.says() == "SIGTERM"
        assert process.ends() == 7

    def test_that_are_blocked(self, start: Callable[..., Manage]) -> None:
        """By whoever has started us: we see the program's end, and pass on what comes. The
        program gets the mask that was given."""
        mask = "signal.pthread_sigmask(signal.SIG_BLOCK, ["
        block = f"import os, signal, sys; {mask}signal.SIGCHLD, signal.SIGTERM, signal.SIGURG])"
        look = f"import signal; print(sorted(n.name for n in {mask}])), flush=True)"
        unblock = "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])"
        program = (*PYTHON, f"{block}; os.execv(sys.argv[1], sys.argv[1:])", *PROGRAM)
        process = start("job", "--", *PYTHON, f"{look}; {unblock}\n{LISTENER}", program=program)
        assert process.says() == "['SIGCHLD', 'SIGTERM', 'SIGURG']"
        assert process.says() == "ready"
        process.signal(signal.SIGTERM)
        assert process.says() == "SIGTERM"
        assert process.ends() == 7

    def test_that_was_blocked_and_has_come(self) -> None:
        """It is the first that we learn; afterwards all is as it was."""
        handler = signal.getsignal(signal.SIGTERM)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        try:
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(Ended), Events("test"):
                pytest.fail("not reached")
            assert signal.getsignal(signal.SIGTERM) is handler
            assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == blocked
        finally:
            if signal.SIGTERM in signal.sigpending():
                signal.sigwait([signal.SIGTERM])  # or it would end the tests
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def test_to_a_program_that_is_stopped(self, start: Callable[..., Manage]) -> None:
        """It is woken by those that end it, or we would renew its lock for ever."""
        process = start("job", "--", "sh", "-c", "echo $$; kill -STOP $$")
        pid = int(process.says())
        eventually(lambda: is_stopped(pid))
        process.signal(signal.SIGTERM)
        assert process.ends() == 128 + 15

    def test_reach_all_that_it_has_started(self, start: Callable[..., Manage]) -> None:
        """A shell alone would leave its programs behind, at work without the lock."""
        process = start("job", "--", "sh", "-c", "sleep 60 & sleep 60 | cat & echo ready; wait")
        assert process.says() == "ready"
        process.signal(signal.SIGTERM)
        assert process.ends() == 128 + 15
        assert process.rest() == ""  # stdout is closed: nobody is left who has it open

    def test_before_the_program_starts(self) -> None:
        """What comes then ends the waiting; what comes later is kept for the program."""
        before = signal.getsignal(signal.SIGUSR1)
        with Events("test") as events, pytest.raises(Ended) as ended:
            signal.raise_signal(signal.SIGUSR1)
            events.next(0)
        assert ended.value.code == 128 + signal.SIGUSR1
        with Events("test") as events:
            events.collect()
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGTERM)
            events.nudge()
            kept = [events.next(time.monotonic() + PATIENCE) for _ in range(3)]
            assert kept == [signal.SIGUSR1, signal.SIGTERM, NUDGE]
            assert events.next(0) is None
        assert signal.getsignal(signal.SIGUSR1) is before
        events.nudge()  # late, from another thread; it does no harm

    def test_before_the_lock_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """However early it comes, there is no traceback."""
        monkeypatch.setattr("django_redislock.management.subcommands.run.Lock", early := Mock())
        early.side_effect = lambda *_, **__: signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit) as ended:
            call_command("redislock", "run", "job", "--", "true")
        assert ended.value.code == 128 + signal.SIGTERM

    def test_second_one_while_giving_up(self) -> None:
        """It does not cut short what the first one has begun."""
        with Events("test"):
            with pytest.raises(Ended):
                signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)

    def test_to_somebody_else(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A program that runs as another user (sudo) can't be signalled; that is said."""

        def refuse(pid: int, number: int) -> None:
            raise PermissionError

        said: list[str] = []
        program = Child(["sleep", "60"], {**os.environ}, said.append)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(os, "killpg", refuse)
                patch.setattr(os, "kill", refuse)
                program.pass_on(signal.SIGTERM)
            assert said == ["The program can't be sent SIGTERM: it runs as another user."]
        finally:
            program.pass_on(signal.SIGTERM)
            eventually(lambda: program.poll() is not None)

    def test_after_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody is signalled whose number may be another's by then."""
        program = Child(["true"], {**os.environ}, print)
        eventually(lambda: program.poll() is not None)
        monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("signalled"))
        monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("signalled"))
        program.pass_on(signal.SIGTERM)


def clear(redis: Redis) -> None:
    redis_lock("job").clear(reason="too long", by="eva")


def delete(redis: Redis) -> None:
    redis.delete("redislock:{job}")


class TestTheLeaseIsLost:
    """The program is ended, and so is what it has started."""

    @pytest.mark.parametrize("lose", [clear, delete])
    def test_ends_the_program(
        self, lose: Callable[[Redis], None], start: Callable[..., Manage], redis: Redis
    ) -> None:
        """With SIGTERM, and an exit code of its own; it says why."""
        process = start("job", "--ttl=0.6", "--", *PYTHON, LISTENER)
        assert process.says() == "ready"
        lose(redis)
        assert process.says() == "SIGTERM"
        assert process.ends() == 76
        complaint = process.complains()
        assert complaint.startswith("The lease on 'job' is lost: ")
        assert "Ending the program.\nCommandError: " in complaint
        assert ("cleared by eva (too long)" in complaint) == (lose is clear)

    @pytest.mark.parametrize(
        "script",
        [STUBBORN, f"sh -c {shlex.quote(STUBBORN)} & wait"],
        ids=["the program", "its child"],
    )
    def test_kills_what_does_not_end(
        self, script: str, start: Callable[..., Manage], redis: Redis
    ) -> None:
        """With SIGKILL, after --kill-after seconds; also when the program itself, a shell, ends at
        once, and what it has started does not."""
        process = start("job", "--ttl=0.6", "--kill-after=0.2", "--", "sh", "-c", script)
        assert process.says() == "ready"
        clear(redis)
        assert process.ends() == 76
        assert process.rest() == ""

    def test_leaves_time_to_clean_up(self, start: Callable[..., Manage], redis: Redis) -> None:
        """Also to what a shell has started that has ended already."""
        script = 'trap "sleep 0.3; echo cleaned up; exit" TERM; echo ready; sleep 60'
        process = start(
            "job", "--ttl=0.6", "--", "sh", "-c", f"sh -c {shlex.quote(script)} & wait"
        )
        assert process.says() == "ready"
        clear(redis)
        assert process.says() == "cleaned up"
        assert process.ends() == 76

    def test_while_the_program_is_stopped(
        self, start: Callable[..., Manage], redis: Redis
    ) -> None:
        """It is woken, or it could not end."""
        options = ("--ttl=0.6", "--kill-after=600")
        process = start("job", *options, "--", "sh", "-c", "echo $$; kill -STOP $$")
        pid = int(process.says())
        eventually(lambda: is_stopped(pid))
        clear(redis)
        assert process.ends() == 76

    @pytest.mark.parametrize("closed", ["later", "from the start"])
    def test_when_nobody_listens(
        self, closed: str, start: Callable[..., Manage], redis: Redis
    ) -> None:
        """That we can't say why does not keep the program alive; the exit code says enough."""
        program = PROGRAM if closed == "later" else with_stderr("2>&-")
        process = start("job", "--ttl=0.6", "--", *PYTHON, LISTENER, program=program)
        assert process.says() == "ready"
        if closed == "later":
            process.process.stderr.close()
        clear(redis)
        assert process.says() == "SIGTERM"
        assert process.ends() == 76

    def test_something_goes_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever it is, the program does not go on without anybody to renew its lock."""

        def fail(self: Events, until: float | None = None) -> int | None:
            monkeypatch.undo()
            raise ZeroDivisionError

        monkeypatch.setattr(Events, "next", fail)
        with pytest.raises(ZeroDivisionError):
            call_command("redislock", "run", "job", "--", "sleep", "60")
        assert is_free()

    def test_noticed_at_the_end(self) -> None:
        """The program has run to its end, but perhaps beside another one."""
        delete = "from redis import Redis; Redis.from_url(os.environ['REDISLOCK_TEST_URL'])"
        delete = f"import os; {delete}.delete('redislock:{{job}}')"
        done = run("job", "--ttl=600", "--", sys.executable, "-c", delete)
        assert done.returncode == 76
        assert b"Another run may have overlapped" in done.stderr


class TestAtLeastFor:
    """For hosts whose clocks differ: the lock is held for longer than the program takes."""

    def test_holds_the_lock(self, start: Callable[..., Manage]) -> None:
        """So long; the exit code is the program's."""
        process = start("job", "--at-least-for=1", "--", "sh", "-c", "echo done; exit 3")
        assert process.says() == "done"
        begin = time.monotonic()
        assert process.ends() == 3
        assert time.monotonic() - begin > 0.5
        assert is_free()

    def test_is_no_delay_for_what_takes_longer(self, start: Callable[..., Manage]) -> None:
        """It counts from when the lock was acquired."""
        process = start("job", "--at-least-for=0.1", "--", "sh", "-c", "sleep 0.2; echo done")
        assert process.says() == "done"
        assert process.ends() == 0

    def test_ends_with_a_signal(self, start: Callable[..., Manage]) -> None:
        """Then the lock is released at once."""
        process = start("job", "--at-least-for=1000", "--", "sh", "-c", "echo $$; exit 3")
        pid = int(process.says())
        eventually(lambda: not Path(f"/proc/{pid}").exists())
        assert not is_free()
        process.signal(signal.SIGTERM)
        assert process.ends() == 3
        assert is_free()

    def test_ends_with_the_signal_that_ended_the_program(
        self, start: Callable[..., Manage]
    ) -> None:
        """Who stops it does not want to wait."""
        process = start("job", "--at-least-for=1000", "--", *PYTHON, LISTENER)
        assert process.says() == "ready"
        process.signal(signal.SIGTERM)
        assert process.ends() == 7
        assert is_free()

    def test_ends_with_the_lease(self, start: Callable[..., Manage], redis: Redis) -> None:
        """The lock was not held for as long as it should."""
        process = start("job", "--ttl=0.6", "--at-least-for=1000", "--", "sh", "-c", "echo $$")
        pid = int(process.says())
        eventually(lambda: not Path(f"/proc/{pid}").exists())
        clear(redis)
        assert process.ends() == 76


class TestKilled:
    """We are, with SIGKILL."""

    def test_lock_is_free_after_its_ttl(self, start: Callable[..., Manage]) -> None:
        """The program goes on, as the documentation says."""
        process = start("job", "--ttl=0.6", "--", "sh", "-c", "echo ready; read x; echo done")
        assert process.says() == "ready"
        process.signal(signal.SIGKILL)
        process.ends()
        eventually(is_free)
        process.go_on()
        assert process.says() == "done"

    @pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
    def test_and_the_program_with_us(self, start: Callable[..., Manage]) -> None:
        """With the documentation's advice."""
        process = start(
            "job", "--ttl=0.6", "--", "setpriv", "--pdeathsig", "KILL", *PYTHON, LISTENER
        )
        assert process.says() == "ready"
        process.signal(signal.SIGKILL)
        process.ends()
        assert process.rest() == ""  # stdout is closed: nobody is left who has it open


@contextmanager
def at_a_terminal(become: str, *program: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run `program` in a session of its own with a terminal; `become` says, in Python, how.

    Yields the process and the keyboard. At the end the keyboard hangs up, which ends what is left.
    """
    keyboard, terminal = pty.openpty()
    own = "import fcntl, os, subprocess, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    process = subprocess.Popen(
        [*PYTHON, own + become, *PROGRAM, "redislock", "run", "job", "--", *program],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environ(),
        start_new_session=True,
        text=True,
    )
    os.close(terminal)
    give_up = threading.Timer(PATIENCE, process.kill)
    give_up.start()
    try:
        yield process, keyboard
    finally:
        give_up.cancel()
        process.kill()
        os.close(keyboard)
        process.communicate()


class TestTerminal:
    """At a keyboard."""

    def test_what_is_typed(self) -> None:
        """The program can read it, and Ctrl-C reaches it once, without our help."""
        script = f"print(input(), flush=True)\n{LISTENER}"
        # In the foreground, as a login shell has it.
        become = "os.execv(sys.argv[1], sys.argv[1:])"
        with at_a_terminal(become, *PYTHON, script) as (process, keyboard):
            os.write(keyboard, b"typed\n")
            assert process.stdout.readline() == "typed\n"
            assert process.stdout.readline() == "ready\n"
            os.write(keyboard, b"\x03")
            assert process.stdout.readline() == "SIGINT\n"
            process.send_signal(signal.SIGUSR1)
            assert process.stdout.readline() == "SIGUSR1\n"
            process.send_signal(signal.SIGTERM)
            assert process.communicate() == ("SIGTERM\n", "")
            assert process.returncode == 7

    def test_in_its_background(self) -> None:
        """A program that reads the terminal there is stopped by it; it can be ended even so."""
        # A shell's `… &`: a process group of its own, which is not in the foreground.
        become = "sys.exit(subprocess.Popen(sys.argv[1:], process_group=0).wait())"
        ours = None
        with at_a_terminal(become, "sh", "-c", "echo $PPID $$; read x") as (process, _):
            try:
                ours, program = map(int, process.stdout.readline().split())
                eventually(lambda: is_stopped(program))
                os.kill(ours, signal.SIGTERM)
                assert process.wait(PATIENCE) == 128 + 15
                assert is_free()
            finally:
                if ours is not None and process.poll() is None:
                    os.kill(
                        ours, signal.SIGKILL
                    )  # which hangs up on the program, as it is stopped


class TestFromPython:
    """call_command."""

    def test_runs(self, tmp_path: Path) -> None:
        """It returns when the program has ended, and leaves the signals as they were."""
        before = {number: signal.getsignal(number) for number in (*PASSED_ON, signal.SIGCHLD)}
        call_command("redislock", "run", "job", "--", "touch", str(tmp_path / "ran"), wait=0)
        assert (tmp_path / "ran").exists()
        assert before == {number: signal.getsignal(number) for number in before}

    def test_exits(self) -> None:
        """With the program's exit code, as everywhere."""
        with pytest.raises(SystemExit) as ended:
            call_command("redislock", "run", "job", "--", "sh", "-c", "exit 3")
        assert ended.value.code == 3

    @pytest.mark.django_db(transaction=True)
    def test_in_a_transaction(self, settings: Any) -> None:
        """The lock is the program's; no transaction of ours keeps it."""
        settings.REDISLOCK = {"RELEASE": "commit"}
        with transaction.atomic():
            call_command("redislock", "run", "job", "--", "true")
            assert is_free()

    def test_in_another_thread(self) -> None:
        """No signals arrive there."""
        with ThreadPoolExecutor(1) as thread:
            with pytest.raises(CommandError, match="main thread"):
                thread.submit(call_command, "redislock", "run", "job", "--", "true").result()

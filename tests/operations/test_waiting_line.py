"""What a person sees while `redislock run` or a `LockedCommand` waits for its lock."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from threading import Event, Thread

import pytest
from django.core.management.base import OutputWrapper
from redis import Redis

from django_redislock import redis_lock
from django_redislock.inspection import Inspector, waiting_line
from tests.manage import PROGRAM, Manage
from tests.operations.terminal import Terminal
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

RUN = ("run", "job", "--wait", "forever", "--", "true")


def test_on_a_terminal(redis: Redis, terminal: Callable[..., Terminal]) -> None:
    """One line says who holds the lock and how many wait before us; it is erased at the end."""
    with redis_lock("job", label="a.py:6 in f"):
        waiting = Thread(target=lambda: redis_lock("job", wait=None).acquire(), daemon=True)
        waiting.start()
        eventually(lambda: redis.zcard("redislock:{job}:queue") == 1)
        screen = terminal(*RUN, columns=200)
        said = screen.says("1 waiter before us")
        assert "Waiting for 'job' for " in said
        assert " (a.py:6 in f) since " in said
        eventually(lambda: screen.text.count("Waiting for") >= 2)
        assert "\n" not in screen.text
    waiting.join()
    redis.delete("redislock:{job}")  # of the thread, which has ended with it
    assert screen.ends() == 0
    assert screen.text.endswith("\r\x1b[2K")


def test_in_a_log(manage: Callable[..., Manage]) -> None:
    """Without a terminal it is one line."""
    with redis_lock("job"):
        waiting = manage("redislock", *RUN)
        line = waiting.process.stderr.readline()
    assert line.startswith("Waiting for 'job' for ")
    assert waiting.complains() == ""


@pytest.mark.parametrize("arguments", [("--verbosity=0",), ()])
def test_a_command_of_the_project(
    arguments: tuple[str, ...], manage: Callable[..., Manage], redis: Redis
) -> None:
    """A `LockedCommand` says it as well, unless it is to be quiet."""
    with redis_lock("command:nightly"):
        waiting = manage("nightly", "--lock-wait=forever", *arguments)
        if not arguments:
            assert "Waiting for 'command:nightly'" in waiting.process.stderr.readline()
        else:
            eventually(lambda: redis.zcard("redislock:{command:nightly}:queue") == 1)
    assert waiting.complains() == ""


def test_the_progress_of_a_command(terminal: Callable[..., Terminal]) -> None:
    """A `LockedCommand` that notes how far it is shows it in one line, which is erased at the
    end."""
    screen = terminal("counting", program=PROGRAM)
    screen.says("41 of 900, 5 %, about ")
    assert "\n" not in screen.text
    screen.types("\r")
    screen.says("82 of 900, 9 %, about ")
    screen.types("\r")
    assert screen.ends() == 0
    assert screen.text.endswith("\r\x1b[2K")


@pytest.mark.parametrize("arguments", [("--verbosity=0",), ()])
def test_no_progress(
    arguments: tuple[str, ...],
    manage: Callable[..., Manage],
    terminal: Callable[..., Terminal],
) -> None:
    """Not with `--verbosity 0`, and not in a log."""
    if arguments:
        screen = terminal("counting", *arguments, program=PROGRAM)
        eventually(lambda: Inspector().get("command:counting"))
        time.sleep(1.5 * waiting_line.EVERY)
        screen.types("\r\r")
        assert screen.ends() == 0
        assert "of 900" not in screen.text
    else:
        command = manage("counting")
        eventually(lambda: Inspector().get("command:counting"))
        time.sleep(1.5 * waiting_line.EVERY)
        assert command.process.communicate("\n\n")[1] == ""


def test_interrupted(terminal: Callable[..., Terminal]) -> None:
    """Ctrl-C ends the wait, and leaves no line behind."""
    with redis_lock("job"):
        screen = terminal(*RUN)
        screen.says("Waiting for 'job'")
        screen.types("\x03")
        assert screen.ends() == 130
    assert "Traceback" not in screen.text
    assert screen.text.rpartition("Waiting")[2].count("\r\x1b[2K") == 1


def test_a_look_that_hangs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The work begins when the lock is acquired, whatever the look at it does; and what the look
    finds later is not written into the output of the work."""
    looking, answer, answered = Event(), Event(), Event()
    get = Inspector.get

    def slow(self: Inspector, name: str) -> object:
        looking.set()
        answer.wait(PATIENCE)
        lock = get(self, name)
        answered.set()
        return lock

    monkeypatch.setattr(Inspector, "get", slow)
    monkeypatch.setattr(waiting_line, "AFTER", 0.01)
    lock = redis_lock("job")
    with lock:
        with waiting_line.waiting_line(lock, OutputWrapper(sys.stderr)):
            assert looking.wait(PATIENCE)
            (line,) = (
                one for one in threading.enumerate() if one.name == "redislock-waiting-line"
            )
        assert not answered.is_set()
        answer.set()
        line.join(PATIENCE)
    assert answered.is_set()
    assert capsys.readouterr().err == ""

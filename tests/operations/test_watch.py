"""`redislock watch`: as a real process, on a terminal and without one."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import redis_lock
from django_redislock.lease.watchdog import watchdog
from django_redislock.transport.server import server_of
from tests.manage import Manage
from tests.operations.calling import call, cut_off, granted, run
from tests.operations.terminal import CLOSED, OPENED, Terminal
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow


FAST = ("--interval", "0.1")


class TestOnATerminal:
    def test_it_follows(self, terminal: Callable[..., Terminal]) -> None:
        """Locks appear and disappear at the same place of the screen."""
        screen = terminal("watch", *FAST)
        screen.shows("0 locks.")
        with redis_lock("job"):
            assert "job " in screen.shows("1 lock: 0 stale, 0 unknown, 1 held")
        drawn = len(screen.frames())
        eventually(lambda: len(screen.frames()) > drawn + 2)
        assert "0 locks." in screen.frames()[-2]
        assert screen.text.startswith(OPENED)

    def test_lines_that_fill_it(self, terminal: Callable[..., Terminal], redis: Redis) -> None:
        """Nothing is missing at the end of a line that is as wide as the terminal."""
        name = "n" * 200
        granted(redis, name)
        redis.zadd(f"redislock:{{{name}}}:queue", {f"{n:032}": n for n in range(300)})
        screen = terminal("watch", *FAST, columns=100)
        screen.shows("1 lock:")
        head, row = screen.picture()[2:4]
        assert len(row) == 100
        assert head.endswith(" REMAINING")
        assert re.search(r" 300 +15 min \d\d s +\d\d min \d\d s$", row)

    def test_long_holders(self, terminal: Callable[..., Terminal], redis: Redis) -> None:
        """Names of threads are shortened before a line is too wide for its numbers; hosts and
        processes are not."""
        thread = "ThreadPoolExecutor-0_0"
        granted(redis, "report:2026-11", owner=f"web-7f9c6d8b5-x2x4z:1:{thread}")
        granted(redis, "eu", owner=f"worker-5d4f8c7b9-abcde.shop.internal:17:{thread}")
        redis.zadd("redislock:{report:2026-11}:queue", {f"{n:032}": n for n in range(300)})
        screen = terminal("watch", *FAST, columns=80)
        screen.shows("2 locks:")
        head, first, second = screen.picture()[2:5]
        assert head.endswith(" WAITERS")
        assert first.endswith(" 300")
        assert "web-7f9c6d8b5-x2x4z · 1 · Thread" in first
        assert "worker-5d4f8c7b9-abcde.shop.internal · 17" in second
        assert second.endswith(" 0")

    @pytest.mark.parametrize(
        ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
    )
    def test_its_end(
        self, number: signal.Signals, code: int, terminal: Callable[..., Terminal]
    ) -> None:
        """The terminal is restored, with the last screen on it, and there is no traceback."""
        with redis_lock("job"):
            screen = terminal("watch")
            screen.shows("1 lock: 0 stale, 0 unknown, 1 held")
            screen.process.send_signal(number)
            assert screen.ends() == code
        assert screen.text.count(OPENED) == screen.text.count(CLOSED) == 1
        after = screen.text.partition(CLOSED)[2]
        assert "1 lock: 0 stale, 0 unknown, 1 held" in after
        assert "Traceback" not in screen.text
        assert "\x1b[?7h" in screen.text

    def test_it_fits(self, redis: Redis, terminal: Callable[..., Terminal]) -> None:
        """A screen fits the terminal; long names are shortened in the middle."""
        for number in range(30):
            granted(redis, f"{'long' * 20}:{number:02}")
        screen = terminal("watch", *FAST, "--sort", "name")
        frame = screen.shows("locks: 30 stale")
        lines = frame.replace("\x1b[2K", "").removesuffix("\r\n\x1b[J").split("\r\n")
        assert len(lines) <= 12
        assert "\x1b[?7l" in screen.text  # and what is too long in spite of that is not wrapped
        assert all(len(line) <= 72 for line in lines)
        assert "The first 6 of 30 locks" in lines[-1]
        assert re.match(r"long\S*…\S*:00 ", lines[3])

    def test_hardly_a_terminal(self, terminal: Callable[..., Terminal]) -> None:
        """Lines that don't fit are left out, so that the terminal does not scroll."""
        with redis_lock("job"):
            frame = terminal("watch", *FAST, lines=4).shows("NAME")
        assert frame.count("\n") == 3

    def test_colors(self, terminal: Callable[..., Terminal]) -> None:
        """Django's colours are used, unless --no-color is given."""
        with redis_lock("job"):
            screen = terminal("watch", *FAST)
            screen.shows("1 lock")
            assert "\x1b[32;1mheld\x1b[0m" in screen.text
            screen = terminal("watch", *FAST, "--no-color")
            screen.shows("1 lock")
            assert "\x1b[32;1m" not in screen.text

    def test_redis_goes_away(self, terminal: Callable[..., Terminal]) -> None:
        """The screen says so, shows the last locks, and goes on when Redis is back."""
        with RedisServer() as server:
            with Redis.from_url(server.url) as redis:
                granted(redis, "job")
            screen = terminal("watch", *FAST, url=server.url)
            screen.shows("1 lock: ")
            server.stop()
            gone = screen.shows("could not be reached")
            assert "As it was at " in gone
            assert "job " in gone
            server.start()
            screen.shows("0 locks.")
            screen.types("\x03")
            assert screen.ends() == 0

    def test_a_terminal_that_knows_nothing(self, terminal: Callable[..., Terminal]) -> None:
        """The output is one block after the other."""
        screen = terminal("watch", *FAST, "--count", "2", "--no-color", term="dumb")
        assert screen.ends() == 0
        assert "\x1b" not in screen.text
        assert screen.text.count("0 locks.") == 2


class TestElsewhere:
    def test_blocks(self, manage: Callable[..., Manage]) -> None:
        """Blocks are plain, have the time, come at once, and are as many as --count says."""
        with redis_lock("job"):
            watchdog(server_of("default")).write_down()
            process = manage("redislock", "watch", *FAST, "--count", "2")
            assert process.says().startswith("Locks on 'default', 20")
            rest = process.rest()
        assert process.ends() == 0
        assert "\x1b" not in rest
        assert rest.count("Locks on 'default', 20") == 1
        assert rest.count("1 lock: 0 stale, 0 unknown, 1 held") == 2
        assert rest.endswith(".\n\n")

    def test_lines_of_json(self, manage: Callable[..., Manage]) -> None:
        """Each screen is a line, which comes at once."""
        process = manage("redislock", "watch", "--interval", "3600", "--json")
        assert json.loads(process.says())["error"] is None
        process.signal(signal.SIGINT)
        assert process.ends() == 0
        process = manage("redislock", "watch", *FAST, "--json")
        first = json.loads(process.says())
        with redis_lock("job"):
            eventually(lambda: json.loads(process.says())["list"]["total"] == 1)
        assert (first["list"]["total"], first["error"]) == (0, None)
        process.signal(signal.SIGINT)
        assert process.complains() == ""
        assert process.ends() == 0

    def test_filters(self) -> None:
        """The filters of the list apply."""
        with redis_lock("job"), redis_lock("other"):
            out = call("watch", "--count", "1", "--pattern", "o*", "--limit", "0").out
        assert "job" not in out
        assert "other" in out

    def test_the_interval(self) -> None:
        """Between two refreshes, and not after the last one."""
        begin = time.monotonic()
        call("watch", "--count", "2", "--interval", "0.3")
        assert 0.3 <= time.monotonic() - begin < PATIENCE
        assert run("watch", "--count", "1", "--interval", "3600").code == 0

    def test_nobody_reads_it(self) -> None:
        """`| head` ends the command."""
        done = cut_off("watch", *FAST)
        assert (done.code, done.err) == (141, "")

    def test_in_a_thread(self) -> None:
        """The command says that it needs the main thread, since signals arrive there."""
        found = []
        thread = threading.Thread(target=lambda: found.append(call("watch", "--count", "1")))
        thread.start()
        thread.join(PATIENCE)
        assert "must be called in the main thread" in found[0].err

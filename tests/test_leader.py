"""`Leader`: who leads, what is called, and what a process believes that was stopped or forked."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.core.management import call_command
from redis import Redis

from django_redislock import LeaseLost, LockError, redis_lock
from django_redislock import leader as module
from django_redislock.leader import Leader, serves
from django_redislock.testing import leading, locks_in_memory, redis_unavailable
from tests.faults.test_no_threads import Refusing
from tests.waiting import PATIENCE, eventually

NAME = "leader:scheduler"
LOCK = f"redislock:{{{NAME}}}"


class Team:
    """Leaders of one name, each as in a process of its own."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._stack = ExitStack()

    def member(self, letter: str, **options: Any) -> Leader:
        """A leader that takes part, and notes what it is told."""
        options = {
            "on_gain": lambda: self.said.append(f"gain {letter}"),
            "on_loss": lambda: self.said.append(f"loss {letter}"),
            "serves": lambda: True,
            "ttl": 5,
            **options,
        }
        leader = Leader("scheduler", **options)
        leader.start()
        self._stack.callback(leader.stop)
        return leader

    def close(self) -> None:
        """Stop all. Those that wait end when the lock comes to them."""
        self._stack.close()
        eventually(
            lambda: not any(its.name == "redislock-leader" for its in threading.enumerate())
        )


@pytest.fixture
def team(redis: Redis) -> Iterator[Team]:
    team = Team()
    yield team
    team.close()
    redis.delete(LOCK)


def waiting(redis: Redis, number: int) -> None:
    """Wait until so many wait for the lock."""
    eventually(lambda: redis.hlen(f"{LOCK}:waiters") == number)


class TestLead:
    def test_one_leads(self, team: Team, redis: Redis) -> None:
        """The first one; the second when the first stops, after it has ended its work."""
        first = team.member("a")
        eventually(lambda: team.said == ["gain a"])
        second = team.member("b")
        waiting(redis, 1)
        assert (first.is_leader, second.is_leader) == (True, False)
        token = first.fencing_token
        first.stop()
        assert not first.is_leader
        assert team.said[:2] == ["gain a", "loss a"]
        eventually(lambda: team.said == ["gain a", "loss a", "gain b"])
        assert second.fencing_token > token
        with pytest.raises(LeaseLost, match=r"'leader:scheduler'.*this process does not lead"):
            _ = first.fencing_token

    def test_step_down(self, team: Team, redis: Redis) -> None:
        """The next one leads. The first does not come back before its ttl is over."""
        first = team.member("a", ttl=1)
        eventually(lambda: team.said == ["gain a"])
        second = team.member("b")
        waiting(redis, 1)
        second.step_down()  # it does not lead, so nothing happens
        first.step_down()
        assert not first.is_leader
        eventually(lambda: team.said == ["gain a", "loss a", "gain b"])
        waiting(redis, 1)
        second.step_down()
        eventually(lambda: team.said[3:] == ["loss b", "gain a"])

    def test_alone(self, team: Team) -> None:
        """One that has stepped down leads again, if nobody else does."""
        leader = team.member("a", ttl=0.5)
        eventually(lambda: leader.is_leader)
        leader.step_down()
        eventually(lambda: team.said == ["gain a", "loss a", "gain a"])

    @pytest.mark.parametrize("how", ["cleared", "deleted"])
    def test_a_lost_lease(self, team: Team, redis: Redis, how: str) -> None:
        """It ends its work as soon as it knows, and takes its turn again."""
        leader = team.member("a", ttl=1)
        eventually(lambda: team.said == ["gain a"])
        if how == "cleared":
            redis_lock(NAME).clear(reason="test")
        else:
            redis.delete(LOCK)
        eventually(lambda: team.said[:3] == ["gain a", "loss a", "gain a"])
        assert leader.is_leader

    def test_as_operators_see_it(self, team: Team, capsys: pytest.CaptureFixture[str]) -> None:
        """In the list of locks, by its name and its label."""
        leader = team.member("a")
        eventually(lambda: leader.is_leader)
        holder = redis_lock(NAME).holder()
        assert holder.label == "leader"
        assert "redislock-leader" in holder.owner
        call_command("redislock", "show", NAME)
        assert "leader" in capsys.readouterr().out

    def test_settings(self, team: Team, redis: Redis, settings: Any) -> None:
        """Those of its name apply, and it waits and renews all the same."""
        settings.REDISLOCK = {
            "WAIT": 0,
            "RENEW": False,
            "RELEASE": "commit",
            "LOCKS": {"leader:*": {"TTL": 7, "KIND": "semaphore", "LIMIT": 2}},
        }
        leader = Leader("scheduler", serves=lambda: True)
        leader.start()
        try:
            eventually(lambda: leader.is_leader)
            assert 5_000 < redis.pttl(LOCK) <= 7_000
        finally:
            leader.stop()

    def test_renewed(self, team: Team) -> None:
        """It leads for longer than its ttl."""
        leader = team.member("a", ttl=0.3)
        eventually(lambda: leader.is_leader)
        token = leader.fencing_token
        threading.Event().wait(1)
        assert leader.fencing_token == token
        assert team.said == ["gain a"]

    def test_started_twice(self, team: Team) -> None:
        """It is one all the same; a stopped one may be started again."""
        leader = team.member("a")
        leader.start()
        eventually(lambda: team.said == ["gain a"])
        leader.stop()
        leader.stop()
        leader.start()
        eventually(lambda: team.said == ["gain a", "loss a", "gain a"])

    def test_stopped_while_it_waits(self, team: Team, redis: Redis) -> None:
        """It does not lead when it gets the lock at last."""
        first = team.member("a")
        eventually(lambda: first.is_leader)
        second = team.member("b")
        waiting(redis, 1)
        second.stop()
        first.stop()
        eventually(lambda: not redis.exists(LOCK))
        assert team.said == ["gain a", "loss a"]


KINDS = [
    ValueError("no"),
    TimeoutError(),
    OSError(),
    LockError("no"),
    SystemExit(3),
    BaseException(),
]


class TestCallbacks:
    @pytest.mark.parametrize("error", KINDS, ids=repr)
    def test_on_gain_raises(
        self, team: Team, redis: Redis, caplog: pytest.LogCaptureFixture, error: BaseException
    ) -> None:
        """It is logged, and another process leads."""

        begun = threading.Event()

        def fail() -> None:
            begun.set()
            waiting(redis, 1)
            raise error

        leader = team.member("a", on_gain=fail)
        assert begun.wait(PATIENCE)
        team.member("b")
        eventually(lambda: team.said == ["gain b"])
        assert not leader.is_leader
        (record,) = (one for one in caplog.records if one.exc_info)
        assert record.exc_info[1] is error
        assert "<Leader 'leader:scheduler'> raised" in record.message

    @pytest.mark.parametrize("error", KINDS, ids=repr)
    def test_on_loss_raises(
        self, team: Team, redis: Redis, caplog: pytest.LogCaptureFixture, error: BaseException
    ) -> None:
        """It is logged, and the lock is released all the same."""

        def fail() -> None:
            raise error

        leader = team.member("a", on_loss=fail)
        eventually(lambda: leader.is_leader)
        leader.step_down()
        eventually(lambda: not redis.exists(LOCK))
        (record,) = (one for one in caplog.records if one.exc_info)
        assert record.exc_info[1] is error

    def test_coroutines_in_a_thread(self, team: Team) -> None:
        """They are awaited, in the leader's thread."""

        async def gain() -> None:
            await asyncio.sleep(0)
            team.said.append(threading.current_thread().name)

        leader = team.member("a", on_gain=gain)
        eventually(lambda: leader.is_leader and team.said == ["redislock-leader"])

    def test_in_callbacks(self, team: Team, redis: Redis) -> None:
        """It leads in on_gain and not in on_loss, and has the lock in both."""
        seen: list[tuple[bool, int]] = []
        leader = team.member("a", serves=lambda: False)

        def look() -> None:
            seen.append((leader.is_leader, redis.exists(LOCK)))

        leader._serves, leader._on_gain, leader._on_loss = lambda: True, look, look
        leader.start()
        eventually(lambda: seen)
        leader.stop()
        assert seen == [(True, 1), (False, 1)]

    def test_stopped_by_its_own_callback(self, team: Team, redis: Redis) -> None:
        """It does not wait for itself."""
        leader = team.member("a", serves=lambda: False)
        leader._serves, leader._on_gain = lambda: True, leader.stop
        leader.start()
        eventually(lambda: team.said == ["loss a"] and not redis.exists(LOCK))


class TestLoop:
    def test_in_a_lifespan(self, redis: Redis) -> None:
        """In a task of the loop: callbacks are called there, and at the end it has ended."""
        said: list[Any] = []

        async def note() -> None:
            await asyncio.sleep(0)
            said.append(asyncio.current_task())

        async def main() -> None:
            async with Leader(
                "scheduler", on_gain=note, on_loss=lambda: said.append("loss")
            ) as one:
                while not said:
                    await asyncio.sleep(0.002)
                assert one.is_leader
                assert one.fencing_token > 0
                with pytest.raises(LockError, match="takes part already"):
                    async with one:
                        pass
                async with Leader("scheduler", on_gain=note) as other:
                    while not redis.hlen(f"{LOCK}:waiters"):
                        await asyncio.sleep(0.002)
                    assert not other.is_leader
                assert not redis.hlen(f"{LOCK}:waiters")
            assert not one.is_leader
            assert said[1:] == ["loss"]
            assert not redis.exists(LOCK)

        asyncio.run(asyncio.wait_for(main(), PATIENCE))

    def test_step_down_from_a_thread(self, redis: Redis) -> None:
        """Its loop is woken, and the next one leads."""
        said: list[str] = []

        def member(letter: str) -> Leader:
            return Leader(
                "scheduler",
                on_gain=lambda: said.append(f"gain {letter}"),
                on_loss=lambda: said.append(f"loss {letter}"),
            )

        async def main() -> None:
            async with member("a") as first:
                while said != ["gain a"]:
                    await asyncio.sleep(0.002)
                async with member("b"):
                    while not redis.hlen(f"{LOCK}:waiters"):
                        await asyncio.sleep(0.002)
                    await asyncio.to_thread(first.step_down)
                    while said != ["gain a", "loss a", "gain b"]:
                        await asyncio.sleep(0.002)

        asyncio.run(asyncio.wait_for(main(), PATIENCE))
        assert said == ["gain a", "loss a", "gain b", "loss b"]

    @pytest.mark.parametrize("error", [ValueError("no"), TimeoutError(), OSError()], ids=repr)
    def test_a_callback_raises(
        self, redis: Redis, caplog: pytest.LogCaptureFixture, error: Exception
    ) -> None:
        """It is logged, and the lock is released."""

        async def fail() -> None:
            raise error

        async def main() -> None:
            async with Leader("scheduler", on_gain=fail) as leader:
                while not caplog.records or redis.exists(LOCK):
                    await asyncio.sleep(0.002)
                assert not leader.is_leader

        asyncio.run(asyncio.wait_for(main(), PATIENCE))

    def test_on_loss_waits_for_what_it_cancels(self, caplog: pytest.LogCaptureFixture) -> None:
        """The leader itself was not cancelled: it is logged, and this process leads again."""
        work: list[asyncio.Task[None]] = []

        async def begin() -> None:
            work.append(asyncio.create_task(asyncio.sleep(PATIENCE)))

        async def end() -> None:
            work[-1].cancel()
            await work[-1]

        async def main() -> None:
            async with Leader("scheduler", on_gain=begin, on_loss=end, ttl=0.1) as leader:
                while not leader.is_leader:
                    await asyncio.sleep(0.002)
                leader.step_down()
                while len(work) < 2:
                    await asyncio.sleep(0.002)

        asyncio.run(asyncio.wait_for(main(), PATIENCE))
        assert caplog.text.count("raised") == 2

    def test_cancelled(self, redis: Redis) -> None:
        """Its loop ends, as by Ctrl-C: on_loss is called, and the lock is released."""
        said: list[str] = []

        async def main() -> None:
            leader = Leader("scheduler", on_loss=lambda: said.append("loss"))
            await leader.__aenter__()
            while not leader.is_leader:
                await asyncio.sleep(0.002)

        asyncio.run(asyncio.wait_for(main(), PATIENCE))
        assert said == ["loss"]
        assert not redis.exists(LOCK)


class TestWithout:
    def test_a_thread(
        self, team: Team, redis: Redis, monkeypatch: pytest.MonkeyPatch, caplog: Any
    ) -> None:
        """It says so, and never leads."""
        refusing = Refusing(monkeypatch)
        leader = team.member("a")
        assert "never leads in this process: no thread can be started" in caplog.text
        assert not leader.is_leader
        refusing.end()
        leader.start()
        eventually(lambda: leader.is_leader)

    def test_what_is_no_outage(
        self, team: Team, settings: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An error that a waiter does not wait out is logged once, and it tries again."""
        monkeypatch.setattr(module, "RETRY", 0.01)
        before = settings.CACHES
        settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
        leader = team.member("a")
        eventually(lambda: "can't wait for its lock, and tries again" in caplog.text)
        threading.Event().wait(0.2)
        assert caplog.text.count("tries again") == 1
        settings.CACHES = before
        eventually(lambda: leader.is_leader)


class TestOnDemand:
    def test_leading(self) -> None:
        """Without Redis and without a thread."""
        said: list[str] = []

        async def loss() -> None:
            said.append("loss")

        leader = Leader("scheduler", on_gain=lambda: said.append("gain"), on_loss=loss)
        with redis_unavailable(), leading(leader) as same:
            assert same is leader
            assert leader.is_leader
            first = leader.fencing_token
            leader.start()
            assert said == ["gain"]
            leader.step_down()
            assert not leader.is_leader
        assert said == ["gain", "loss"]
        assert not leader.is_leader
        with leading(leader):
            assert leader.fencing_token > first

    async def test_in_a_loop(self) -> None:
        """As a decorator of a coroutine function, too."""
        said: list[str] = []

        async def gain() -> None:
            said.append("gain")

        leader = Leader("scheduler", on_gain=gain)

        @leading(leader)
        async def test() -> bool:
            return leader.is_leader

        assert await test()
        assert said == ["gain"]

    def test_a_callback_raises(self) -> None:
        """The test sees it."""

        def fail() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError), leading(Leader("scheduler", on_gain=fail)):
            pass

    def test_something_else(self) -> None:
        """The error says what to write."""
        with pytest.raises(TypeError, match="leader must be a Leader, not 'scheduler'"):
            leading("scheduler")  # type: ignore[arg-type]

    def test_in_memory(self) -> None:
        """A leader that is started leads with locks in memory."""
        leader = Leader("scheduler", serves=lambda: True)
        with locks_in_memory():
            leader.start()
            eventually(lambda: leader.is_leader)
            leader.stop()


class TestServes:
    @pytest.mark.parametrize(
        ("arguments", "environ", "expected"),
        [
            (["manage.py", "runserver"], {}, False),
            (["manage.py", "runserver"], {"RUN_MAIN": "true"}, True),
            (["manage.py", "runserver", "--noreload"], {}, True),
            (["manage.py", "migrate"], {"RUN_MAIN": "true"}, False),
            (["manage.py", "shell"], {}, False),
            (["manage.py", "test"], {}, False),
            (["celery", "worker"], {}, False),
            ([""], {}, False),
        ],
        ids=str,
    )
    def test_commands(
        self, arguments: list[str], environ: Any, expected: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only a server that stays; the reloader's parent does not."""
        monkeypatch.setattr("sys.argv", arguments)
        monkeypatch.delenv("RUN_MAIN", raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        assert serves() is expected

    @pytest.mark.parametrize("module_name", ["wsgi", "asgi"])
    def test_a_server(self, module_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """It makes the application, and Django calls ready() meanwhile."""
        from importlib import import_module

        seen: list[bool] = []
        monkeypatch.setattr("django.setup", lambda **_: seen.append(serves()))
        django_module = import_module(f"django.core.{module_name}")
        getattr(django_module, f"get_{module_name}_application")()
        assert seen == [True]

    def test_one_that_does_not(self, caplog: pytest.LogCaptureFixture) -> None:
        """Nothing is started in these tests."""
        caplog.set_level(logging.DEBUG, "django_redislock")
        leader = Leader("scheduler")
        leader.start()
        assert not leader.is_leader
        assert leader._part is None
        assert "takes no part: this process serves no requests" in caplog.text


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "error", "match"),
        [
            (
                {"on_gain": "start"},
                TypeError,
                "on_gain must be a function, such as start, not 'st",
            ),
            ({"on_loss": 7}, TypeError, "on_loss must be a function"),
            ({"serves": True}, TypeError, "serves must be a function"),
            ({"serves": None}, TypeError, "serves must be a function"),
            ({"ttl": 0}, ValueError, "ttl must be"),
            ({"using": ""}, TypeError, "using must be an alias of CACHES"),
            ({"timeout": 3}, TypeError, "timeout= is refused.*until another process leads"),
            ({"wait": 3}, TypeError, r"Leader\(\) has no argument 'wait'"),
        ],
        ids=str,
    )
    def test_arguments(self, options: Any, error: Any, match: str) -> None:
        """Each is named, with what to write."""
        with pytest.raises(error, match=match):
            Leader("scheduler", **options)

    @pytest.mark.parametrize("name", ["", None, 7, "a\nb"], ids=repr)
    def test_names(self, name: Any) -> None:
        """As those of locks."""
        with pytest.raises((TypeError, ValueError), match="name"):
            Leader(name)

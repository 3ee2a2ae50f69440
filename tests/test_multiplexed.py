"""The connection that all tasks of an event loop share."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import wraps
from inspect import Signature, signature
from typing import Any

import pytest
from django.test import override_settings
from redis import Redis
from redis import asyncio as aioredis
from redis.exceptions import (
    ConnectionError,
    InvalidResponse,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as NoAnswer

from devtools.redis_server import RedisServer
from django_redislock import LockUnavailable, redis_lock
from django_redislock.base import tokens
from django_redislock.base.clock import now
from django_redislock.primitives.contract import NO_TERMS, Terms, Word
from django_redislock.primitives.waiting import NEVER
from django_redislock.transport import command, multiplexed
from django_redislock.transport.multiplexed import Multiplexed
from django_redislock.transport.protocol import NOTHING, Command, PlainReader, Push, pack, script
from django_redislock.transport.server import of_loop, server_of
from tests.lines import opened
from tests.test_lines import SLOW, Silent, entry, silent
from tests.waiting import PATIENCE, eventually

__all__ = ["silent"]

ECHO = "return {ARGV[1], ARGV[2]}"


@asynccontextmanager
async def connections(url: str, **options: Any) -> AsyncIterator[Multiplexed]:
    """Connections that are closed at the end."""
    options = {"client_name": "multiplexed", "socket_timeout": PATIENCE} | options
    connection_class = options.pop("connection_class", None)
    factory = aioredis.ConnectionPool.from_url(url, **options)
    factory.connection_class = connection_class or factory.connection_class
    its = Multiplexed(factory)
    try:
        yield its
    finally:
        await its.aclose()


def on_one(test: Callable[..., Any]) -> Callable[..., Any]:
    """Give a test the connections of its loop to the common server."""

    @wraps(test)
    async def on_it(*, redis_server: RedisServer, **others: Any) -> None:
        async with connections(redis_server.url) as shared:
            await test(shared, **others)

    given = [*signature(test).parameters.values()][1:]
    server = [*signature(on_it, follow_wrapped=False).parameters.values()][:1]
    its: Any = on_it
    its.__signature__ = Signature([*given, *server])
    return on_it


@pytest.fixture
def stoppable() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


async def carry_out(its: Multiplexed, *words: Word, terms: Terms = NO_TERMS) -> Any:
    if words[0] == "EVAL":
        one = script(str(words[1]), [], words[3:], "EVAL")
    else:
        one = Command(pack(words))
    until = NEVER if terms.within is None else now() + terms.within
    return await command.carry_out(its, one, terms, until)


def blocking(name: str) -> bytes:
    """A command whose answer begins with the name of its list, as others do with their words."""
    return pack(("BLPOP", name, 0))


def mine(redis: Redis, name: str = "multiplexed") -> list[str]:
    """The connections of this name."""
    return [one["id"] for one in redis.client_list() if one["name"] == name]


async def until(happened: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not happened():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("terms", [Terms(0.2), Terms(0.2, 1, 0.1)], ids=["shared", "alone"])
async def test_a_connection_is_made_in_time(silent: Silent, terms: Terms) -> None:
    """Also to a server that accepts it and then says nothing."""
    async with connections(f"redis://127.0.0.1:{silent.port}", **SLOW) as its:
        began = time.monotonic()
        with pytest.raises(LockUnavailable) as caught:
            await carry_out(its, "PING", terms=terms)
        assert caught.value.silent
        assert not caught.value.doubtful
        assert time.monotonic() - began < 2


async def test_an_attempt_to_connect_ends_by_itself(silent: Silent) -> None:
    """All tasks wait for it. So it ends although the project has set no time-outs."""
    options = {"socket_timeout": None, "socket_connect_timeout": None}
    async with connections(f"redis://127.0.0.1:{silent.port}", **options) as its:
        its.answer_within = 0.1
        for _ in range(2):
            with pytest.raises(LockUnavailable):
                await carry_out(its, "PING")


@on_one
async def test_one_that_connects_is_cancelled(
    shared: Multiplexed, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others, which wait for the same connection, get it."""
    tasks = [asyncio.ensure_future(carry_out(shared, "PING")) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    assert await asyncio.gather(*tasks[1:]) == [b"PONG", b"PONG"]
    assert len(mine(redis)) == 1


@on_one
async def test_an_answer_may_have_less_time_than_others(shared: Multiplexed, redis: Redis) -> None:
    """A request that is given up does not take the connection from those before it."""
    link = await shared.link()
    name = "redislock:nothing"
    patient = link.exchange(blocking(name), name, now() + PATIENCE)
    with pytest.raises(NoAnswer, match=r"no answer within 0\.(1|09\d+) s"):
        await link.exchange(pack(("PING",)), None, now() + 0.1)
    assert not patient.done()
    redis.rpush(name, "x")
    assert await patient == b"x"
    assert shared.ready() is link


@on_one
async def test_an_answer_that_came_while_the_loop_stood_still(shared: Multiplexed) -> None:
    """It is in time, although nobody has read it."""
    link = await shared.link()
    answer = link.exchange(pack(("PING",)), None, now() + 0.05)
    time.sleep(0.2)  # noqa: ASYNC251
    assert await answer == b"PONG"
    shared.answer_within = 0.05
    answer = link.exchange(pack(("PING",)), None, now() + PATIENCE)
    time.sleep(0.2)  # noqa: ASYNC251
    assert await answer == b"PONG"
    assert shared.ready() is link


@on_one
async def test_an_overdue_answer_ends_the_connection(shared: Multiplexed, redis: Redis) -> None:
    """Nothing is known of any request that was sent over it. The next one has a new one."""
    shared.answer_within = 0.1
    link = await shared.link()
    overdue = link.exchange(blocking("redislock:nothing"), None, now() + PATIENCE)
    behind = asyncio.ensure_future(carry_out(shared, "INCR", "redislock:number"))
    with pytest.raises(NoAnswer):
        await overdue
    with pytest.raises(LockUnavailable) as caught:
        await behind
    assert caught.value.doubtful
    assert caught.value.silent
    assert await carry_out(shared, "PING") == b"PONG"
    assert await shared.link() is not link


def test_all_tasks_share_one(redis_server: RedisServer, redis: Redis) -> None:
    """Whatever the project allows in its pool; it ends with the loop."""

    async def take(number: int) -> None:
        async with redis_lock(f"job {number}"):
            most.append(len(mine(redis, "fifty")))

    async def main() -> None:
        await asyncio.gather(*map(take, range(50)))

    most: list[int] = []
    url = redis_server.url + "&client_name=fifty"
    with override_settings(CACHES=entry(url, max_connections=3)):
        asyncio.run(main())
        assert max(most) <= 1 + 1  # that of the watchdog


async def test_a_connection_that_was_closed_meanwhile(redis: Redis) -> None:
    """It costs a second attempt at most."""
    for _ in range(5):
        lease = await redis_lock("job").aacquire(wait=0)
        await lease.arelease()
        redis.client_kill_filter(_type="normal", skipme=True)
    # As soon as the loop knows it, it costs none.
    await asyncio.sleep(0.01)
    lease = await redis_lock("job").aacquire(wait=0)
    assert not lease._claim.doubtful
    await lease.arelease()


async def test_a_server_that_stalls(redis_server: RedisServer, redis: Redis) -> None:
    """One time-out, for sending and reading together."""
    with override_settings(CACHES=entry(redis_server.url + "&socket_timeout=0.2")):
        async with redis_lock("job"):
            pass
        redis.execute_command("CLIENT", "PAUSE", 1000, "ALL")
        with pytest.raises(LockUnavailable) as caught:
            await redis_lock("other", wait=0).aacquire()
        assert caught.value.silent
        redis.execute_command("CLIENT", "UNPAUSE")


@on_one
async def test_a_broken_connection_fails_all_under_way(shared: Multiplexed, redis: Redis) -> None:
    """Each of them is doubtful, and one that was never sent is not."""
    await carry_out(shared, "PING")
    redis.execute_command("CLIENT", "PAUSE", 10_000, "WRITE")
    try:
        under_way = [
            asyncio.ensure_future(carry_out(shared, "INCR", f"redislock:{number}"))
            for number in range(100)
        ]
        link = await shared.link()
        await until(lambda: len(link.pending) == 100)
        redis.client_kill_filter(_id=mine(redis)[0])
        failed = await asyncio.gather(*under_way, return_exceptions=True)
    finally:
        redis.execute_command("CLIENT", "UNPAUSE")
    assert all(isinstance(error, LockUnavailable) and error.doubtful for error in failed)
    late = link.exchange(pack(("INCR", "redislock:number")), None, now() + PATIENCE)
    with pytest.raises(multiplexed.NotSent):
        await late
    assert not redis.exists("redislock:number")


async def test_locks_are_asked_for_again_with_their_tokens(redis: Redis) -> None:
    """A hundred locks whose scripts were carried out when the connection is cut are held once."""
    async with redis_lock("warm up"):
        pass
    (shared,) = opened()
    assert isinstance(shared.pool, Multiplexed)
    (link,) = shared.pool.links
    link._transport.pause_reading()  # so that no answer comes
    locks = [redis_lock(f"job {number}") for number in range(100)]
    tasks = [asyncio.ensure_future(lock.aacquire(wait=0)) for lock in locks]
    await until(lambda: len(redis.keys("redislock:{job *}")) == 100)
    link._transport.abort()
    leases = await asyncio.gather(*tasks)
    for lease in leases:
        assert lease._claim.doubtful
        await lease.aextend()
        await lease.arelease()
    assert not redis.keys("redislock:{job *}")


async def echo(shared: Multiplexed, number: int) -> None:
    """Ask for something that nobody else asks for."""
    word, said = tokens.word(), f"{number}: {random.random()}"
    answer = await carry_out(shared, "EVAL", ECHO, 0, word, said)
    assert answer == said.encode()


inside: set[int] = set()


async def hold(_: Multiplexed, number: int) -> None:
    """Lock one of ten names."""
    name = number % 10
    async with redis_lock(f"job {name}", wait=PATIENCE):
        assert name not in inside
        inside.add(name)
        try:
            await asyncio.sleep(0)
        finally:
            inside.remove(name)


@pytest.mark.parametrize("work", [echo, hold])
async def test_cancelled_at_random_beside_kills(
    redis_server: RedisServer, redis: Redis, work: Callable[..., Any]
) -> None:
    """No answer is another's, nothing hangs, and there is one connection at a time."""
    chance = random.Random(20)
    seen: set[str] = set()
    counts: Counter[str] = Counter()

    def enough() -> bool:
        return min(counts["done"], counts["cancelled"]) > 200 and len(seen) > 5

    async def repeat(number: int) -> None:
        while not enough():
            try:
                await work(shared, number)
            except LockUnavailable as error:
                counts["lost" if error.passing else "failed"] += 1
            except asyncio.CancelledError:
                counts["cancelled"] += 1
            else:
                counts["done"] += 1

    url = f"{redis_server.url}&client_name=random"
    with override_settings(CACHES=entry(url)):
        shared = (await of_loop(asyncio.get_running_loop(), server_of("default"))).pool
        assert isinstance(shared, Multiplexed)
        tasks = [asyncio.ensure_future(repeat(number)) for number in range(40)]
        async with asyncio.timeout(2 * PATIENCE):
            while not enough():
                await asyncio.sleep(chance.random() * 0.005)
                assert len([link for link in shared.links if link.alive]) <= 1
                for task in chance.sample(tasks, 5):
                    task.cancel()
                if chance.random() < 0.05:
                    seen |= {*mine(redis, "random")}
                    redis.client_kill_filter(_type="normal", skipme=True)
            await asyncio.gather(*tasks)
        assert not counts["failed"]
        eventually(lambda: not redis.keys("redislock:{job *}"))


@pytest.mark.slow
async def test_a_server_that_reads_nothing(
    stoppable: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does not take waits in the tasks, and not in a buffer that grows. When it goes on,
    all are served."""
    large = "x" * 100_000
    async with connections(stoppable.url) as its:
        await carry_out(its, "PING")
        link = await its.link()
        with stoppable.paused():
            asked = [
                asyncio.ensure_future(carry_out(its, "EVAL", ECHO, 0, tokens.word(), large))
                for _ in range(500)
            ]
            await until(lambda: its.ready() is None)
            await asyncio.sleep(0.1)
            assert link._transport.get_write_buffer_size() < 10 * len(large)
            assert len(link.pending) < 100
            asked[-1].cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert answers[:-1] == [large.encode()] * 499
        assert isinstance(answers[-1], asyncio.CancelledError)
        assert await its.link() is link


@on_one
async def test_not_more_than_so_many(
    shared: Multiplexed, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests without an answer are bounded, too, when they are short."""
    monkeypatch.setattr(multiplexed, "MOST_PENDING", 10)
    link = await shared.link()
    first = link.exchange(blocking("redislock:nothing"), None, now() + PATIENCE)
    others = [asyncio.ensure_future(carry_out(shared, "PING")) for _ in range(50)]
    await asyncio.sleep(0.01)
    assert len(link.pending) == 10
    redis.rpush("redislock:nothing", "x")
    assert await asyncio.gather(*others) == [b"PONG"] * 50
    await first


@on_one
async def test_a_cancelled_request(shared: Multiplexed, redis: Redis) -> None:
    """Before it is written it is not sent. Later its answer is dropped, and the connection goes
    on."""
    link = await shared.link()
    first = link.exchange(blocking("redislock:nothing"), None, now() + PATIENCE)
    sent = asyncio.ensure_future(carry_out(shared, "INCR", "redislock:sent"))
    await asyncio.sleep(0)
    others = [link.exchange(pack(("PING",)), None, now() + PATIENCE) for _ in range(20)]
    unsent = asyncio.ensure_future(carry_out(shared, "INCR", "redislock:unsent"))
    await asyncio.sleep(0)
    unsent.cancel()
    sent.cancel()
    redis.rpush("redislock:nothing", "x")
    assert await asyncio.gather(first, *others) == [[b"redislock:nothing", b"x"], *[b"PONG"] * 20]
    assert redis.get("redislock:sent") == b"1"
    assert not redis.exists("redislock:unsent")
    assert shared.ready() is link


@pytest.mark.parametrize("before", [("PING",), ("NOTHING",), ("ECHO", "x" * 100_000)])
@on_one
async def test_an_answer_behind_another_one(shared: Multiplexed, before: tuple[Any, ...]) -> None:
    """The first one is skipped, whatever it is, and whether somebody waits for the second one."""
    its = script(ECHO, [], ["word", "x"], "EVAL")
    for one in (its, its.behind(pack(before)), its.behind(pack(before)).behind(pack(before))):
        answers = [command.carry_out(shared, one) for _ in range(3)]
        given_up, *others = map(asyncio.ensure_future, answers)
        await asyncio.sleep(0)
        given_up.cancel()
        assert await asyncio.gather(*others) == [b"x", b"x"]
    assert len(shared.links) == 1


@pytest.mark.parametrize("stray", [b"+OK\r\n", b"$-1\r\n", b"*1\r\n:1\r\n", b"?\r\n"], ids=repr)
@on_one
async def test_an_answer_that_nobody_has_asked_for(shared: Multiplexed, stray: bytes) -> None:
    """Then the order of the answers is not known: the connection ends, with all that is under
    way. So it is with one that has another word than the oldest request."""
    link = await shared.link()
    link.data_received(stray)
    assert not link.alive
    link = await shared.link()
    under_way = link.exchange(pack(("EVAL", ECHO, 0, "word", "x")), "word", now() + PATIENCE)
    behind = link.exchange(pack(("PING",)), None, now() + PATIENCE)
    link.data_received(stray)
    for one in (under_way, behind):
        with pytest.raises(RedisError):
            await one
    assert not link.alive


@pytest.mark.parametrize("refusal", ["READONLY", "LOADING", "NOAUTH"])
@on_one
async def test_a_connection_that_is_refused(
    shared: Multiplexed, redis: Redis, refusal: str
) -> None:
    """By a primary that was demoted: it is not used any more. What was sent over it is still
    answered, and then it is closed."""
    link = await shared.link()
    words = ("EVAL", f"return redis.error_reply('{refusal} You can not')", 0, "word")
    refused = asyncio.ensure_future(carry_out(shared, *words))
    await asyncio.sleep(0)
    behind = link.exchange(blocking("redislock:nothing"), None, now() + PATIENCE)
    with pytest.raises(LockUnavailable, match="You can not"):
        await refused
    assert await carry_out(shared, "PING") == b"PONG"
    assert await shared.link() is not link
    assert link.alive
    redis.rpush("redislock:nothing", "x")
    assert await behind == [b"redislock:nothing", b"x"]
    await until(lambda: not link.alive)
    assert len(mine(redis)) == 1


async def test_replicas_hold_up_nobody_else(redis_server: RedisServer, redis: Redis) -> None:
    """WAIT has a connection of its own, which is kept for the next one; not more than the project
    allows."""
    url = redis_server.url + "&client_name=alone"

    async def confirmed(number: int) -> None:
        with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
            await redis_lock(f"job {number}", replicas=1, replicas_timeout=0.5).aacquire(wait=0)

    with override_settings(CACHES=entry(url, max_connections=2)):
        tasks = [asyncio.ensure_future(confirmed(number)) for number in range(4)]
        await until(lambda: len(redis.keys("redislock:{job *}")) == 2)
        for number in range(100):
            async with redis_lock(f"other {number}"):
                pass
        assert not any(task.done() for task in tasks)
        assert len(mine(redis, "alone")) <= 2 + 1 + 1  # that of the watchdog
        await asyncio.gather(*tasks)


async def test_a_connection_that_was_idle_for_long(redis_server: RedisServer) -> None:
    """It may have been cut without a word, so another one is made."""
    async with connections(redis_server.url, health_check_interval=1) as its:
        link = await its.link()
        await carry_out(its, "PING")
        assert await its.link() is link
        link._used -= 2
        assert await its.link() is not link
        await until(lambda: not link.alive)


class Another(aioredis.UnixDomainSocketConnection):
    """A connection of another version of redis-py, which calls its inside something else."""

    @property
    def _writer(self) -> Any:
        return self.its

    @_writer.setter
    def _writer(self, writer: Any) -> None:
        self.its = writer and Opaque(writer)


class Opaque:
    """Something that does the work of a StreamWriter."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._all = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._all, name)


async def test_by_public_methods(redis_server: RedisServer, redis: Redis) -> None:
    """All of that holds for a connection of which only the public methods are known."""
    async with connections(redis_server.url, connection_class=Another) as its:
        link = await its.link()
        assert isinstance(link._transport, multiplexed._ByMethods)
        await asyncio.gather(*(echo(its, number) for number in range(100)))
        with pytest.raises(ResponseError):
            await link.exchange(pack(("NONE",)), None, now() + PATIENCE)
        under_way = [asyncio.ensure_future(echo(its, number)) for number in range(100)]
        await asyncio.sleep(0)
        for task in under_way[::3]:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        assert len([task for task in under_way if not task.cancelled()]) == 66
        assert await its.link() is link
        lost = link.exchange(blocking("redislock:nothing"), None, now() + PATIENCE)
        await until(lambda: [one for one in redis.client_list() if one["cmd"] == "blpop"])
        redis.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(ConnectionError):
            await lost
        assert not link.alive
        its.answer_within = 0.5
        await echo(its, 1)
        with pytest.raises(NoAnswer):
            await (await its.link()).exchange(
                blocking("redislock:nothing"), None, now() + PATIENCE
            )
        await echo(its, 2)
    assert not mine(redis)


ANSWERS: list[tuple[bytes, Any]] = [
    (b"+OK\r\n", b"OK"),
    (b":-7\r\n", -7),
    (b"$5\r\na\r\nbc\r\n", b"a\r\nbc"),
    (b"$0\r\n\r\n", b""),
    (b"$-1\r\n", None),
    (b"*-1\r\n", None),
    (b"_\r\n", None),
    (b"*0\r\n", []),
    (b"*3\r\n:1\r\n*2\r\n$1\r\nx\r\n$-1\r\n+y\r\n", [1, [b"x", None], b"y"]),
]
"""Answers in Redis' protocol, and what they mean."""


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_the_reader_of_plain_python(size: int) -> None:
    """It reads what hiredis reads, whatever the pieces in which it comes."""
    reader = PlainReader()
    found = []
    text = b"".join(answer for answer, _ in ANSWERS) * 3
    for start in range(0, len(text), size):
        reader.feed(text[start : start + size])
        while (answer := reader.gets()) is not NOTHING:
            found.append(answer)
    assert found == [meant for _, meant in ANSWERS] * 3


def test_errors_and_pushes() -> None:
    """An error is the exception that redis-py has for it. What a server says by itself is told
    apart."""
    reader = PlainReader()
    reader.feed(
        b"-READONLY You can not\r\n>2\r\n+invalidate\r\n*0\r\n*1\r\n-ERR so\r\n!5\r\nERR x\r\n"
    )
    assert isinstance(reader.gets(), ReadOnlyError)
    assert type(reader.gets()) is Push
    (error,) = reader.gets()
    assert isinstance(error, ResponseError)
    assert str(reader.gets()) == "x"
    assert reader.gets() is NOTHING
    for nonsense in (b"?\r\n", b"$x\r\n", b"HTTP/1.1 400 Bad Request\r\n"):
        reader = PlainReader()
        reader.feed(nonsense)
        with pytest.raises(InvalidResponse):
            reader.gets()


def test_uvloop(redis: Redis) -> None:
    """Tasks of its loops share a connection, too, and none of them fails when it is lost."""
    uvloop: Any = pytest.importorskip("uvloop")

    async def work(number: int) -> None:
        async with redis_lock(f"job {number}") as lease:
            lease.check()

    async def many() -> None:
        await asyncio.gather(*map(work, range(50)))
        (its,) = [one for one in opened() if one.loop is asyncio.get_running_loop()]
        assert isinstance(its.pool, Multiplexed)
        assert len(its.pool.links) == 1
        redis.client_kill_filter(_type="normal", skipme=True)
        await asyncio.gather(*map(work, range(50)))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(many())

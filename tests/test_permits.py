"""Random stories of semaphores and read-write locks on a real Redis, against a model that is short
enough to be seen to be right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from django_redislock.primitives.keys import Keys
from django_redislock.primitives.permits import MANY
from django_redislock.primitives.waiting import DEAF
from tests.calling import call
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

KEYS = Keys.of("redislock", "story")
NOBODY = "f" * 32
ASKS = 60_000, "owner|label"


class Wants(NamedTuple):
    kind: str
    limit: int


ONE = Wants("semaphore", 1)


@dataclass
class Model:
    """Who holds and who waits, in order."""

    holders: dict[str, Wants] = field(default_factory=dict)
    queue: list[tuple[str, Wants]] = field(default_factory=list)

    def fits(self, wants: Wants) -> bool:
        if any(holder.kind == "write" for holder in self.holders.values()):
            return False
        if wants.kind == "write":
            return not self.holders
        return not self.holders or len(self.holders) < wants.limit

    def serve(self) -> None:
        while self.queue and self.fits(self.queue[0][1]):
            token, wants = self.queue.pop(0)
            self.holders[token] = wants

    def ask(self, token: str, wants: Wants, *, wait: bool) -> None:
        if token in self.holders:
            return
        if token not in dict(self.queue):
            self.queue.append((token, wants))
        self.serve()
        if not wait:
            self.leave(token)

    def leave(self, token: str) -> None:
        self.queue = [entry for entry in self.queue if entry[0] != token]
        self.serve()

    def release(self, token: str) -> None:
        self.holders.pop(token, None)
        self.leave(token)

    def downgrade(self, token: str) -> None:
        if token in self.holders:
            self.holders[token] = Wants("read", MANY)
            self.serve()


class Server:
    """The same, said by our scripts."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        keys = [key.decode() for key in redis.scan_iter(match="redislock:{story}*", count=1000)]
        if keys:
            redis.delete(*keys)

    def _call(self, name: str, token: str, *args: Any) -> Any:
        keys = KEYS.permits(token)
        return call(self._redis, name, keys, token, *args)

    def ask(self, token: str, wants: Wants, *, wait: bool) -> None:
        inbox = DEAF if wait else ""
        self._call("permits_acquire", token, *ASKS, inbox, "", *wants)

    def release(self, token: str) -> None:
        self._call("permits_release", token, 0)

    def downgrade(self, token: str) -> None:
        self._call("permits_downgrade", token, "read", MANY)

    def end(self, token: str) -> None:
        """Its lease ends, and the next script of whomever comes."""
        self._redis.zadd(KEYS.lock, {token: 1}, xx=True)
        self.release(NOBODY)

    @property
    def holders(self) -> set[str]:
        now = self._redis.time()[0] * 1000
        return {
            token.decode()
            for token, ends in self._redis.zrange(KEYS.lock, 0, -1, withscores=True)
            if ends > now
        }

    @property
    def queue(self) -> list[str]:
        return [token.decode() for token in self._redis.zrange(KEYS.queue, 0, -1)]


TOKENS = [f"{number:032d}" for number in range(5)]
STEPS = st.sampled_from(["ask", "ask", "ask", "try", "try", "release", "end", "downgrade"])


def play(redis: Redis, story: list[tuple[str, int, Wants]]) -> None:
    model, server = Model(), Server(redis)
    wanted: dict[str, Wants] = {}
    for step, number, one_of in story:
        token = TOKENS[number]
        wants = wanted.setdefault(token, one_of)
        if step in ("ask", "try"):
            for one in (model, server):
                one.ask(token, wants, wait=step == "ask")
        elif step == "downgrade":
            if model.holders.get(token, wants).kind == "write":
                model.downgrade(token)
                server.downgrade(token)
        elif step == "end" and token in model.holders:
            server.end(token)
            model.release(token)
        else:
            server.release(token)
            model.release(token)
        assert server.holders == set(model.holders)
        assert server.queue == [waiter for waiter, _ in model.queue]
        assert set(map(bytes.decode, redis.hkeys(KEYS.holders))) == set(model.holders)


def stories(wants: st.SearchStrategy[Wants]) -> Any:
    return st.lists(
        st.tuples(STEPS, st.integers(0, len(TOKENS) - 1), wants), min_size=10, max_size=50
    )


relaxed = settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@relaxed
@given(story=stories(st.integers(1, 4).map(lambda limit: Wants("semaphore", limit))))
def test_semaphores(redis: Redis, story: list[tuple[str, int, Wants]]) -> None:
    """Never more than who asks says, in order of arrival, and nobody waits for nothing; also when
    each says another limit."""
    play(redis, story)


@relaxed
@given(
    story=stories(
        st.sampled_from(["read", "read", "write"]).map(lambda kind: Wants(kind, MANY)),
    )
)
def test_read_write_locks(redis: Redis, story: list[tuple[str, int, Wants]]) -> None:
    """A writer is alone; readers are together as far as no writer came before them."""
    play(redis, story)


class TestOtherKinds:
    """A name's kind was changed, and some still wait for the other one when its key goes away."""

    def waits_for_the_mutex(self, redis: Redis, token: str, inbox: str = DEAF) -> None:
        call(redis, "mutex_acquire", KEYS.mutex(token), token, *ASKS, inbox, "")

    def waits_for_a_place(self, redis: Redis, token: str) -> None:
        call(redis, "permits_acquire", KEYS.permits(token), token, *ASKS, DEAF, "", *ONE)

    def test_waiters_for_a_mutex(self, redis: Redis) -> None:
        """They get no place, and are woken, to ask again; nothing stays without an end."""
        server = Server(redis)
        redis.set(KEYS.lock, "held")
        with redis.pubsub() as inbox:
            inbox.subscribe("redislock:inbox:1")
            inbox.get_message(timeout=PATIENCE)
            for token in TOKENS[:2]:
                self.waits_for_the_mutex(redis, token, "redislock:inbox:1")
            redis.delete(KEYS.lock)
            server.ask(TOKENS[2], ONE, wait=False)
            woken = [inbox.get_message(timeout=PATIENCE) for _ in range(2)]
        assert [message["data"].decode() for message in woken] == TOKENS[:2]
        assert server.holders == {TOKENS[2]}
        assert server.queue == []
        assert redis.pttl(KEYS.lock) > 0
        assert redis.pttl(KEYS.holders) > 0

    def test_waiters_for_a_mutex_behind_those_for_a_place(self, redis: Redis) -> None:
        """Nor from who gives its place back."""
        server = Server(redis)
        redis.set(KEYS.lock, "held")
        self.waits_for_the_mutex(redis, TOKENS[0])
        queued = redis.zrange(KEYS.queue, 0, -1, withscores=True)
        waiter = redis.hget(KEYS.waiters, TOKENS[0])
        redis.delete(KEYS.lock, KEYS.queue)
        server.ask(TOKENS[1], ONE, wait=False)
        redis.zadd(KEYS.queue, dict(queued))
        redis.hset(KEYS.waiters, TOKENS[0], waiter)
        server.release(TOKENS[1])
        assert (server.holders, server.queue) == (set(), [])

    def test_waiters_for_a_place(self, redis: Redis) -> None:
        """They don't get the mutex."""
        server = Server(redis)
        server.ask(NOBODY, ONE, wait=False)
        for token in TOKENS[:2]:
            self.waits_for_a_place(redis, token)
        redis.delete(KEYS.lock)
        call(redis, "mutex_acquire", KEYS.mutex(TOKENS[2]), TOKENS[2], *ASKS, "", "")
        assert redis.get(KEYS.lock).startswith(TOKENS[2].encode())
        assert server.queue == []

    def test_waiters_for_a_read_write_lock(self, redis: Redis) -> None:
        """Of those who waited to write or read, none goes in beside a semaphore."""
        server = Server(redis)
        server.ask(NOBODY, Wants("write", MANY), wait=False)
        server.ask(TOKENS[0], Wants("read", MANY), wait=True)
        waiters = redis.hgetall(KEYS.waiters)
        server.release(TOKENS[0])
        server.release(NOBODY)
        server.ask(TOKENS[1], Wants("semaphore", 5), wait=False)
        # As if the key of the writer had been deleted at that moment.
        redis.zadd(KEYS.queue, {TOKENS[0]: 1})
        redis.hset(KEYS.waiters, mapping=waiters)
        server.ask(TOKENS[2], Wants("semaphore", 5), wait=False)
        assert server.holders == {TOKENS[1], TOKENS[2]}
        assert server.queue == []

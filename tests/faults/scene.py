"""One lock before a server that loses messages: what the tests of lost and late messages share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import cycle, product
from typing import Any, Self

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from devtools.redis_server import RedisServer
from django_redislock import Lease, LeaseState, LockUnavailable, redis_lock
from tests import waiting
from tests.caches import entry
from tests.contract.api import Api
from tests.faults.proxy import Fault, Matcher, Proxy, Rule, script
from tests.waiting import PATIENCE, T

ACQUIRE, RELEASE, EXTEND = (
    script(f"mutex_{verb}", f"permits_{verb}") for verb in ("acquire", "release", "extend")
)

TIMEOUT = 0.5
"""Seconds after which clients give up on an answer that was swallowed: each costs so much."""
PATIENT = 5.0
"""The same where nothing is swallowed, so that a busy machine adds no faults of its own."""

FAULTS = {
    "request-reset": Fault.RESET_BEFORE,
    "reply-reset": Fault.RESET_AFTER,
    "request-swallowed": Fault.LOSE_REQUEST,
    "reply-swallowed": Fault.LOSE_REPLY,
}
"""Every way to lose a message: carried out or not, noticed at once or by a timeout."""
RESETS = (Fault.RESET_BEFORE, Fault.RESET_AFTER)

RETRIES = (0, 3, 10)
"""How often redis-py itself tries again."""

FOR_EVER = 10**9
"""So many times: until the rule is told to let go."""


def eventually(look: Callable[[], T]) -> T:
    """As tests.waiting has it, at a pace that a dozen scenes can keep on two processors."""

    def paced() -> T:
        if not (seen := look()):
            time.sleep(0.02)
        return seen

    return waiting.eventually(paced)


class Scene:
    """A lock of its own, reached through the proxy and past it.

    `fault` is the way in which its messages get lost; `api` is how it is called.
    """

    def __init__(
        self,
        api: Api,
        proxy: Proxy,
        redis: Redis,
        *,
        name: str = "invoice:42",
        fault: Fault = Fault.LOSE_REPLY,
        retries: int = 0,
    ) -> None:
        self.api, self.proxy, self.redis = api, proxy, redis
        self.name, self.fault, self.retries = name, fault, retries
        self.key = f"redislock:{{{name}}}"
        self.using = name.replace(":", "-")
        """Its alias in CACHES, so that nothing it does depends on other scenes."""
        self.tries = 2 if fault in RESETS else 1
        """How often a request is sent that may not wait: where an answer would have to be
        waited for again, only once."""
        self.barrier = threading.Barrier(1)
        self._started: list[Future[Any]] = []

    def meet(self) -> None:
        """Wait until all scenes that are played at the same time have come so far."""
        self.barrier.wait(PATIENCE)

    def connect(self) -> None:
        """Open a connection, so that its time-out hits the first command and not the greeting."""
        eventually(self._asked)

    def _asked(self) -> bool:
        try:
            self.api.holder(self.lock())
        except LockUnavailable:
            return False
        return True

    # What its users do, each with a policy of their own.

    def lock(self, ttl: float = 600, **options: Any) -> redis_lock:
        """The lock, whose lease does not end while a test waits for something else."""
        return redis_lock(self.name, using=self.using, ttl=ttl, **options)

    def acquire(self, wait: float | None = 20, **options: Any) -> Lease:
        """Get it through the proxy."""
        lease: Lease = self.api.acquire(self.lock(**options), wait=wait)
        self.owned(lease)
        return lease

    def start(self, wait: float | None = None, **options: Any) -> Future[Any]:
        """Begin to acquire it through the proxy, as somebody else."""
        return self._start(self.lock(**options), wait)

    def start_direct(self, wait: float | None = None, **options: Any) -> Future[Any]:
        """Begin to acquire it past the proxy, as somebody else."""
        return self._start(redis_lock(self.name, using="direct", **options), wait)

    def _start(self, lock: redis_lock, wait: float | None) -> Future[Any]:
        self._started.append(self.api.start(lambda: self.api.acquire(lock, wait=wait)))
        return self._started[-1]

    def acquire_direct(self, **options: Any) -> Lease:
        """Get it past the proxy, at once, as somebody else."""
        return self.got(self.start_direct(wait=0, **options))

    def got(self, waiter: Future[Any]) -> Lease:
        """Wait for the lease of somebody who was started, and who holds it now."""
        lease: Lease = waiter.result(PATIENCE)
        self.owned(lease)
        return lease

    def release(self, lease: Lease) -> None:
        """Give it back, as often as a busy machine takes longer than a short timeout."""
        for attempt in range(5):
            try:
                self.api.release(lease)
                break
            except LockUnavailable:
                if attempt == 4 or self.tries > 1:
                    raise
        assert lease.state == LeaseState.RELEASED

    def release_last(self, lease: Lease) -> None:
        """Give it back; nothing is left of the lock, and the next one has it at once."""
        self.release(lease)
        self.is_free(after=lease)

    # What happens to them.

    def lose(
        self, matches: Matcher, times: int = 1, *, token: str = "", fault: Fault | None = None
    ) -> Rule:
        """From now on lose so many of these messages: about this lock, or of that token."""
        about = (token or f"{self.key}").encode()
        return self.proxy.on(
            lambda words: matches(words) and about in words, fault or self.fault, times=times
        )

    def clear(self) -> None:
        """Leave nobody waiting, after a failure."""

        def all_have_it() -> bool:
            self.redis.delete(self.key, f"{self.key}:queue", f"{self.key}:waiters")
            return all(future.done() for future in self._started)

        eventually(all_have_it)

    # What the server knows.

    def holder(self) -> str:
        """The token at the lock's key; "" when it is free."""
        return (self.redis.get(self.key) or b"")[:32].decode()

    def waiting(self) -> list[str]:
        """The tokens in the queue, in order."""
        return [token.decode() for token in self.redis.zrange(f"{self.key}:queue", 0, -1)]

    def queued(self, number: int) -> list[str]:
        """Wait until so many are waiting; returns their tokens, in order."""
        eventually(lambda: len(self.waiting()) == number)
        return self.waiting()

    def seen(self) -> dict[str, int]:
        """When each of those who wait was seen last, in microseconds of the server's clock."""
        waiters = self.redis.hgetall(f"{self.key}:waiters")
        return {token.decode(): int(text.split(b"|")[0]) for token, text in waiters.items()}

    def listening(self) -> bool:
        """Whether the server can tell all who wait."""
        waiters = self.redis.hvals(f"{self.key}:waiters")
        inboxes = {waiter.split(b"|")[2] for waiter in waiters}
        return all(number > 0 for _, number in self.redis.pubsub_numsub(*inboxes))

    def owned(self, lease: Lease | None) -> None:
        """It is held, as far as its holder was told and as far as the server knows."""
        assert lease is not None, "told that somebody else holds it"
        assert lease.state == LeaseState.HELD
        value = (self.redis.get(self.key) or b"").decode()
        assert value[:32] == lease.token
        assert value[33:].startswith(f"{lease.fencing_token}|")

    def left(self) -> list[str]:
        """What is left of the lock, without what goes by itself.

        What outlives a lock on purpose, its history and its tombstones, has to have a TTL.
        """
        outlives = f"{self.key}:history", f"{self.key}:gone:"
        keys = [key.decode() for key in self.redis.scan_iter(match=f"{self.key}*", count=1000)]
        keys = [key for key in keys if not (key.startswith(outlives) and self.redis.ttl(key) > 0)]
        if self.redis.zscore("redislock:index", f"redislock:{{{self.name}}}") is not None:
            keys.append("redislock:index")
        return keys

    def is_free(self, after: Lease | None = None) -> None:
        """Nothing is left, and the next one has the lock at once.

        Where an answer was swallowed, what is to be undone is undone in the background.
        """
        if self.tries == 1:
            eventually(lambda: self.left() == [])
        assert self.left() == []
        lease = self.acquire_direct()
        assert after is None or lease.fencing_token > after.fencing_token
        self.release(lease)
        assert self.left() == []


def through(proxy: Proxy, server: RedisServer, *scenes: Scene, **options: Any) -> dict[str, Any]:
    """`CACHES` in which each scene has an alias through the proxy, and "direct" goes past it."""
    aliases = {alias: entry(server.url) for alias in ("default", "direct")}
    for scene in scenes:
        pool = {"retry": Retry(NoBackoff(), scene.retries), "retry_on_timeout": True}
        timeout = PATIENT if scene.fault in RESETS else TIMEOUT
        aliases[scene.using] = entry(
            f"{proxy.url}-{scene.using}",  # pools are remembered by URL
            **{
                "SOCKET_TIMEOUT": timeout,
                "CONNECTION_POOL_KWARGS": pool if scene.retries else {},
                **options,
            },
        )
    return aliases


Scenario = Callable[[Scene], None]


class Pace:
    """Measures for how long this process stood still at most, while other programs ran."""

    worst = 0.0
    """Seconds."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def _measure(self) -> None:
        before = time.monotonic()
        while not self._over.wait(0.01):
            after = time.monotonic()
            self.worst = max(self.worst, after - before)
            before = after

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()


STILL = 0.2
"""Seconds for which the process may stand still before a failure says nothing: a waiter whose
answer was swallowed has half a second left of its claim window."""
ATTEMPTS = 3
"""How often such scenes are played, at most."""


def play(scenario: Scenario, scenes: list[Scene]) -> None:
    """Run it in all scenes at once, since most of their time is waiting for timeouts."""
    failures: list[BaseException] = []
    barrier = threading.Barrier(len(scenes))

    def run(scene: Scene) -> None:
        scene.barrier = barrier
        try:
            scene.connect()
            scene.meet()
            scenario(scene)
        except threading.BrokenBarrierError:
            assert failures, "the scenes don't come together"
        except BaseException as error:  # pytest's own failures are no Exceptions
            error.add_note(f"in the scene {scene.name}")
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(scene,), daemon=True) for scene in scenes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} of {len(scenes)} scenes", failures)


def _test(
    scenario: Scenario,
    cast: Callable[[dict[str, Api]], list[tuple[str, Api, Fault, int]]],
    *,
    together: bool = True,
) -> Callable[..., None]:
    """A test that runs `scenario` in all scenes of the cast: name, api, fault and retries. It is
    one test for both apis together, or one for each."""

    @pytest.mark.parametrize("which", [["sync", "async"]] if together else [["sync"], ["async"]])
    def test(
        apis: dict[str, Api],
        proxy: Proxy,
        redis: Redis,
        redis_server: RedisServer,
        settings: Any,
        which: list[str],
    ) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            again = "" if attempt == 1 else f":{attempt}"
            scenes = [
                Scene(api, proxy, redis, name=name + again, fault=fault, retries=retries)
                for name, api, fault, retries in cast({one: apis[one] for one in which})
            ]
            settings.CACHES = through(proxy, redis_server, *scenes)
            with Pace() as pace:
                try:
                    play(scenario, scenes)
                    return
                except BaseExceptionGroup:
                    if pace.worst < STILL or attempt == ATTEMPTS:
                        raise
                    proxy.heal()
                    for scene in scenes:
                        scene.clear()

    # Not functools.wraps, by which pytest would find the scenario's arguments.
    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    test.__module__ = scenario.__module__
    return test


def in_every_way(scenario: Scenario) -> Callable[..., None]:
    """A test for each api that runs `scenario` with each fault and number of retries."""
    return _test(
        scenario,
        lambda apis: [
            (f"{kind}:{retries}", api, fault, retries)
            for api in apis.values()
            for (kind, fault), retries in product(FAULTS.items(), RETRIES)
        ],
        together=False,
    )


def with_every_fault(scenario: Scenario) -> Callable[..., None]:
    """A test that runs `scenario` for each api and fault; the client's retries differ."""
    return _test(
        scenario,
        lambda apis: [
            (f"{kind}:{which}", api, fault, retries)
            for ((kind, fault), (which, api)), retries in zip(
                product(FAULTS.items(), apis.items()), cycle(RETRIES), strict=False
            )
        ],
    )


def through_both_ports(
    scenario: Scenario, *, fault: Fault = Fault.LOSE_REPLY
) -> Callable[..., None]:
    """A test that runs `scenario` for each api."""
    return _test(scenario, lambda apis: [(which, api, fault, 0) for which, api in apis.items()])


through_both_ports_patiently = partial(through_both_ports, fault=Fault.RESET_AFTER)
"""The same, with time-outs that are longer than it takes."""

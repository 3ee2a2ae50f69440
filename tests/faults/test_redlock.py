"""Redlock on five servers of its own, of which some are stopped, paused, restarted or cut off."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from redis import ConnectionPool, Redis

from devtools.redis_server import RedisServer, find_server
from django_redislock import (
    Lease,
    LeaseLost,
    LeaseRevoked,
    LeaseState,
    LockError,
    LockNotAcquired,
    LockReentered,
    LockUnavailable,
    Redlock,
    current_lease,
    redis_lock,
)
from django_redislock.base.clock import now
from django_redislock.base.people import Holder
from django_redislock.base.servers import Servers
from django_redislock.inspection import Inspector
from django_redislock.lease.watchdog import Watchdog, watchdog
from django_redislock.primitives import queued, redlock
from django_redislock.settings import conf
from django_redislock.settings.conf import aliases
from django_redislock.transport import loans, ports
from django_redislock.transport.cluster import Cluster
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.quorum import Member
from django_redislock.transport.server import every, server_of
from tests.caches import caches, entry
from tests.contract.api import Api
from tests.faults.conftest import load_scripts
from tests.faults.interruption import KINDS, every_place
from tests.faults.proxy import Fault, Proxy, script
from tests.lines import idle, missing
from tests.lines import unread as unread_on
from tests.operations.calling import call
from tests.processes import Worker
from tests.test_bounds import crowd
from tests.waiting import PATIENCE, eventually
from tests.worker import say, told

KEY = "redislock:{job}"
ALIASES = ["a", "b", "c", "d", "e"]
TTL = 60.0
FOREIGN = f"{'f' * 32}|1|1|host|elsewhere".encode()
"""The value of a lock that somebody else holds."""


class Nodes:
    """Five servers, by alias."""

    def __init__(self, servers: dict[str, RedisServer]) -> None:
        self.servers = servers
        self.clients = {alias: Redis.from_url(one.url) for alias, one in servers.items()}

    def prepare(self) -> None:
        """They run, are empty, and know our scripts."""
        self.start()
        for client in self.clients.values():
            client.flushall()
            load_scripts(client)

    def start(self) -> None:
        """Those that a test has stopped run again."""
        for server in self.servers.values():
            if not server.running:
                server.start()

    def holding(self, lease: Lease) -> list[str]:
        """The servers that have the lease's token at the lock."""
        return [alias for alias in ALIASES if self.token(alias) == lease.token]

    def token(self, alias: str) -> str | None:
        value = self.clients[alias].get(KEY)
        return None if value is None else value[:32].decode()

    def held(self) -> list[str]:
        """The servers at which anybody holds the lock."""
        return [alias for alias in ALIASES if self.token(alias) is not None]

    def stop(self, *aliases: str) -> None:
        for alias in aliases:
            self.servers[alias].stop()

    def restart(self, *aliases: str) -> None:
        """They come back empty."""
        for alias in aliases:
            self.servers[alias].stop()
            self.servers[alias].start()
            load_scripts(self.clients[alias])

    @contextmanager
    def paused(self, *aliases: str) -> Iterator[None]:
        """They answer nothing, and their kernel goes on accepting connections and data."""
        for alias in aliases:
            self.servers[alias].pause()
        try:
            yield
        finally:
            for alias in aliases:
                self.servers[alias].resume()


@pytest.fixture(scope="module")
def servers() -> Iterator[Nodes]:
    found = find_server()
    if found.url is not None:
        pytest.skip("Redlock needs servers of its own, and only somebody else's is there")
    with ExitStack() as stack:
        yield Nodes({alias: stack.enter_context(RedisServer(found)) for alias in ALIASES})


@pytest.fixture
def nodes(servers: Nodes, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    servers.prepare()
    # A busy machine is no fault that is tested here; servers that hang are given up sooner below.
    monkeypatch.setattr(redlock, "WITHIN", 5.0)
    settings.CACHES = caches(servers.servers["a"].url) | {
        alias: entry(server.url) for alias, server in servers.servers.items()
    }
    yield servers
    # What the test left to be undone would be undone in the middle of the next test.
    servers.start()
    ours = {server_of(alias).where for alias in ALIASES}
    for one in every(Watchdog):
        if ours & {server.where for server in one.server.each}:
            one.settle(PATIENCE)


@pytest.fixture
def of_three(nodes: Nodes, settings: Any) -> Nodes:
    """An entry of LOCKS makes the job a Redlock of three of the servers."""
    settings.REDISLOCK = {"LOCKS": {"job": {"KIND": "redlock", "USING": ["c", "b", "a"]}}}
    return nodes


@pytest.fixture
def behind_proxy(nodes: Nodes, settings: Any) -> Iterator[Proxy]:
    """Server e is reached through it."""
    with Proxy(nodes.servers["e"]) as proxy:
        settings.CACHES = {**settings.CACHES, "e": entry(proxy.url)}
        yield proxy


# Interrupted: three servers are enough.


def in_a_block(name: str) -> None:
    with Redlock(name, ALIASES[:3], ttl=TTL):
        pass


def by_hand(name: str) -> None:
    """Acquired, extended and released, without a block."""
    lease = Redlock(name, ALIASES[:3], ttl=TTL).acquire(wait=0)
    assert lease is not None
    try:
        lease.extend()
    finally:
        lease.release()


def outvoted(name: str) -> None:
    """Somebody else has a majority, so what one server has granted is undone."""
    assert Redlock(f"{name} taken", ALIASES[:3], ttl=TTL).acquire(wait=0) is None


def member_pools() -> list[ConnectionPool]:
    """The pools of the servers, over which Redlocks ask them."""
    pools = [server_of(alias).kept(Member).pool for alias in ALIASES]
    return [pool for pool in pools if not isinstance(pool, Cluster)]


def disconnect() -> None:
    """Earlier tests have connected, some of them to a server that was restarted since."""
    for pool in member_pools():
        pool.disconnect()


def unreturned() -> int:
    """So many connections are not in their pool."""
    return sum(map(missing, member_pools()))


def unread() -> list[Any]:
    """The connections in these pools over which something has come that nobody has read."""
    return [one for pool in member_pools() for one in unread_on(pool)]


def no_lease_is_current() -> bool:
    gc.collect()  # an exception's frames may have the lease in a cycle
    try:
        current_lease()
    except LockError:
        return True
    return False


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <coroutine object:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("operation", [in_a_block, by_hand, outvoted], ids=lambda it: it.__name__)
def test_interrupted(
    nodes: Nodes, operation: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception from outside, at every seventh place: it goes through, and no server keeps a
    vote, nor this process a lease or a connection.

    Except at a few places at which Python itself enters or leaves a block; then the lock ends with
    its ttl.
    """

    def act(number: int) -> None:
        for alias in ALIASES[:2]:
            nodes.clients[alias].set(f"redislock:{{job {number} taken}}", FOREIGN, px=60_000)
        operation(f"job {number}")

    def kept(alias: str) -> list[str]:
        names = [f"job {place.number}{end}" for place in places for end in ("", " taken")]
        with nodes.clients[alias].pipeline() as pipeline:
            for name in names:
                pipeline.get(f"redislock:{{{name}}}")
            values = zip(names, pipeline.execute(), strict=True)
            return [name for name, value in values if value not in (None, FOREIGN)]

    # That is said by a finalizer, out of which no exception comes.
    monkeypatch.setattr(conf, "for_developers", lambda: False)
    act(0)
    before = unreturned()
    places = list(every_place(act, kinds=KINDS, every=7))
    assert len(places) > 20
    assert not [f"{place}: {place.instead}" for place in places if place.instead]
    eventually(lambda: not watchdog(server_of(Servers.of(ALIASES[:3])))._to_release)
    eventually(lambda: unreturned() <= before)
    assert not unread()
    left = {name: alias for alias in ALIASES[:3] for name in kept(alias)}
    assert len(left) <= len(places) * 0.04
    for name, alias in left.items():
        assert nodes.clients[alias].ttl(f"redislock:{{{name}}}") > 0
    eventually(no_lease_is_current)  # the watchdog has the last one until its list is done


def lock(using: list[str] = ALIASES, ttl: float = TTL, **options: Any) -> Redlock:
    return Redlock("job", using, ttl=ttl, **options)


def elsewhere(api: Api, lock: Redlock, wait: float | None = 0) -> Any:
    """Another thread or task asks for it."""
    return api.start(lambda: api.acquire(lock, wait=wait)).result(PATIENCE)


def conflict(api: Api, **options: Any) -> LockNotAcquired:
    """The error of another thread or task that asks for it."""
    with pytest.raises(LockNotAcquired) as caught:
        api.start(lambda: api.enter(lock(**options), lambda _: None)).result(PATIENCE)
    return caught.value


# All servers are there.


def test_acquire_extend_and_release(api: Api, nodes: Nodes) -> None:
    """It is held and extended on every server, and after its release it is on none."""
    lease = api.acquire(lock(renew=False))
    assert lease.state == LeaseState.HELD
    eventually(lambda: nodes.holding(lease) == ALIASES)
    assert 0 < lease.remaining() <= TTL
    api.extend(lease, 600)
    assert 500 < lease.remaining() <= 600
    eventually(lambda: all(client.pttl(KEY) > 500_000 for client in nodes.clients.values()))
    api.release(lease)
    assert lease.state == LeaseState.RELEASED
    eventually(lambda: nodes.held() == [])


def test_behind_killed_waiters(api: Api, nodes: Nodes) -> None:
    """Those of a plain lock of its name, which a script removes a thousand at a time."""
    for client in nodes.clients.values():
        crowd(client, 2500)
    lease = api.acquire(lock(), wait=0)
    assert lease is not None
    api.release(lease)


def test_what_its_leases_can_not(api: Api, nodes: Nodes) -> None:
    """They have no fencing token, and are not exported; the error says so."""
    lease = api.acquire(lock())
    with pytest.raises(LockError, match="Redlock has no fencing token, since its servers"):
        assert lease.fencing_token
    with pytest.raises(LockError, match="Redlock has no fencing token"):
        assert lease.fencing_tokens
    with pytest.raises(LockError, match="can't be exported"):
        lease.export()
    lease.check()
    api.release(lease)


def test_a_conflict_says_who(api: Api, nodes: Nodes) -> None:
    """And nothing remains of who didn't get it."""
    lease = api.acquire(lock(label="shop/jobs.py:7"))
    error = conflict(api, wait=0)
    assert error.holder.label == "shop/jobs.py:7"
    assert error.holder.owner == lease.owner
    assert nodes.holding(lease) == ALIASES
    assert not any(client.exists(f"{KEY}:queue") for client in nodes.clients.values())
    api.release(lease)


def test_it_waits(api: Api, nodes: Nodes) -> None:
    """It asks again at random times until it is free."""
    lease = api.acquire(lock())
    waiter = api.start(lambda: api.acquire(lock(), wait=PATIENCE))
    assert elsewhere(api, lock(), wait=0.3) is None
    assert not waiter.done()
    api.release(lease)
    api.release(waiter.result(PATIENCE))


def test_renewal(api: Api, nodes: Nodes) -> None:
    """The watchdog of these servers extends it, and shows at each of them that it lives."""
    lease = api.acquire(lock(ttl=2))
    before = lease._lifetime.deadline
    watchdog(lease._server)._show_at = 0.0
    eventually(lambda: lease._lifetime.deadline > before)
    for alias in ALIASES:
        info = Inspector(alias).get("job")
        assert info is not None
        assert info.state == "held"
        eventually(lambda alias=alias: nodes.clients[alias].keys("redislock:process:*"))
    api.release(lease)


def test_holder_and_clear(api: Api, nodes: Nodes) -> None:
    """The holder is the one with the majority; an operator clears the lock everywhere."""
    assert api.holder(lock()) is None
    assert api.clear(lock(), reason="none") is None
    lease = api.acquire(lock(renew=False))
    assert api.holder(lock()).owner == lease.owner
    cleared = api.clear(lock(), by="eva", reason="stuck")
    assert isinstance(cleared, Holder)
    with pytest.raises(LeaseRevoked, match=r"eva.*stuck"):
        api.extend(lease)
    eventually(lambda: nodes.held() == [])


def test_not_twice_by_one_holder(nodes: Nodes) -> None:
    """It would wait for itself; with reentrant=True it is held once more."""
    with lock() as lease:
        with pytest.raises(LockReentered):
            lock(["e", "d", "c", "b", "a"]).acquire(wait=0)
        with lock(reentrant=True) as inner:
            assert inner is lease
        lease.check()


def test_two_that_race(api: Api, nodes: Nodes) -> None:
    """They never hold it at the same time, and both come to their end."""
    inside = 0
    most = 0
    guard = threading.Lock()

    def race() -> None:
        nonlocal inside, most
        for _ in range(6):
            lease = api.acquire(lock(), wait=PATIENCE)
            with guard:
                inside += 1
                most = max(most, inside)
            lease.check()
            with guard:
                inside -= 1
            api.release(lease)

    for racer in [api.start(race) for _ in range(3)]:
        racer.result(3 * PATIENCE)
    assert most == 1


# Who asks them.


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Event]:
    """For each thread that a port has started to ask a server: whether it has done so."""
    started: list[threading.Event] = []

    def seen(job: Callable[[], object]) -> None:
        started.append(done := threading.Event())
        loans.apart(lambda: (job(), done.set()))

    monkeypatch.setattr(ports, "apart", seen)
    return started


OF_THREE = ["a", "b", "e"]


def cycle(lock: Redlock) -> None:
    lease = lock.acquire(wait=0)
    assert lease is not None
    assert lock.holder() is not None
    lease.extend()
    lease.release()


def test_the_usual_takes_no_thread(
    nodes: Nodes, threads: list[threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither to lock, nor to be refused, once all servers are connected."""
    # Where there are about as many threads as a pool has connections, no line is kept.
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    free, taken = Redlock("free", OF_THREE, ttl=TTL), lock(OF_THREE)
    for alias in OF_THREE:
        nodes.clients[alias].set(KEY, FOREIGN)
    disconnect()
    for _ in range(2):
        assert taken.acquire(wait=0) is None
        cycle(free)
    assert threads, "they have connected"

    def takes_none() -> bool:
        eventually(lambda: all(done.is_set() for done in threads))
        threads.clear()
        cycle(free)
        assert taken.acquire(wait=0) is None
        return not threads

    eventually(takes_none)  # connections are borrowed anew every few seconds
    assert unreturned() == 0


def test_half_an_answer_delays_nobody(
    nodes: Nodes, behind_proxy: Proxy, threads: list[threading.Event]
) -> None:
    """A thread waits for the other half. The connection stays in its pool."""
    of_three = lock(OF_THREE)
    cycle(of_three)
    eventually(lambda: unreturned() == 0)
    connected = behind_proxy.connected
    threads.clear()
    rule = behind_proxy.on(script("mutex_acquire"), Fault.HOLD_HALF)
    began = now()
    lease = of_three.acquire(wait=0)
    assert lease is not None
    assert now() - began < redlock.within(TTL) / 2
    rule.happened()
    assert not all(done.is_set() for done in threads)
    rule.let_go()
    eventually(lambda: unreturned() == 0)
    assert not unread()
    assert nodes.holding(lease) == OF_THREE
    lease.release()
    assert behind_proxy.connected == connected


@pytest.mark.parametrize("fault", [Fault.HOLD_REPLY, Fault.LOSE_REPLY], ids=lambda it: it.name)
def test_a_connection_that_still_has_an_answer_to_come(
    nodes: Nodes, behind_proxy: Proxy, fault: Fault
) -> None:
    """It comes back to its pool when that was read, or when it was closed."""
    of_three = lock(OF_THREE, ttl=2, renew=False)
    cycle(of_three)
    eventually(lambda: unreturned() == 0)
    rule = behind_proxy.on(script("mutex_acquire"), fault)
    lease = of_three.acquire(wait=0)
    assert lease is not None
    rule.happened()
    assert unreturned() == 1
    rule.let_go()
    eventually(lambda: unreturned() == 0)
    assert not unread()
    lease.release()


@pytest.mark.parametrize(
    "forget",
    [
        pytest.param(lambda its: its.script_flush(), id="scripts"),
        pytest.param(
            lambda its: its.client_kill_filter(_type="normal", skipme=True), id="connections"
        ),
    ],
)
def test_servers_that_forgot(api: Api, nodes: Nodes, forget: Callable[[Redis], object]) -> None:
    """Scripts are sent again, new connections are made, and each server is asked."""
    api.release(api.acquire(lock()))
    eventually(lambda: unreturned() == 0)
    for client in nodes.clients.values():
        forget(client)
    lease = api.acquire(lock(), wait=0)
    eventually(lambda: nodes.holding(lease) == ALIASES)
    api.release(lease)


def test_an_idle_connection_with_an_answer_to_somebody_else(nodes: Nodes) -> None:
    """It is taken for nobody's vote."""
    disconnect()
    cycle(lock())
    eventually(lambda: unreturned() == 0)
    for pool in member_pools():
        for connection in idle(pool):
            connection.send_command("PING")
    assert unread()
    lease = lock().acquire(wait=0)
    assert lease is not None
    eventually(lambda: nodes.holding(lease) == ALIASES)
    lease.release()


# Some of them are away.


def test_a_minority_may_be_down(api: Api, nodes: Nodes) -> None:
    """Nobody notices, on acquire, renewal and release."""
    nodes.stop("b", "d")
    lease = api.acquire(lock(), wait=0)
    eventually(lambda: lease.state == LeaseState.HELD)
    api.extend(lease)
    assert conflict(api, wait=0).holder.owner == lease.owner
    api.release(lease)


def test_a_majority_that_is_down(api: Api, nodes: Nodes) -> None:
    """It can't be reached, and what was taken of the others is given back."""
    nodes.stop("b", "c", "d")
    with pytest.raises(LockUnavailable, match="No majority of the servers a, b, c, d, e"):
        api.acquire(lock(), wait=0)
    live = [nodes.clients[alias] for alias in ("a", "e")]
    eventually(lambda: not any(client.exists(KEY) for client in live))


def test_a_majority_that_comes_back(api: Api, nodes: Nodes) -> None:
    """It is waited for, as long as `wait` lasts."""
    nodes.stop("b", "c", "d")
    waiter = api.start(lambda: api.acquire(lock(), wait=PATIENCE))
    nodes.restart("b")
    api.release(waiter.result(PATIENCE))


def test_one_that_hangs_delays_nobody(api: Api, nodes: Nodes) -> None:
    """The majority decides; the others are waited for only a little longer. What they have got
    of it, and not heard of its release, ends with its ttl."""
    api.release(api.acquire(lock()))  # all are connected
    with nodes.paused("a", "b"):
        began = now()
        for _ in range(10):
            lease = api.acquire(lock(ttl=10), wait=0)
            api.extend(lease)
            api.release(lease)
        assert now() - began < 30 * redlock.within(TTL) / 2
    eventually(lambda: nodes.held() == [])


def test_a_majority_that_hangs(api: Api, nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up soon. When the servers go on, they carry out what was sent to them, and
    nothing of it remains."""
    monkeypatch.setattr(redlock, "WITHIN", 0.5)
    api.release(api.acquire(lock()))
    with nodes.paused("a", "b", "c"):
        with pytest.raises(LockUnavailable, match="did not answer within"):
            api.acquire(lock(ttl=600), wait=0)
    eventually(lambda: nodes.held() == [])
    api.release(api.acquire(lock(), wait=PATIENCE))


def test_a_minority_is_released(api: Api, nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that gets two of five, since others have the rest, holds none of them afterwards.
    If all have answered, no server remembers it: each of many tries would leave its token on
    every server."""
    monkeypatch.setattr(redlock, "WITHIN", PATIENCE)
    monkeypatch.setattr(redlock.Redlock, "_decided", lambda *_, **__: False)  # wait for all
    for number, alias in enumerate("abc"):
        redis_lock("job", using=alias, ttl=TTL, label=f"holder {number}").acquire()
    error = conflict(api, wait=0.5)
    assert error.holder.label.startswith("holder")
    assert nodes.held() == ["a", "b", "c"]
    for client in nodes.clients.values():
        assert not client.keys(f"{KEY}:gone:*")


def test_a_stranger_on_a_minority(api: Api, nodes: Nodes) -> None:
    """He keeps nobody from the majority, and his lock is left to him."""
    redis_lock("job", using="a", ttl=TTL).acquire()
    before = nodes.token("a")
    lease = api.acquire(lock(), wait=0)
    eventually(lambda: nodes.holding(lease) == ["b", "c", "d", "e"])
    api.release(lease)
    assert nodes.token("a") == before


def test_one_token_while_a_majority_hangs(
    api: Api, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other try is begun before the last one is undone: its tokens would be left behind
    at each of them."""
    api.release(api.acquire(lock()))
    monkeypatch.setattr(redlock, "WITHIN", 0.3)
    with nodes.paused("c", "d", "e"), pytest.raises(LockUnavailable):
        api.acquire(lock(), wait=2)
    eventually(lambda: len(nodes.clients["a"].keys(f"{KEY}:gone:*")) == 1)
    eventually(lambda: nodes.held() == [])
    monkeypatch.setattr(redlock, "WITHIN", 5.0)
    api.release(api.acquire(lock(), wait=PATIENCE))


def test_how_long_it_pauses() -> None:
    """Longer from try to try, up to a limit, and not much longer than the holder's lease lives."""
    port: Any = SyncPort(server_of("default"))
    port.uniform = lambda low, high: high
    held = LockNotAcquired("job", Holder.parse(b"", -1, 0), 0.0)
    ends = LockNotAcquired("job", Holder.parse(b"", 100, 0), 0.0)
    pauses = [redlock._pause(port, tries, held, 60.0) for tries in range(1, 20)]
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1] == pauses[-2] <= 1.0
    assert 0.1 < redlock._pause(port, 9, ends, 60.0) < pauses[-1]
    assert redlock._pause(port, 9, held, 0.01) == 0.01


def test_when_the_answers_decide() -> None:
    """Two that say no and one that is down can't make it a majority, but are none themselves: the
    others are waited for, or it would look as if nobody could be asked."""
    algorithm = redlock.Redlock(Servers.of(ALIASES))
    yes = queued.acquired([1, b"1", b"1"])
    no = queued.acquired([0, b"x" * 32, 1000, b"1", 0, b"", None, 1])
    down = LockUnavailable("refused")
    pending = LockUnavailable("nothing yet", doubtful=True, silent=True)
    assert not algorithm._decided([no, no, down, pending, pending])
    assert not algorithm._decided([yes, yes, down, pending, pending])
    assert not algorithm._decided([yes, yes, no, no, pending])
    assert algorithm._decided([no, no, down, yes, pending])
    assert algorithm._decided([no, no, no, pending, pending])
    assert algorithm._decided([yes, yes, yes, pending, pending])


# Answers get lost.


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.RESET_AFTER, Fault.HOLD_REQUEST])
def test_a_lost_answer_is_undone_too(
    api: Api, nodes: Nodes, behind_proxy: Proxy, fault: Fault
) -> None:
    """The server has granted it, or will, and nobody heard: it is undone there as well. If it
    arrives after that, it gets nothing: it would lock that server for a whole ttl."""
    nodes.stop("a", "b", "c")  # so that it fails
    rule = behind_proxy.on(script("mutex_acquire"), fault)
    with pytest.raises(LockUnavailable):
        api.acquire(lock(ttl=600), wait=0)
    rule.happened()
    if fault is Fault.HOLD_REQUEST:
        eventually(lambda: nodes.clients["e"].keys(f"{KEY}:gone:*"))
        assert rule.carried_out == 0
    rule.let_go()
    eventually(lambda: rule.carried_out == 1)
    eventually(lambda: nodes.clients["e"].exists(KEY) == 0)
    assert nodes.clients["e"].keys(f"{KEY}:gone:*"), "a later acquire would get nothing"


def test_a_late_acquire_after_the_release(api: Api, nodes: Nodes, behind_proxy: Proxy) -> None:
    """The majority had decided, and its lease was released, when one server hears of it."""
    rule = behind_proxy.on(script("mutex_acquire"), Fault.HOLD_REQUEST)
    lease = api.acquire(lock(ttl=600), wait=0)
    api.release(lease)
    eventually(lambda: nodes.clients["e"].keys(f"{KEY}:gone:*"))
    rule.let_go()
    eventually(lambda: rule.carried_out == 1)
    assert nodes.held() == []


def test_a_release_that_is_repeated(api: Api, nodes: Nodes, settings: Any) -> None:
    """Its answers got lost, and others have held the lock since: that is no loss."""
    with ExitStack() as stack:
        proxies = {alias: stack.enter_context(Proxy(nodes.servers[alias])) for alias in "abc"}
        settings.CACHES = settings.CACHES | {
            alias: entry(proxy.url) for alias, proxy in proxies.items()
        }
        release = script("mutex_release")
        # The short request, and the one that comes after it.
        rules = [proxy.on(release, Fault.RESET_AFTER, times=2) for proxy in proxies.values()]
        lease = api.acquire(lock(), wait=0)
        with pytest.raises(LockUnavailable):
            api.release(lease)
        for rule in rules:
            eventually(lambda rule=rule: rule.carried_out == 2)
        eventually(lambda: nodes.held() == [])
        other = elsewhere(api, lock(), wait=0)
        api.start(lambda: api.release(other)).result(PATIENCE)
        api.release(lease)
        assert lease.state == LeaseState.RELEASED


# Time.


def test_an_answer_that_takes_too_long(
    api: Api, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grant whose answers come after the validity is over is undone."""
    monkeypatch.setattr(redlock, "deadline", lambda sent, ttl: sent)
    with pytest.raises(LockUnavailable, match="took longer than the lease lives"):
        api.acquire(lock(), wait=0)
    eventually(lambda: nodes.held() == [])


def test_its_validity_counts_from_the_sending(api: Api, nodes: Nodes) -> None:
    """Less a margin for clocks that drift."""
    before = now()
    lease = api.acquire(lock(ttl=10, renew=False))
    assert lease.remaining() <= 10 - (now() - lease._grant.sent) - 0.1
    assert before <= lease._grant.sent
    api.release(lease)


def test_a_lease_that_is_not_renewed(api: Api, nodes: Nodes) -> None:
    """It ends at its deadline, and the servers are free soon after."""
    lease = api.acquire(lock(ttl=1, renew=False))
    other = elsewhere(api, lock(), wait=PATIENCE)
    assert lease.state == LeaseState.LOST
    api.release(other)


# While it is held.


def test_servers_that_go_away_one_by_one(api: Api, nodes: Nodes) -> None:
    """With a majority it is renewed; without one it is unknown, and lost at its own deadline."""
    lease = api.acquire(lock(ttl=3))
    nodes.stop("a", "b")
    api.extend(lease)
    assert lease.state == LeaseState.HELD
    nodes.stop("c")
    with pytest.raises(LockUnavailable):
        api.extend(lease)
    assert lease.state == LeaseState.UNKNOWN
    lease.check()
    eventually(lambda: lease.state == LeaseState.LOST)
    assert lease.remaining() == 0
    with pytest.raises(LeaseLost):
        api.release(lease)


def test_servers_that_come_back_in_time(api: Api, nodes: Nodes) -> None:
    """An unknown lease is held again."""
    lease = api.acquire(lock(ttl=20))
    with nodes.paused("a", "b", "c"):
        with pytest.raises(LockUnavailable):
            api.extend(lease)
        assert lease.state == LeaseState.UNKNOWN
    eventually(lambda: lease.state == LeaseState.HELD)
    api.release(lease)


def test_a_server_that_has_lost_it_is_not_given_it_back(api: Api, nodes: Nodes) -> None:
    """Renewal extends what is there: another holder may have asked that server since."""
    lease = api.acquire(lock())
    eventually(lambda: nodes.holding(lease) == ALIASES)
    nodes.clients["a"].delete(KEY)
    api.extend(lease)
    assert nodes.holding(lease) == ["b", "c", "d", "e"]
    api.release(lease)


def test_a_majority_that_has_lost_it(api: Api, nodes: Nodes) -> None:
    """The lease is lost, and no waiting helps."""
    lease = api.acquire(lock(renew=False))
    for alias in "abc":
        nodes.clients[alias].delete(KEY)
    with pytest.raises(LeaseLost):
        api.extend(lease)
    assert lease.state == LeaseState.LOST
    with pytest.raises(LeaseLost):
        api.release(lease)
    assert nodes.held() == []


def test_neither_extended_nor_refused_by_a_majority(api: Api, nodes: Nodes) -> None:
    """One lease that is in doubt costs none of the others its renewal."""
    doubted, sound = api.acquire(lock()), api.acquire(Redlock("other", ALIASES, ttl=TTL))
    eventually(lambda: nodes.holding(doubted) == ALIASES)
    for alias in "ab":
        nodes.clients[alias].delete(KEY)
    nodes.stop("e")
    before = sound._lifetime.deadline
    for lease in doubted, sound:
        lease._lifetime.due = 0.0
    watchdog(lease._server).reconsider(sound._lifetime)
    api.extend(sound)
    assert sound._lifetime.deadline > before
    nodes.clients["c"].delete(KEY)
    with pytest.raises((LockUnavailable, LeaseLost)):
        api.extend(doubted)
    sound.check()
    api.release(sound)


def test_the_documented_hole(api: Api, nodes: Nodes) -> None:
    """A server that restarts without its data, and is used again at once, lets a second holder
    in: the majorities of both have only that server in common. So it has to stay away for the
    longest ttl."""
    nodes.stop("d", "e")
    first = api.acquire(lock(renew=False))
    assert nodes.servers["c"].running
    nodes.restart("c", "d", "e")
    second = elsewhere(api, lock(), wait=0)
    assert second is not None
    first.check()
    assert first.state == second.state == LeaseState.HELD
    api.release(second)


def test_a_server_that_stays_away_for_a_ttl(api: Api, nodes: Nodes) -> None:
    """Then nobody gets in: those that came back empty are no majority."""
    nodes.stop("d", "e")
    first = api.acquire(lock())
    nodes.stop("c")  # and it stays away
    nodes.restart("d", "e")
    assert elsewhere(api, lock(), wait=0) is None
    first.check()
    api.release(first)


def test_a_killed_holder(nodes: Nodes, api: Api, start: Callable[..., Worker]) -> None:
    """Its lock is free after the ttl: nobody renews it."""
    urls = [nodes.servers[alias].url for alias in ALIASES]
    worker = start("tests.faults.test_redlock:hold", "3", *urls)
    assert worker.says() == "held"
    assert elsewhere(api, lock(), wait=0) is None
    worker.close()
    api.release(elsewhere(api, lock(), wait=PATIENCE))


# Several processes contend.


class Contenders:
    """Processes that hold one of two names again and again, and what they wrote down."""

    NUMBER = 8
    SECONDS = 3.0

    def __init__(self, start: Callable[..., Worker], journal: Path, urls: list[str]) -> None:
        self._journal = journal
        journal.touch()
        program = "tests.faults.test_redlock:contend"
        workers = [start(program, str(journal), *urls) for _ in range(self.NUMBER)]
        assert [worker.says() for worker in workers] == ["ready"] * self.NUMBER
        for worker in workers:
            worker.go_on()
        eventually(lambda: len({name for name, *_ in self.entries()}) == 2)

    def entries(self) -> list[tuple[str, float, float]]:
        """Name, begin and end of each entry."""
        rows = map(str.split, self._journal.read_text().splitlines())
        return [(name, float(begin), float(end)) for name, begin, end in rows]

    def observed(self) -> tuple[int, float]:
        """From now on: how many entries, and the longest time without one."""
        began = time.monotonic()
        threading.Event().wait(self.SECONDS)
        ended = time.monotonic()
        times = sorted(begin for _, begin, _ in self.entries() if began <= begin < ended)
        return len(times), max(b - a for a, b in pairwise([began, *times, ended]))

    def overlaps(self) -> int:
        """How often somebody entered while another one was inside."""
        entries = sorted(self.entries())
        return sum(a[0] == b[0] and b[1] < a[2] for a, b in pairwise(entries))


@pytest.mark.alone("it compares how often ten processes get in during a few seconds")
@pytest.mark.parametrize("using", [["a", "b", "e"], ["a", "b", "c", "d", "e"]], ids=len)
def test_contenders_beside_a_minority_that_hangs_or_is_slow(
    nodes: Nodes, start: Callable[..., Worker], tmp_path: Path, using: list[str]
) -> None:
    """They get in about as often as beside one that is down: nobody keeps the votes that others
    need while it waits for servers that hang."""
    minority = using[len(using) // 2 + 1 :]
    with ExitStack() as stack:
        proxies = {alias: stack.enter_context(Proxy(nodes.servers[alias])) for alias in minority}
        urls = [(proxies.get(alias) or nodes.servers[alias]).url for alias in using]
        contenders = Contenders(start, tmp_path / "journal", urls)
        for proxy in proxies.values():
            proxy.slow = 0.3
        slow, slow_gap = contenders.observed()
        with nodes.paused(*minority):
            hanging, hanging_gap = contenders.observed()
        nodes.stop(*minority)
        down, _ = contenders.observed()
    assert contenders.overlaps() == 0
    assert hanging > down / 5
    assert slow > down / 7
    assert max(slow_gap, hanging_gap) < 2


def test_a_server_that_was_silent_is_not_waited_for_again(
    api: Api, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the others don't make a majority, a silent server is waited for once or twice; when
    it answers again, it counts again."""
    monkeypatch.setattr(redlock, "WITHIN", 1.0)
    nodes.clients["a"].set(KEY, "somebody else's")
    of_three = Redlock("job", ["a", "b", "e"], ttl=TTL)
    with nodes.paused("e"):
        times = [now()]
        for _ in range(4):
            assert api.acquire(of_three, wait=0) is None
            times.append(now())
    first, _, *others = (b - a for a, b in pairwise(times))
    assert first > 0.9
    assert sum(others) < 1.0
    api.release(api.acquire(of_three, wait=PATIENCE))


# They disagree, and one is slow.


def slow_once(proxy: Proxy, name: str, fault: Fault = Fault.HOLD_REPLY) -> None:
    """Let the next one take longer than the others, and less long than it is waited for."""
    rule = proxy.on(script(name), fault)

    def later() -> None:
        rule.happened()
        threading.Event().wait(0.3)
        rule.let_go()

    threading.Thread(target=later, daemon=True).start()


def test_the_slow_one_decides_a_renewal(api: Api, nodes: Nodes, behind_proxy: Proxy) -> None:
    """A server that came back empty is faster than one that has the lease: both are heard."""
    of_three = Redlock("job", ["a", "b", "e"], ttl=TTL, renew=False)
    lease = api.acquire(of_three)
    eventually(lambda: nodes.holding(lease) == ["a", "b", "e"])
    nodes.clients["b"].delete(KEY)
    slow_once(behind_proxy, "mutex_extend")
    api.extend(lease)
    assert lease.state == LeaseState.HELD
    slow_once(behind_proxy, "mutex_release")
    api.release(lease)
    assert nodes.held() == []


def test_the_slow_one_decides_who_holds_it(api: Api, nodes: Nodes, behind_proxy: Proxy) -> None:
    """And a lock that is cleared is away there, too."""
    of_three = Redlock("job", ["a", "b", "e"], ttl=TTL, renew=False)
    lease = api.acquire(of_three)
    eventually(lambda: nodes.holding(lease) == ["a", "b", "e"])
    nodes.clients["b"].delete(KEY)
    slow_once(behind_proxy, "mutex_holder")
    assert api.holder(of_three).owner == lease.owner
    slow_once(behind_proxy, "mutex_holder")
    slow_once(behind_proxy, "mutex_clear", Fault.HOLD_REQUEST)
    assert api.clear(of_three, reason="stuck") is not None
    assert nodes.held() == []


# What is wrong, is said.


@pytest.mark.parametrize(
    ("using", "options", "error", "match"),
    [
        ("default", {}, TypeError, "list of aliases"),
        ([], {}, ValueError, "three or five"),
        (["a", "b"], {}, ValueError, "three or five"),
        (["a", "b", "c", "d"], {}, ValueError, "three or five"),
        (["a", "b", "b"], {}, ValueError, "twice"),
        (["a", "b", 3], {}, TypeError, "aliases of CACHES"),
        (ALIASES, {"replicas": 1}, TypeError, "replicas"),  # all its servers are primaries
    ],
)
def test_wrong_servers(
    using: Any, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    """They are refused where they are written."""
    with pytest.raises(error, match=match):
        Redlock("job", using, **options)


def test_no_servers() -> None:
    """Neither in the code nor in the settings."""
    with pytest.raises(ValueError, match="needs several servers in using"):
        Redlock("job").acquire(wait=0)


def test_two_aliases_of_one_server(nodes: Nodes, settings: Any) -> None:
    """Two databases of one server fail together."""
    url = nodes.servers["a"].url
    settings.CACHES = {**settings.CACHES, "f": entry(url.replace("db=0", "db=1"))}
    with pytest.raises(ImproperlyConfigured, match="lead to the same server"):
        Redlock("job", ["a", "b", "f"]).acquire(wait=0)


def test_by_settings(api: Api, of_three: Nodes) -> None:
    """An entry of LOCKS makes any lock a Redlock, without touching the code."""
    for one in redis_lock("job"), Redlock("job"):
        lease = api.acquire(one)
        assert isinstance(lease.using, Servers)
        assert api.holder(one).owner == lease.owner
        eventually(lambda lease=lease: of_three.holding(lease) == ["a", "b", "c"])
        api.release(lease)


def test_operators_see_the_majority(of_three: Nodes) -> None:
    """What asks for the lock by its name looks at all servers; checks look at each of them."""
    assert aliases() == ["default", "c", "b", "a"]
    lease = Redlock("job", renew=False).acquire(wait=0)
    assert lease is not None
    eventually(lambda: len(of_three.holding(lease)) == 3)
    of_three.clients["c"].delete(KEY)
    done = call("show", "job")
    assert "'c', 'b', 'a'" in done.out
    assert lease.owner in done.out
    of_three.clients["b"].delete(KEY)
    assert call("show", "job").code == 3, "one of three is no majority"
    with suppress(LeaseLost):  # unless an answer comes late
        lease.release()


def test_an_operator_clears_all_servers(api: Api, of_three: Nodes) -> None:
    """By its name it is cleared everywhere; a server that can't be reached is named."""
    for away in (), ("b",):
        lease = api.acquire(Redlock("job", ttl=TTL, renew=False))
        eventually(lambda lease=lease: len(of_three.holding(lease)) == 3)
        of_three.stop(*away)
        done = call("clear", "job", "--yes", "--reason=stuck")
        assert done.code == 0
        assert ("'b' could not be reached" in done.out) == bool(away)
        with pytest.raises(LeaseRevoked):
            api.extend(lease)
        of_three.restart(*away)
        assert of_three.held() == []


def test_an_operator_clears_without_a_majority(api: Api, of_three: Nodes) -> None:
    """That is no success, whatever the others say."""
    of_three.stop("b", "a")
    done = call("clear", "job", "--yes", "--reason=stuck")
    assert done.code == 69
    assert "No majority of the servers c, b, a" in done.err


def test_an_operator_clears_one_server(api: Api, of_three: Nodes) -> None:
    """With --using it is cleared there, and the command says which servers still have it."""
    lease = api.acquire(Redlock("job", ttl=TTL, renew=False))
    eventually(lambda: len(of_three.holding(lease)) == 3)
    done = call("clear", "job", "--using=b", "--yes", "--reason=stuck")
    assert "'c', 'a' were not asked" in done.out
    assert of_three.held() == ["a", "c"]
    api.release(lease)


@pytest.mark.parametrize(
    ("entry", "match"),
    [
        ({"KIND": "redlock"}, "needs several servers"),
        ({"KIND": "redlock", "USING": "a"}, "needs several servers"),
        ({"USING": ["a", "b", "c"]}, "KIND"),
        ({"KIND": "redlock", "USING": ["a", "b"]}, "three or five"),
    ],
)
def test_wrong_settings(settings: Any, entry: dict[str, Any], match: str) -> None:
    """They are refused when they are read."""
    settings.REDISLOCK = {"LOCKS": {"job": entry}}
    with pytest.raises(ImproperlyConfigured, match=match):
        redis_lock("job").acquire(wait=0)


# What the processes run.


@contextmanager
def using(urls: Sequence[str]) -> Iterator[list[str]]:
    """The aliases of these servers."""
    entries = {f"server-{number}": entry(url) for number, url in enumerate(urls)}
    with override_settings(CACHES=caches(urls[0]) | entries):
        yield list(entries)


def hold(ttl: str, *urls: str) -> None:
    """Hold the job on all these servers, until told to go on."""
    with using(urls) as aliases, Redlock("job", aliases, ttl=float(ttl)):
        say("held")
        told()


def contend(path: str, *urls: str) -> None:
    """Hold one of two names again and again; write down which, from when to when, on a common
    clock."""
    journal = os.open(path, os.O_WRONLY | os.O_APPEND)
    with using(urls) as aliases:
        say("ready")
        told()
        while True:
            name = random.choice(["one", "two"])
            with Redlock(name, aliases, ttl=10, wait=None):
                begin = time.monotonic()
                time.sleep(0.03)
                os.write(journal, f"{name} {begin} {time.monotonic()}\n".encode())

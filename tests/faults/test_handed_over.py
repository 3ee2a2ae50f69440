"""A lock that is handed to another process by one message: what the message says is believed, or
the waiter asks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import Lease, LeaseLost, redis_lock
from django_redislock.base.clock import DRIFT, deadline, now
from django_redislock.lease.register import Register
from django_redislock.primitives import mutex, scripts
from django_redislock.primitives.contract import Claim, Grant, Handed, run
from django_redislock.primitives.keys import Keys
from django_redislock.primitives.queued import FRESH, LATE, Anchor, read_message
from django_redislock.primitives.waiting import DEAF
from django_redislock.transport import ports
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of
from tests.caches import caches, entry
from tests.contract.api import Api, InThreads
from tests.faults.proxy import Fault, Proxy
from tests.waiting import PATIENCE, eventually

LOCK = "redislock:{job}"
TOKEN = "0" * 32


def claim(ttl: float = 30.0, *, renewed: bool = True) -> Claim:
    keys = Keys.of("redislock", "job")
    its = Claim(keys, TOKEN, ttl, "owner", "label", mutex)
    its.renewed = renewed
    return its


ANCHOR = Anchor(sent=100.0, us=5_000_000)
"""The server answered at its second 5 what was sent at our second 100."""


def handed(after: float = 1.0, lives: float = 4.5, since: float = 90.0) -> Handed:
    """So many seconds after the anchor."""
    return Handed(7, ANCHOR.us + round(after * 1e6), lives, since)


def test_what_is_believed() -> None:
    """A time that is before the one of the grant, whatever the clocks do within their bounds."""
    grant = ANCHOR.grant(handed(1.0), claim(), now=101.01)
    assert grant == Grant(7, 6_000_000, 101.0, lives=4.5 - DRIFT - LATE)
    assert grant.deadline(30.0) == deadline(101.0, 4.5 - DRIFT - LATE)


@pytest.mark.parametrize(
    ("its", "now", "why"),
    [
        (handed(1.0, since=100.5), 101.01, "the inbox has connected since: another server?"),
        (handed(-0.1), 100.0, "it is older than the anchor"),
        (handed(1.0), 100.99, "it came before it was sent: the server's clock was set forward"),
        (handed(1.0), 101.001 + LATE, "it took long, or the server's clock was set back"),
        (handed(FRESH), 160.01, "the anchor is old: the clocks may have drifted apart"),
    ],
)
def test_what_is_in_doubt(its: Handed, now: float, why: str) -> None:
    assert ANCHOR.grant(its, claim(), now) is None, why


def test_a_lease_that_nobody_renews_is_not_short() -> None:
    assert ANCHOR.grant(handed(), claim(30.0, renewed=False), 101.01) is None
    short = ANCHOR.grant(handed(lives=3.0), claim(3.0, renewed=False), 101.01)
    assert short is not None
    assert short.lives == pytest.approx(3.0 - DRIFT - LATE)
    assert ANCHOR.grant(handed(lives=0.4), claim(0.4), 101.01) is None, (
        "too much would be taken off"
    )


@given(
    asked=st.floats(0, 0.2),
    waited=st.floats(0, 70),
    travelled=st.floats(0, 2),
    speed=st.floats(1 - DRIFT, 1 + DRIFT),
    step=st.sampled_from([0.0, 0.0, -3600.0, -0.9, -0.04, 0.04, 0.9, 3600.0]),
    lives=st.floats(0.1, 5),
)
def test_it_is_never_believed_for_too_long(
    asked: float, waited: float, travelled: float, speed: float, step: float, lives: float
) -> None:
    """Our clock goes by seconds; the server's is faster or slower by `speed`, and set by `step`
    while we wait. With a clock that goes on, no message makes a lease longer than it is. If it is
    set, the error is less than the time by which the message is late."""
    anchor = Anchor(sent=0.0, us=10**15)
    granted = asked + waited
    us = anchor.us + round((waited * speed + step) * 1e6)
    its = Handed(1, us, lives, since=-1.0)
    grant = anchor.grant(its, claim(), now=granted + travelled)
    if grant is None:
        return
    ends = granted + lives / speed
    assert grant.deadline(30.0) <= ends + (max(0.0, travelled - LATE) if step > 0 else 0.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        TOKEN,
        f"{TOKEN}|1|2",
        f"{TOKEN}|1|2|3|4",
        f"{TOKEN}|-1|2|3",
        f"{TOKEN}|1|2|\u0663",
        f"{TOKEN}|1|2|{'9' * 5000}",
        f"|{TOKEN}|1|2|3",
        "\ufffd" * 40,
    ],
)
def test_what_is_no_such_message(text: str) -> None:
    assert read_message(text, 0.0) == (text, None)


class Far:
    """A waiter whose lock another process releases: it has an inbox of its own, behind a proxy."""

    def __init__(self, api: Api, proxy: Proxy, redis: Redis) -> None:
        self.api, self.proxy, self.redis = api, proxy, redis
        self.asked: list[bytes] = []
        """The keys of the scripts that the waiter has sent."""
        proxy.on(self._note, Fault.REFUSE, times=10**9)  # it matches nothing

    def _note(self, words: list[bytes]) -> bool:
        if words[0].upper() in (b"EVAL", b"EVALSHA") and b"redislock:{job}" in words:
            self.asked.append(words[1])
        return False

    def hands_over(
        self, *, late: bool = False, doubles: bool = False, deaf: bool = False, **options: Any
    ) -> tuple[Future[Lease], int]:
        """Release the lock that somebody waits for; the message may be late, come twice, or get
        lost. Returns the waiter, and how often it had asked before."""
        held = redis_lock("job", using="direct").acquire()
        assert held is not None
        waiter = self.waits(1, **options)
        self.proxy.late = (0.2, 0.2) if late else (0.0, 0.0)
        self.proxy.doubles = doubles
        self.proxy.deaf = deaf
        asked = len(self.asked)
        held.release()
        return waiter, asked

    def believes(self, **options: Any) -> Lease:
        """Return the lease of a waiter that believed the message, and had to ask for nothing. On a
        busy machine, a message may take so long that it asks: then another one follows."""
        for _ in range(20):
            waiter, asked = self.hands_over(**options)
            lease = waiter.result(PATIENCE)
            if len(self.asked) == asked:
                return lease
            self.api.release(lease)
        raise AssertionError("all waiters had to ask")

    def waits(self, number: int, **options: Any) -> Future[Any]:
        """Begin to wait, as the one of this number. It has just asked, and listens, when this
        returns."""
        lock = redis_lock("job", wait=None, **options)
        waiter = self.api.start(lambda: self.api.acquire(lock, wait=None))
        eventually(lambda: self.redis.zcard(f"{LOCK}:queue") == number and self.proxy.subscribers)
        before = len(self.asked)
        # So that it has an anchor which is younger than its connection.
        eventually(lambda: len(self.asked) > before and self.listens())
        return waiter

    def listens(self) -> bool:
        waiters = self.redis.hvals(f"{LOCK}:waiters")
        return all(its.split(b"|")[2] != b"-" for its in waiters)


@pytest.fixture(params=[2, 3])
def far(
    request: pytest.FixtureRequest,
    api: Api,
    proxy: Proxy,
    redis: Redis,
    redis_server: RedisServer,
    settings: Any,
) -> Iterator[Far]:
    protocol = {"CONNECTION_POOL_KWARGS": {"protocol": request.param}}
    settings.CACHES = {
        "default": entry(f"{proxy.url}-{request.param}", **protocol),
        "direct": entry(redis_server.url),
    }
    yield Far(api, proxy, redis)
    proxy.heal()


def test_no_request_comes_between(far: Far) -> None:
    """The lease is there as soon as the message is, over RESP2 and RESP3. It is renewed, and has
    the fencing token that the server gave."""
    lease = far.believes()
    value = far.redis.get(LOCK) or b""
    assert value.startswith(f"{lease.token}+{lease.fencing_token}|".encode())
    eventually(lambda: lease.remaining() > 20)
    assert far.redis.pttl(LOCK) > 20_000
    far.api.release(lease)
    assert not far.redis.exists(LOCK)


@pytest.mark.parametrize("how", [{"late": True}, {"late": True, "doubles": True}, {"deaf": True}])
def test_a_message_in_doubt(far: Far, how: dict[str, bool]) -> None:
    """The waiter asks, and has its whole ttl."""
    waiter, asked = far.hands_over(**how)
    lease = waiter.result(PATIENCE)
    assert len(far.asked) > asked
    assert lease.remaining() > 20
    far.api.release(lease)
    assert not far.redis.exists(LOCK)


def test_a_message_that_comes_twice(far: Far) -> None:
    """The second one is for nobody."""
    first = far.believes(doubles=True)
    second = far.waits(1)
    far.api.release(first)
    lease = second.result(PATIENCE)
    assert lease.fencing_token > first.fencing_token
    far.api.release(lease)
    assert not far.redis.exists(LOCK)


def test_a_lease_that_is_not_renewed(far: Far) -> None:
    """It has its whole ttl at once: the waiter asks."""
    waiter, asked = far.hands_over(renew=False)
    lease = waiter.result(PATIENCE)
    assert len(far.asked) > asked
    assert lease.remaining() > 20
    far.api.release(lease)


def test_a_lease_that_is_extended_at_once(far: Far) -> None:
    """It has its whole ttl."""
    lease = far.believes()
    far.api.extend(lease)
    assert lease.remaining() > 20
    assert far.redis.pttl(LOCK) > 20_000
    far.api.release(lease)


def test_a_lease_that_is_exported_at_once(far: Far) -> None:
    """Whoever restores it has the whole ttl for that."""
    text = far.believes().export()
    eventually(lambda: far.redis.pttl(LOCK) > 20_000)
    far.api.release(Lease.restore(text))
    assert not far.redis.exists(LOCK)


def test_an_export_keeps_to_max_hold(far: Far) -> None:
    """What is left is less than the ttl, and is not made longer."""
    lease = redis_lock("job", using="direct").acquire()
    assert lease is not None
    lease._lifetime.hold_until = now() + 5
    far.redis.pexpire(LOCK, 1000)
    lease.extend()
    text = lease.export()
    lease._watchdog.settle(PATIENCE)
    assert far.redis.pttl(LOCK) <= 5000
    far.api.release(Lease.restore(text))


def test_the_next_holder_is_told_first(far: Far) -> None:
    """A release of a lock for which others wait is sent behind a PING, so that the server writes
    to the next holder before it answers. That of a lock that nobody wants is another script."""
    far.api.release(far.hands_over()[0].result(PATIENCE))
    with far.redis.monitor() as monitor:
        with redis_lock("free"):
            pass
        far.api.release(far.hands_over()[0].result(PATIENCE))
        far.redis.echo("the end")
        sent: dict[str, list[str]] = {}
        for seen in monitor.listen():
            if seen["command"].endswith("the end"):
                break
            if seen["client_type"] != "lua":
                sent.setdefault(seen["client_port"], []).append(seen["command"])
    release = scripts.load("mutex_release").sha
    releases = [
        (before, command)
        for commands in sent.values()
        for before, command in pairwise(["", *commands])
        if release in command
    ]
    assert any("redislock:{job}" in command for _, command in releases)
    assert {before for before, _ in releases} == {"PING"}
    assert not any("free" in command for _, command in releases)


class Section:
    """A block that has waited for its lock, and goes on until `leave`, while others wait."""

    def __init__(
        self, far: Far, *, whole: bool, meanwhile: Callable[[], object] | None = None
    ) -> None:
        self._whole = whole
        held = redis_lock("job", using="direct").acquire()
        assert held is not None
        self._entered, self._left = threading.Event(), threading.Event()
        self._redis = far.redis
        lock = redis_lock("job", wait=None)
        self._done = far.api.start(lambda: far.api.enter(lock, self._body))
        eventually(lambda: far.redis.zcard(f"{LOCK}:queue") == 1 and far.listens())
        if meanwhile is not None:
            meanwhile()
        behind = redis_lock("job", using="direct", wait=PATIENCE)
        self._next: Future[Lease] = InThreads().start(behind.acquire)
        eventually(lambda: far.redis.zcard(f"{LOCK}:queue") == 2)
        held.release()
        assert self._entered.wait(PATIENCE)

    def _body(self, lease: Lease) -> None:
        self.token = lease.token
        if self._whole:
            lease._complete()
        self._entered.set()
        assert self._left.wait(PATIENCE)

    def leave(self) -> None:
        """Leave the block: the next one has the lock."""
        self._left.set()
        self._done.result(PATIENCE)
        self._next.result(PATIENCE).release()
        assert not self._redis.exists(LOCK)


@pytest.fixture(params=["young", "whole"])
def whole(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the watchdog has taken notice of the lease. It does so when it looks."""
    monkeypatch.setattr(Register, "complete_all", lambda _: None)
    return bool(request.param == "whole")


def test_its_release_was_packed_while_it_waited(
    far: Far, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait for it: what can be done before is done before."""
    section = Section(far, whole=whole)
    packed: list[str] = []

    def pack(body: str, keys: Any, args: Any, how: str = "EVALSHA") -> Any:
        packed.append(args[0])
        return real(body, keys, args, how)

    real = ports.packed_script
    monkeypatch.setattr(ports, "packed_script", pack)
    section.leave()
    assert section.token not in packed
    redis_lock("job").holder()
    assert packed


def test_a_doubt_after_its_release_was_packed(far: Far, whole: bool) -> None:
    """An acquire that waited got no answer, and may still be on its way: its release leaves a
    tombstone, which refuses it."""
    acquire = scripts.load("mutex_acquire").sha.encode()
    lost = threading.Event()

    def is_acquire(words: list[bytes]) -> bool:
        if words[1:2] == [acquire] and not lost.is_set():
            lost.set()
            return True
        return False

    def lose() -> None:
        far.proxy.on(is_acquire, Fault.RESET_AFTER)
        assert lost.wait(PATIENCE)

    section = Section(far, whole=whole, meanwhile=lose)
    section.leave()
    assert far.redis.get(f"{LOCK}:gone:{section.token}") == b"withdrawn"


def test_a_deaf_waiter_packs_no_release(redis: Redis) -> None:
    """The inbox of deaf waiters is that of all processes: a release that names it would hand the
    lock to a waiter of another process as to one of its own."""
    port = SyncPort(server_of("default"))
    with redis_lock("job"):
        for inbox, packs in ((DEAF, False), ("", False), ("redislock:inbox:m1", True)):
            its = claim()
            run(mutex.Asking().acquire(port, its, inbox, ""))
            assert (its.packed_release is not None) is packs
            run(mutex.release(port, its))


@pytest.mark.parametrize("command", ["SCRIPT FLUSH", "CLIENT KILL TYPE normal"])
def test_a_packed_release_that_fails(far: Far, whole: bool, command: str) -> None:
    """The lock is released in the usual way, and the next waiter has it."""
    section = Section(far, whole=whole)
    far.redis.execute_command(command)
    section.leave()


def test_a_packed_release_of_a_lock_that_was_lost(far: Far, whole: bool) -> None:
    """The block says so at its end."""
    section = Section(far, whole=whole)
    far.redis.delete(LOCK)
    with pytest.raises(LeaseLost):
        section.leave()


def test_many_processes_take_turns(redis: Redis, settings: Any, redis_server: RedisServer) -> None:
    """Each has an inbox of its own. Nobody is inside with another, and fencing tokens grow."""
    aliases = {f"p{number}": caches(f"{redis_server.url}#{number}") for number in range(6)}
    settings.CACHES = {
        "default": entry(redis_server.url),
        **{name: its["default"] for name, its in aliases.items()},
    }
    inside = threading.Lock()
    tokens: list[int] = []

    def work(using: str) -> None:
        for _ in range(30):
            with redis_lock("job", using=using, wait=None) as lease:
                assert inside.acquire(blocking=False)
                tokens.append(lease.fencing_token)
                lease.check()
                inside.release()

    with ThreadPoolExecutor(6) as threads:
        for end in [threads.submit(work, using) for using in aliases]:
            end.result(PATIENCE)
    assert len(tokens) == 180
    assert tokens == sorted(set(tokens))
    assert not redis.exists(LOCK, f"{LOCK}:queue")

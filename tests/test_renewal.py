"""The watchdog, on a real Redis. Short leases, and events in place of sleeps."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import operator
import re
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from django.test import override_settings
from redis import Redis

from django_redislock import (
    Lease,
    LeaseLost,
    LeaseRevoked,
    LeaseState,
    LockUnavailable,
    redis_lock,
)
from django_redislock.base.clock import now
from django_redislock.lease import lease as lease_module
from django_redislock.lease import lifetime as lifetime_module
from django_redislock.lease import schedule
from django_redislock.lease import watchdog as renewal_module
from django_redislock.lease.lifetime import Lifetime
from django_redislock.primitives import mutex
from django_redislock.primitives.contract import Port, run
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{job}"


def renewals(redis: Redis) -> int:
    """How many renewals the server has seen: each moves the end of the lease in the index."""
    return int(redis.pexpiretime("redislock:{job}") or 0)


def wait_for_renewal(redis: Redis) -> None:
    before = renewals(redis)
    eventually(lambda: renewals(redis) > before)


def test_a_lease_lives_as_long_as_its_holder(redis: Redis) -> None:
    """After several ttls it is still there, and still held."""
    with redis_lock("job", ttl=0.3) as lease:
        for _ in range(8):
            wait_for_renewal(redis)
        assert lease.state == LeaseState.HELD
        assert redis.get(KEY).decode().startswith(lease.token)
    assert not redis.exists(KEY)


def test_an_alias_that_is_gone(
    redis: Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two aliases for one server the first one goes: the leases of the other are renewed."""
    server = server_of("default")
    server.drop(renewal_module.watchdog(server))
    entries = settings.CACHES
    with override_settings(CACHES={**entries, "direct": entries["default"]}):
        with redis_lock("another", using="direct"):
            pass
    with redis_lock("job", ttl=0.6):
        wait_for_renewal(redis)


def test_many_leases_are_renewed_in_batches(redis: Redis) -> None:
    """A thousand leases of one process are renewed by a handful of requests."""

    def calls() -> int:
        return int(redis.info("commandstats")["cmdstat_evalsha"]["calls"])

    leases = [redis_lock(f"job:{number}", ttl=3).acquire() for number in range(1000)]

    def ends() -> list[int]:
        pipeline = redis.pipeline()
        for number in range(1000):
            pipeline.pexpiretime(f"redislock:{{job:{number}}}")
        return pipeline.execute()

    first, before = ends(), calls()

    def all_renewed() -> bool:
        return all(map(operator.gt, ends(), first))

    eventually(all_renewed)
    assert calls() - before < 60
    for lease in leases:
        assert lease.state == LeaseState.HELD
        lease.release()


def test_on_lost_is_called_with_the_lease(redis: Redis) -> None:
    """Within a third of the ttl, in a thread of its own, once."""
    told = []
    event = threading.Event()

    def on_lost(lease):  # type: ignore[no-untyped-def]
        told.append((lease, threading.current_thread().name))
        event.set()

    lease = redis_lock("job", ttl=0.6, on_lost=on_lost).acquire()
    redis.delete(KEY)
    assert event.wait(PATIENCE)
    with pytest.raises(LeaseLost):
        lease.release()
    assert told == [(lease, "redislock-lost")]


def test_on_lost_may_be_added_later_and_too_late(redis: Redis) -> None:
    """A callback that is registered on a lost lease is called at once."""
    lease = redis_lock("job", ttl=0.3).acquire()
    first, second = threading.Event(), threading.Event()
    lease.on_lost(lambda lease: first.set())
    redis.delete(KEY)
    assert first.wait(PATIENCE)
    lease.on_lost(lambda lease: second.set())
    assert second.wait(PATIENCE)


def test_a_raising_on_lost_is_logged(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    """tests/faults/test_on_lost.py asserts that it harms nobody."""

    def raises(lease: object) -> None:
        raise ZeroDivisionError

    lease = redis_lock("job", ttl=0.3, on_lost=raises).acquire()
    redis.delete(KEY)
    eventually(lambda: "A callback of the lease on 'job' raised" in caplog.text)
    with pytest.raises(LeaseLost):
        lease.check()


def test_an_operators_clear_is_told_at_the_next_renewal(redis: Redis) -> None:
    """With who and why."""
    told = threading.Event()
    lease = redis_lock("job", ttl=0.6, on_lost=lambda lease: told.set()).acquire()
    redis_lock("job").clear(by="eva", reason="stuck")
    assert told.wait(PATIENCE)
    with pytest.raises(LeaseRevoked, match=r"cleared by eva \(stuck\)"):
        lease.check()


def test_max_hold_ends_the_renewal(redis: Redis) -> None:
    """The lease ends then, however often it could have been renewed, and its holder is told."""
    told = threading.Event()
    lock = redis_lock("job", ttl=0.3, max_hold=0.9, on_lost=lambda lease: told.set())
    lease = lock.acquire()
    for _ in range(3):
        wait_for_renewal(redis)
    assert lease.state == LeaseState.HELD
    assert told.wait(PATIENCE)
    with pytest.raises(LeaseLost, match="its max_hold has passed"):
        lease.check()
    eventually(lambda: not redis.exists(KEY))


def test_what_ends_first_is_said(redis: Redis) -> None:
    """Without renewal, the ttl may pass before max_hold does, or max_hold before the ttl."""
    for options, why in [
        ({"ttl": 0.1, "max_hold": 9}, "its ttl of 0.1 s passed"),
        ({"max_hold": 0.1}, "its max_hold has passed"),
    ]:
        lease = redis_lock("job", renew=False, **options).acquire()
        eventually(lambda lease=lease: lease.state == LeaseState.LOST)
        with pytest.raises(LeaseLost, match=why):
            lease.check()


def test_max_hold_bounds_the_first_ttl(redis: Redis) -> None:
    """Also when the ttl is the longer one."""
    lease = redis_lock("job", ttl=30, max_hold=1).acquire()
    assert redis.pttl(KEY) <= 1000
    lease.release()


def test_a_dropped_lease_is_not_renewed_any_more(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends with its ttl, and a warning says where it was taken."""
    lease = redis_lock("job", ttl=0.3, label="shop/jobs.py:7 in nightly").acquire()
    assert lease is not None
    wait_for_renewal(redis)
    del lease
    gc.collect()
    eventually(lambda: not redis.exists(KEY))
    eventually(lambda: "was dropped without being released" in caplog.text)
    assert "'job', taken at shop/jobs.py:7 in nightly" in caplog.text


def test_a_released_lease_is_forgotten(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    """It is neither renewed nor missed."""
    lease = redis_lock("released", ttl=0.3).acquire()
    lease.release()
    del lease
    gc.collect()
    with redis_lock("job", ttl=0.3):
        for _ in range(4):
            wait_for_renewal(redis)
    assert "dropped without being released" not in caplog.text


def test_a_renewal_that_is_overtaken_by_the_release(redis: Redis) -> None:
    """It finds the key gone while the release is under way, and that is no loss."""
    told: list[object] = []
    lease = redis_lock("job", on_lost=told.append).acquire()
    port = SyncPort(server_of("default"))
    lease._lifetime.closing = True  # the release has begun,
    run(mutex.release(port, lease._claim))  # and has arrived, but its answer has not
    run(renewal_module.renew(port, [lease._lifetime]))
    assert lease._lifetime.lost is None
    lease._lifetime.end()
    assert not told


def test_a_renewal_that_arrives_late_takes_nothing_away(redis: Redis) -> None:
    """A short one that the server carries out after a long one: what was promised stays."""
    lease = redis_lock("job", ttl=3).acquire()

    class Overtaken(SyncPort):
        async def script(self, *call):  # type: ignore[no-untyped-def]
            lease.extend(600)
            return await super().script(*call)

    run(renewal_module.renew(Overtaken(server_of("default")), [lease._lifetime]))
    assert redis.pttl(KEY) > 500_000
    assert lease.remaining() > 500
    lease.release()


def test_a_renewal_sends_the_ttl_that_it_believes_in(redis: Redis) -> None:
    """Also when the lease gets another one while the request is made."""
    lease = redis_lock("job", ttl=30).acquire()
    redis.pexpire(KEY, 1000)

    class Changed(SyncPort):
        def now(self) -> float:
            time = super().now()
            lease._claim.ttl = 600  # as another thread's extend() does, a moment later
            return time

    lease._claim.ttl = 40
    run(renewal_module.renew(Changed(server_of("default")), [lease._lifetime]))
    assert lease.remaining() <= redis.pttl(KEY) / 1000
    lease.release()


def test_a_renewal_counts_from_its_sending(redis: Redis) -> None:
    """After an answer that was slow, the holder believes in no more than the server's lease."""
    lease = redis_lock("job", ttl=3, renew=False).acquire()

    class Slow(SyncPort):
        async def script(self, *call):  # type: ignore[no-untyped-def]
            answer = await super().script(*call)
            eventually(lambda: redis.pttl(KEY) < 2800)
            return answer

    run(renewal_module.renew(Slow(server_of("default")), [lease._lifetime]))
    assert 0 < lease.remaining() <= redis.pttl(KEY) / 1000
    lease.release()


def test_a_failed_extend_of_a_lease_that_is_not_renewed(redis: Redis) -> None:
    """The watchdog has nothing to do about it before its deadline."""
    lease = redis_lock("job", ttl=30, renew=False).acquire()
    lease._lifetime.unknown()
    assert lease._lifetime.due - now() > 20
    lease.release()


def test_an_extension_to_a_shorter_ttl_is_renewed(redis: Redis) -> None:
    """The watchdog, which meant to look much later, learns that it is due earlier."""
    with redis_lock("job", ttl=60) as lease:
        lease.extend(1)
        redis.pexpire(KEY, 1200)  # in place of waiting until the first ttl has run down
        redis.zadd("redislock:index", {"job": 0})
        wait_for_renewal(redis)
        wait_for_renewal(redis)
        lease.check()


def test_a_key_of_another_type_costs_only_its_own_lease(redis: Redis) -> None:
    """The other leases of the same batch are renewed."""
    lost = threading.Event()
    lease = redis_lock("job", ttl=0.6, on_lost=lambda lease: lost.set()).acquire()
    with redis_lock("other", ttl=0.6) as other:
        redis.delete(KEY)
        redis.hset(KEY, "a", "stranger")
        before = redis.pexpiretime("redislock:{other}")
        assert lost.wait(PATIENCE)
        eventually(lambda: redis.pexpiretime("redislock:{other}") > before)
        other.check()
    assert redis.hgetall(KEY) == {b"a": b"stranger"}
    del lease
    redis.delete(KEY)


def test_lost_is_for_good(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that was reported lost is not held again, whatever the server says later."""

    async def away(*_: object) -> object:
        raise LockUnavailable("the cable is cut", doubtful=True)

    lease = redis_lock("job", ttl=0.3).acquire()
    with monkeypatch.context() as patch:
        patch.setattr(mutex, "extend", away)
        eventually(lambda: lease.state == LeaseState.LOST)
    redis.set(KEY, f"{lease.token}|1|1|300|a|b", px=60_000)
    with pytest.raises(LeaseLost):
        lease.extend()
    assert lease.state == LeaseState.LOST


def test_the_watchdog_survives_its_own_failure(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that nobody thought of is logged, and renewal goes on."""
    real = renewal_module.renew
    failed = threading.Event()

    async def fail_once(port: Port, leases: Sequence[Lifetime]) -> None:
        if not failed.is_set():
            failed.set()
            raise ZeroDivisionError
        await real(port, leases)

    monkeypatch.setattr(renewal_module, "renew", fail_once)
    with redis_lock("job", ttl=3):
        assert failed.wait(PATIENCE)
        wait_for_renewal(redis)
    assert "The lease on 'job' could not be renewed" in caplog.text


async def test_cancel_on_lost_cancels_the_block(redis: Redis) -> None:
    """The task that holds the lease is interrupted, and its block raises LeaseLost."""
    with pytest.raises(LeaseLost, match="was deleted"):
        async with redis_lock("job", ttl=0.6, cancel_on_lost=True):
            redis.delete(KEY)
            await asyncio.sleep(PATIENCE)
    await asyncio.sleep(0)  # no cancellation is left over


async def test_cancel_on_lost_keeps_a_cancellation_from_outside(redis: Redis) -> None:
    """Somebody else's cancel is not swallowed, also when the lease is lost meanwhile."""

    async def hold() -> None:
        async with redis_lock("job", ttl=0.6, cancel_on_lost=True):
            redis.delete(KEY)
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                asyncio.current_task().cancel()  # type: ignore[union-attr]
                raise

    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(hold())


async def test_cancel_on_lost_that_the_block_swallows(redis: Redis) -> None:
    """The loss is told all the same, and the task is not left half-cancelled."""
    with pytest.raises(LeaseLost):
        async with redis_lock("job", ttl=0.6, cancel_on_lost=True):
            redis.delete(KEY)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(PATIENCE)
    task = asyncio.current_task()
    assert task.cancelling() == 0


async def test_cancel_on_lost_spares_a_block_that_was_left(redis: Redis) -> None:
    """What is lost when the block is left already cancels nothing."""
    with pytest.raises(LeaseLost):
        async with redis_lock("job", ttl=30, cancel_on_lost=True):
            redis.delete(KEY)
    for _ in range(5):
        await asyncio.sleep(0)


class TestCohorts:
    """Leases that one request has renewed are renewed together, until one of them leaves."""

    @pytest.fixture
    def cohort(self, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> list[Lease]:
        for module in (renewal_module, schedule):  # however long the acquires take
            monkeypatch.setattr(module, "EARLY", 0.5)
        leases = [redis_lock(f"member:{n}", ttl=3).acquire() for n in range(6)]
        eventually(lambda: len({its._lifetime.times for its in leases}) == 1)
        return leases

    @pytest.fixture
    def requests(self, cohort: list[Lease], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        """The names that each request renews."""
        requests: list[list[str]] = []
        real = renewal_module.renew

        async def renew(port: Port, leases: Sequence[Lifetime]) -> None:
            requests.append([its.claim.keys.name for its in leases])
            await real(port, leases)

        monkeypatch.setattr(renewal_module, "renew", renew)
        return requests

    def stays(self, leases: Sequence[Lease], requests: list[list[str]]) -> None:
        """Each of them is renewed more than once from now on, at last all of them together."""
        for _ in range(3):
            before = {its: its._lifetime.deadline for its in leases}
            eventually(
                lambda before=before: all(it._lifetime.deadline > before[it] for it in before)
            )
        assert all(its.state == LeaseState.HELD for its in leases)
        assert sorted(requests[-1]) == [its.name for its in leases]

    def test_released(self, cohort: list[Lease], requests: list[list[str]]) -> None:
        first, *others = cohort
        first.release()
        self.stays(others, requests)
        assert first.state == LeaseState.RELEASED

    def test_extended(self, cohort: list[Lease], requests: list[list[str]]) -> None:
        """The others have the ttl that they had."""
        first, *others = cohort
        first.extend(60)
        requests.clear()
        self.stays(others, requests)
        assert not any(first.name in names for names in requests[1:])
        assert first.remaining() > 50
        assert all(its.remaining() <= 3 for its in others)

    def test_extended_in_vain(
        self, cohort: list[Lease], requests: list[list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A signal's exception ends it, and nothing is changed."""

        async def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(lease_module, "renew", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cohort[0].extend(60)
        # It is to be written down: so it has to be looked at before the others.
        cohort[1]._lifetime.write_at = 0.0
        renewal_module.watchdog(server_of("default")).reconsider(cohort[1]._lifetime)
        self.stays(cohort, requests)

    def test_suspected(self, cohort: list[Lease], requests: list[list[str]]) -> None:
        """Somebody has touched the lock of one that is followed: it is renewed at once, alone."""
        first, *others = cohort
        first._lifetime.tracked = True  # as that of a longer ttl
        renewal_module.watchdog(server_of("default")).suspect([first._lifetime.claim.keys.lock])
        eventually(lambda: [first.name] in requests)
        ends = {its: its._lifetime.deadline for its in cohort}
        eventually(lambda: all(its._lifetime.deadline > ends[its] for its in cohort))
        assert all(its.state == LeaseState.HELD for its in cohort)
        assert {its.name for its in others} <= {name for names in requests for name in names}

    def test_lost(self, cohort: list[Lease], requests: list[list[str]], redis: Redis) -> None:
        first, *others = cohort
        redis.delete("redislock:{member:0}")
        eventually(lambda: first.state == LeaseState.LOST)
        self.stays(others, requests)
        watched = renewal_module.watchdog(server_of("default"))
        assert first.token not in watched.register.lifetimes

    def test_dropped(
        self, cohort: list[Lease], requests: list[list[str]], redis: Redis, caplog: Any
    ) -> None:
        del cohort[0]
        gc.collect()
        eventually(lambda: "was dropped without being released" in caplog.text)
        self.stays(cohort, requests)
        eventually(lambda: not redis.exists("redislock:{member:0}"))

    def test_no_answer(
        self,
        cohort: list[Lease],
        requests: list[list[str]],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """All are in doubt once, and are renewed together again after the next answer."""
        real, failed = mutex.extend, threading.Event()

        async def extend(*args: Any, **more: Any) -> Any:
            if not failed.is_set():
                failed.set()
                raise LockUnavailable("lost")
            return await real(*args, **more)

        monkeypatch.setattr(mutex, "extend", extend)
        assert failed.wait(PATIENCE)
        self.stays(cohort, requests)
        assert re.search("6 leases, that on 'member:.' among them, could not be", caplog.text)

    def test_more_than_one_request_may_have(
        self,
        cohort: list[Lease],
        requests: list[list[str]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(renewal_module, "MOST_AT_ONCE", 4)
        eventually(lambda: len(requests) > 8)
        assert max(map(len, requests[1:])) == 4
        assert {*requests[-1], *requests[-2]} == {its.name for its in cohort}


class TestManyLeases:
    """What one lease costs does not depend on how many there are."""

    @pytest.fixture
    def looked_at(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The names of the leases that the watchdog has looked at."""
        names: list[str] = []
        kept = Lifetime.kept

        def look(lease: Lifetime, time: float) -> bool:
            names.append(lease.claim.keys.name)
            return kept(lease, time)

        monkeypatch.setattr(Lifetime, "kept", look)
        return names

    @pytest.fixture
    def looks(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """When the watchdog meant to look next, after each of its looks.

        It shows no sign of life, and is woken by the next lease.
        """
        looks: list[float] = []
        look = renewal_module.Watchdog._look

        def counted(watchdog: renewal_module.Watchdog) -> float:
            looks.append(look(watchdog))
            return looks[-1]

        monkeypatch.setattr(renewal_module.Watchdog, "_look", counted)
        watched = renewal_module.watchdog(server_of("default"))
        monkeypatch.setattr(watched, "_show_at", float("inf"))
        # Else each lease would be due at a second, to be written down.
        monkeypatch.setattr(lifetime_module, "A_SECOND", 1e9)
        watched._next = float("inf")
        return looks

    def test_a_look_costs_what_is_due(
        self, redis: Redis, looked_at: list[str], looks: list[float]
    ) -> None:
        """A new lease makes the watchdog look, and not at all the others."""
        held = [redis_lock(f"held:{n}", ttl=60_000).acquire() for n in range(300)]
        looked_at.clear()
        for n in range(100):
            before = len(looks)
            lease = redis_lock("job", ttl=50_000 - 100 * n).acquire()  # due before all others
            assert lease
            eventually(lambda before=before: len(looks) > before)
            lease.release()
        assert len(looked_at) < 5 * len(held), "as often as once for all, and a few for each"
        assert all(lease is not None and lease.state == LeaseState.HELD for lease in held)

    def test_released_leases_leave_little_behind(self, redis: Redis, looks: list[float]) -> None:
        """Also when the watchdog has seen each of them, and they would be due much later."""
        watched = renewal_module.watchdog(server_of("default"))
        for n in range(2 * renewal_module.MOST_AT_ONCE):
            before = len(looks)
            lease = redis_lock("job", ttl=60_000 - 100 * n).acquire()
            assert lease
            eventually(lambda before=before: len(looks) > before)
            lease.release()
        assert watched._due.size <= renewal_module.MOST_AT_ONCE + 2
        assert not watched._news
        assert not watched.register.lifetimes

    def test_the_most_urgent_first(self, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        """A short lease that becomes due while many long ones are being renewed is the next."""
        monkeypatch.setattr(renewal_module, "MOST_AT_ONCE", 2)
        monkeypatch.setattr(renewal_module, "MOMENT", 0.0)
        watched = renewal_module.watchdog(server_of("default"))
        long = [redis_lock(f"long:{n}", ttl=60).acquire() for n in range(20)]
        short = redis_lock("short", ttl=9).acquire()
        renewed: list[str] = []
        real = renewal_module.renew

        async def renew(port: Port, leases: Sequence[Lifetime]) -> None:
            if not renewed:
                short._lifetime.due = 0.0
                watched.reconsider(short._lifetime)
            renewed.extend(lease.claim.keys.name for lease in leases)
            await real(port, leases)

        monkeypatch.setattr(renewal_module, "renew", renew)
        for lease in long:
            lease._lifetime.due = 0.0
            watched._news[lease.token] = watched.register.lifetimes[lease.token]
        watched.wake()
        eventually(lambda: len(renewed) >= len(long) + 1)
        assert "short" in renewed[2:4]

    def test_nothing_is_forgotten_when_the_watchdog_fails(
        self, redis: Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An error in the middle of a look costs no lease its renewal."""
        watched = renewal_module.watchdog(server_of("default"))
        failed = threading.Event()
        real = watched._renew

        def fail_once(leases: list[Lifetime], *, ask: bool) -> bool:
            if not failed.is_set():
                failed.set()
                raise ZeroDivisionError
            return real(leases, ask=ask)

        monkeypatch.setattr(watched, "_renew", fail_once)
        with redis_lock("job", ttl=4), redis_lock("other", ttl=4):
            assert failed.wait(PATIENCE)
            for name in ("job", "other"):
                before = redis.pexpiretime(f"redislock:{{{name}}}")
                eventually(
                    lambda name=name, before=before: (
                        (redis.pexpiretime(f"redislock:{{{name}}}") or 0) > (before or 0)
                    )
                )

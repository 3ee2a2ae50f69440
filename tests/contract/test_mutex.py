"""What the mutex owes, sync and async, on a real Redis."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from redis import Redis

from django_redislock import LeaseLost, LeaseRevoked, LeaseState, LockNotAcquired, redis_lock
from django_redislock.base.clock import now
from tests.calling import call
from tests.contract.api import Api
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{invoice:42}"
QUEUE, TAIL, INDEX = f"{KEY}:queue", f"{KEY}:tail", "redislock:index"


def waiting(redis: Redis, number: int = 1) -> bool:
    return redis.zcard(QUEUE) == number


def round_trips(redis: Redis) -> int:
    """Script calls that the server has counted."""
    stats = redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))


def test_acquire_and_release(api: Api, redis: Redis) -> None:
    """A free lock is held at once, and is gone after its release."""
    lease = api.acquire(redis_lock("invoice:42", ttl=30))
    assert lease.state == LeaseState.HELD
    assert 28 < redis.pttl(KEY) / 1000 <= 30
    assert redis.get(KEY).decode().startswith(f"{lease.token}|{lease.fencing_token}|")
    api.release(lease)
    assert lease.state == LeaseState.RELEASED
    assert redis.exists(KEY, QUEUE, f"{KEY}:waiters") == 0
    assert redis.ttl(TAIL) > 0


def test_a_cycle_is_two_round_trips(api: Api, redis: Redis) -> None:
    """One for an uncontended acquire, one for its release."""
    api.release(api.acquire(redis_lock("warm up")))
    before = round_trips(redis)
    for _ in range(10):
        api.release(api.acquire(redis_lock("invoice:42")))
    # One more is a sign of life of this process, which comes every now and then.
    assert round_trips(redis) - before in (20, 21)


def test_it_excludes(api: Api) -> None:
    """While one holds it, nobody else gets it; afterwards somebody does."""
    lease = api.acquire(redis_lock("invoice:42"))
    assert api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=0)).result() is None
    other = api.acquire(redis_lock("invoice:43"), wait=0)
    api.release(lease)
    again = api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=0)).result()
    assert again is not None
    api.release(again)
    api.release(other)


def test_a_conflict_says_who(api: Api) -> None:
    """The error tells owner, label, since when, and how long its lease lives, from the answer
    of the same round trip."""
    lease = api.acquire(redis_lock("invoice:42", ttl=20, label="shop/views.py:42 in pay"))

    def enter() -> None:
        api.enter(redis_lock("invoice:42", wait=0), lambda lease: None)

    with pytest.raises(LockNotAcquired) as caught:
        api.start(enter).result()
    holder = caught.value.holder
    assert (holder.owner, holder.label) == (lease.owner, "shop/views.py:42 in pay")
    assert holder.fencing_token == lease.fencing_token
    assert holder.acquired_at == lease.acquired_at
    assert abs(datetime.now(UTC) - holder.acquired_at) < timedelta(seconds=PATIENCE)
    assert holder.remaining is not None
    assert 0 < holder.remaining <= 20
    assert caught.value.waited < PATIENCE
    assert lease.token not in str(caught.value)
    api.release(lease)


def test_a_waiter_is_handed_the_lock(api: Api, redis: Redis) -> None:
    """The waiter holds it in the very step of the release: the key is never free."""
    lease = api.acquire(redis_lock("invoice:42"))
    waiter = api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=None))
    eventually(lambda: waiting(redis))
    api.release(lease)
    assert redis.exists(KEY)
    handed = waiter.result(PATIENCE)
    assert handed.fencing_token > lease.fencing_token
    assert redis.pttl(KEY) > 20_000, "confirmed with its full ttl"
    api.release(handed)
    assert not redis.exists(KEY, QUEUE, f"{KEY}:waiters")


def heard(redis: Redis) -> bool:
    """Somebody waits, and its process can be told."""
    return any(b":inbox:" in waiter for waiter in redis.hvals(f"{KEY}:waiters"))


def messages(redis: Redis) -> int:
    """Wake-ups that the server has counted."""
    return int(redis.info("commandstats").get("cmdstat_publish", {"calls": 0})["calls"])


def test_a_neighbour_is_told_by_the_answer(api: Api, redis: Redis) -> None:
    """Who waits in the process that releases has its whole lease at once: there is no message,
    and nothing to confirm."""
    lease = api.acquire(redis_lock("invoice:42"))
    waiter = api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=None))
    eventually(lambda: heard(redis))
    before = messages(redis)
    api.release(lease)
    assert redis.pttl(KEY) > 20_000
    assert redis.hget(TAIL, "handed") == b""
    handed = waiter.result(PATIENCE)
    assert messages(redis) == before
    assert handed.fencing_token > lease.fencing_token
    assert handed.remaining() > 20
    assert redis.get(KEY).startswith(f"{handed.token}|{handed.fencing_token}|".encode())
    api.release(handed)
    assert not redis.exists(KEY, QUEUE, f"{KEY}:waiters")


def test_a_waiter_elsewhere_is_told_by_a_message(api: Api, redis: Redis) -> None:
    """Who waits in another process than that of the holder asks when it is woken, and has its
    whole lease from then on."""
    lease = api.acquire(redis_lock("invoice:42"))
    waiter = api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=None))
    eventually(lambda: heard(redis))
    before = messages(redis)
    keys = lease.claim.keys.mutex(lease.token)
    assert call(redis, "mutex_release", keys, lease.token, lease.name, 0)[0] == 1
    handed = waiter.result(PATIENCE)
    assert messages(redis) > before
    assert redis.pttl(KEY) > 20_000
    api.release(handed)


def test_waiters_are_served_in_order_of_arrival(api: Api, redis: Redis) -> None:
    """First come, first served, and each fencing token is larger than the last."""
    order: list[int] = []
    fences: list[int] = []
    lease = api.acquire(redis_lock("invoice:42"))

    def wait(number: int) -> None:
        got = api.acquire(redis_lock("invoice:42"), wait=None)
        order.append(number)
        fences.append(got.fencing_token)
        api.release(got)

    waiters = []
    for number in range(12):
        waiters.append(api.start(lambda number=number: wait(number)))
        eventually(lambda number=number: waiting(redis, number + 1))
    api.release(lease)
    for waiter in waiters:
        waiter.result(PATIENCE)
    assert order == list(range(12))
    assert fences == sorted(set(fences))
    assert fences[0] > lease.fencing_token


def test_nobody_barges_in(api: Api, redis: Redis) -> None:
    """A newcomer that tries once does not get a lock for which others wait."""
    lease = api.acquire(redis_lock("invoice:42"))
    waiter = api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=None))
    eventually(lambda: waiting(redis))
    api.release(lease)
    newcomer = api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=0)).result()
    assert newcomer is None
    api.release(waiter.result(PATIENCE))


def test_a_waiter_without_a_sign_of_life_is_passed_over(api: Api, redis: Redis) -> None:
    """Its process is stopped, though its connection is open: it costs the others nothing, and
    has its turn later if it comes back."""
    lease = api.acquire(redis_lock("invoice:42"))
    stopped = api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=None))
    eventually(lambda: waiting(redis))
    token = redis.zrange(QUEUE, 0, 0)[0]
    alive = api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=None))
    eventually(lambda: waiting(redis, 2))
    seen, rest = redis.hget(f"{KEY}:waiters", token).split(b"|", 1)
    redis.hset(f"{KEY}:waiters", token, b"%d|%s" % (int(seen) - 6_000_000, rest))
    api.release(lease)
    assert not redis.get(KEY).startswith(token)
    next_one = alive.result(PATIENCE)
    api.release(next_one)
    api.release(stopped.result(PATIENCE))


def test_giving_up_leaves_the_queue(api: Api, redis: Redis) -> None:
    """When the time to wait is over, None is returned and no place in the queue remains."""
    lease = api.acquire(redis_lock("invoice:42"))
    waiter = api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=0.2))
    assert waiter.result(PATIENCE) is None
    assert not redis.exists(QUEUE, f"{KEY}:waiters")
    api.release(lease)
    assert not redis.exists(KEY)


def test_a_waiter_notices_an_expired_holder(api: Api, redis: Redis) -> None:
    """When a holder dies without a word, the waiter has the lock soon after the lease ends."""
    dead = api.acquire(redis_lock("invoice:42", ttl=1, renew=False))
    lease = api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=PATIENCE)).result()
    assert lease.fencing_token > dead.fencing_token
    assert dead.state == LeaseState.LOST
    api.release(lease)


def test_release_may_be_repeated(api: Api) -> None:
    """Releasing a released lease does nothing."""
    lease = api.acquire(redis_lock("invoice:42"))
    api.release(lease)
    api.release(lease)


def test_release_of_an_expired_lease_says_so(api: Api, redis: Redis) -> None:
    """Who releases too late is told that the lease was lost."""
    lease = api.acquire(redis_lock("invoice:42", renew=False))
    redis.delete(KEY)
    with pytest.raises(LeaseLost, match="ttl passed unrenewed, or its key was deleted"):
        api.release(lease)
    assert lease.state == LeaseState.LOST


def test_release_leaves_the_successor_alone(api: Api, redis: Redis) -> None:
    """The lease of the next holder is not touched, and the late one is told who it is."""
    lease = api.acquire(redis_lock("invoice:42", renew=False))
    redis.delete(KEY)
    successor = api.start(lambda: api.acquire(redis_lock("invoice:42"))).result(PATIENCE)
    with pytest.raises(LeaseLost, match="holds the lock now"):
        api.release(lease)
    assert redis.get(KEY).decode().startswith(successor.token)
    api.release(successor)


def test_extend(api: Api, redis: Redis) -> None:
    """The lease lives for its ttl from now, or for another one that is given."""
    lease = api.acquire(redis_lock("invoice:42", ttl=10, renew=False))
    redis.pexpire(KEY, 5000)
    api.extend(lease)
    assert 8 < redis.pttl(KEY) / 1000 <= 10
    api.extend(lease, 60)
    assert lease.ttl == 60
    assert 55 < redis.pttl(KEY) / 1000 <= 60
    assert 55 < lease.remaining() <= 60
    assert redis.get(KEY).split(b"|")[3] == b"60000"
    api.release(lease)


def test_extend_repairs_a_ttl_that_was_removed(api: Api, redis: Redis) -> None:
    """After a PERSIST, the next renewal sets the TTL again."""
    lease = api.acquire(redis_lock("invoice:42"))
    redis.persist(KEY)
    api.extend(lease)
    assert redis.pttl(KEY) > 0
    api.release(lease)


def test_extend_of_a_lost_lease_says_so(api: Api, redis: Redis) -> None:
    """And it does not bring back a key that is not ours any more."""
    lease = api.acquire(redis_lock("invoice:42", renew=False))
    redis.delete(KEY)
    with pytest.raises(LeaseLost):
        api.extend(lease)
    assert not redis.exists(KEY)
    assert lease.state == LeaseState.LOST


def test_clear_hands_over_and_tells_the_old_holder(api: Api, redis: Redis) -> None:
    """An operator's clear names itself and its reason to the one that it hits."""
    lease = api.acquire(redis_lock("invoice:42", renew=False))
    waiter = api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=None))
    eventually(lambda: waiting(redis))
    cleared = api.clear(redis_lock("invoice:42"), by="eva", reason="host is gone")
    assert cleared.owner == lease.owner
    successor = waiter.result(PATIENCE)
    with pytest.raises(LeaseRevoked, match=r"eva.*host is gone") as caught:
        api.extend(lease)
    assert (caught.value.by, caught.value.reason) == ("eva", "host is gone")
    assert redis.get(KEY).decode().startswith(successor.token)
    api.release(successor)


def test_clear_of_a_free_lock(api: Api) -> None:
    """There is nothing to clear, and nothing breaks."""
    assert api.clear(redis_lock("invoice:42"), reason="none") is None
    assert api.holder(redis_lock("invoice:42")) is None


def test_clear_of_a_strangers_value(api: Api, redis: Redis) -> None:
    """A plain string at our key counts as held by a stranger, and an operator may clear it."""
    redis.set(KEY, "c0ffee")
    assert api.holder(redis_lock("invoice:42")).owner is None
    assert api.acquire(redis_lock("invoice:42"), wait=0) is None
    assert api.clear(redis_lock("invoice:42"), reason="left by an old version") is not None
    assert not redis.exists(KEY)


def test_the_index_knows_what_is_held(api: Api, redis: Redis) -> None:
    """Its score is when the lease ends; it follows renewal, handing over and release."""
    lease = api.acquire(redis_lock("invoice:42", ttl=10))
    ends = redis.zscore(INDEX, "invoice:42")
    seconds, microseconds = redis.time()
    assert 0 < ends / 1000 - (seconds + microseconds / 1e6) < 11
    api.extend(lease, 60)
    assert redis.zscore(INDEX, "invoice:42") > ends
    api.release(lease)
    assert redis.zscore(INDEX, "invoice:42") is None


def test_fencing_tokens_grow_when_redis_forgets(api: Api, redis: Redis) -> None:
    """Also across the loss of all data, where a counter would begin again."""
    fences = []
    for forget in (False, True, False, True):
        lease = api.acquire(redis_lock("invoice:42"))
        fences.append(lease.fencing_token)
        api.release(lease)
        if forget:
            redis.delete(TAIL)
    assert fences == sorted(set(fences))
    assert fences[-1] < 2**53


def test_fencing_tokens_grow_when_the_clock_goes_back(api: Api, redis: Redis) -> None:
    """The tail remembers the last one, so the next is one more."""
    lease = api.acquire(redis_lock("invoice:42"))
    api.release(lease)
    ahead = lease.fencing_token + 3_600_000_000
    redis.hset(TAIL, "fence", ahead)
    lease = api.acquire(redis_lock("invoice:42"))
    assert lease.fencing_token == ahead + 1
    api.release(lease)
    lease = api.acquire(redis_lock("invoice:42"))
    assert lease.fencing_token == ahead + 2
    api.release(lease)


def test_the_lease_survives_a_forgotten_script(api: Api, redis: Redis) -> None:
    """After SCRIPT FLUSH the script is sent again."""
    lease = api.acquire(redis_lock("invoice:42"))
    redis.script_flush()
    api.extend(lease)
    redis.script_flush()
    api.release(lease)
    assert not redis.exists(KEY)


def test_export_and_restore(api: Api, redis: Redis) -> None:
    """A lease that was exported is continued elsewhere, under a token of its own."""
    lease = api.acquire(redis_lock("invoice:42", ttl=20))
    text = lease.export()
    assert lease.state == LeaseState.RELEASED
    api.release(lease)
    assert redis.exists(KEY), "the exporter doesn't release it any more"
    restored = api.restore(text)
    assert restored.token != lease.token
    assert restored.fencing_token == lease.fencing_token
    assert restored.acquired_at == lease.acquired_at
    assert restored.label == lease.label
    holder = api.holder(redis_lock("invoice:42"))
    assert (holder.owner, holder.fencing_token) == (restored.owner, lease.fencing_token)
    assert restored.state == LeaseState.HELD
    api.release(restored)
    assert not redis.exists(KEY)


def test_a_text_is_restored_once(api: Api, redis: Redis) -> None:
    """Of two that were given it, the second holds nothing."""
    text = api.acquire(redis_lock("invoice:42")).export()
    first = api.restore(text)
    with pytest.raises(LeaseLost):
        api.restore(text)
    assert redis.get(KEY).decode().startswith(first.token)
    api.extend(first)
    api.release(first)
    with pytest.raises(LeaseLost):
        api.restore(text)
    assert not redis.exists(KEY)


def test_a_restored_lease_is_as_the_first_one(api: Api, redis: Redis) -> None:
    """Explicit arguments of its lock go along, what is left of `max_hold` included."""
    lock = redis_lock("invoice:42", ttl=20, renew=False, max_hold=3600, release="commit")
    restored = api.restore(api.acquire(lock).export())
    assert (restored.ttl, restored.renew, restored.release_at) == (20, False, "commit")
    assert 3500 < restored.hold_left(now()) <= 3600
    api.release(restored)
    restored = api.restore(api.acquire(redis_lock("invoice:42")).export())
    assert (restored.renew, restored.hold_left(now())) == (True, None)
    api.release(restored)


def test_an_exported_lease_keeps_its_ttl(api: Api, redis: Redis) -> None:
    """Restoring it never shortens what it has, and repairs what somebody took away."""
    lease = api.acquire(redis_lock("invoice:42", ttl=20))
    redis.pexpire(KEY, 50_000)
    restored = api.restore(lease.export())
    assert 40_000 < redis.pttl(KEY) <= 50_000
    redis.persist(KEY)
    restored = api.restore(restored.export())
    assert 10_000 < redis.pttl(KEY) <= 20_000
    api.release(restored)


def test_restore_of_a_lease_that_has_ended(api: Api, redis: Redis) -> None:
    """Who comes too late is told, and does not hold anything."""
    text = api.acquire(redis_lock("invoice:42")).export()
    redis.delete(KEY)
    with pytest.raises(LeaseLost):
        api.restore(text)
    assert not redis.exists(KEY)


@pytest.mark.parametrize("round_", range(3))
def test_contention(api: Api, redis: Redis, round_: int) -> None:
    """Many that increment an unprotected number, one at a time, lose no increment."""
    inside = threading.Lock()
    number = 0
    fences: list[int] = []

    def section(lease) -> None:  # type: ignore[no-untyped-def]
        nonlocal number
        assert inside.acquire(blocking=False), "two inside at once"
        before = number
        fences.append(lease.fencing_token)
        number = before + 1
        inside.release()

    def worker() -> None:
        for _ in range(10):
            api.enter(redis_lock("invoice:42", wait=PATIENCE), section)

    for future in [api.start(worker) for _ in range(8)]:
        future.result(PATIENCE)
    assert number == 80
    assert fences == sorted(set(fences))
    assert not redis.exists(KEY, QUEUE)

"""What a lock on several names owes, sync and async, on a real Redis."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest
from redis import Redis

from django_redislock import (
    LeaseLost,
    LeaseRevoked,
    LeaseState,
    LockError,
    LockNotAcquired,
    LockReentered,
    MultiLock,
    Semaphore,
    current_lease,
    redis_lock,
)
from django_redislock.fencing import Fence
from django_redislock.lease.register import register
from django_redislock.primitives.contract import MOST_AT_ONCE
from django_redislock.transport.ports import BasePort
from django_redislock.transport.server import server_of
from tests.calling import at_length
from tests.contract.api import Api, queued
from tests.contract.test_mutex import round_trips
from tests.waiting import PATIENCE, eventually


def key(name: str, beside: str = "") -> str:
    return f"redislock:{{{name}}}{beside}"


def holds(redis: Redis, name: str, token: str) -> bool:
    return (redis.get(key(name)) or b"").startswith(token.encode())


def elsewhere(api: Api, lock: redis_lock | MultiLock, wait: float | None = 0) -> object:
    """What another thread or task gets."""
    return api.start(lambda: api.acquire(lock, wait=wait)).result(PATIENCE)


@pytest.fixture(params=["together", "apart"])
def grouping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As on one primary, and as on a cluster: each name in a script of its own."""
    if request.param == "apart":
        monkeypatch.setattr(
            BasePort, "slots", lambda _, keys: [crc32(key.encode()) for key in keys]
        )
        at_length(monkeypatch)
    return str(request.param)


pytestmark = pytest.mark.usefixtures("grouping")


def test_it_holds_every_name(api: Api, redis: Redis) -> None:
    """Each name is held as its mutex, with one token and a fencing token of its own. A release
    leaves none."""
    lease = api.acquire(MultiLock(["b", "a", "b"], ttl=30))
    assert lease.state == LeaseState.HELD
    assert lease.name == "a, b"
    tokens = lease.fencing_tokens
    assert list(tokens) == ["a", "b"]
    for name, fencing_token in tokens.items():
        assert redis.get(key(name)).decode().startswith(f"{lease.token}|{fencing_token}|")
        assert 28 < redis.pttl(key(name)) / 1000 <= 30
    api.release(lease)
    assert lease.state == LeaseState.RELEASED
    assert not redis.exists(*(key(n, b) for n in "ab" for b in ("", ":queue", ":waiters")))
    assert redis.zcard("redislock:index") == 0


def test_it_is_found_by_the_name_of_its_events(api: Api) -> None:
    """Metrics and traces find the lease of an event by its name."""
    lease = api.acquire(MultiLock(["a", "b"]))
    for name in ("a", "b", lease.name):
        assert register(server_of("default")).held(key(name)) == [lease]
    api.release(lease)
    assert register(server_of("default")).held(key(lease.name)) == []


def test_one_fencing_token_is_no_answer(api: Api) -> None:
    """The error for `lease.fencing_token` says what to write; a fence takes the token of one
    name."""
    lease = api.acquire(MultiLock(["account:1", "account:2"]))
    with pytest.raises(LockError, match=r"lease\.fencing_tokens\['account:1'\]"):
        assert lease.fencing_token
    with pytest.raises(LockError, match=r"queryset\.fenced\(lease\.fencing_tokens"):
        Fence.of(lease)
    assert Fence.of(lease.fencing_tokens["account:1"]).token == lease.fencing_tokens["account:1"]
    api.release(lease)
    single = api.acquire(redis_lock("account:1"))
    assert single.fencing_tokens == {"account:1": single.fencing_token}
    assert single.fencing_token > lease.fencing_tokens["account:1"]
    api.release(single)


def test_all_or_nothing(api: Api, redis: Redis) -> None:
    """If one name is held, none is taken; the error says which one, and who holds it."""
    single = api.acquire(redis_lock("b"))
    with pytest.raises(LockNotAcquired) as caught:
        api.start(lambda: api.enter(MultiLock(["a", "b", "c"], wait=0), lambda _: None)).result()
    assert caught.value.name == "b"
    assert caught.value.holder.fencing_token == single.fencing_token
    assert not redis.exists(key("a"), key("c"), key("b", ":queue"))
    api.release(single)


def test_it_excludes_each_of_its_names(api: Api) -> None:
    """It excludes locks on one of its names, and other locks on several."""
    lease = api.acquire(MultiLock(["a", "b"]))
    for other in (redis_lock("a"), redis_lock("b"), MultiLock(["b", "c"])):
        assert elsewhere(api, other) is None
    api.release(elsewhere(api, redis_lock("c")))
    api.release(lease)
    api.release(elsewhere(api, MultiLock(["b", "c"])))


def test_who_waits_keeps_no_name_from_anybody(api: Api, redis: Redis) -> None:
    """While a MultiLock waits for one name, others can take its other names."""
    single = api.acquire(redis_lock("b"))
    waiter = api.start(lambda: api.acquire(MultiLock(["a", "b", "c"]), wait=None))
    queued(redis, "b")
    eventually(lambda: not redis.exists(key("a")))  # apart, it takes one more request
    for name in ("a", "c"):
        api.release(elsewhere(api, redis_lock(name)))
    assert not waiter.done()
    api.release(single)
    lease = waiter.result(PATIENCE)
    assert all(holds(redis, name, lease.token) for name in "abc")
    assert not redis.exists(key("b", ":queue"))
    api.release(lease)


def test_it_waits_for_one_name_after_the_other(api: Api, redis: Redis) -> None:
    """A name that it is handed while another one is held goes on to the next waiter at once; then
    it stands in the queue of the other name."""
    one, two = api.acquire(redis_lock("a")), api.acquire(redis_lock("b"))
    several = api.start(lambda: api.acquire(MultiLock(["a", "b"]), wait=None))
    queued(redis, "a")
    single = api.start(lambda: api.acquire(redis_lock("a"), wait=None))
    queued(redis, "a", 2)
    api.release(one)
    next_one = single.result(PATIENCE)
    api.release(two)
    assert not several.done()
    api.release(next_one)
    lease = several.result(PATIENCE)
    assert lease.fencing_tokens["a"] > next_one.fencing_token
    api.release(lease)
    assert not redis.exists(*(key(n, b) for n in "ab" for b in ("", ":queue", ":waiters")))


def test_a_name_in_vain(api: Api, redis: Redis, grouping: str) -> None:
    """A name that it is handed while another one is held, and that nobody else waits for, is free
    at once, and not after its claim window."""
    one, two = api.acquire(redis_lock("a")), api.acquire(redis_lock("b"))
    several = api.start(lambda: api.acquire(MultiLock(["a", "b"]), wait=None))
    queued(redis, "a")
    api.release(one)
    queued(redis, "b")
    assert grouping == "apart" or not redis.exists(key("a"))  # apart, it takes one more request
    eventually(lambda: not redis.exists(key("a")))
    api.release(two)
    api.release(several.result(PATIENCE))


def test_it_is_moved_to_the_queue_of_a_young_lock(api: Api, redis: Redis, grouping: str) -> None:
    """Others move it there, and the release of the lock has to look for waiters all the same."""
    api.acquire(redis_lock("b", renew=False))
    several = api.start(lambda: api.acquire(MultiLock(["a", "b"]), wait=None))
    queued(redis, "b")
    eventually(lambda: not redis.exists(key("a")))
    young = api.acquire(redis_lock("a"))
    redis.delete(key("b"))  # its lease has ended
    assert elsewhere(api, MultiLock(["a", "b"])) is None
    if grouping == "together":
        assert redis.zcard(key("a", ":queue")) == 1
    api.release(young)
    if grouping == "together":
        assert redis.exists(key("a")), "it was handed on in the same step"
    lease = several.result(PATIENCE)
    assert all(holds(redis, name, lease.token) for name in "ab")
    api.release(lease)


def test_a_name_that_others_always_wait_for(api: Api, redis: Redis) -> None:
    """It has its turn in the queue of each name, in order of arrival."""
    order: list[str] = []

    def take(lock: redis_lock | MultiLock, who: str) -> None:
        lease = api.acquire(lock, wait=None)
        order.append(who)
        api.release(lease)

    lease = api.acquire(redis_lock("hot"))
    waiters = []
    for number, lock in enumerate(
        [redis_lock("hot"), MultiLock(["cold", "hot"]), redis_lock("hot")]
    ):
        waiters.append(api.start(lambda lock=lock, who=str(number): take(lock, who)))
        queued(redis, "hot", number + 1)
    api.release(lease)
    for waiter in waiters:
        waiter.result(PATIENCE)
    assert order == ["0", "1", "2"]


def test_many_on_overlapping_names(api: Api) -> None:
    """Five callers take two of five names each, in a ring: none waits without end, and none meets
    another inside."""
    inside: dict[int, int] = dict.fromkeys(range(5), 0)
    clashes: list[int] = []

    def dine(seat: int) -> None:
        forks = seat, (seat + 1) % 5
        for _ in range(5):
            lease = api.acquire(MultiLock([f"fork:{fork}" for fork in forks]), wait=PATIENCE)
            for fork in forks:
                inside[fork] += 1
                if inside[fork] > 1:
                    clashes.append(fork)
            for fork in forks:
                inside[fork] -= 1
            api.release(lease)

    for diner in [api.start(lambda seat=seat: dine(seat)) for seat in range(5)]:
        diner.result(PATIENCE)
    assert not clashes


def test_many_leases_are_extended_at_once(api: Api, redis: Redis) -> None:
    """If one of them has lost a name, only that one gets the error."""
    leases = [api.acquire(MultiLock([f"{n}:a", f"{n}:b"], renew=False)) for n in range(3)]
    redis.delete(key("1:b"))
    api.extend(leases[0])
    with pytest.raises(LeaseLost, match="'1:b'"):
        api.extend(leases[1])
    api.extend(leases[2])
    assert [lease.state for lease in leases] == ["held", "lost", "held"]
    for lease in leases[0], leases[2]:
        api.release(lease)


def test_more_names_than_one_request_extends(api: Api, redis: Redis) -> None:
    """They are extended in several requests."""
    lease = api.acquire(MultiLock([str(n) for n in range(MOST_AT_ONCE)], ttl=10, renew=False))
    api.extend(lease, 60)
    assert all(redis.pttl(key(str(n))) > 55_000 for n in (0, MOST_AT_ONCE - 1))
    api.release(lease)
    assert not redis.exists(key("0"), key("99"))


def test_one_lost_name_is_a_lost_lease(api: Api, redis: Redis) -> None:
    """The release says so, gives back the other names, and leaves a successor alone."""
    lease = api.acquire(MultiLock(["a", "b", "c"], renew=False))
    redis.delete(key("b"))
    successor = elsewhere(api, redis_lock("b"))
    with pytest.raises(LeaseLost, match=r"'b' is lost.*holds the lock now"):
        api.release(lease)
    assert lease.state == LeaseState.LOST
    assert not redis.exists(key("a"), key("c"))
    api.release(successor)


def test_an_operator_clears_one_name(api: Api, redis: Redis) -> None:
    """The holder of all names learns who cleared that one, and why."""
    lease = api.acquire(MultiLock(["a", "b"], renew=False))
    assert api.clear(redis_lock("b"), by="eva", reason="stuck").owner == lease.owner
    with pytest.raises(LeaseRevoked, match=r"eva.*stuck") as caught:
        api.extend(lease)
    assert caught.value.name == "b"
    with pytest.raises(LeaseRevoked):
        api.release(lease)
    assert not redis.exists(key("a"))


def test_clear_wants_one_name(api: Api) -> None:
    """Each name may have another holder, so the error says to clear one of them."""
    with pytest.raises(TypeError, match=r"redis_lock\('a'\)\.clear"):
        api.clear(MultiLock(["a", "b"]), reason="none")


def test_as_a_decorator(api: Api, redis: Redis) -> None:
    """Names are templates over the arguments, or a function makes them."""
    seen: list[list[bytes]] = []

    def body(*_: object) -> None:
        seen.append(sorted(redis.keys("redislock:{account:*}")))

    def transfer(a: SimpleNamespace, b: SimpleNamespace) -> list[str]:
        return [f"account:{a.pk}", f"account:{b.pk}"]

    function = api.function(body)
    one, two = SimpleNamespace(pk=1), SimpleNamespace(pk=2)
    both = [b"redislock:{account:1}", b"redislock:{account:2}"]
    by_template = MultiLock(["account:{arguments[0].pk}", "account:{arguments[1].pk}"])(function)
    by_function = MultiLock(transfer)(function)
    for decorated in by_template, by_function:
        api.call(decorated, two, one)
        api.call(decorated, one, one)
    assert seen == [both, both[:1]] * 2
    assert not redis.keys("redislock:{account:*}")


def test_wrong_names() -> None:
    """Wrong names are refused where they are written, as far as possible."""
    with pytest.raises(TypeError, match="names must be a list of names"):
        MultiLock("account:1")
    with pytest.raises(ValueError, match="names is empty"):
        MultiLock([])
    with pytest.raises(ValueError, match="contains a brace"):
        MultiLock(["account:{pk}"]).acquire()
    with pytest.raises(ValueError, match="up to 250 names, not 251"):
        MultiLock([str(n) for n in range(251)]).acquire()
    with pytest.raises(TypeError, match="function as its names"):
        MultiLock(lambda: ["a"]).acquire()
    with pytest.raises(ValueError, match="needs the argument 'b'"):
        MultiLock(["{a}", "{b}"])(lambda a: a)
    with pytest.raises(TypeError, match="no argument 'limit'"):
        MultiLock(["a"], limit=3)  # type: ignore[call-arg]
    assert MultiLock([str(n) for n in range(5)]).name == "0, 1, 2 and 2 others"


def test_names_that_are_no_plain_locks(settings: Any) -> None:
    """Names that the settings make locks of another kind are refused: they would not exclude each
    other."""
    for entry, what in (
        ({"KIND": "semaphore", "LIMIT": 3}, "a semaphore"),
        ({"TIMESTAMP_KEY": "old"}, "to be migrated"),
    ):
        settings.REDISLOCK = {"LOCKS": {"b": entry}}
        with pytest.raises(ValueError, match=f"LOCKS has 'b' as {what}"):
            MultiLock(["a", "b"]).acquire(wait=0)


def test_a_name_that_we_hold_already() -> None:
    """A holder of one of the names would wait for itself, also with reentrant=True: only all names
    together can be one lease."""
    for reentrant in (False, True):
        lock = MultiLock(["a", "b"], reentrant=reentrant)
        with redis_lock("a"), pytest.raises(LockReentered, match="take all names in one step"):
            lock.acquire(wait=0)
    with Semaphore("a", 2), pytest.raises(LockError, match="has a type that"):
        MultiLock(["a", "b"]).acquire(wait=0)
    with MultiLock(["a", "b"]), pytest.raises(LockReentered, match="reentrant=True"):
        MultiLock(["a", "b"]).acquire(wait=0)
    with MultiLock(["a", "b"]), pytest.raises(LockReentered):
        redis_lock("b").acquire(wait=0)


def test_held_again(redis: Redis) -> None:
    """With reentrant=True, the holder of all names may take all of them again, or fewer."""
    with MultiLock(["a", "b"]) as outer:
        for again in (MultiLock(["b", "a"], reentrant=True), redis_lock("a", reentrant=True)):
            with again as inner:
                assert inner is outer
                assert current_lease() is outer
            assert holds(redis, "a", outer.token)
        with pytest.raises(LockReentered):
            MultiLock(["a", "b", "c"], reentrant=True).acquire(wait=0)
    assert not redis.exists(key("a"), key("b"))


def test_it_stays_where_it_is(api: Api) -> None:
    """Its leases can't be exported, and an attempt changes nothing."""
    lease = api.acquire(MultiLock(["a", "b"]))
    with pytest.raises(LockError, match="can't be exported"):
        lease.export()
    lease.check()
    api.release(lease)


@pytest.mark.usefixtures("no_signs_of_life", "grouping")
@pytest.mark.parametrize("grouping", ["together"], indirect=True)  # else no script sees both names
def test_many_that_need_a_name_that_is_held(api: Api, redis: Redis) -> None:
    """A script or two move them to the queue of that name, in their order; they are not all woken
    to find out."""
    number = 12
    first, other = api.acquire(redis_lock("a")), api.acquire(redis_lock("b"))
    both = MultiLock(["a", "b"])
    waiters = []
    for already in range(number):
        waiters.append(api.start(lambda: api.release(api.acquire(both, wait=PATIENCE))))
        queued(redis, "a", already + 1)
    order = redis.zrange(key("a", ":queue"), 0, -1)
    before = round_trips(redis)
    api.release(first)
    queued(redis, "b", number)
    asked = round_trips(redis) - before
    assert redis.zrange(key("b", ":queue"), 0, -1) == order
    assert not redis.exists(key("a"), key("a", ":queue"), key("a", ":waiters"))
    api.release(other)
    for waiter in waiters:
        waiter.result(PATIENCE)
    assert not redis.exists(*(key(n, b) for n in "ab" for b in ("", ":queue", ":waiters")))
    assert asked < number / 2


@pytest.mark.usefixtures("no_signs_of_life")
def test_round_trips(api: Api, redis: Redis, grouping: str) -> None:
    """A free lock is acquired in one round trip and released in one. If each name is in a slot of
    its own, it takes as many as there are names."""
    lock = MultiLock(["a", "b", "c"])
    api.release(api.acquire(lock))
    before = round_trips(redis)
    for _ in range(10):
        api.release(api.acquire(lock))
    assert round_trips(redis) - before in ((20, 21) if grouping == "together" else (60, 61))

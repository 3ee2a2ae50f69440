"""Pushes about maintenance, as Redis Software and Redis Cloud send them to redis-py 8: leases are
renewed at once, and redis-py hears of each push.

The proxy lets clients ask for such pushes, which no open source server knows, and sends them. The
leases here are renewed after minutes, so whatever renews them within seconds was a push.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

import pytest
from django.core.cache import caches
from redis import Redis

from django_redislock import MultiLock, Semaphore, redis_lock
from django_redislock.lease import watchdog
from django_redislock.transport import loans
from django_redislock.transport.inbox import Inbox
from django_redislock.transport.maintenance import GOES
from django_redislock.transport.server import server_of
from django_redislock.transport.subscription import Subscription
from tests.contract.api import Api
from tests.faults.proxy import Proxy, command, script
from tests.waiting import eventually

HEARS = int(version("redis").partition(".")[0]) >= 8
TTL = 600
KEY = "redislock:{job}"
FAILING_OVER = ("FAILING_OVER", 7, 10)


@pytest.fixture
def cloud(proxy: Proxy) -> Proxy:
    """A server that says beforehand when it goes away."""
    if not HEARS:
        pytest.skip("older versions do not ask for that")
    proxy.announce()
    return proxy


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What redis-py's own handlers are given."""
    from redis import maint_notifications
    from redis.asyncio import maint_notifications as for_tasks

    found: list[Any] = []

    def spy(of: type) -> None:
        usual = of.handle_notification  # type: ignore[attr-defined]

        def handle(self: Any, notification: Any) -> Any:
            found.append(notification)
            return usual(self, notification)

        monkeypatch.setattr(of, "handle_notification", handle)

    spy(maint_notifications.MaintNotificationsConnectionHandler)
    spy(maint_notifications.MaintNotificationsPoolHandler)
    spy(for_tasks.AsyncMaintNotificationsConnectionHandler)
    spy(for_tasks.AsyncMaintNotificationsPoolHandler)
    return found


def the_one(heard: list[Any]) -> Any:
    """What redis-py was given, after it was given something."""
    eventually(lambda: heard)
    return heard[0]


def listens(cloud: Proxy) -> None:
    """Wait until messages about the locks are heard."""
    eventually(lambda: cloud.subscribers)


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("word", [word.decode() for word in GOES])
def test_leases_are_renewed(
    api: Api,
    cloud: Proxy,
    redis: Redis,
    word: str,
    tracked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them, of each kind, as soon as the push has come; also where the server does not say
    which locks were changed, as at Redis Cloud."""
    monkeypatch.setattr(Subscription, "PING_EVERY", TTL)
    monkeypatch.setattr(watchdog, "A_SECOND", 0.0)  # each lease is old enough
    if not tracked:
        cloud.refuse(lambda words: b"TRACKING" in words, "ERR unknown option")
    leases = [
        api.acquire(redis_lock("job", ttl=TTL)),
        api.acquire(MultiLock(["a", "b"], ttl=TTL)),
        api.acquire(Semaphore("exports", 2, ttl=TTL)),
    ]
    listens(cloud)
    inbox = server_of("default").kept(Inbox, "redislock")
    eventually(lambda: tracked or not inbox.may_follow)
    before = [lease.remaining() for lease in leases]
    left = redis.pttl(KEY)
    where = ("127.0.0.1:1",) if word == "MOVING" else ()
    assert cloud.push(word, 7, 10, *where) >= 2
    eventually(lambda: all(map(float.__lt__, before, [one.remaining() for one in leases])))
    assert redis.pttl(KEY) > left
    for lease in leases:
        api.release(lease)


def test_the_end_of_it_renews_nothing(cloud: Proxy, heard: list[Any]) -> None:
    with redis_lock("job", ttl=TTL) as lease:
        listens(cloud)
        deadline = lease._lifetime.deadline
        cloud.push("FAILED_OVER", 7)
        the_one(heard)
        cloud.push("FAILED_OVER", 8)
        eventually(lambda: {one.id for one in heard} == {7, 8})
        assert lease._lifetime.deadline == deadline


def test_many_pushes_are_one_renewal(
    cloud: Proxy, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection gets the push, and there is one request."""
    monkeypatch.setattr(watchdog, "A_SECOND", TTL / 12)  # what is young on any machine
    with redis_lock("job", ttl=TTL) as lease:
        listens(cloud)
        redis.config_resetstat()
        lease._lifetime.due -= TTL / 6  # as if it was renewed that long ago
        renewed = lease._lifetime.deadline
        for _ in range(5):
            cloud.push(*FAILING_OVER)
        eventually(lambda: lease._lifetime.deadline > renewed)
        cloud.push(*FAILING_OVER)
        with redis_lock("another"):
            pass
        assert redis.info("commandstats")["cmdstat_pexpire"]["calls"] == 1


def test_between_a_request_and_its_answer(cloud: Proxy, heard: list[Any]) -> None:
    """The answer is found, redis-py hears of the push, and the connection is good."""
    with redis_lock("job"):
        pass
    cloud.push_before(script("mutex_acquire"), *FAILING_OVER)
    with redis_lock("job") as lease:
        assert lease.fencing_token
    its = the_one(heard)
    assert (type(its).__name__, its.id, its.ttl) == ("NodeFailingOverNotification", 7, 10)
    pool = server_of("default").shared_pool()
    [connection] = eventually(lambda: pool._available_connections)
    assert connection.maintenance_state.name == "MAINTENANCE"
    assert connection.socket_timeout == connection._sock.gettimeout() == 10


@pytest.mark.parametrize("used", [False, True])
def test_while_nobody_asks(
    cloud: Proxy, heard: list[Any], used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push that came to an idle line is handled before the next request, or when the line goes
    back."""
    monkeypatch.setattr(loans, "LENT", TTL)  # no line goes back by itself
    # No line is kept in a process that has more threads than its pool has connections. Those of
    # earlier tests are still there.
    monkeypatch.setattr(loans.threading, "active_count", lambda: 1)
    with redis_lock("job"):
        pass
    [line] = eventually(lambda: server_of("default").links._idle)
    assert cloud.push(*FAILING_OVER)
    if used:
        with redis_lock("job"):
            pass
    else:
        line.loan.look(line.until)
    assert the_one(heard).id == 7
    state = "NONE" if used else "MAINTENANCE"
    eventually(lambda: line.connection.maintenance_state.name == state)  # redis-py sets it later


def test_to_tasks(cloud: Proxy, heard: list[Any]) -> None:
    async def main() -> None:
        async with redis_lock("job"):
            cloud.push_before(script("mutex_release"), "MOVING", 7, 1, f"localhost:{cloud.port}")
        while not heard:
            await asyncio.sleep(0.001)
        async with redis_lock("job"):
            pass

    asyncio.run(main())
    assert (heard[0].id, heard[0].new_node_host) == (7, "localhost")


def test_to_the_connection_that_listens(cloud: Proxy) -> None:
    with redis_lock("job", ttl=TTL):
        listens(cloud)
        inbox = server_of("default").kept(Inbox, "redislock")
        connection = eventually(lambda: inbox._subscription)._connection
        cloud.push(*FAILING_OVER)
        eventually(lambda: connection.maintenance_state.name == "MAINTENANCE")


def test_a_new_address(cloud: Proxy, heard: list[Any]) -> None:
    """Connections that are made from now on lead there."""
    with redis_lock("job"):
        pass
    cloud.push_before(script("mutex_acquire"), "MOVING", 7, 1, f"localhost:{cloud.port}")
    with redis_lock("job"):
        pass
    the_one(heard)
    pool = server_of("default").shared_pool()
    eventually(lambda: pool.connection_kwargs["host"] == "localhost")
    assert caches["default"].get("a") is None
    with redis_lock("job"):
        pass


def test_a_redis_py_with_another_parser(
    api: Api, cloud: Proxy, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `Connection._parser`, redis-py hears nothing. Leases are renewed."""
    from redis._parsers.base import AsyncPushNotificationsParser, PushNotificationsParser

    lease = api.acquire(redis_lock("job", ttl=TTL))
    listens(cloud)
    for of in (PushNotificationsParser, AsyncPushNotificationsParser):
        monkeypatch.delattr(of, "handle_push_response")
    before = lease.remaining()
    cloud.push(*FAILING_OVER)
    eventually(lambda: lease.remaining() > before)
    api.release(lease)


@pytest.mark.parametrize(
    "words", [(), (1, 2), ("MOVING",), ("MOVING", 1, 10, "nowhere"), FAILING_OVER]
)
def test_in_any_state(api: Api, proxy: Proxy, words: tuple[Any, ...]) -> None:
    """Nonsense, and pushes that nobody has asked for, do no harm."""
    proxy.push_before(command("EVALSHA"), *words)
    lease = api.acquire(redis_lock("job"))
    api.release(lease)

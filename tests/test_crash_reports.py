"""A crash reporter sends the variables of each frame: no token and no password is among them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import LockError, LockUnavailable, Redlock, redis_lock
from django_redislock.base import tokens
from django_redislock.lease import order
from tests.caches import caches, entry
from tests.contract.api import Api
from tests.crash import report

PASSWORD = "s3cr3t"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(tcp_port=0, args=["--requirepass", PASSWORD]) as server:
        if server.external:
            pytest.skip("it is somebody else's server, which is not ours to stop")
        yield server


@pytest.fixture
def there(server: RedisServer) -> Iterator[Redis]:
    with Redis(port=server.tcp_port, password=PASSWORD) as client:
        yield client


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokens that were made."""
    made: list[str] = []
    new = tokens.new

    def spy() -> str:
        token = new()
        made.append(str(token))
        return token

    monkeypatch.setattr(tokens, "new", spy)
    return made


@pytest.fixture
def crashes(made: list[str]) -> Callable[[Callable[[], Any]], None]:
    """It fails, and the report shows nothing that it must not."""

    def crashes(call: Callable[[], Any], error: type[LockError] = LockError) -> None:
        with pytest.raises(error) as caught:
            call()
        text = report(caught.value)
        assert PASSWORD not in text
        assert made
        for token in made:
            assert token not in text
            assert token[8:] not in text

    return crashes


def test_redis_in_trouble(
    api: Api, server: RedisServer, there: Redis, settings: Any, crashes: Any
) -> None:
    """It says nothing, is away, or is asked with another password."""
    url = f"redis://user:{PASSWORD}@127.0.0.1:{server.tcp_port}"
    there.acl_setuser(
        "user",
        enabled=True,
        passwords=[f"+{PASSWORD}"],
        keys="*",
        channels="*",
        categories=["+@all"],
    )
    settings.CACHES = caches(f"{url}/0", SOCKET_TIMEOUT=0.2)
    lease = api.acquire(redis_lock("job"))
    with server.paused():
        crashes(lambda: api.extend(lease), LockUnavailable)  # over the open connection
        crashes(lambda: api.extend(lease), LockUnavailable)  # and over one that is to be made
        crashes(lambda: api.acquire(redis_lock("other", wait=0)), LockUnavailable)
        crashes(lambda: api.release(lease), LockUnavailable)
    there.acl_setuser("user", reset_passwords=True, passwords=["+another"], enabled=True)
    settings.CACHES = caches(f"{url}/1")
    crashes(lambda: api.acquire(redis_lock("other", wait=0)), LockUnavailable)
    server.stop()
    settings.CACHES = caches(f"{url}/2")
    crashes(lambda: api.acquire(redis_lock("other", wait=0)), LockUnavailable)


def test_a_lease_that_is_lost(api: Api, redis: Redis, crashes: Any) -> None:
    """To another holder, whose token is not shown either."""
    first = api.acquire(redis_lock("job"))
    second = api.acquire(redis_lock("another"))
    value = redis.get("redislock:{another}")
    for call in (api.extend, api.release):
        redis.set("redislock:{job}", value)
        crashes(lambda call=call: call(first))
    api.release(second)


def test_a_lock_that_is_busy(api: Api, crashes: Any, settings: Any) -> None:
    """Also where its holder is this very thread, or the order of two is wrong."""
    settings.REDISLOCK = {"LOCK_ORDER": "raise"}
    url = os.environ["REDISLOCK_TEST_URL"] + f"&client_name={PASSWORD}"
    settings.CACHES = caches(url)

    def within(*names: str) -> None:
        if names:
            with redis_lock(names[0], wait=5):
                within(*names[1:])

    within("crash-a", "crash-b")
    crashes(lambda: within("crash-b", "crash-a"))
    crashes(lambda: within("crash-a", "crash-a"))
    holder = api.start(lambda: api.acquire(redis_lock("job"))).result()
    crashes(lambda: api.enter(redis_lock("job", wait=0), lambda _: None))
    api.release(holder)
    order._of_this_process = order.Order()


def test_a_redlock(api: Api, server: RedisServer, settings: Any, crashes: Any) -> None:
    """Nothing of any of its servers is shown."""
    url = f"redis://:{PASSWORD}@127.0.0.1:1"
    settings.CACHES = settings.CACHES | {
        name: entry(f"{url}{number}/0") for number, name in enumerate("abc")
    }
    crashes(lambda: api.acquire(Redlock("job", using=["a", "b", "c"], wait=0)), LockUnavailable)


def test_a_token_is_a_text() -> None:
    """Only its repr hides it."""
    token = tokens.new()
    assert len(token) == 32
    assert f"{token}" == str(token) == pickle.loads(pickle.dumps(token))
    assert str(token) not in repr({"keys": [token]})

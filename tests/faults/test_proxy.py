"""The proxy itself: each fault does what its name says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.client import PubSub
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from tests.faults.proxy import Fault, Proxy, command
from tests.waiting import eventually


@pytest.fixture
def client(proxy: Proxy) -> Iterator[Redis]:
    """Tries once, and does not wait for long."""
    with Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0), socket_timeout=0.2) as client:
        yield client


KEY = "redislock-proxy"
CHANNEL = "redislock-channel"


@pytest.mark.parametrize(
    ("fault", "error", "carried_out"),
    [
        (Fault.LOSE_REQUEST, RedisTimeoutError, False),
        (Fault.LOSE_REPLY, RedisTimeoutError, True),
        (Fault.RESET_BEFORE, RedisConnectionError, False),
        (Fault.RESET_AFTER, RedisConnectionError, True),
    ],
)
def test_a_lost_message(
    proxy: Proxy,
    client: Redis,
    redis: Redis,
    fault: Fault,
    error: type[Exception],
    carried_out: bool,
) -> None:
    """The client gets no answer; the command was carried out or not, as the fault says."""
    rule = proxy.on(command("SET"), fault)
    with pytest.raises(error):
        client.set(KEY, "x")
    rule.happened()
    assert bool(redis.exists(KEY)) is carried_out
    assert rule.carried_out == carried_out
    assert client.set(KEY, "y"), "it hits once"


@pytest.fixture
def subscriber(client: Redis, redis: Redis) -> Iterator[PubSub]:
    """Listens on a channel through the proxy."""
    with client.pubsub() as pubsub:
        pubsub.subscribe(CHANNEL)
        assert eventually(lambda: pubsub.get_message(timeout=1))["type"] == "subscribe"
        yield pubsub


def test_a_deaf_subscriber(proxy: Proxy, redis: Redis, subscriber: PubSub) -> None:
    """The server counts it as a listener, and it hears nothing until it is not deaf any more."""
    proxy.deaf = True
    assert redis.publish(CHANNEL, "lost") == 1
    assert subscriber.get_message(timeout=0.1) is None
    proxy.deaf = False
    redis.publish(CHANNEL, "heard")
    assert eventually(lambda: subscriber.get_message(timeout=1))["data"] == b"heard"

"""Dramatiq's broker, and its actors."""

from __future__ import annotations

from functools import partial

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage

from tests.tasks.defining import define
from tests.tasks.events import broker_url

broker = RedisBroker(url=broker_url(4))
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)


def current_id() -> str:
    message = CurrentMessage.get_current_message()
    assert message is not None
    return str(message.message_id)


globals().update(
    define(
        __name__,
        partial(dramatiq.actor, broker=broker, max_retries=0),
        partial(dramatiq.actor, broker=broker, max_retries=2, min_backoff=50, max_backoff=100),
        current_id,
    )
)

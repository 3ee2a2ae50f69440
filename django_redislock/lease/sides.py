"""The differences between a thread and an asyncio task, beyond what a primitive needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from asgiref.sync import sync_to_async

from .. import signals
from ..primitives.contract import Port
from ..signals import LockEvent
from ..transport.ports import AsyncPort, keep

T = TypeVar("T")


async def to_its_end(port: Port, clean_up: Coroutine[Any, Any, object]) -> None:
    """Run a clean-up to its end, even if the caller is cancelled meanwhile."""
    if isinstance(port, AsyncPort):
        await asyncio.shield(keep(asyncio.ensure_future(clean_up)))
    else:
        await clean_up


async def beside_orm(port: Port, call: Callable[[], T]) -> T:
    """Call it in the thread in which the caller's ORM works, since each thread has database
    connections of its own."""
    if isinstance(port, AsyncPort):
        return await sync_to_async(call, thread_sensitive=True)()
    return call()


async def announce(port: Port, event: LockEvent, *, in_background: bool = False) -> None:
    """Log an event, and call the receivers of its signal."""
    signals.log(event)
    if isinstance(port, AsyncPort):
        await signals.asend(event)
    elif in_background or asyncio._get_running_loop() is not None:
        signals.send_later(event)
    else:
        signals.send(event)

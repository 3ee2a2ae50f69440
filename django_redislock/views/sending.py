"""A lease that is held until a streaming response has been sent."""

from __future__ import annotations

import asyncio
import logging
import weakref
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync
from django.http.response import StreamingHttpResponse

from ..lease.holds import Hold
from ..lease.lease import Lease

logger = logging.getLogger("django_redislock")


def hold_until_sent(lease: Lease, response: StreamingHttpResponse) -> None:
    """Release `lease` when `response` is closed or dropped.

    Servers close a response when it was sent, and when the client has gone away. An error in a
    middleware may drop it.
    """
    hold = Hold(None, outlives=True)
    # Attached first and detached last: a signal's exception may come in between.
    dropped = weakref.finalize(response, lease._abandon, hold)
    dropped.atexit = False
    lease._add(hold)
    # The content is not wrapped: a FileResponse hands its file to the server directly.
    closers: list[Any] = response._resource_closers  # type: ignore[attr-defined]
    content = response._iterator if response.is_async else None  # type: ignore[attr-defined]
    closers.append(partial(_sent, lease, hold, dropped, content))


def _sent(lease: Lease, hold: Hold, dropped: weakref.finalize[Any, Any], content: Any) -> None:
    """Release the lease, since the response is closed."""
    try:
        if asyncio._get_running_loop() is not None:
            lease._abandon(hold)  # in the background: a request would block the event loop
            return
        _end_content(lease, content)
        lease._settle(hold)
    finally:
        dropped.detach()


def _end_content(lease: Lease, content: Any) -> None:
    # Django closes generators, but not asynchronous ones. The `finally` of one must not run while
    # the next holder works.
    if not hasattr(content, "aclose"):
        return

    async def end() -> None:
        await content.aclose()

    try:
        async_to_sync(end)()
    except Exception:
        logger.exception("The end of a response under %r failed", lease.name)

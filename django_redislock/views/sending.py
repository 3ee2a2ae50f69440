"""A lease that is held for longer than its view runs: until a response that streams is sent."""

from __future__ import annotations

import asyncio
import logging
import weakref
from typing import Any

from asgiref.sync import async_to_sync
from django.http.response import StreamingHttpResponse

from ..lease import Lease

logger = logging.getLogger("django_redislock")


def hold_until_sent(lease: Lease, response: StreamingHttpResponse) -> None:
    """Release `lease` when `response` is closed, which servers do when it was sent, and when the
    client has gone away; or dropped, as an error in a middleware may do."""
    # First, as it is detached last: a signal's exception may come in between.
    dropped = weakref.finalize(response, lease.abandon)
    dropped.atexit = False
    lease.outlive()
    # Not by wrapping the content: a FileResponse hands its file itself to the server.
    closers: list[Any] = response._resource_closers  # type: ignore[attr-defined]
    content = response._iterator if response.is_async else None  # type: ignore[attr-defined]
    closers.append(_Sent(lease, dropped, content))


class _Sent:
    """Called when the response is closed."""

    def __init__(self, lease: Lease, dropped: weakref.finalize[Any, Any], content: Any) -> None:
        self._lease = lease
        self._dropped = dropped
        self._content = content

    def __call__(self) -> None:
        try:
            if asyncio._get_running_loop() is not None:
                self._lease.abandon()  # to the background: asking Redis here would stop the loop
                return
            self._end_content()
            self._lease.settle()
        finally:
            self._dropped.detach()

    def _end_content(self) -> None:
        # Django closes generators, but not asynchronous ones: its `finally` must not run beside
        # the next holder.
        if not hasattr(self._content, "aclose"):
            return

        async def end() -> None:
            await self._content.aclose()

        try:
            async_to_sync(end)()
        except Exception:
            logger.exception("The end of a response under %r failed", self._lease.name)

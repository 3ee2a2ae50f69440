"""`lock_view`: a view that runs in one place at a time."""

from __future__ import annotations

import asyncio
import inspect
import logging
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, Unpack

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import BadRequest
from django.http.response import HttpResponseBase, StreamingHttpResponse

from ..base.exceptions import LockNotAcquired, LockUnavailable
from ..lease.holds import Hold, Running
from ..lease.lease import Lease
from ..lease.lock import Lock, ServerOptions
from ..locks.decorate import aacquire, acquire
from ..locks.redis_lock import redis_lock
from ..settings.naming import name_maker
from ..settings.validators import (
    function_of,
    one_of,
    refuse_unknown,
    validate_max_waiters,
    validate_release,
    validate_response,
    validate_status,
)
from .decorator import Call, ViewDecorator, in_thread_if_needed, validate_methods
from .responses import BUSY, NoLock, with_hints, without_lock

# A lease that is held until a streaming response has been sent.


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


HELD_OUTSIDE = (
    "take it in the view, or in the code around it, and not in both. A test that asks while the "
    "lock is held writes `with locks_held_elsewhere({name!r}):`, of django_redislock.testing"
)


class ViewOptions(ServerOptions, total=False):
    """The options of the lock of a view."""

    unavailable: Literal["raise", "run"]
    """What happens if Redis could not be reached for all of `wait`: `"raise"`, the response says
    503; `"run"`, the view runs without the lock."""


Response = Callable[[Any, NoLock], HttpResponseBase] | str


class lock_view(ViewDecorator):
    """Run a view in one place at a time, across processes and hosts.

    Decorates functions, methods and classes, synchronous or not, and those of Django REST
    framework. `name` is a template over the view's arguments, such as
    `"checkout:{request.user.pk}"` or `"order:{pk}"`, or a function of them; by default it is
    the view's dotted path.

    A request that can't get the lock within `wait` seconds receives `status` (409), or 503 if
    Redis can't be reached; with `unavailable="run"` the view then runs without the lock.
    `response`, a function of the request and the error, makes another answer. `methods` are the
    HTTP methods that lock; by default all but OPTIONS. Arguments that are not given come from the
    settings. There, `wait` is called `VIEW_WAIT`. It is 0, since a worker that waits serves no
    other request.

    One request takes each lock once: of two decorators with the same lock, such as that of a class
    and that of its method, the outer one takes it.

    `max_waiters` is the number of requests that may wait at the same time in one process, for all
    locks of this view. One more is refused at once if its lock is busy.

    The lock is released when the view has returned, the database transactions around it have
    ended, and a streaming response has been sent. `release="exit"` waits for the first only, and
    `"commit"` for the first two, whatever the settings say.
    """

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        *,
        methods: Iterable[str] | None = None,
        status: int | None = None,
        response: Response | None = None,
        release: Literal["exit", "commit"] | None = None,
        max_waiters: int | None = None,
        **options: Unpack[ViewOptions],
    ) -> None:
        if isinstance(name, type):
            raise TypeError("lock_view needs its parentheses: @lock_view() or @lock_view('…')")
        if release is not None:
            validate_release(release)
        refuse_unknown(
            (option for option in options if option not in ViewOptions.__annotations__),
            "lock_view",
        )
        if "unavailable" in options:  # not "skip": a request needs a response
            one_of("raise", "run")(options["unavailable"], "unavailable")
        self._name = name
        self._methods = validate_methods(methods)
        self._status = None if status is None else validate_status(status)
        self._response = validate_response(response)
        self._release = release
        self._max_waiters = None if max_waiters is None else validate_max_waiters(max_waiters)
        self._asking: Running[Lock, None] = Running()
        """The locks that requests of this process are asking for, in order of arrival; empty
        without `max_waiters`."""
        lock = redis_lock(None, **options, release=release or "commit")
        self._lock: Lock = lock._advising(HELD_OUTSIDE)

    def __repr__(self) -> str:
        return f"lock_view({'' if self._name is None else repr(self._name)})"

    def _prepare(self, view: Callable[..., Any]) -> Callable[..., str]:
        return name_maker(self._name, view)

    def _serve(self, call: Call) -> HttpResponseBase:
        lock = self._lock_for(call)
        if call.has(lock):
            return call.run()
        try:
            try:
                lease = acquire(lock, self._wait(lock))
            except (LockNotAcquired, LockUnavailable) as error:
                return with_hints(self._refuse(call, lock, error), error)
            with lease:
                self._asking.pop(lock, None)
                return self._keep(lease, call.run(lease))
        finally:
            self._asking.pop(lock, None)

    async def _aserve(self, call: Call) -> HttpResponseBase:
        lock = await in_thread_if_needed(lambda: self._lock_for(call))
        if call.has(lock):
            return await call.arun()
        try:
            try:
                lease = await aacquire(lock, self._wait(lock))
            except (LockNotAcquired, LockUnavailable) as error:
                # In a thread, since the page may query the database, as context processors do.
                response: Any = await sync_to_async(self._refuse)(call, lock, error)
                if inspect.isawaitable(response):
                    response = await response
                return with_hints(response, error)
            async with lease:
                self._asking.pop(lock, None)
                return self._keep(lease, await call.arun(lease))
        finally:
            self._asking.pop(lock, None)

    def _lock_for(self, call: Call) -> Lock:
        if self._name is None and call.of_class is not None:
            name = call.of_class
        elif callable(self._name):
            name = call.prepared(*call.arguments, **call.kwargs)
        else:
            name = call.prepared(*call.args, **call.kwargs)
        try:
            return self._lock._renamed(name, call.label)
        except ValueError as error:
            # The name was made from the request.
            raise BadRequest(str(error)) from error

    def _wait(self, lock: Lock) -> float | None:
        """Return the seconds for which a request may wait for its lock; None: no limit."""
        policy = lock._policy()
        wait = policy.wait if "wait" in lock._explicit else policy.view_wait
        if self._max_waiters is None:
            return wait
        # Single operations on a dict need no threading lock. A process that is forked while
        # another thread holds such a lock would wait for it without end.
        self._asking[lock] = None
        return wait if list(self._asking).index(lock) < self._max_waiters else 0

    def _keep(self, lease: Lease, response: HttpResponseBase) -> HttpResponseBase:
        """Hold the lease until a streaming response has been sent."""
        if self._release is None and isinstance(response, StreamingHttpResponse):
            lease.check()
            hold_until_sent(lease, response)
        return response

    def _refuse(self, call: Call, lock: Lock, error: NoLock) -> Any:
        policy = lock._policy()
        respond: Any = self._response or policy.view_response
        if respond is not None:
            respond = function_of(respond, "The function for responses of locked views")
            return respond(call.request, error)
        status = policy.view_status if self._status is None else self._status
        return without_lock(call, error, BUSY._replace(status=status))

"""One leader among many processes: `Leader` runs a scheduler, or the like, in one at a time.

1.  Each process that takes part waits for an ordinary lock, `leader:<name>`, without limit. So
    they lead in order of their arrival, and the next one leads as soon as the lock is released.
2.  A thread, or a task of a running event loop, waits, calls `on_gain`, and watches its lease,
    which is renewed as every lease is.
3.  When the lease is lost or has passed its own deadline, or by `step_down()` or `stop()`,
    `is_leader` is false at once. Then `on_loss` is called, and then the lock is released. So the
    next leader begins after the old one has ended, unless the lease was lost.
4.  A forked child takes no part by what its parent has started. But if the parent did not serve,
    such as a master that loads the application before it forks, the child is asked anew.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Self

from django.db import close_old_connections

from .base import background, process
from .base.exceptions import LeaseLost, LockError, LockUnavailable
from .base.people import cancelled
from .lease.lease import Lease
from .lease.lock import UNSET, Lock
from .primitives.contract import run
from .primitives.keys import validate_name
from .settings.validators import refuse_unknown

logger = logging.getLogger("django_redislock")

RETRY = 5.0
"""Seconds until a process tries again that could not wait for the lock."""
STOP_WITHIN = 5.0
"""Seconds that `stop()`, and the end of the process, wait for `on_loss` and the release."""
_TAKES = {"ttl": "the seconds until another process leads when this one was killed", "using": ""}
_MAKERS = {(f"django.core.{its}", f"get_{its}_application") for its in ("wsgi", "asgi")}

_WORKER = "gunicorn.arbiter", "spawn_worker"
_GEVENT_WORKER = "gunicorn.workers.base", "init_process"


def serves() -> bool:
    """Return whether this process serves requests, as far as that can be seen in
    `AppConfig.ready`: a server makes the application, and does not fork afterwards to serve."""
    if (uwsgi := sys.modules.get("uwsgi")) is not None:  # uWSGI makes this module
        return bool(uwsgi.worker_id() > 0)
    if sys.argv[1:2] == ["runserver"]:
        return "--noreload" in sys.argv or os.environ.get("RUN_MAIN") == "true"
    frames = [frame for frame, _ in traceback.walk_stack(sys._getframe())]
    callers = {(frame.f_globals.get("__name__", ""), frame.f_code.co_name) for frame in frames}
    if any(module == "gunicorn.arbiter" for module, _ in callers):
        # With preload_app the master itself makes the application. Workers of gevent replace the
        # threads when they begin: one that was started before would hang.
        return (_GEVENT_WORKER if "gevent" in sys.modules else _WORKER) in callers
    return not callers.isdisjoint(_MAKERS)


class Leader:
    """Lead in one process at a time, among all that take part under this name.

    `start()` lets this process take part, in a thread of its own, if it serves requests: call it
    in `AppConfig.ready`. `async with Leader(…):` lets it take part in a task of the running loop,
    as in the lifespan of an ASGI application.

    `on_gain` is called without arguments when this process begins to lead, and `on_loss` when it
    ends; coroutine functions are awaited. They run in that thread or loop, one at a time, so
    `on_gain` must start the work and return. An exception of theirs is logged. If `on_gain`
    raises, `on_loss` is not called, and another process leads.

    `ttl` is how long it takes until another process leads when this one was killed. `serves` is
    the function that says whether `start()` takes part in this process.

    The lock is named `leader:<name>`. The settings of locks apply to that name, except `WAIT`,
    `RENEW`, `RELEASE` and `ON_CONFLICT`.
    """

    def __init__(
        self,
        name: str,
        *,
        on_gain: Callable[[], object] | None = None,
        on_loss: Callable[[], object] | None = None,
        serves: Callable[[], bool] = serves,
        ttl: float = UNSET,
        using: str = UNSET,
        scope: None = UNSET,
        **unknown: object,
    ) -> None:
        refuse_unknown(unknown, "Leader", _TAKES)
        for argument, value in {"on_gain": on_gain, "on_loss": on_loss, "serves": serves}.items():
            if not callable(value) and (value is not None or argument == "serves"):
                raise TypeError(f"{argument} must be a function, such as start, not {value!r}")
        self._on_gain, self._on_loss, self._serves = on_gain, on_loss, serves
        options: Any = {"ttl": ttl, "using": using, "scope": scope}
        options = {option: value for option, value in options.items() if value is not UNSET}
        options |= {"wait": None, "renew": True, "release": "exit", "label": "leader"}
        self._lock = Lock(f"leader:{validate_name(name)}", **options)._of_kind("mutex")
        self._part: _Part | None = None

    def __repr__(self) -> str:
        return f"<Leader {self.name!r}>"

    @property
    def name(self) -> str:
        """The name of its lock."""
        return self._lock.name

    @property
    def is_leader(self) -> bool:
        """Whether this process leads right now. It is false from the lease's own deadline on, also
        while Redis can't be reached. No request is sent."""
        return self._leading() is not None

    @property
    def fencing_token(self) -> int:
        """The fencing token of this leadership. Raises `LeaseLost` if this process does not
        lead."""
        if (lease := self._leading()) is None:
            raise LeaseLost(self.name, "this process does not lead")
        return lease.fencing_token

    def _leading(self) -> Lease | None:
        process.notice_fork()
        part = self._part
        return part.lease if part is not None and part.leads else None

    def start(self) -> None:
        """Take part in a thread of this process, if it serves. To start it again does nothing."""
        process.notice_fork()
        _asked.add(self)
        if self._part is not None:
            return
        if not self._serves():
            logger.debug("%r takes no part: this process serves no requests", self)
            return
        self._part = part = _Part(self, None)
        part.thread = background.start(lambda: run(part.go()), "redislock-leader")
        if part.thread is None:
            self._part = None
            logger.error("%r never leads in this process: no thread can be started", self)

    def stop(self) -> None:
        """End a leadership, and take no part any more. Waits for `on_loss` and the release, for
        some seconds at most."""
        process.notice_fork()
        _asked.discard(self)
        part, self._part = self._part, None
        if part is not None:
            part.end()
            # A thread that waits for the lock ends with the process, or when it has the lock.
            if part.lease and part.thread and part.thread is not threading.current_thread():
                part.thread.join(STOP_WITHIN)

    def step_down(self) -> None:
        """Let another process lead. `is_leader` is false at once; the leader's thread or task then
        calls `on_loss` and releases the lock. This process takes no part for a `ttl`."""
        if self._part is not None:
            self._part.step_down()

    async def __aenter__(self) -> Self:
        process.notice_fork()
        if self._part is not None:
            raise LockError("this Leader takes part already; make another one", self.name)
        _asked.add(self)
        self._part = part = _Part(self, asyncio.get_running_loop())
        self._task = asyncio.create_task(part.go())
        return self

    async def __aexit__(self, *error: object) -> None:
        part = self._part
        self.stop()
        if part is not None and part.lease is None:
            self._task.cancel()
        await asyncio.wait([self._task])


class _Part:
    """How a process takes part: in a thread, or in a task of `loop`."""

    lease: Lease | None = None
    """The lease, until it is released."""
    thread: threading.Thread | None = None
    _ended = _rests = False

    def __init__(self, leader: Leader, loop: asyncio.AbstractEventLoop | None) -> None:
        self._leader = leader
        self._loop = loop
        self._event: Any = threading.Event() if loop is None else asyncio.Event()
        wake = self._event.set
        self._set = wake if loop is None else partial(loop.call_soon_threadsafe, wake)

    @property
    def leads(self) -> bool:
        lease = self.lease
        return not (self._ended or self._rests or lease is None) and lease.remaining() > 0

    def end(self) -> None:
        self._ended = True
        self._wake()

    def step_down(self) -> None:
        self._rests |= self.lease is not None
        self._wake()

    def _wake(self, *_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._set()

    async def go(self) -> None:
        lock, told = self._leader._lock, ""
        while not self._ended:
            try:
                lease = lock.acquire() if self._loop is None else await lock.aacquire()
                assert lease is not None  # it waits without limit
            except Exception as error:
                if told != (told := str(error)):  # once for each outage
                    logger.exception("%r can't wait for its lock, and tries again", self._leader)
                await self._wait(RETRY)
                continue
            told = ""
            await self._lead(lease)
            if self._rests:
                self._event.clear()  # before the look, or the event of an end could be lost
                await self._wait(0 if self._ended else lease.ttl)
                self._rests = False

    async def _lead(self, lease: Lease) -> None:
        leader, gained = self._leader, False
        try:
            self.lease = lease
            lease.on_lost(self._wake)
            if self.leads:
                logger.info("%r leads in %s", leader, lease.owner)
                gained = await self._call(leader._on_gain)
                self._rests |= not gained
            while self.leads:
                await self._wait(lease.remaining())
        finally:
            self._ended |= self.leads  # the task was cancelled
            try:
                if gained:
                    await self._call(leader._on_loss)
            finally:
                with suppress(LeaseLost, LockUnavailable):  # or it is released later
                    lease.release() if self._loop is None else await lease.arelease()
                self.lease = None

    async def _call(self, callback: Callable[[], object] | None) -> bool:
        """Call a callback, if there is one. Return whether it has ended without an exception."""
        try:
            result: Any = callback() if callback is not None else None
            if asyncio.iscoroutine(result):
                await result if self._loop is not None else asyncio.run(result)
        except BaseException as error:
            itself = isinstance(error, asyncio.CancelledError) and not cancelled()
            if self._loop is not None and not (itself or isinstance(error, Exception)):
                raise  # the task was cancelled, or the loop is to end
            logger.exception("%r of %r raised", callback, self._leader)
            return False
        finally:
            if self._loop is None:
                close_old_connections()
        return True

    async def _wait(self, seconds: float) -> None:
        if self._loop is None:
            self._event.wait(seconds)
        else:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._event.wait(), seconds)
        self._event.clear()


_asked: weakref.WeakSet[Leader] = weakref.WeakSet()
"""Leaders that were asked to take part, and not to stop."""


def _forget() -> None:
    """Forget the threads of the parent. A child of a process that served has other work."""
    for leader in [*_asked]:
        if leader._part is not None:
            leader._part = None
            _asked.discard(leader)


def _each(method: Callable[[Leader], None]) -> None:
    for leader in [*_asked]:
        method(leader)


process.in_child(_forget)
if hasattr(os, "register_at_fork"):
    # Not a hook of `process`: those come first, since a thread is started here.
    os.register_at_fork(after_in_child=lambda: _each(Leader.start))
atexit.register(_each, Leader.stop)

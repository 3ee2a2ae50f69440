"""`single_flight`: many callers at a time, one computation, and its result for all of them.

1.  The callers of one process share one call. The first caller makes it; the others wait for it
    without a thread, a connection or a request of their own.
2.  The first caller reads the record of the last computation and takes the lock. If nobody has
    computed meanwhile, it computes, and records the result before it releases the lock.
3.  A caller that waited for the lock finds that record. The result is for callers that came while
    it was computed, and not for later ones, unless it is kept. Fencing tokens distinguish the two:
    a record has the token that it was computed under, and tokens grow from holder to holder. So a
    caller takes a record that is newer than the one it found when it came.
4.  An exception is a result, too, for those who waited. A crash is not: the next caller computes.
5.  With `stale` a record is kept longer than its ttl. A caller that finds it in that time takes it
    at once. If nobody has the lock, the caller also starts a renewal: a call as in step 2 by
    another thread or task. It waits for nobody, and computes unless the record is another one by
    then. If it fails, the old record stays.

The idea and the name are those of Go's singleflight package.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from django.db import connections

from ..base import background, people, process
from ..base.callables import Parameters, call
from ..base.clock import now
from ..base.exceptions import ComputationFailed, LeaseLost, LockNotAcquired
from ..lease.lease import Lease
from ..lease.lock import UNSET, Lock, refuse_event_loop
from ..primitives.contract import Done, run
from ..settings.validators import (
    OF_A_RESULT,
    WAIT,
    refuse_unknown,
    validate_kept,
    validate_period_or_none,
)
from ..transport.ports import AsyncPort, PortType, SyncPort
from .decorate import AnyFunction, FunctionDecorator, LockFor
from .once import acquire_unless_recorded, write_at_release
from .redis_lock import redis_lock

logger = logging.getLogger("django_redislock")

INSIDE = (
    "let the computation call the undecorated function, which is the __wrapped__ of the decorated "
    "one, or give the inner call another name"
)

MAX_MESSAGE = 1000
"""Characters of an exception's message that other callers see."""


class Serializer(Protocol):
    """Turns results into text or bytes, and back."""

    def dumps(self, value: Any, /) -> str | bytes: ...
    def loads(self, text: Any, /) -> Any: ...


class single_flight(FunctionDecorator[Literal["raise"]]):
    """Let concurrent callers of a function, across processes and hosts, share one computation.

    `name` is a template over the arguments, such as `"rates:{currency}"`, or a function of them.
    Calls with different results need different names. Only a function without arguments needs no
    name.

    A caller that comes during a computation waits up to `wait` seconds (0: not at all, None: no
    limit), and gets its result. With `ttl` the result is kept for that many seconds; without, the
    next caller computes again.

    With `stale`, callers of that many seconds more get the old result at once, while one of them
    has a new one computed: in a thread or a task of its own, or before it goes on if there is
    none. An exception is then logged, and the old result stays until its end.

    All callers get `serializer.loads(serializer.dumps(result))`, including the one that computed.
    `serializer` is a module or object with these two functions, by default JSON. Let them build
    nothing but data: whoever can write to Redis decides what `loads` reads.

    An exception is raised in the caller that computed. Callers that waited get
    `ComputationFailed` with its type and message. It is not kept for later callers, even with
    `ttl`.

    The lock is named `single_flight:<name>`. The settings of locks apply to that name, except
    `RELEASE` and `ON_CONFLICT`. Raises `LockNotAcquired` when `wait` is over; `LockUnavailable`,
    and then nothing was computed; `LockReentered` if the computation needs its own result.
    """

    _prefix = "single_flight:"

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        ttl: float | None = None,
        *,
        stale: float | None = None,
        wait: float | None = UNSET,
        using: str = UNSET,
        scope: None = UNSET,
        serializer: Serializer = json,
        **unknown: object,
    ) -> None:
        refuse_unknown(unknown, "single_flight", OF_A_RESULT | WAIT)
        for method in ("dumps", "loads"):
            if not callable(getattr(serializer, method, None)):
                raise TypeError(
                    f"serializer must have the functions dumps and loads, as json has, "
                    f"not {serializer!r}"
                )
        self._template = name
        self._ttl = validate_kept(ttl, "ttl")
        self._stale = validate_period_or_none(stale, "stale")
        if stale is not None and ttl is None:
            raise TypeError("stale= needs ttl=, the seconds before a result is old: ttl=60")
        self._stays = True
        """Whether a task of the running loop comes to its end. It does not in a loop that ends
        with its call, as those of async_to_sync do."""
        # The functions, since a module can't be pickled or copied.
        self._dumps, self._loads = serializer.dumps, serializer.loads
        options: Any = {"wait": wait, "using": using, "scope": scope}
        given = {option: value for option, value in options.items() if value is not UNSET}
        self._lock = redis_lock(release="exit", **given)._recording(INSIDE)

    def __repr__(self) -> str:
        return f"<single_flight {self._template!r}>"

    def _wrap(self, kind: str, function: AnyFunction, lock_for: LockFor) -> AnyFunction:
        if kind.endswith("generator"):
            raise TypeError(f"single_flight shares one result, and {function!r} is a {kind}")
        if self._template is None and Parameters(function).left():
            raise TypeError(
                f"single_flight needs a name for {function!r}, since its results depend on its "
                f"arguments: @single_flight('rates:{{currency}}')"
            )

        def compute(caller: _Caller, args: Any, kwargs: Any) -> None:
            with (
                caller.unless_known(),
                run(caller.acquire(SyncPort)) as lease,
                caller.publishing(lease),
            ):
                caller.result = self._result(lease, call(function, args, kwargs))

        async def acompute(caller: _Caller, args: Any, kwargs: Any) -> None:
            with caller.unless_known():
                async with await caller.acquire(AsyncPort) as lease:
                    with caller.publishing(lease):
                        caller.result = self._result(lease, await function(*args, **kwargs))

        def decorated(*args: Any, **kwargs: Any) -> Any:
            refuse_event_loop()
            with _Caller(self, lock_for(args, kwargs)) as caller:
                while (other := caller.other_call()) is not None:
                    if (result := caller.wait(other)) is not None:
                        return self._value(result, caller)
                compute(caller, args, kwargs)
            if (renewal := caller.renewal()) is not None:
                renew = partial(compute, renewal, args, kwargs)
                apart = partial(renewal.apart, copy_context(), renew)
                if background.start(apart, "redislock-renewal") is None:
                    with renewal:
                        renew()
                    return self._value(renewal.result or caller.result, caller)
            return self._value(caller.result, caller)

        async def adecorated(*args: Any, **kwargs: Any) -> Any:
            with _Caller(self, lock_for(args, kwargs)) as caller:
                while (other := caller.other_call()) is not None:
                    if (result := await caller.await_(other)) is not None:
                        return self._value(result, caller)
                await acompute(caller, args, kwargs)
            if (renewal := caller.renewal()) is not None:
                if not self._stays:
                    with renewal:
                        await acompute(renewal, args, kwargs)
                    return self._value(renewal.result or caller.result, caller)
                renewal.follow(asyncio.create_task(acompute(renewal, args, kwargs)))
            return self._value(caller.result, caller)

        return adecorated if kind == "coroutine" else decorated

    def _result(self, lease: Lease, value: Any) -> _Result:
        try:
            payload = self._dumps(value)
            if not isinstance(payload, str | bytes):
                raise TypeError(f"dumps returned {type(payload).__name__}, not str or bytes")
        except (TypeError, ValueError) as error:  # what serializers raise
            raise TypeError(
                f"The result of {lease.name!r} can't be shared: {error}. Return what the "
                f"serializer can write, or give single_flight another serializer."
            ) from error
        if isinstance(payload, str):
            return _Result(lease.fencing_token, "text", payload.encode())
        return _Result(lease.fencing_token, "bytes", payload)

    def _value(self, result: _Result | None, caller: _Caller) -> Any:
        assert result is not None
        if result.failed:
            raise result.error(caller.lock.name)
        text = result.payload.decode() if result.kind == "text" else result.payload
        return self._loads(text)


KEPT = "^%d+|[bt][ey][xt][te]s?|"
"""Matches, in Lua, a result that is kept for later callers: a failure is not."""
_WRITTEN = re.compile(rb"(\d{1,19})\|(text|bytes|failed)\|(.*)", re.DOTALL)


class _Result(NamedTuple):
    """The result of a computation, and the fencing token that it was made under."""

    fencing_token: int
    kind: str
    """"text" or "bytes", as the serializer made it; or "failed"."""
    payload: bytes

    @property
    def failed(self) -> bool:
        return self.kind == "failed"

    @classmethod
    def of_error(cls, lease: Lease, error: Exception) -> _Result:
        kind = type(error)
        path = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        message = people.message(error)[:MAX_MESSAGE]
        about = {"error": path, "message": message, "owner": lease.owner}
        return cls(lease.fencing_token, "failed", json.dumps(about).encode())

    @classmethod
    def parse(cls, record: bytes | None) -> _Result | None:
        """Return the result in a record, or None if there is none or something else wrote it."""
        match = _WRITTEN.fullmatch(record or b"")
        if match is None:
            return None
        fencing_token, kind, payload = match.groups()
        return cls(int(fencing_token), kind.decode(), payload)

    def error(self, name: str) -> ComputationFailed:
        """Return the exception for callers that waited."""
        try:
            about = json.loads(self.payload)
            texts = [about["error"], about["message"], about["owner"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            texts = ["its record can't be read", "", ""]
        return ComputationFailed(name, *(people.clean(str(text), MAX_MESSAGE) for text in texts))

    def pack(self) -> bytes:
        return b"%d|%s|%s" % (self.fencing_token, self.kind.encode(), self.payload)


class _Call(NamedTuple):
    """A call of this process that is being made."""

    by: people.Holding
    ended: Future[_Result | None]
    """None: the call has no result, and another caller has to compute."""


_calls: dict[tuple[Any, ...], _Call] = {}
process.in_child(_calls.clear)


class _Caller:
    """One caller: it waits for another call, or makes its own."""

    def __init__(self, decorator: single_flight, lock: Lock) -> None:
        self.lock = lock
        self.decorator = decorator
        self.result: _Result | None = None
        self._due = False
        """The result is old, and nobody computes a new one."""
        self._keeps = decorator._ttl is not None
        """A result that was kept is one for this caller."""
        wait = lock._policy().wait
        self._end = None if wait is None else now() + wait
        self._key: tuple[Any, ...] = decorator, lock._keys().lock
        self._own = _Call(people.holder(), Future())
        self._since = float("inf")
        """The smallest fencing token of a result for this caller. Infinite while the record at
        its arrival is unknown."""

    def __enter__(self) -> _Caller:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool | None:
        """End the own call for those who wait for it, with a result or without."""
        if _calls.get(self._key) is self._own:
            _calls.pop(self._key)
        self._own.ended.set_result(self.result)
        return None

    def renewal(self) -> _Renewal | None:
        """Return the renewal that this caller has to start, if any."""
        renewal = _Renewal(self, self.result) if self._due and self.result else None
        if renewal and _calls.setdefault(renewal._key, renewal._own) is not renewal._own:
            return None  # another one is running
        return renewal

    def other_call(self) -> _Call | None:
        """Return the call to wait for, or None if this caller makes its own."""
        other = _calls.setdefault(self._key, self._own)
        if other.by is self._own.by or self._left() == 0:
            # A caller that would wait for itself, or that has no time left, asks for the lock:
            # the lock's error names the holder.
            return None
        return other

    def wait(self, other: _Call) -> _Result | None:
        try:
            return other.ended.result(self._left())
        except TimeoutError:
            return None

    async def await_(self, other: _Call) -> _Result | None:
        try:
            async with asyncio.timeout(self._left()):
                # Shielded, since others wait for the same call.
                return await asyncio.shield(asyncio.wrap_future(other.ended))
        except TimeoutError:
            return None

    def _left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - now())

    async def acquire(self, port_type: PortType) -> Lease:
        """Return the lease under which to compute. Raises `Done` if there is a result."""
        pattern = KEPT if self._keeps else ""
        stale = self.decorator._stale if self._keeps else None
        while True:
            try:
                return await acquire_unless_recorded(
                    *(port_type, self.lock, self._answers),
                    pattern=pattern,
                    wait=self._left(),
                    stale=stale,
                )
            except Done as done:
                self.result = self.result or _Result.parse(done.value)
                self._due = done.due
                if self.result is not None:
                    raise
                pattern = ""  # the record is damaged

    def _answers(self, value: bytes | None, lease: Lease | None) -> bool:
        found = _Result.parse(value)
        if lease is None and self._since == float("inf"):
            self._since = 0 if found is None else found.fencing_token + 1
        if found is None:
            return False
        new = lease is not None and found.fencing_token >= self._since
        kept = self._keeps and not found.failed
        if new or kept:
            self.result = found
        return new or kept

    @contextmanager
    def unless_known(self) -> Iterator[None]:
        """Leave the block when there is a result, whatever has become of the lease."""
        try:
            yield
        except Done:
            pass
        except LeaseLost:
            if self.result is None or self.result.failed:
                raise

    @contextmanager
    def publishing(self, lease: Lease) -> Iterator[None]:
        """Compute in this block. The release of `lease` records what came of it."""
        try:
            yield
        except Exception as error:
            self.result = _Result.of_error(lease, error)
            raise
        finally:
            result = self.result
            if result is not None:  # else it was cut short: the next caller computes
                self._publish(lease, result)

    def _publish(self, lease: Lease, result: _Result) -> None:
        ttl, stale = self.decorator._ttl, self.decorator._stale or 0
        # Without a ttl only those who wait read the result. They came within the life of a lease.
        kept = lease.ttl if ttl is None or result.failed else ttl + stale
        write_at_release(lease, result.pack(), kept, held=True)


class _Renewal(_Caller):
    """A computation while callers get the `old` result. What it raises is logged."""

    def __init__(self, caller: _Caller, old: _Result) -> None:
        super().__init__(caller.decorator, caller.lock)
        self._keeps = False
        self._end = 0.0
        self._key += (asyncio._get_running_loop(),)
        self._since = old.fencing_token + 1

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        super().__exit__(kind, error, trace)
        if error is not None and not isinstance(error, LockNotAcquired):  # another one computes
            message = "%r was not computed anew; its old result stays until its end"
            logger.error(message, self.lock.name, exc_info=error)
        return isinstance(error, Exception)

    def apart(self, context: Context, renew: Callable[[], object]) -> None:
        """Compute in a thread that ends then."""
        try:
            with self:
                context.run(renew)
        finally:
            connections.close_all()

    def follow(self, task: asyncio.Task[None]) -> None:
        """Compute in a task, which must not be collected before its end."""
        self._own = _calls[self._key] = self._own._replace(by=task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.decorator._stays &= not task.cancelled()
        self.__exit__(None, None if task.cancelled() else task.exception(), None)

    def _publish(self, lease: Lease, result: _Result) -> None:
        if result.failed:
            self.result = None
        else:
            super()._publish(lease, result)

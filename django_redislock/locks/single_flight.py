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
from typing import Any, Literal, NamedTuple, Protocol

from ..base import label, process
from ..base.callables import Parameters
from ..base.clock import now
from ..base.exceptions import ComputationFailed, LeaseLost
from ..lease.lease import Lease
from ..lease.lock import UNSET, Lock, call, refuse_event_loop
from ..primitives.contract import run
from ..primitives.waiting import Deadline
from ..settings.validators import OF_A_RESULT, WAIT, refuse_unknown, validate_kept
from ..transport.ports import AsyncPort, SyncPort
from .decorate import FunctionDecorator, LockFor
from .once import Done, acquire_unless_recorded, write_at_release
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
        self._ttl = validate_kept(ttl)
        # The functions, since a module can't be pickled or copied.
        self._dumps, self._loads = serializer.dumps, serializer.loads
        options: Any = {"wait": wait, "using": using, "scope": scope}
        given = {option: value for option, value in options.items() if value is not UNSET}
        self._lock = redis_lock(release="exit", **given)._recording(INSIDE)

    def __repr__(self) -> str:
        return f"<single_flight {self._template!r}>"

    def _wrap(
        self, kind: str, function: Callable[..., Any], lock_for: LockFor
    ) -> Callable[..., Any]:
        if kind.endswith("generator"):
            raise TypeError(f"single_flight shares one result, and {function!r} is a {kind}")
        if self._template is None and Parameters(function).left():
            raise TypeError(
                f"single_flight needs a name for {function!r}, since its results depend on its "
                f"arguments: @single_flight('rates:{{currency}}')"
            )

        def decorated(*args: Any, **kwargs: Any) -> Any:
            refuse_event_loop()
            with _Caller(self, lock_for(args, kwargs)) as caller:
                while (other := caller.other_call()) is not None:
                    if (result := caller.wait(other)) is not None:
                        return self._value(result, caller)
                with (
                    caller.unless_known(),
                    run(caller.acquire(SyncPort)) as lease,
                    caller.publishing(lease),
                ):
                    caller.result = self._result(lease, call(function, args, kwargs))
                return self._value(caller.result, caller)

        async def adecorated(*args: Any, **kwargs: Any) -> Any:
            with _Caller(self, lock_for(args, kwargs)) as caller:
                while (other := caller.other_call()) is not None:
                    if (result := await caller.await_(other)) is not None:
                        return self._value(result, caller)
                with caller.unless_known():
                    async with await caller.acquire(AsyncPort) as lease:
                        with caller.publishing(lease):
                            caller.result = self._result(lease, await function(*args, **kwargs))
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
        message = label.message(error)[:MAX_MESSAGE]
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
        return ComputationFailed(name, *(label.clean(str(text), MAX_MESSAGE) for text in texts))

    def pack(self) -> bytes:
        return b"%d|%s|%s" % (self.fencing_token, self.kind.encode(), self.payload)


class _Call(NamedTuple):
    """A call of this process that is being made."""

    by: label.Holding
    ended: Future[_Result | None]
    """None: the call has no result, and another caller has to compute."""


_calls: dict[tuple[single_flight, str], _Call] = {}
process.in_child(_calls.clear)


class _Caller:
    """One caller: it waits for another call, or makes its own."""

    def __init__(self, decorator: single_flight, lock: Lock) -> None:
        self.lock = lock
        self.ttl = decorator._ttl
        self.result: _Result | None = None
        self._deadline = Deadline(now(), lock._policy().wait)
        self._key = decorator, lock._keys().lock
        self._own = _Call(label.holder(), Future())
        self._since = float("inf")
        """The smallest fencing token of a result for this caller. Infinite while the record at
        its arrival is unknown."""

    def __enter__(self) -> _Caller:
        return self

    def __exit__(self, *error: object) -> None:
        """End the own call for those who wait for it, with a result or without."""
        if _calls.get(self._key) is self._own:
            _calls.pop(self._key)
        self._own.ended.set_result(self.result)

    def other_call(self) -> _Call | None:
        """Return the call to wait for, or None if this caller makes its own."""
        other = _calls.setdefault(self._key, self._own)
        if other.by is self._own.by or self._deadline.over(now()):
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
        left = self._deadline.left(now())
        return None if left == float("inf") else left

    async def acquire(self, port_type: type[SyncPort | AsyncPort]) -> Lease:
        """Return the lease under which to compute. Raises `Done` if there is a result."""
        pattern = "" if self.ttl is None else KEPT
        while True:
            try:
                return await acquire_unless_recorded(
                    port_type, self.lock, self._answers, pattern=pattern, wait=self._left()
                )
            except Done as done:
                self.result = self.result or _Result.parse(done.value)
                if self.result is not None:
                    raise
                pattern = ""  # the record is damaged

    def _answers(self, value: bytes | None, lease: Lease | None) -> bool:
        found = _Result.parse(value)
        if lease is None:
            self._since = 0 if found is None else found.fencing_token + 1
        if found is None:
            return False
        new = lease is not None and found.fencing_token >= self._since
        kept = self.ttl is not None and not found.failed
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
                # Without a ttl only those who wait read the result. They came within the life of
                # a lease.
                ttl = lease.ttl if self.ttl is None or result.failed else self.ttl
                write_at_release(lease, result.pack(), ttl, held=True)

"""`single_flight`: many callers at a time, one computation, and its result for all of them.

1.  The callers of one process share one call: the first of them *flies*, the others wait for it,
    without a thread, a connection or a request of their own.
2.  Who flies reads the record of the last computation, and takes the lock. Where nobody has
    computed meanwhile, it does, and writes down the outcome before the lock is released.
3.  Whoever waited for the lock finds that record. It is an answer for those who came while it was
    being computed, and not for those who came later, unless it is kept. Fencing tokens tell them
    apart: a record has the one that it was computed under, and they grow from holder to holder.
    So one that is newer than the one that was there when we came is ours.
4.  An exception is an outcome, too, for those who waited. A crash is none: the next one computes.

The idea, and the name, are those of Go's singleflight package.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable
from concurrent.futures import Future
from inspect import signature
from typing import Any, NamedTuple, Protocol

from ..base import fork, label
from ..base.clock import now
from ..base.exceptions import FlightFailed, LeaseLost, LockNotAcquired, LockUnavailable
from ..lease.lease import Lease
from ..lease.lock import UNSET, Lock, call, refuse_event_loop
from ..primitives import record
from ..primitives.contract import Port
from ..primitives.waiting import Deadline
from ..settings.validators import refuse_unknown, validate_kept
from ..transport.ports import AsyncPort, SyncPort, run
from ..transport.server import server_of
from .completion import give_back
from .redis_lock import FunctionDecorator, LockFor, redis_lock

logger = logging.getLogger("django_redislock")

MAX_MESSAGE = 1000
"""Characters of an exception's message that others are told."""


class Serializer(Protocol):
    """What turns results into text or bytes, and back."""

    def dumps(self, value: Any, /) -> str | bytes: ...
    def loads(self, text: Any, /) -> Any: ...


class single_flight(FunctionDecorator):
    """Let concurrent callers of a function, across processes and hosts, share one computation.

    `name` is a template over the arguments, such as `"rates:{currency}"`, or a function of them;
    it has to tell calls with different results apart. Only a function without arguments may do
    without.

    Who comes while somebody computes waits for up to `wait` seconds (0: not at all, None: for
    ever), and gets what comes of it. With `ttl` the result is an answer for that many seconds
    longer; without, the next caller computes again.

    All get the result as `serializer.loads(serializer.dumps(result))` makes it: those who waited,
    and the one that has computed it. That is JSON unless `serializer` says otherwise, a module
    or object with these two functions. They should build nothing but data: whoever can write to
    Redis decides what `loads` reads.

    An exception comes out where it was raised, and those who waited get `FlightFailed`, which
    tells its type and message. It is not kept for others, whatever `ttl` says.

    Its lock is named `single_flight:<name>`, and settings of locks hold for that name, but for
    `RELEASE` and `ON_CONFLICT`. Raises `LockNotAcquired` when `wait` is over; `LockUnavailable`,
    and then nothing was computed; `LockReentered` when it needs its own result.
    """

    _prefix = "single_flight:"

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        ttl: float | None = None,
        *,
        wait: float | None = UNSET,
        using: str = UNSET,
        serializer: Serializer = json,
        **unknown: object,
    ) -> None:
        refuse_unknown(unknown, "single_flight")
        for method in ("dumps", "loads"):
            if not callable(getattr(serializer, method, None)):
                raise TypeError(
                    f"serializer must have the functions dumps and loads, as json has, "
                    f"not {serializer!r}"
                )
        self._template = name
        self._ttl = validate_kept(ttl)
        self._serializer = serializer
        options: Any = {"wait": wait, "using": using}
        given = {option: value for option, value in options.items() if value is not UNSET}
        self._lock = redis_lock(release="exit", **given)._of_kind("mutex")

    def __repr__(self) -> str:
        return f"<single_flight {self._template!r}>"

    def _lock_for(self, name: str, where: str) -> Lock:
        return self._lock._renamed(name, where)

    def _wrap(
        self, kind: str, function: Callable[..., Any], lock_for: LockFor
    ) -> Callable[..., Any]:
        if kind.endswith("generator"):
            raise TypeError(f"single_flight shares one result, and {function!r} is a {kind}")
        if self._template is None and signature(function).parameters:
            raise TypeError(
                f"single_flight needs a name for {function!r}, since its results depend on its "
                f"arguments: @single_flight('rates:{{currency}}')"
            )

        def decorated(*args: Any, **kwargs: Any) -> Any:
            refuse_event_loop()
            with _Seat(self, lock_for(args, kwargs)) as seat:
                while (flight := seat.board()) is not None:
                    if (outcome := seat.wait(flight)) is not None:
                        return self._result(seat, outcome)
                return self._fly(seat, function, args, kwargs)

        async def adecorated(*args: Any, **kwargs: Any) -> Any:
            with _Seat(self, lock_for(args, kwargs)) as seat:
                while (flight := seat.board()) is not None:
                    if (outcome := await seat.await_(flight)) is not None:
                        return self._result(seat, outcome)
                return await self._afly(seat, function, args, kwargs)

        return adecorated if kind == "coroutine" else decorated

    def _fly(
        self,
        seat: _Seat,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        lease = run(self._depart(seat, SyncPort))
        if lease is not None:
            try:
                with lease:
                    try:
                        seat.outcome = self._outcome(lease, call(function, args, kwargs))
                    except Exception as error:
                        seat.outcome = _Outcome.of_error(lease, error)
                        raise
                    finally:
                        run(self._publish(SyncPort(lease.server), lease, seat.outcome))
            except LeaseLost:
                if seat.outcome is None or seat.outcome.failed:
                    raise
        return self._result(seat, seat.outcome)

    async def _afly(
        self,
        seat: _Seat,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        lease = await self._depart(seat, AsyncPort)
        if lease is not None:
            try:
                async with lease:
                    try:
                        seat.outcome = self._outcome(lease, await function(*args, **kwargs))
                    except Exception as error:
                        seat.outcome = _Outcome.of_error(lease, error)
                        raise
                    finally:
                        await self._publish(AsyncPort(lease.server), lease, seat.outcome)
            except LeaseLost:
                if seat.outcome is None or seat.outcome.failed:
                    raise
        return self._result(seat, seat.outcome)

    async def _depart(self, seat: _Seat, port_type: type[SyncPort | AsyncPort]) -> Lease | None:
        """The lease under which to compute; None: the outcome of another flight is ours."""
        lock, keys = seat.lock, seat.lock._keys()
        port = port_type(server_of(lock.policy().using))
        port.limit(seat.patience.left(now()))
        try:
            before = _Outcome.parse(await record.read(port, keys))
            if self._lasts(before):
                seat.outcome = before
                return None
        except LockUnavailable as error:
            if not error.passing or seat.patience.over(now()):
                raise
            # Whoever takes the lock waits until Redis is back. Nobody knows then what was there
            # when we came, so no other outcome is ours.
            since = float("inf")
        else:
            since = 0 if before is None else before.fencing_token + 1
        port.limit(float("inf"))
        lease = await lock._attempt(port_type, seat.patience.left(now()))
        if isinstance(lease, LockNotAcquired):
            raise lease
        try:
            found = _Outcome.parse(await record.read(port, keys))
            if self._lasts(found) or (found is not None and found.fencing_token >= since):
                seat.outcome = found
                await give_back(port, lease)
                return None
        except BaseException:
            lease.abandon()
            raise
        return lease

    def _lasts(self, outcome: _Outcome | None) -> bool:
        """It is an answer for whoever comes."""
        return self._ttl is not None and outcome is not None and not outcome.failed

    async def _publish(self, port: Port, lease: Lease, outcome: _Outcome | None) -> None:
        if outcome is None:
            return  # cut short: the next one computes
        # Those who wait have come within a lease, or look again.
        ttl = lease.ttl if self._ttl is None or outcome.failed else self._ttl
        try:
            await record.write(port, lease.claim, outcome.pack(), ttl, held=True)
        except LockUnavailable as error:
            logger.warning("The result of %r is not shared: %s", lease.name, error)

    def _outcome(self, lease: Lease, result: Any) -> _Outcome:
        try:
            payload = self._serializer.dumps(result)
            if not isinstance(payload, str | bytes):
                raise TypeError(f"dumps made an {type(payload).__name__}")
        except (TypeError, ValueError) as error:  # what serializers raise
            raise TypeError(
                f"The result of {lease.name!r} can't be shared: {error}. Return what "
                f"{self._serializer!r} can write, or give single_flight another serializer."
            ) from error
        if isinstance(payload, str):
            return _Outcome(lease.fencing_token, "text", payload.encode())
        return _Outcome(lease.fencing_token, "bytes", payload)

    def _result(self, seat: _Seat, outcome: _Outcome | None) -> Any:
        assert outcome is not None
        if outcome.failed:
            raise outcome.error(seat.lock.name)
        text = outcome.payload.decode() if outcome.kind == "text" else outcome.payload
        return self._serializer.loads(text)


_WRITTEN = re.compile(rb"(\d{1,19})\|(text|bytes|failed)\|(.*)", re.DOTALL)


class _Outcome(NamedTuple):
    """What came of a computation, and the fencing token that it was made under."""

    fencing_token: int
    kind: str
    """"text" or "bytes", as the serializer made it; or "failed"."""
    payload: bytes

    @property
    def failed(self) -> bool:
        return self.kind == "failed"

    @classmethod
    def of_error(cls, lease: Lease, error: Exception) -> _Outcome:
        kind = type(error)
        path = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        message = label.message(error)[:MAX_MESSAGE]
        told = {"error": path, "message": message, "owner": lease.owner}
        return cls(lease.fencing_token, "failed", json.dumps(told).encode())

    @classmethod
    def parse(cls, value: bytes | None) -> _Outcome | None:
        """None: nothing was written, or not by us; then it is computed again."""
        written = _WRITTEN.fullmatch(value or b"")
        if written is None:
            return None
        fencing_token, kind, payload = written.groups()
        return cls(int(fencing_token), kind.decode(), payload)

    def error(self, name: str) -> FlightFailed:
        """Why it has failed."""
        try:
            said = json.loads(self.payload)
            told = [said["error"], said["message"], said["owner"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            told = ["what is written of it can't be read", "", ""]
        return FlightFailed(name, *(label.clean(str(text), MAX_MESSAGE) for text in told))

    def pack(self) -> bytes:
        return b"%d|%s|%s" % (self.fencing_token, self.kind.encode(), self.payload)


class _Flight(NamedTuple):
    """A call of this process that is under way."""

    by: label.Holding
    landed: Future[_Outcome | None]
    """None: it came to no outcome, and somebody else has to fly."""


_flights: dict[tuple[single_flight, str], _Flight] = {}
fork.in_child(_flights.clear)


class _Seat:
    """One caller: whose flight it waits for, or its own."""

    def __init__(self, decorator: single_flight, lock: Lock) -> None:
        self.lock = lock
        self.patience = Deadline(now(), lock.policy().wait)
        self.outcome: _Outcome | None = None
        self._key = decorator, lock._keys().lock
        self._mine = _Flight(label.holder(), Future())

    def __enter__(self) -> _Seat:
        return self

    def board(self) -> _Flight | None:
        """The flight to wait for; None: we fly ourselves."""
        flight = _flights.setdefault(self._key, self._mine)
        if flight.by is self._mine.by or self.patience.over(now()):
            # One that would wait for itself flies, and is told by the lock. So does one that may
            # wait no longer, and is told who computes.
            return None
        return flight

    def __exit__(self, *error: object) -> None:
        """Whatever came of it, nobody waits for us any more."""
        if _flights.get(self._key) is self._mine:
            _flights.pop(self._key)
        self._mine.landed.set_result(self.outcome)

    def wait(self, flight: _Flight) -> _Outcome | None:
        try:
            return flight.landed.result(self._left())
        except TimeoutError:
            return None

    async def await_(self, flight: _Flight) -> _Outcome | None:
        try:
            async with asyncio.timeout(self._left()):
                # Shielded, since others wait for it, too.
                return await asyncio.shield(asyncio.wrap_future(flight.landed))
        except TimeoutError:
            return None

    def _left(self) -> float | None:
        left = self.patience.left(now())
        return None if left == float("inf") else left

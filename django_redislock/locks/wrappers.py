"""A call of a decorated function: take the lock, run the function, release."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from ..base.exceptions import LockNotAcquired
from ..lease.current import Steps
from ..lease.holds import Entered, Hold
from ..lease.lease import Lease
from ..lease.lock import UNSET, Lock, call, refuse_event_loop
from ..primitives.contract import run
from ..transport.ports import AsyncPort, SyncPort

LockFor = Callable[[tuple[Any, ...], dict[str, Any]], Lock]
"""Returns the lock of one call of a function."""


def acquire(lock: Lock, wait: float | None = UNSET) -> Lease:
    """Return the lease for a block that follows. Raises `LockNotAcquired` for any on_conflict."""
    refuse_event_loop()
    return _lease(run(lock._attempt(SyncPort, wait)))


async def aacquire(lock: Lock, wait: float | None = UNSET) -> Lease:
    """`acquire` for coroutines."""
    return _lease(await lock._attempt(AsyncPort, wait))


def _lease(got: Lease | LockNotAcquired) -> Lease:
    # Raised and not returned: no signal's exception can come between the lease and its block.
    if isinstance(got, LockNotAcquired):
        raise got
    return got


def _settle(lock: Lock, conflict: LockNotAcquired) -> Any:
    """Return the result of a call that did not get its lock, as `on_conflict` says."""
    on_conflict = lock._policy().on_conflict
    if callable(on_conflict):
        return on_conflict(conflict)
    if on_conflict == "raise":
        raise conflict
    return None  # signals.py has logged it


def _wrap_function(function: Callable[..., Any], lock_for: LockFor) -> Callable[..., Any]:
    def locked(*args: Any, **kwargs: Any) -> Any:
        lock = lock_for(args, kwargs)
        try:
            lease = acquire(lock)
        except LockNotAcquired as conflict:
            return _settle(lock, conflict)
        with lease:
            return call(function, args, kwargs)

    return locked


def _wrap_coroutine(function: Callable[..., Any], lock_for: LockFor) -> Callable[..., Any]:
    async def locked(*args: Any, **kwargs: Any) -> Any:
        lock = lock_for(args, kwargs)
        try:
            lease = await aacquire(lock)
        except LockNotAcquired as conflict:
            result = _settle(lock, conflict)
            return await result if inspect.isawaitable(result) else result
        async with lease:
            return await function(*args, **kwargs)

    return locked


# A generator holds the lock from its first step to its end. Between two steps its caller runs in
# the same context, so the lease is the current one only during a step.


def _wrap_generator(function: Callable[..., Any], lock_for: LockFor) -> Callable[..., Any]:
    def locked(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        lock = lock_for(args, kwargs)
        try:
            lease = acquire(lock)
        except LockNotAcquired as conflict:
            instead = _settle(lock, conflict)
            return None if instead is None else (yield from instead)
        with _Generator(lease) as hold:
            return (yield from _Inside(function(*args, **kwargs), hold))

    return locked


def _wrap_async_generator(function: Callable[..., Any], lock_for: LockFor) -> Callable[..., Any]:
    async def locked(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        lock = lock_for(args, kwargs)
        try:
            lease = await aacquire(lock)
        except LockNotAcquired as conflict:
            instead = _settle(lock, conflict)
            if instead is not None:
                async for item in instead:
                    yield item
            return
        async with _Generator(lease) as hold:
            # Written out, since asynchronous generators have no `yield from`.
            generator = function(*args, **kwargs)
            step, value, inside = generator.asend, None, Steps(hold)
            while True:
                with inside:
                    try:
                        item = await step(value)
                    except StopAsyncIteration:
                        break
                try:
                    value = yield item
                    step = generator.asend
                except GeneratorExit:
                    with inside:
                        await generator.aclose()
                    raise
                except BaseException as error:
                    step, value = generator.athrow, error

    return locked


class _Generator(Entered):
    """A generator that holds `lease`."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def __enter__(self) -> Hold:
        self._hold = self._lease._enter(current=False)
        return self._hold

    async def __aenter__(self) -> Hold:
        return self.__enter__()

    def _leaving(self) -> tuple[Hold, Lease]:
        return self._hold, self._lease


class _Inside(Generator[Any, Any, Any]):
    """A generator with `hold` as the innermost block while it runs."""

    def __init__(self, generator: Generator[Any, Any, Any], hold: Hold) -> None:
        self._generator = generator
        self._inside = Steps(hold)

    def send(self, value: Any) -> Any:
        with self._inside:
            return self._generator.send(value)

    def throw(self, *error: Any) -> Any:
        with self._inside:
            return self._generator.throw(*error)


WRAPPERS: dict[str, Callable[[Callable[..., Any], LockFor], Callable[..., Any]]] = {
    "function": _wrap_function,
    "coroutine": _wrap_coroutine,
    "generator": _wrap_generator,
    "asynchronous generator": _wrap_async_generator,
}
"""By the kind of function."""

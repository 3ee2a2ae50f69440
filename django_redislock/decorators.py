"""`redis_lock`: a lock as a context manager, and as a decorator of every kind of function."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial, wraps
from typing import Any, TypeVar, Unpack

from asgiref.sync import iscoroutinefunction

from . import label
from .exceptions import LockNotAcquired
from .io import AsyncIO, SyncIO, run
from .keys import validate_name
from .lease import Lease, Steps
from .locks import Lock, Options, refuse_event_loop
from .templates import name_maker

logger = logging.getLogger("django_redislock")

F = TypeVar("F", bound=Callable[..., Any])


class redis_lock(Lock):
    """Run a block or a function in one place at a time, across processes and hosts.

    As a context manager, sync or async, it locks `name` and gives its `Lease`. As a
    decorator it takes a new lease for each call, of a name made from the arguments: a
    template such as `"invoice:{invoice.pk}"`, a function of the arguments, or by default the
    function's dotted path. `Options` lists what else it takes; what is not given comes from
    `REDISLOCK` in the settings.

    Raises `LockNotAcquired`; `LockUnavailable` when Redis can't be asked; `LockReentered`
    when this very thread or task holds the lock already; and `LeaseLost` at the end of a
    block whose lease was lost.
    """

    def __init__(
        self, name: str | Callable[..., str] | None = None, **options: Unpack[Options]
    ) -> None:
        self._template = name
        self._name = None
        self._configure(options)

    @property
    def name(self) -> str:
        """What is locked, where this is not used as a decorator."""
        if self._name is None:
            if self._template is None or callable(self._template):
                raise TypeError(
                    "redis_lock() without a name, or with a function as its name, is for "
                    "decorating functions; elsewhere write redis_lock('invoice:42')"
                )
            self._name = validate_name(self._template)
        return self._name

    def __call__(self, *functions: F, **nothing: object) -> F:
        function = functions[0] if len(functions) == 1 and not nothing else None
        if isinstance(function, classmethod | staticmethod):
            return type(function)(self(function.__func__))
        if function is None or not callable(function):
            if callable(self._template):
                raise TypeError(
                    "redis_lock needs its parentheses: @redis_lock() or @redis_lock('…')"
                )
            raise TypeError(f"redis_lock(…) decorates one function, not {functions!r}")
        if isinstance(function, type):
            raise TypeError(f"redis_lock() decorates the methods of {function!r}, not the class")
        body: Any = function
        if not inspect.isroutine(body) and not isinstance(body, partial):
            body = body.__call__  # an object is decorated as what its __call__ is

        make_name = name_maker(self._template, function)
        where = label.of_function(body)

        def lock_for(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lock:
            return self._renamed(make_name(*args, **kwargs), where)

        wrap: Callable[..., Callable[..., Any]]
        if inspect.isasyncgenfunction(body):
            wrap = _wrap_async_generator
        elif iscoroutinefunction(function) or iscoroutinefunction(body):
            wrap = _wrap_coroutine
        elif inspect.isgeneratorfunction(body):
            wrap = _wrap_generator
        else:
            wrap = _wrap_function
        return wraps(function)(wrap(function, lock_for))  # type: ignore[return-value]


_LockFor = Callable[[tuple[Any, ...], dict[str, Any]], Lock]


def _acquire(lock: Lock) -> Lease | LockNotAcquired:
    refuse_event_loop()
    return run(lock._attempt(SyncIO))


async def _aacquire(lock: Lock) -> Lease | LockNotAcquired:
    return await lock._attempt(AsyncIO)


def _settle(lock: Lock, conflict: LockNotAcquired) -> Any:
    """The result of a call that did not get its lock, as `on_conflict` says."""
    on_conflict = lock.policy().on_conflict
    if callable(on_conflict):
        return on_conflict(conflict)
    if on_conflict == "raise":
        raise conflict
    logger.info("Skipped: %s", conflict)
    return None


def _wrap_function(function: Callable[..., Any], lock_for: _LockFor) -> Callable[..., Any]:
    def locked(*args: Any, **kwargs: Any) -> Any:
        lock = lock_for(args, kwargs)
        got = _acquire(lock)
        if isinstance(got, LockNotAcquired):
            return _settle(lock, got)
        with got:
            result = function(*args, **kwargs)
            if inspect.iscoroutine(result):
                result.close()
                raise TypeError(
                    f"{function!r} does not look like a coroutine function and returns a "
                    f"coroutine, which would run without the lock: decorate what is inside"
                )
            return result

    return locked


def _wrap_coroutine(function: Callable[..., Any], lock_for: _LockFor) -> Callable[..., Any]:
    async def locked(*args: Any, **kwargs: Any) -> Any:
        lock = lock_for(args, kwargs)
        got = await _aacquire(lock)
        if isinstance(got, LockNotAcquired):
            result = _settle(lock, got)
            return await result if inspect.isawaitable(result) else result
        async with got:
            return await function(*args, **kwargs)

    return locked


# A generator is locked from its first step to its end. Between two steps its caller runs, in
# the same context: so the lease is the current one only during a step.


def _wrap_generator(function: Callable[..., Any], lock_for: _LockFor) -> Callable[..., Any]:
    def locked(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        lock = lock_for(args, kwargs)
        got = _acquire(lock)
        if isinstance(got, LockNotAcquired):
            instead = _settle(lock, got)
            return None if instead is None else (yield from instead)
        try:
            result = yield from _steps(function(*args, **kwargs), got)
        except BaseException as error:
            got.leave(error)
            raise
        got.leave(None)
        return result

    return locked


def _wrap_async_generator(function: Callable[..., Any], lock_for: _LockFor) -> Callable[..., Any]:
    async def locked(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        lock = lock_for(args, kwargs)
        got = await _aacquire(lock)
        if isinstance(got, LockNotAcquired):
            instead = _settle(lock, got)
            if instead is not None:
                async for item in instead:
                    yield item
            return
        try:
            # There is no `yield from` for asynchronous generators: this is _steps again.
            generator = function(*args, **kwargs)
            step, value, inside = generator.asend, None, Steps(got)
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
        except BaseException as error:
            await got.aleave(error)
            raise
        await got.aleave(None)

    return locked


def _steps(generator: Generator[Any, Any, Any], lease: Lease) -> Generator[Any, Any, Any]:
    """`yield from generator`, with `lease` as the current one while it runs."""
    step: Callable[[Any], Any] = generator.send
    value: Any = None
    inside = Steps(lease)
    while True:
        with inside:
            try:
                item = step(value)
            except StopIteration as stop:
                return stop.value
        try:
            value = yield item
            step = generator.send
        except GeneratorExit:
            with inside:
                generator.close()
            raise
        except BaseException as error:
            step, value = generator.throw, error

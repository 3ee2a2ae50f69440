"""`initialise`: the first value that any process gives stands, and all processes get it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypedDict, TypeVar, Unpack, overload

from ..base.exceptions import LockError
from ..lease.lock import Lock
from ..primitives import record
from ..primitives.contract import run
from ..primitives.keys import Keys, validate_name
from ..settings.validators import OF_A_RESULT, refuse_unknown, validate_kept
from ..transport.ports import AsyncPort, SyncPort
from ..transport.server import server_of

T = TypeVar("T")


class InitialiseOptions(TypedDict, total=False):
    """The options of `initialise`."""

    ttl: float | None
    """For how many seconds the value stands; None (the default): without end."""
    using: str
    """An alias of CACHES that leads to a Redis."""
    scope: None
    """None: the name has no scope, whatever the setting `SCOPE` says."""


@overload
def initialise(name: str, value: Callable[[], T], **options: Unpack[InitialiseOptions]) -> T: ...
@overload
def initialise(name: str, value: T, **options: Unpack[InitialiseOptions]) -> T: ...
def initialise(name: str, value: Any, **options: Unpack[InitialiseOptions]) -> Any:
    """Give `name` its first value unless it has one. Return the value that stands.

    `value` is anything that JSON can write. Every caller gets it as JSON reads it: a tuple comes
    back as a list, even to the caller that gave it. Type checkers don't know that: to them the
    result has the type of `value`. `value` may be a function, which is called
    only if no value stands yet. If several callers call theirs at the same moment, one result
    stands and the others are dropped. (Use `single_flight` if that is too expensive.)

    The value stands for `ttl` seconds, or without end, and nothing changes it meanwhile. No lock
    is taken. Raises `LockUnavailable`; `LockError` if something else was written in its place;
    `TypeError` if JSON can't write the value.
    """
    return run(_initialise(SyncPort, name, value, {**options}))


@overload
async def ainitialise(
    name: str, value: Callable[[], Awaitable[T]], **options: Unpack[InitialiseOptions]
) -> T: ...
@overload
async def ainitialise(
    name: str, value: Callable[[], T], **options: Unpack[InitialiseOptions]
) -> T: ...
@overload
async def ainitialise(name: str, value: T, **options: Unpack[InitialiseOptions]) -> T: ...
async def ainitialise(name: str, value: Any, **options: Unpack[InitialiseOptions]) -> Any:
    """`initialise` for coroutines; a function may be a coroutine function, too."""
    return await _initialise(AsyncPort, name, value, {**options})


async def _initialise(
    port_type: type[SyncPort | AsyncPort], name: str, value: Any, given: dict[str, Any]
) -> Any:
    ttl = validate_kept(given.pop("ttl", None))
    of_lock = {option: given.pop(option) for option in ("using", "scope") if option in given}
    refuse_unknown(given, "initialise", OF_A_RESULT)
    lock = Lock(f"initialise:{validate_name(name)}", **of_lock)
    keys = lock._keys()
    port = port_type(server_of(lock._policy().using))
    if callable(value):
        stands = await record.read(port, keys)
        if stands is not None:
            return _read(stands, keys)
        value = value()
        if inspect.isawaitable(value):
            if port_type is SyncPort:
                if inspect.iscoroutine(value):
                    value.close()
                raise TypeError(f"value of {name!r} is a coroutine function: await ainitialise()")
            value = await value
    try:
        text = json.dumps(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"value of {name!r} must be what JSON can write: {error}") from error
    return _read(await record.first(port, keys, text.encode(), ttl), keys)


def _read(stands: bytes, keys: Keys) -> Any:
    try:
        return json.loads(stands)
    except (ValueError, RecursionError):
        raise LockError(
            f"The value at {keys.record!r} can't be read: another program wrote it, or it is "
            f"damaged. Delete the key; the next caller then gives a new value.",
            keys.name,
        ) from None

"""`initialise`: the first value that anybody gives counts, and everybody gets it."""

from __future__ import annotations

import inspect
import json
from typing import Any

from ..base.exceptions import LockError
from ..lease.lock import UNSET
from ..primitives import record
from ..primitives.keys import Keys, validate_name
from ..settings import conf
from ..settings.validators import refuse_unknown, validate_kept, validate_using
from ..transport.ports import AsyncPort, SyncPort, run
from ..transport.server import server_of


def initialise(
    name: str, value: Any, *, ttl: float | None = None, using: str = UNSET, **unknown: object
) -> Any:
    """Give `name` its first value, unless it has one; returns the value that stands.

    `value` is what JSON can write, and comes back as JSON reads it: a tuple as a list, also for
    the one that gave it. Of a function the result counts. It is called only when no value stands
    yet; where several call theirs at the same moment, one result stands and the others are
    dropped. (What is too expensive for that is a job for `single_flight`.)

    The value stands for `ttl` seconds, or for good, and nothing changes it meanwhile. No lock is
    taken. Raises `LockUnavailable`; `LockError` for what others have written in its place;
    `TypeError` for what JSON can't write.
    """
    refuse_unknown(unknown, "initialise")
    return run(_initialise(SyncPort, name, value, ttl, using))


async def ainitialise(
    name: str, value: Any, *, ttl: float | None = None, using: str = UNSET, **unknown: object
) -> Any:
    """`initialise` for coroutines; a function may be one, too."""
    refuse_unknown(unknown, "ainitialise")
    return await _initialise(AsyncPort, name, value, ttl, using)


async def _initialise(
    port_type: type[SyncPort | AsyncPort], name: str, value: Any, ttl: float | None, using: str
) -> Any:
    ttl = validate_kept(ttl)
    explicit = {} if using is UNSET else {"using": validate_using(using)}
    own = f"initialise:{validate_name(name)}"
    keys = Keys.of(conf.prefix(), own)
    port = port_type(server_of(conf.policy(own, explicit).using))
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
            f"What stands at {keys.record!r} can't be read: others have written it, or it is "
            f"damaged. Delete it, and the next one to ask gives the value anew.",
            keys.name,
        ) from None

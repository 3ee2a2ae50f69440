"""`TimestampLock`: the lock of old clients, which is a time at a key of their choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from . import conf
from .arguments import validate_flag
from .decorators import redis_lock
from .keys import Keys, validate_key
from .locks import Lock, Options, verbatim
from .primitives import timestamp
from .primitives.primitive import Primitive


class TimestampLock(redis_lock):
    """The lock of the old `SETNX` documentation, for fleets whose old clients know no other.

    `key` is its key in Redis, verbatim: that is how the old clients know it, and no template.
    `fractions`: write fractions of a second into it, which clients that expect an integer can't
    read. `Options` lists what else it takes. Nobody is served in order, and there is no
    `fencing_token`.
    """

    def __init__(self, key: str, *, fractions: bool = False, **options: Unpack[Options]) -> None:
        super().__init__(None, **options)
        self._template = self._name = validate_key(key)
        self._fractions = validate_flag(fractions, "fractions")
        if "timestamp_key" in options:
            raise TypeError("timestamp_key= is for redis_lock(): a TimestampLock has one already")

    def _name_maker(self, function: Callable[..., Any]) -> Callable[..., str]:  # noqa: ARG002
        return lambda *_args, **_kwargs: self.name

    def _lock_for(self, name: str, where: str) -> Lock:  # noqa: ARG002 - it has one name
        return self._copy(TimestampLock, where)

    def _primitive(self, policy: conf.Policy) -> Primitive:  # noqa: ARG002 - it has no choice
        return timestamp.FRACTIONS if self._fractions else timestamp.WHOLE

    def _keys(self, policy: conf.Policy | None = None) -> Keys:  # noqa: ARG002
        return verbatim(self.name)

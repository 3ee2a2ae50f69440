"""`Redlock`: a lock on the majority of several independent servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

from .decorators import redis_lock
from .locks import Options
from .servers import Servers


class Redlock(redis_lock):
    """A lock that survives the loss of a minority of its servers.

    `using` names three or five aliases of CACHES, which lead to primaries that fail independently
    of each other; without it, the entry of this name in `LOCKS` does. Else it is used as
    `redis_lock`, and takes the same options, but for `replicas`.

    It has no queue and no fencing token: docs/redlock.md says what it promises, and what it
    doesn't. Raises what `redis_lock` does; `LockUnavailable` when no majority can be asked.
    """

    def __init__(  # type: ignore[misc]  # `using` is another one than in Options
        self,
        name: str | Callable[..., str] | None = None,
        using: Sequence[str] | None = None,
        **options: Unpack[Options],
    ) -> None:
        if "replicas" in options:
            raise TypeError("a Redlock has no replicas: its servers are all primaries")
        super().__init__(name, **options)
        self._of_kind("redlock")
        if using is not None:
            if isinstance(using, str):
                raise TypeError(f"using must be a list of aliases of CACHES, not {using!r}")
            self._explicit["using"] = Servers.of(using)

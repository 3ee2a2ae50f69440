"""The primary key of `Lock`: the server and the name of a lock as one text."""

from __future__ import annotations

from typing import NamedTuple, Self
from urllib.parse import quote, unquote

from ..settings.configured import aliases
from . import Inspector, LockInfo


class LockId(NamedTuple):
    """`alias:name`, or `{alias}:key` for a lock of the drop-in for `cache.lock()`.

    The text is printable, so that it survives forms and fits into any database.
    """

    using: str
    cache_locks: bool
    name: str

    @classmethod
    def of(cls, info: LockInfo) -> Self:
        return cls(info.using, info.cache_lock, info.name)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an id. Raises `ValueError` if no lock can have it."""
        # If one alias begins with another one, the longer one is meant.
        for using in sorted(aliases(), key=len, reverse=True):
            for cache_locks, begins in ((False, f"{using}:"), (True, f"{{{using}}}:")):
                if text.startswith(begins):
                    return cls(using, cache_locks, unquote(text.removeprefix(begins)))
        raise ValueError(
            f"the id of a lock begins with an alias of CACHES that locks use and a colon, not "
            f"{text!r}"
        )

    def __str__(self) -> str:
        using = f"{{{self.using}}}" if self.cache_locks else self.using
        name = "".join(c if c.isprintable() and c != "%" else quote(c) for c in self.name)
        return f"{using}:{name}"

    def inspector(self) -> Inspector:
        return Inspector(self.using, cache_locks=self.cache_locks)

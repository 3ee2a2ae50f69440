"""Several CACHES aliases in the place of one: the servers of a Redlock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

EXAMPLE = "such as ['redis-a', 'redis-b', 'redis-c']"


class Servers(str):
    """The aliases, which people read as one text."""

    aliases: tuple[str, ...]

    @classmethod
    def of(cls, aliases: Iterable[Any]) -> Servers:
        """Raises `TypeError` and `ValueError`, which say what to write."""
        its = tuple(aliases)
        for alias in its:
            if not isinstance(alias, str) or not alias:
                raise TypeError(
                    f"using must be a list of aliases of CACHES, {EXAMPLE}, not {its!r}"
                )
        if len(its) < 3 or len(its) % 2 == 0:
            raise ValueError(
                f"using must name three or five servers, {EXAMPLE}, not {len(its)}: a majority is "
                f"what counts, and an even number has no better one than the odd number below it"
            )
        if len(set(its)) < len(its):
            raise ValueError(f"using names a server twice: {', '.join(its)}")
        servers = cls(", ".join(its))
        servers.aliases = its
        return servers

    @property
    def quorum(self) -> int:
        """So many are a majority."""
        return len(self.aliases) // 2 + 1


def aliases_of(using: str) -> tuple[str, ...]:
    """The one alias, or those of all servers."""
    return using.aliases if isinstance(using, Servers) else (using,)

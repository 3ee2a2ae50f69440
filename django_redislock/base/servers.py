"""What `using` may be besides one alias of CACHES: several of them, or the memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MEMORY = ":memory:"
"""In place of an alias: the memory of this process, for development."""

EXAMPLE = "such as ['redis-a', 'redis-b', 'redis-c']"


class Servers(str):
    """The aliases, joined for people."""

    aliases: tuple[str, ...]

    @classmethod
    def of(cls, aliases: Iterable[Any]) -> Servers:
        """Raises `TypeError` or `ValueError`."""
        names = tuple(aliases)
        for alias in names:
            if not isinstance(alias, str) or not alias:
                raise TypeError(
                    f"using must be a list of aliases of CACHES, {EXAMPLE}, not {names!r}"
                )
        if len(names) < 3 or len(names) % 2 == 0:
            raise ValueError(
                f"using must name three or five servers, {EXAMPLE}, not {len(names)}: a majority "
                f"counts, and an even number survives no more failures than the odd one below it"
            )
        if len(set(names)) < len(names):
            raise ValueError(f"using names a server twice: {', '.join(names)}")
        servers = cls(", ".join(names))
        servers.aliases = names
        return servers

    @property
    def quorum(self) -> int:
        """How many servers are a majority."""
        return len(self.aliases) // 2 + 1


def aliases_of(using: str) -> tuple[str, ...]:
    """Return one alias, or the aliases of all servers."""
    return using.aliases if isinstance(using, Servers) else (using,)

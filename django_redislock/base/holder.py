"""The holder of a lock, as Redis described it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from .label import read

_OURS = re.compile(rb"[0-9A-Za-z]{32}[|+?](\d{1,16})\|(\d{0,17})\|\d{1,14}\|([^|\t]*)\|([^\t]*)")
"""Token, mark, fencing token, acquired at (µs), ttl (ms), owner and label. The time is empty if it
is the fencing token. This package writes no longer numbers, and neither a datetime nor a database
could take them."""


class Holder(NamedTuple):
    """The holder of a lock, from the answer to the request that found the lock busy."""

    owner: str | None
    """Host, process, and thread or task. None: another program wrote the value at the key."""
    label: str
    fencing_token: int | None
    acquired_at: datetime | None
    held: float | None
    """Seconds since it was acquired, by the server's clock."""
    remaining: float | None
    """Seconds until its lease ends, unless it is renewed. None: it has no TTL."""

    def __str__(self) -> str:
        if self.owner is None:
            text = "a value that this package did not write"
        else:
            text = f"{self.owner} ({self.label})"
        if self.acquired_at is not None:
            text += f" since {self.acquired_at:%Y-%m-%d %H:%M:%S} UTC, for {self.held:.1f} s"
        if self.remaining is None:
            return f"{text}; it has no TTL and stays until somebody deletes it"
        return f"{text}; the lease ends in {self.remaining:.1f} s unless it is renewed"

    @property
    def seen_at(self) -> datetime | None:
        """When Redis answered, by its clock."""
        if self.acquired_at is None or self.held is None:
            return None
        return self.acquired_at + timedelta(seconds=self.held)

    def _plain(self) -> list[Any]:
        """Return values that JSON can write."""
        at = self.acquired_at
        return [*self._replace(acquired_at=at and at.isoformat())]  # type: ignore[arg-type]

    @classmethod
    def _of_plain(cls, values: Sequence[Any]) -> Holder:
        holder = cls(*values)
        at: Any = holder.acquired_at
        return holder._replace(acquired_at=datetime.fromisoformat(at)) if at else holder

    def came_after(self, time: datetime | None) -> bool:
        """Return whether it is known to have acquired the lock after `time`."""
        return time is not None and self.acquired_at is not None and self.acquired_at > time

    @classmethod
    def parse(cls, value: bytes, ttl_ms: int, now_us: int) -> Holder:
        """Parse the value at a lock's key, written by lua/value.lua or by another program, or
        the entry of one of several holders, written by lua/permits.lua."""
        remaining = None if ttl_ms < 0 else ttl_ms / 1000
        ours = _OURS.match(value)
        if ours is None:
            return cls(None, "", None, None, None, remaining)
        fencing_token, acquired_us, owner, label = ours.groups()
        acquired = int(acquired_us or fencing_token)
        return cls(
            owner=read(owner),
            label=read(label),
            fencing_token=int(fencing_token),
            acquired_at=server_time(acquired),
            held=max(0, now_us - acquired) / 1e6,
            remaining=remaining,
        )


def log_extra(prefix: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an event for the `extra` of a log record: values that any formatter can
    write as JSON. The names have a prefix, since a record has a `name` of its own."""
    return {f"{prefix}_{field}": _as_json(value) for field, value in fields.items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, Holder):
        return {field: _as_json(its) for field, its in value._asdict().items()}
    return value.isoformat() if isinstance(value, datetime) else value


def server_time(microseconds: int) -> datetime:
    """Return a time of the server's clock as an aware datetime."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC)

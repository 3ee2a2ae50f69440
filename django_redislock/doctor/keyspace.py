"""The keys of locks at a server: where the index and the locks differ, and which never expire.

Between two commands a lock may be acquired or released, so what seems wrong is checked twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import ResponseError

from ..base.holder import Holder
from ..primitives.keys import COUNTED, Keys, name_of
from .permissions import escaped

AT_ONCE = 500
"""Keys in one request. Redis is busy with them for about a millisecond."""
MOST_NAMES = 10_000
MOST_KEYS = 100_000
"""How many keys of the database are looked at, of whatever kind."""
FOR_GOOD = (":index", ":clock", ":guard", "}:record", *(f":{what}" for what in COUNTED))
"""Ends of keys that have no TTL, or need none: a record may be kept for good."""
WITHIN = 2.0
"""Seconds after which the scan stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFacts:
    gone: tuple[str, ...] = ()
    """Names in the index whose locks should still be held and are missing."""
    unlisted: tuple[str, ...] = ()
    """Names of locks that are held, say that they are in the index, and are missing there."""
    endless: tuple[str, ...] = ()
    """Keys below the prefix without a TTL."""
    looked_at: int = 0
    cut_short: bool = False


def look_at(client: redis.Redis, prefix: str, *, listed: bool = True) -> KeyFacts:
    """Look at the keys of a server. On a cluster, no lock is `listed` in an index."""
    return _Looking(client, prefix, listed).facts()


class _Looking:
    def __init__(self, client: redis.Redis, prefix: str, listed: bool) -> None:
        self._client = client
        self._listed = listed
        self._prefix = prefix
        self._index: str = Keys.of(prefix, "-").index

    def facts(self) -> KeyFacts:
        begun = time.monotonic()
        members: list[bytes] = []
        if self._listed:
            members = self._client.zrange(  # type: ignore[assignment]
                self._index, 0, MOST_NAMES - 1
            )
        listed = [name for key in members if (name := self._name(_text(key))) is not None]
        gone = self._twice(self._gone, listed)
        unlisted: list[str] = []
        endless: list[str] = []
        looked_at, cursor = 0, 0
        while True:
            found: list[bytes]
            cursor, found = self._client.scan(  # type: ignore[assignment]
                cursor, match=f"{escaped(self._prefix)}:*", count=1000
            )
            looked_at += 1000
            keys = [_text(key) for key in found]
            names = [name for key in keys if (name := self._name(key)) is not None]
            if self._listed:
                unlisted += self._twice(self._unlisted, names)
            endless += self._twice(
                self._endless, [key for key in keys if not key.endswith(FOR_GOOD)]
            )
            if cursor == 0:
                break
            if looked_at >= MOST_KEYS or time.monotonic() - begun > WITHIN:
                break
        return KeyFacts(
            gone=tuple(gone),
            unlisted=tuple(sorted(set(unlisted))),
            endless=tuple(sorted(set(endless))),
            looked_at=looked_at,
            cut_short=cursor != 0,
        )

    def _name(self, key: str) -> str | None:
        """Return the name of the lock that would be at a key."""
        name = name_of(key)
        return name if name and self._lock(name) == key else None

    def _lock(self, name: str) -> str:
        return Keys.of(self._prefix, name).lock

    @staticmethod
    def _twice(wrong: Any, what: list[str]) -> list[str]:
        first = list(wrong(what))
        return list(wrong(first)) if first else []

    def _gone(self, names: list[str]) -> Iterator[str]:
        if not names:
            return
        seconds, _ = self._client.time()
        asked = [("ZSCORE", self._index, self._lock(name)) for name in names]
        asked += [("EXISTS", self._lock(name), "") for name in names]
        answers = self._ask(asked)
        for name, ends, there in zip(names, answers, answers[len(names) :], strict=False):
            # A name stays in the index after its lease has ended, until the next grant.
            if ends is not None and float(ends) > (seconds + 1) * 1000 and not there:
                yield name

    def _unlisted(self, names: list[str]) -> Iterator[str]:
        asked = [("ZSCORE", self._index, self._lock(name)) for name in names]
        asked += [("PTTL", self._lock(name), "") for name in names]
        answers = self._ask(asked)
        # The index has no locks without a TTL.
        found = [
            name
            for name, ends, pttl in zip(names, answers, answers[len(names) :], strict=False)
            if ends is None and pttl > 0
        ]
        asked = [("GET", self._lock(name), "") for name in found]
        asked += [("HVALS", Keys.of(self._prefix, name).holders, "") for name in found]
        answers = self._ask(asked)
        for name, value, records in zip(found, answers, answers[len(found) :], strict=False):
            # If several hold the lock, its key is no string, so GET answers an error.
            several = isinstance(value, ResponseError) and isinstance(records, list)
            if any(map(_says_listed, records if several else [value])):
                yield name

    def _endless(self, keys: list[str]) -> Iterator[str]:
        answers = self._ask([("PTTL", key, "") for key in keys])
        yield from (key for key, pttl in zip(keys, answers, strict=True) if pttl == -1)

    def _ask(self, commands: Sequence[tuple[str, str, str]]) -> list[Any]:
        """Return the answers of commands. For a key of another type, that is the error."""
        answers: list[Any] = []
        for start in range(0, len(commands), AT_ONCE):
            pipeline = self._client.pipeline(transaction=False)
            for word, key, member in commands[start : start + AT_ONCE]:
                words = [key, member] if member else [key]
                pipeline.execute_command(
                    word, *(part.encode(errors="surrogateescape") for part in words)
                )
            answers += pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, ResponseError) and "WRONGTYPE" not in str(answer):
                raise answer
        return answers


def _says_listed(value: Any) -> bool:
    """Return whether a value is ours, and has the mark of a lock in the index (lua/value.lua). A
    lock that is young, or that nobody can hold yet, has another mark."""
    if not isinstance(value, bytes) or value[32:33] != b"+":
        return False
    return Holder.parse(value, 1, 0).owner is not None


def _text(raw: bytes) -> str:
    """Return any bytes as a str."""
    return raw.decode(errors="surrogateescape")

"""A reader of Redis' protocol, for connections whose answers are not read by redis-py."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from redis.asyncio.connection import DefaultParser
from redis.exceptions import InvalidResponse

try:
    import hiredis  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    hiredis = None

NOTHING = object()
"""The reader has no whole answer yet."""


class Push(list[Any]):
    """Something that a server says without being asked."""


class PlainReader:
    """`hiredis.Reader`, where there is none. A generator stops in the middle of a value and goes
    on there, so that a long answer in many pieces is read once."""

    def __init__(self) -> None:
        self._buffer, self._at = bytearray(), 0
        self._value = self._read()

    def feed(self, data: bytes) -> None:
        del self._buffer[: self._at]
        self._buffer += data
        self._at = 0

    def has_data(self) -> bool:
        """Return whether bytes of an answer that is not whole are kept."""
        return self._at < len(self._buffer)

    def gets(self) -> Any:
        try:
            next(self._value)
        except StopIteration as end:
            self._value = self._read()
            return end.value
        return NOTHING

    def _read(self) -> Generator[None, None, Any]:
        while (end := self._buffer.find(b"\r\n", self._at)) < 0:
            yield
        kind, rest = self._buffer[self._at : self._at + 1], bytes(self._buffer[self._at + 1 : end])
        self._at = end + 2
        if kind == b":":
            return int(rest)
        if kind in b"+,(#":
            return rest
        if kind == b"-":
            return _error(rest.decode(errors="replace"))
        if kind == b"_" or rest == b"-1":
            return None
        if kind not in b"$=!*~>%" or not rest.isdigit():
            raise InvalidResponse(f"{bytes(kind) + rest!r} is not Redis' protocol")
        size = int(rest)
        if kind in b"$=!":
            while len(self._buffer) < self._at + size + 2:
                yield
            text = bytes(self._buffer[self._at : self._at + size])
            self._at += size + 2
            return text if kind != b"!" else _error(text.decode(errors="replace"))
        values = []
        for _ in range(2 * size if kind == b"%" else size):
            values.append((yield from self._read()))  # noqa: PERF401  # no generator may yield here
        return Push(values) if kind == b">" else values


def _error(text: str) -> Exception:
    """Return the exception that redis-py has for an error of Redis."""
    error: Exception = DefaultParser.parse_error(text)  # type: ignore[no-untyped-call]
    return error


def reader() -> Any:
    """Return a reader: `feed` takes what has come, and `gets` returns the next whole answer, or
    `NOTHING`. An error of Redis is returned, not raised."""
    if hiredis is None:
        return PlainReader()
    return hiredis.Reader(notEnoughData=NOTHING, replyError=_error, protocolError=InvalidResponse)


PUSH: Any = getattr(hiredis, "PushNotification", Push)

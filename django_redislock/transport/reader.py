"""A reader of Redis' protocol, for connections whose answers are not read by redis-py."""

from __future__ import annotations

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


DEEPEST = 32
"""How deep lists may be in each other, as in hiredis: those of our answers are five deep."""


class PlainReader:
    """`hiredis.Reader`, where there is none. It remembers the lists that are not whole, so that a
    long answer in many pieces is read once."""

    def __init__(self) -> None:
        self._buffer, self._at = bytearray(), 0
        self._lists: list[tuple[list[Any], int]] = []
        """The lists that are not whole, each in the one before it, and how long each will be."""

    def feed(self, data: bytes) -> None:
        del self._buffer[: self._at]
        self._buffer += data
        self._at = 0

    def has_data(self) -> bool:
        """Return whether bytes of an answer that is not whole are kept."""
        return self._at < len(self._buffer) or bool(self._lists)

    def gets(self) -> Any:
        """Return the next whole answer, or `NOTHING`. Raises `InvalidResponse`."""
        try:
            while (value := self._next()) is not NOTHING:
                while self._lists:
                    values, length = self._lists[-1]
                    values.append(value)
                    if len(values) < length:
                        break
                    value = self._lists.pop()[0]
                else:
                    return value
        except ValueError as error:
            raise InvalidResponse(f"{error}: it is not Redis' protocol") from error
        return NOTHING

    def _next(self) -> Any:
        """Return the next value that is no list, or an empty one."""
        while (end := self._buffer.find(b"\r\n", self._at)) >= 0:
            kind = self._buffer[self._at : self._at + 1]
            rest = bytes(self._buffer[self._at + 1 : end])
            if kind in b"$=!" and rest != b"-1":
                start, end = end + 2, end + 2 + _size(rest)
                if len(self._buffer) < end + 2:
                    return NOTHING
                text = bytes(self._buffer[start:end])
                self._at = end + 2
                return text if kind != b"!" else _error(text.decode(errors="replace"))
            self._at = end + 2
            if kind in b"*~>%" and rest != b"-1":
                values: list[Any] = Push() if kind == b">" else []
                if not (length := _size(rest) * (2 if kind == b"%" else 1)):
                    return values
                if len(self._lists) == DEEPEST:
                    raise InvalidResponse(f"an answer of more than {DEEPEST} lists in each other")
                self._lists.append((values, length))
            elif kind == b":":
                return int(rest)
            elif kind in b"+,(#":
                return rest
            elif kind == b"-":
                return _error(rest.decode(errors="replace"))
            elif kind in b"_$=!*~>%":
                return None
            else:
                raise InvalidResponse(f"{bytes(kind) + rest!r} is not Redis' protocol")
        return NOTHING


def _size(text: bytes) -> int:
    """Return the length of a text or a list."""
    if not text.isdigit():
        raise InvalidResponse(f"{text!r} is no length: it is not Redis' protocol")
    return int(text)


def _error(text: str) -> Exception:
    """Return the exception that redis-py has for an error of Redis."""
    try:
        error: Exception = DefaultParser.parse_error(text)  # type: ignore[no-untyped-call]
    except ValueError:  # MOVED without an address
        return InvalidResponse(text)
    return error


def reader() -> Any:
    """Return a reader: `feed` takes what has come, and `gets` returns the next whole answer, or
    `NOTHING`. An error of Redis is returned, not raised."""
    if hiredis is None:
        return PlainReader()
    return hiredis.Reader(notEnoughData=NOTHING, replyError=_error, protocolError=InvalidResponse)


PUSH: Any = getattr(hiredis, "PushNotification", Push)

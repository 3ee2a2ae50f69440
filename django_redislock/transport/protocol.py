"""Redis' protocol: how commands are packed, and how answers are read.

redis-py's packing, for any type and encoding, takes three times as long. The reader is for
connections whose answers are not read by redis-py.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, Protocol

import redis.cluster
from redis.asyncio.connection import DefaultParser
from redis.exceptions import InvalidResponse, ReadOnlyError, RedisError, ResponseError

from ..base.people import Secret
from ..primitives.keys import Index, Shared, Word


def pack(words: Sequence[Word], *first: Word) -> bytes:
    """Return a command in Redis' protocol, in UTF-8. The CACHES entry may name another encoding
    for the project's own values. Keys from elsewhere may be any bytes (keys.py).

    `first` are words before the others, with which many commands begin.
    """
    texts: Any = words
    if not _TEXTS.issuperset(map(type, words)):
        # `str` takes no steps of Python, and few requests have bytes.
        texts = [*map(text_of if bytes in map(type, words) else str, words)]
    text = _head(len(texts), *first) + "".join(map(_word, map(len, texts), texts))
    if text.isascii():  # so that characters are bytes
        return text.encode()
    every = [text.encode(errors="surrogateescape") for text in (*map(str, first), *texts)]
    packed = [b"$%d\r\n%b\r\n" % (len(word), word) for word in every]
    return b"*%d\r\n%b" % (len(every), b"".join(packed))


_TEXTS = frozenset({str, Secret, Shared, Index})


def text_of(word: Word) -> str:
    return word.decode(errors="surrogateescape") if isinstance(word, bytes) else str(word)


_word = "${}\r\n{}\r\n".format


@lru_cache(maxsize=256)
def _head(number: int, *first: Word) -> str:
    """Return the beginning of commands with so many words after the first ones."""
    texts = [*map(str, first)]
    return f"*{len(texts) + number}\r\n" + "".join(map(_word, map(len, texts), texts))


class Sendable(Protocol):
    """What is sent over one connection: a command, or several."""

    def over(self, link: Any, until: float) -> Coroutine[Any, Any, Any]:
        """Send it over a connection, and return the answer. It may take until then."""


class Command(NamedTuple):
    """A command as it is sent."""

    packed: bytes
    word: str | None = None
    """The first of a script's ARGV, with which its answer begins."""
    key: str = ""
    """The first key, by which a cluster finds its node."""
    before: int = 0
    """The number of commands that are sent before it, in one write. Their answers are skipped."""

    def over(self, link: Any, until: float) -> Any:
        return link.exchange(self.packed, self.word, until, before=self.before)

    def behind(self, first: bytes) -> Command:
        """Return it with another command before it."""
        return self._replace(packed=first + self.packed, before=self.before + 1)


def script(body: str, keys: Sequence[str], args: Sequence[Word], how: str = "EVALSHA") -> Command:
    """Return the command that runs a script: by its SHA1, or by its source with EVAL."""
    packed = pack((*keys, *args), how, body, len(keys))
    return Command(packed, str(args[0]), keys[0] if keys else "")


try:
    import hiredis  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    hiredis = None  # type: ignore[assignment,unused-ignore]

ANSWER_WITHIN = 5.0
"""Seconds that we wait for an answer if the CACHES entry sets no SOCKET_TIMEOUT. It is redis-py's
default from version 8 on."""

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
                if -(2**63) <= (number := int(rest)) < 2**63:
                    return number
                raise InvalidResponse("an integer of more than 64 bits")
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


_PARSER: Any = getattr(redis.cluster, "ClusterParser", DefaultParser)
"""It knows the errors of a cluster, too. From redis-py 6 on, each parser does."""


def _error(text: str) -> Exception:
    """Return the exception that redis-py has for an error of Redis."""
    try:
        error: Exception = _PARSER.parse_error(text)
    except ValueError:  # MOVED without an address
        return InvalidResponse(text)
    # Redis 6.2 wraps the errors of a script's commands into a sentence about the script.
    wrapped = type(error) is ResponseError and "-READONLY " in str(error)
    return ReadOnlyError(str(error)) if wrapped else error


def known(error: Exception) -> Exception:
    """Return an error of Redis as all versions of redis-py have it."""
    return _error(str(error)) if type(error) is ResponseError else error


def reader() -> Any:
    """Return a reader: `feed` takes what has come, and `gets` returns the next whole answer, or
    `NOTHING`. An error of Redis is returned, not raised."""
    if hiredis is None:
        return PlainReader()
    return hiredis.Reader(notEnoughData=NOTHING, replyError=_error, protocolError=InvalidResponse)


PUSH: Any = getattr(hiredis, "PushNotification", Push)


ASKING = b"*1\r\n$6\r\nASKING\r\n"
"""Lets a node of a cluster carry out the next command, even if a slot is being moved to it."""
PING = b"*1\r\n$4\r\nPING\r\n"
"""Before a release that wakes others, it lets the server write to them first: Redis writes last to
the client that was the first to have an answer. Otherwise the process that has released runs on,
and the next holder waits for a core of the machine."""

# The first of a script's ARGV is a word that no other request has, and its answer begins with it.


class NotSent(redis.ConnectionError):
    """Nothing of the request has reached the server. The cause, if there is one, says why."""


class StrayAnswer(RedisError):
    """An answer that does not belong to our request. The connection can no longer be used."""


STUMBLES = (AttributeError, TypeError, ValueError, RecursionError, UnboundLocalError)
"""What redis-py raises for wrong options, for answers that are no answers, and when another thread
closes a connection (`closed_meanwhile`). Other code raises them for mistakes."""


def closed_meanwhile(error: BaseException) -> bool:
    """Return whether redis-py has stumbled over a connection that another thread has closed, as
    DJANGO_REDIS_CLOSE_CONNECTION does after each request: its socket or its parser is None by
    then, or a closed file."""
    if isinstance(error, AttributeError):
        return error.obj is None
    if isinstance(error, TypeError):
        return "NoneType" in str(error)
    return isinstance(error, ValueError) and "closed file" in str(error)


FULL = "Too many connections"
"""What redis-py says if a plain pool may make no more connections."""


def packed_marker(marker: str) -> bytes:
    """Return a command that no server has. In any state the server refuses it by its name, before
    it looks at permissions or anything else, and the error repeats the name."""
    return b"*1\r\n$%d\r\n%b\r\n" % (len(marker), marker.encode())


def marks(answer: Any, marker: str) -> bool:
    """Return whether this is the answer to that command."""
    return isinstance(answer, redis.ResponseError) and marker in str(answer).lower()


_short_text = re.compile(
    rb"\$(?:49(?=\r\n.{49}\r\n)|34(?=\r\n.{34}\r\n)|32(?=\r\n.{32}\r\n))\r\n"
    rb"([0-9A-Za-z]{32})(?:\|(\d{1,16}))?\r\n"
).fullmatch


def short_answer(seen: bytes, word: str) -> Any:
    """Return the answer to a script if this is all of it, and it is a text of a token and perhaps
    a number: the most frequent case, in few steps. Otherwise return `None`."""
    its = _short_text(seen)
    if its is None or its[1] != word.encode():
        return None
    return [1, int(its[2])] if its[2] else [1]


def whole_answer(seen: bytes, word: str) -> Any:
    """Return the answer to a script if this is all of it, and no error; otherwise `NOTHING`."""
    answer = short_answer(seen, word)
    if answer is not None:
        return answer
    its = reader()
    its.feed(seen)
    try:
        found = its.gets()
    except InvalidResponse:
        return NOTHING
    return said(found) if is_ours(found, word) else NOTHING


def is_ours(answer: Any, word: str) -> bool:
    """Return whether a script's answer begins with this word."""
    first = word.encode()
    if isinstance(answer, bytes):
        return answer.startswith(first) and answer[len(first) : len(first) + 1] in (b"", b"|")
    return isinstance(answer, list) and answer[:1] == [first]


def said(answer: Any) -> Any:
    """Return a script's answer without its word. A nil is missing, and returned as `None`. A text
    is the short form of a list that begins with 1."""
    if isinstance(answer, bytes):
        return _short(answer)
    found = answer[1] if len(answer) > 1 else None
    if type(found) is dict:  # of a map, by hiredis; `PlainReader` makes a list of it
        return [*chain.from_iterable(found.items())]
    return found


def believed(answer: Any, word: str | None) -> Any:
    """Return an answer without its word. Errors, and the answers of commands that are no scripts,
    have none. Raises `StrayAnswer` if it belongs to another request."""
    if word is None or isinstance(answer, Exception):
        return answer
    if not is_ours(answer, word):
        kind = type(answer).__name__
        raise StrayAnswer(f"an answer to another request, of the type {kind}")
    return said(answer)


def _short(text: bytes) -> Any:
    try:
        return [1, *map(int, text.split(b"|")[1:])]
    except ValueError:  # it is nonsense, which has no shape
        return text


def is_last(answer: Any) -> bool:
    """Return whether nothing more is to be sent over a connection after this answer: the server
    refuses all commands, or the primary was demoted, or will be. A new connection may lead to its
    successor."""
    if isinstance(answer, ReadOnlyError | redis.ConnectionError):
        return True
    return isinstance(answer, RedisError) and "NOREPLICAS " in str(answer)

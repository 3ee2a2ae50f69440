"""The Lua scripts: which files each of them is made of, and the SHA1 by which the server knows it.

A script is its own file, `lua/<name>.lua`, behind the parts that its head says it needs. The first
of ARGV is a word that no other request has: the token of a claim, or one that is made for the
request. Each answer begins with that word, so the client knows which one is its own (protocol.py).
Every script is put into a frame that does this, so no script can forget it.

The scripts of `AT_ONCE` take or release a lock in the most frequent case, without a frame. They
answer with one text, the word and a number behind a "|"; or with a list of the word alone if they
have done nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

from ..base.exceptions import LockError
from ..base.people import Holder
from .contract import Refusal, Scripts, Sight
from .keys import Word

_LATEST = 10**17
"""µs since the epoch: the year 5138. Python has no dates much later than that."""


def _taken(answer: Any) -> Any:
    """Most acquires have this answer, so it is read without further calls. The fencing token is
    the time of acquiring, too."""
    if answer is None:
        return None
    code, value = answer
    if code == 1 and type(value) is int and 0 <= value < _LATEST:
        return answer
    if code == 3 and type(value) is bytes:  # a record
        return answer
    raise ValueError(answer)


def _dropped(answer: Any) -> Any:
    if answer is None or answer == [1, 1]:
        return answer
    raise ValueError(answer)


_CALL = re.compile(r"\bp?call\('(\w+)'")
_SENT = {"eval", "evalsha", "ping", "subscribe"}
NEEDED = "each lock is a Lua script, which takes EVALSHA and EVAL"
"""Why these two are not optional."""
switched_off = re.compile(
    r"^(?:unknown|unsupported) command(?:$|\W+eval)|'eval(?:sha)?' command|"
    r"\beval(?:sha)?\W+(?:is )?(?:not|disabled)",
    re.IGNORECASE,
).search
"""Finds that a server, or a proxy, runs no scripts for this user, in the text of its error."""
TRACKING = ("client|caching", "client|id", "client|tracking")
"""Commands by which a holder is told at once that its lease is lost. Not on sharded servers."""
SHARDED = ("spublish", "ssubscribe", "sunsubscribe")
"""Commands of sharded pub/sub. Only on sharded servers."""
OPTIONAL = frozenset({*TRACKING, *SHARDED})
"""Commands without which locks work, too: a loss is known later, or a killed waiter costs the next
one more."""
SOMETIMES = {
    "select": "a database other than 0",
    "wait": "REPLICAS",
    "cluster|slots": "a Redis Cluster",
    "asking": "a Redis Cluster",
    **dict.fromkeys(TRACKING, "to be told at once of a lease that is lost"),
    **dict.fromkeys(SHARDED, "a Redis Cluster, or a server that is sharded behind one address"),
}
"""Commands that are sent only sometimes, and what needs them."""

AT_ONCE: dict[str, Callable[[Any], Any]] = {
    "mutex_drop": _dropped,
    "mutex_take": _taken,
    "permits_drop": _dropped,
    "permits_take": _taken,
}
"""Redis makes all functions of a script anew at each call, and these scripts have none, nor a
frame. With the readers of their answers, as for `ask`: each returns the answer as it is."""

WAKING = frozenset({"mutex_release", "permits_release", "record_release"})
"""Those that hand a lock to waiters of other processes, most of the time that somebody waits."""

GUARDED = "_guarded"
"""The end of the name of a script that gives nothing to anybody new after lost data. It is the
file of the script without it, with one more part."""
_NEEDS = re.compile(r"^-- Needs  (.+)$", re.MULTILINE)
"""The parts that stand before a file, in order, behind those that they need themselves."""

_FINDS_KEYS = {"inspection_scan", "inspection_urgent", "work_names"}
"""Scripts that look at keys which they find. Those of a single lock are given all their keys."""
_ANY_KEY = "--!df flags=allow-undeclared-keys\n"
"""Asks Dragonfly to let a script do that; a comment to all others."""

_FRAME = """local answer = (function()
{}
end)()
if type(answer) == 'table' and answer[1] == 1 and #answer == 1 then return ARGV[1] end
return {{ARGV[1], answer}}"""


class Script(NamedTuple):
    source: str
    sha: str


def _read(filename: str) -> str:
    return files(__package__).joinpath("lua", filename).read_text(encoding="utf-8")


def _add(parts: dict[str, str], name: str, *more: str) -> None:
    """Add a file to the parts of a script, behind those that it needs, and `more`."""
    text = _read(f"{name}.lua")
    needs = _NEEDS.search(text)
    for part in (*(needs[1].split(", ") if needs else ()), *more):
        if part not in parts:
            _add(parts, part)
    parts[name] = text


@cache
def load(name: str) -> Script:
    """The script of this name, with its parts and in its frame."""
    parts: dict[str, str] = {}
    _add(parts, name.removesuffix(GUARDED), *(["mutex_guard"] if name.endswith(GUARDED) else []))
    body = "\n".join(parts.values())
    source = body if name in AT_ONCE else _FRAME.format(body)
    if name in _FINDS_KEYS:
        source = _ANY_KEY + source
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


@cache
def permissions(without: frozenset[str] = frozenset()) -> str:
    """Return the commands that a Redis user must be allowed, as rules of its ACL.

    `without` are commands of `SOMETIMES` that are not needed. The user needs our keys and channels
    besides.
    """
    called = {
        command.lower()
        for path in files(__package__).joinpath("lua").iterdir()
        for command in _CALL.findall(_read(path.name))
    }
    # The commands that are sent without a script. PING keeps an idle subscription alive, and goes
    # before releases (protocol.py); there its refusal does no harm.
    return " ".join(
        f"+{command}" for command in sorted((called | _SENT | SOMETIMES.keys()) - without)
    )


# The answers of scripts, and how they are read.
#
# An answer with our word is an answer to our request, and may still be nonsense, because of a
# proxy, a server that only resembles Redis, or a key that other programs have damaged. So each
# answer is read by a function that takes it apart and makes of it what the caller needs, as the
# head of its Lua file describes it. Whatever such a function can't read is no answer of ours:
# `ask` raises `LockUnavailable`. A `TypeError` after that is a mistake of ours, and is not taken
# for trouble with Redis.


T = TypeVar("T")

NONSENSE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a reader raises for an answer that it can't read. Others, such as the exception of a signal
handler, may come while it reads, and have nothing to do with the answer."""


async def ask(
    port: Scripts, read: Callable[[Any], T], script: str, keys: Sequence[str], args: Sequence[Word]
) -> T:
    """Return what `read` makes of the answer of lua/<script>.lua. Raises `LockUnavailable`,
    `LockError`."""
    answer = await port.script(script, keys, args)
    try:
        return read(answer)
    except LockError:  # it is a ValueError, too
        raise
    except NONSENSE:
        pass
    raise port.nonsense(script, keys)


def whole(value: Any) -> int:
    """Read an integer, or its text: Lua has no integers of 64 bits, so the scripts write large
    ones as text."""
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(number)
    return number


def instant(value: Any) -> int:
    """Read a time of the server's clock, µs."""
    microseconds = int(value)
    if not 0 <= microseconds < _LATEST:
        raise ValueError(microseconds)
    return microseconds


def flag(value: Any) -> bool:
    return {0: False, 1: True}[value]


def text(value: Any) -> bytes:
    if type(value) is not bytes:
        raise TypeError(type(value))
    return value


def maybe(value: Any) -> bytes | None:
    """Read a text, or nil."""
    return None if value is None else text(value)


def nth(of: Sequence[T], number: Any) -> T:
    """Return the one that a script calls by this number."""
    return of[range(1, len(of) + 1).index(number)]


def pttls(keys: Sequence[str], answer: Any) -> list[int]:
    return [whole(one) for one, _ in zip(answer, keys, strict=True)]


def sight(value: Any, pttl: Any, now_us: Any) -> Sight:
    return Sight.of(value, Holder.parse(value, whole(pttl), instant(now_us)))


def refusal(value: Any, gone: Any) -> Refusal:
    return Refusal(maybe(value), maybe(gone))


def refused(answer: Any) -> Refusal | None:
    """Read {1}, or {0, value, why}. None: it was done."""
    match answer:
        case [1]:
            return None
        case [0, value, gone]:
            return refusal(value, gone)
    raise ValueError(answer)


def verdicts(number: int) -> Callable[[Any], list[Refusal | None]]:
    """Return the reader for a script that extends this number of leases: for each lease None if it
    was extended, else why not. The answer names only the others, since an answer for each of ten
    thousand leases is long."""

    def read(answer: Any) -> list[Refusal | None]:
        code, *others = answer
        found: list[Refusal | None] = [None] * number
        for position, value, gone in others:
            found[nth(range(number), position)] = refusal(value, gone)
        if not flag(code) and None in found:
            raise ValueError(answer)
        return found

    return read

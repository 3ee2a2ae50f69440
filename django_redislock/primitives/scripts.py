"""The Lua scripts: which files each of them is made of, and the SHA1 by which the server knows it.

A script is its own file, `lua/<name>.lua`, behind the parts that it shares with others. The first
of ARGV is a word that no other request has: the token of a claim, or one that is made for the
request. Each answer begins with that word, so the client knows which answer is its own (wire.py).
Every script is put into a frame that does this, so no script can forget it.

The most frequent case of some scripts stands before the frame, in `lua/<name>_at_once.lua`. It
answers with one text, the word and what follows it, each behind a "|".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_CALL = re.compile(r"\bp?call\('(\w+)'")
_SENT = {"eval", "evalsha", "ping", "subscribe"}
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

_FENCE = ("fence_last", "fence")
_LOST = ("fence_last", "fence_lost")
_LOCK = ("clock", "memory", "value", "lock", "index", *_FENCE, "history")
_MUTEX = (*_LOCK, "mutex_grant", "queue")
_GUARD = ("guard", "mutex_guard")
_MULTI = (
    *("clock", "memory", "value", "multi_keys", "index", *_FENCE, "history", "mutex_grant"),
    *("queue", "multi"),
)
_LEASES = ("clock", "memory", "value", "leases_keys", "index")
_PERMITS = (*_LOCK, "queue", "permits")
_TIMESTAMP = ("clock", "memory", "value", "timestamp_keys", "index", "history", "timestamp")
_LISTED = ("clock", "broken", "inspection", "inspection_keys", "inspection_listed")
_LEDGER = ("clock", "value", "ledger_key", "ledger")
_LEDGERS = ("clock", "value", "ledger_keys", "ledger")

PARTS: dict[str, tuple[str, ...]] = {
    "count": (),
    "fence_raise": ("clock", "memory", "fence_last"),
    "inspection_count": (),
    "inspection_history": ("clock", "memory", "value"),
    "inspection_index": _LISTED,
    "inspection_locks": ("clock", "value", "broken", "inspection"),
    "inspection_page": _LISTED,
    "inspection_processes": (),
    "inspection_scan": (),
    "inspection_urgent": ("clock", "inspection_keys"),
    "inspection_waiters": ("clock",),
    "inspection_written": (),
    "ledger_claim": (*_MUTEX, "ledger_key", "ledger"),
    "ledger_finish": _LEDGER,
    "ledger_known": _LEDGERS,
    "ledger_pause": _LEDGER,
    "ledger_read": _LEDGERS,
    "ledger_request": _LEDGER,
    "ledger_resume": ("clock", "ledger_key"),
    "lock_mend": ("clock", "broken"),
    "multi_acquire": (*_MULTI, "mutex_confirm"),
    "multi_acquire_guarded": (*_MULTI, "mutex_confirm", "guard", "multi_guard"),
    "multi_release": (*_MULTI, "mutex_give_back"),
    "mutex_acquire": (*_MUTEX, "mutex_confirm", "mutex_ask"),
    "mutex_acquire_guarded": (*_MUTEX, "mutex_confirm", "mutex_ask", *_GUARD),
    "mutex_adopt": _LOCK,
    "mutex_clear": _MUTEX,
    "mutex_expire": _LOCK,
    "mutex_extend": ("clock", "value", *_LOST),
    "mutex_holder": ("clock",),
    "mutex_put_back": ("clock", "value", *_LOST, "guard"),
    "mutex_release": (*_MUTEX, "mutex_give_back"),
    "mutex_write_down": (*_LEASES, "history"),
    "permits_acquire": _PERMITS,
    "permits_adopt": _PERMITS,
    "permits_clear": _PERMITS,
    "permits_downgrade": _PERMITS,
    "permits_extend": ("clock", "memory", "value", *_LOST),
    "permits_holders": ("clock",),
    "permits_release": _PERMITS,
    "permits_write_down": _LEASES,
    "queue_present": ("clock", "memory"),
    "record_acquire": (*_MUTEX, "mutex_confirm", "mutex_ask", "mutex_give_back"),
    "record_acquire_guarded": (*_MUTEX, "mutex_confirm", "mutex_ask", "mutex_give_back", *_GUARD),
    "record_delete": (),
    "record_first": ("record",),
    "record_get": (),
    "record_release": (*_MUTEX, "mutex_give_back", "record"),
    "record_set": (),
    "record_write": ("value", "record"),
    "server_time": ("clock",),
    "timestamp_acquire": _TIMESTAMP,
    "timestamp_adopt": _TIMESTAMP,
    "timestamp_clear": _TIMESTAMP,
    "timestamp_extend": _TIMESTAMP,
    "timestamp_holder": _TIMESTAMP,
    "timestamp_release": _TIMESTAMP,
}
"""All scripts, and the parts that stand before each of them, in order. What a part needs of others
comes before it."""

AT_ONCE = {
    *("multi_acquire", "multi_release", "mutex_acquire", "mutex_release"),
    *("permits_acquire", "permits_release"),
}
"""Scripts whose most frequent case stands before the frame. Redis makes all functions of a script
anew at each call, and this case needs none. They take an argument that is missing for "" or 0,
which is not sent at the end: each argument takes the server a fortieth of a cycle."""

GUARDED = "_guarded"
"""The end of the name of a script that gives nothing to anybody new after lost data. It is the
file of the script without it, with more parts."""

_FINDS_KEYS = {
    *("inspection_index", "inspection_page", "inspection_scan", "inspection_urgent"),
}
"""Scripts that look at keys which they find. Those of a single lock are given all their keys."""
_ANY_KEY = "--!df flags=allow-undeclared-keys\n"
"""Asks Dragonfly to let a script do that; a comment to all others."""

_FRAME = "{}return {{ARGV[1], (function()\n{}\nend)()}}"


class Script(NamedTuple):
    source: str
    sha: str


def _read(filename: str) -> str:
    return files(__package__).joinpath("lua", filename).read_text(encoding="utf-8")


@cache
def load(name: str) -> Script:
    """The script of this name, with its parts and in its frame."""
    parts = (*PARTS[name], name.removesuffix(GUARDED))
    body = "\n".join(_read(f"{part}.lua") for part in parts)
    at_once = _read(f"{name}_at_once.lua") if name in AT_ONCE else ""
    source = _FRAME.format(at_once, body)
    if name in _FINDS_KEYS:
        source = _ANY_KEY + source
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def shortened(name: str, args: Sequence[str | int | bytes]) -> Sequence[str | int | bytes]:
    """Return the arguments that are sent to this script."""
    number = len(args)
    if name in AT_ONCE:
        while args[number - 1] in ("", 0):
            number -= 1
    return args[:number]


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
    # The commands that are sent without a script; PING keeps an idle subscription alive.
    return " ".join(
        f"+{command}" for command in sorted((called | _SENT | SOMETIMES.keys()) - without)
    )

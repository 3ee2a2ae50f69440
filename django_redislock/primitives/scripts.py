"""The Lua scripts: which files each of them is made of, and the SHA1 by which the server knows it.

A script is its own file, `lua/<name>.lua`, behind the parts that it shares with others. Each
request to a script brings a nonce as the last of ARGV. Every script is put into a frame that takes
the nonce away, and gives it back beside the answer: so the client knows which answer is its own
(wire.py), and no script can forget to say so.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_CALL = re.compile(r"redis\.p?call\('(\w+)'")
_SENT = {"eval", "evalsha", "ping", "subscribe"}
SOMETIMES = {
    "select": "a database other than 0",
    "wait": "REPLICAS",
    "cluster|slots": "a Redis Cluster",
    "asking": "a Redis Cluster",
}
"""Commands that are sent only sometimes, and what needs them."""

_MUTEX = ("clock", "memory", "lock", "index", "mutex_grant")
_QUEUE = ("value", "queue")
_PERMITS = ("clock", "memory", "value", "lock", "index", "queue", "permits")
_TIMESTAMP = ("clock", "memory", "value", "lock", "index", "timestamp")
_LEDGER = ("clock", "value", "ledger_key", "ledger")
_LEDGERS = ("clock", "value", "ledger_keys", "ledger")

PARTS: dict[str, tuple[str, ...]] = {
    "fence_raise": ("clock", "memory", "value", "lock"),
    "inspection_index": ("clock",),
    "inspection_locks": ("clock", "value"),
    "inspection_names": ("clock",),
    "inspection_processes": (),
    "inspection_scan": (),
    "inspection_tail": ("clock", "memory"),
    "inspection_waiters": ("clock",),
    "inspection_written": (),
    "ledger_claim": (*_MUTEX, *_QUEUE, "ledger_key", "ledger"),
    "ledger_finish": _LEDGER,
    "ledger_known": _LEDGERS,
    "ledger_pause": _LEDGER,
    "ledger_read": _LEDGERS,
    "ledger_resume": ("clock", "ledger_key"),
    "multi_acquire": (*_MUTEX, *_QUEUE, "mutex_confirm", "multi"),
    "multi_release": (*_MUTEX, *_QUEUE, "mutex_end", "mutex_give_back", "multi"),
    "mutex_acquire": (*_MUTEX, "mutex_acquire_at_once", *_QUEUE, "mutex_confirm"),
    "mutex_adopt": ("clock", "memory", "value", "lock", "index"),
    "mutex_clear": (*_MUTEX, *_QUEUE, "types"),
    "mutex_expire": ("clock", "memory", "value", "lock", "index"),
    "mutex_extend": ("clock", "memory", "value"),
    "mutex_holder": ("clock",),
    "mutex_release": (
        *("clock", "memory", "lock", "value", "mutex_end", "mutex_release_at_once"),
        *("index", "mutex_grant", "queue", "mutex_give_back"),
    ),
    "permits_acquire": _PERMITS,
    "permits_adopt": _PERMITS,
    "permits_clear": (*_PERMITS, "types"),
    "permits_downgrade": _PERMITS,
    "permits_extend": _PERMITS,
    "permits_holders": ("clock",),
    "permits_release": _PERMITS,
    "record_delete": (),
    "record_first": ("record",),
    "record_get": (),
    "record_set": (),
    "record_write": ("value", "record"),
    "timestamp_acquire": _TIMESTAMP,
    "timestamp_adopt": _TIMESTAMP,
    "timestamp_clear": (*_TIMESTAMP, "types"),
    "timestamp_extend": _TIMESTAMP,
    "timestamp_holder": _TIMESTAMP,
    "timestamp_release": _TIMESTAMP,
}
"""All scripts, and the parts that stand before each of them, in order. What a part needs of others
comes before it. Parts that the most frequent case does not need come after that case: Redis makes
their functions anew at each call."""

_FRAME = "return {{table.remove(ARGV), (function()\n{}\nend)()}}"


class Script(NamedTuple):
    source: str
    sha: str


def _read(filename: str) -> str:
    return files(__package__).joinpath("lua", filename).read_text(encoding="utf-8")


@cache
def load(name: str) -> Script:
    """The script of this name, with its parts and in its frame."""
    body = "\n".join(_read(f"{part}.lua") for part in (*PARTS[name], name))
    source = _FRAME.format(body)
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
    # The commands that are sent without a script; PING keeps an idle subscription alive.
    return " ".join(
        f"+{command}" for command in sorted((called | _SENT | SOMETIMES.keys()) - without)
    )

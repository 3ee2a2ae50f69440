"""The permissions of a Redis user, found by trying each command that locks send.

ACL DRYRUN exists only from Redis 7 on, and a restricted user may not run it. The commands here
change nothing: their key does not exist, or their arguments are refused. Redis checks the
permissions before the arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import (
    AskError,
    ClusterDownError,
    NoPermissionError,
    ResponseError,
    TryAgainError,
)

from ..base import label
from ..primitives import scripts
from ..primitives.keys import Keys
from ..transport.inbox import INVALIDATED

KEY, CHANNEL = object(), object()

_COMMANDS: dict[tuple[object, ...], str] = {
    # ASKING holds for the next command, which goes to this node anyway.
    (): "asking client|id cluster|slots ping sunsubscribe time",
    (KEY,): "del exists get hgetall hlen hvals llen lpop pttl unlink zcard",
    (KEY, "-"): "hdel hexists hget hmget zrank zrem zscore",
    (KEY, 0): "lindex",
    (KEY, 0, 0): "getrange lrange lrem ltrim zcount zrange zremrangebyscore",
    (KEY, 0, -1): "zremrangebyrank",
    (KEY, 0, ""): "setrange",
    (KEY, 0, "-"): "lset",
    (KEY, 1): "pexpire",
    (KEY, "-", "-", "-"): "hset",  # a field without a value, which is refused
    (KEY, "-", "XX", "PX", 1): "set",
    (KEY, "XX", 0, "-"): "zadd",
    (CHANNEL,): "subscribe ssubscribe",
    (CHANNEL, "-"): "publish spublish",
    ("NUMSUB", CHANNEL): "pubsub",
    ("NO",): "client|caching",
    ("OFF",): "client|tracking",
    ("return 1", 0): "eval",
    ("0" * 40, 0): "evalsha",
    (0, "COUNT", 1): "scan",
    (0, 1): "wait",
}
_UNKNOWN = ("unknown command", "unsupported command")
"""The beginnings of what servers and proxies say of a command that they don't carry out."""
HARMLESS = {name: words for words, names in _COMMANDS.items() for name in names.split()}
"""Arguments with which each command that locks need does nothing."""

WRITING = {
    "hsetnx": "return redis.call('HSETNX', KEYS[1], '-', '')",
    "lpush": "return redis.call('LPUSH', KEYS[1], '-')",
    "rpush": "return redis.call('RPUSH', KEYS[1], '-')",
    "sadd": "return redis.call('SADD', KEYS[1], '-')",
    "srem": "return redis.call('SREM', KEYS[1], '-')",
}
"""Commands that have no such arguments. A script that may not write refuses them after it has
looked at the permissions; before Redis 7 there is no such script, and they are not tried."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The rules of an ACL that a user lacks, and the commands that the server does not know."""

    rules: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    """Rules that a user lacks, and without which locks work, too."""


def unneeded(*, database: int, replicas: int, routed: bool, sharded: bool) -> frozenset[str]:
    """Return the commands that locks don't send to such a server: requests are `routed` to the
    nodes of a cluster; the server is `sharded`, as a cluster is."""
    needed = {
        "select": database,
        "wait": replicas,
        "cluster|slots": routed,
        "asking": routed,
        **dict.fromkeys(scripts.TRACKING, not sharded),
        **dict.fromkeys(scripts.SHARDED, sharded),
    }
    return frozenset(command for command in scripts.SOMETIMES if not needed[command])


def refused(client: redis.Redis, prefix: str, unneeded: frozenset[str]) -> Refused:
    """Try all commands that locks need."""
    rules: dict[str, None] = {}
    unknown, optional = [], []
    # The connection has selected its database already.
    for rule in scripts.permissions(unneeded | {"select"}).split():
        command = rule.removeprefix("+")
        error = _try(client, command, prefix)
        if command in scripts.OPTIONAL:
            if error and not error.startswith("unknown") and " channel" not in error:
                optional.append(rule)
        elif error.lower().startswith(_UNKNOWN):
            unknown.append(command.upper())
        elif " channel" in error:
            rules[_pattern("&", prefix)] = None
        elif " key" in error:
            rules[_pattern("~", prefix)] = None
        elif error:
            rules[rule] = None
    if "client|tracking" not in unneeded and _try(client, "subscribe", prefix, INVALIDATED):
        optional.append(f"&{INVALIDATED}")
    return Refused(tuple(rules), tuple(unknown), tuple(optional))


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Why a script can't send messages to waiters, or can't ask who listens; "": it can, or this
    was not tried. A script sends them when it hands a lock over."""

    publish: str = ""
    numsub: str = ""
    spublish: str = ""
    shardnumsub: str = ""


_SENDING = {
    "publish": "redis.pcall('PUBLISH', ARGV[1], '-')",
    "numsub": "redis.pcall('PUBSUB', 'NUMSUB', ARGV[1])",
    "spublish": "redis.pcall('SPUBLISH', ARGV[2], '-')",
    "shardnumsub": "redis.pcall('PUBSUB', 'SHARDNUMSUB', ARGV[2])",
}
"""As lua/queue.lua sends them. Nobody listens at the channels."""
TAGS = 100
"""Hash tags that are tried to find a slot that a node of a cluster has."""


def messages(client: redis.Redis, prefix: str, *, sharded: bool) -> Messages:
    """Try in a script to send messages, and to ask who listens. A command that a user may run is
    sometimes refused there, or carried out in another way. Locks send sharded messages only to a
    sharded server."""
    tried = [*_SENDING] if sharded else ["publish", "numsub"]
    return Messages(**{what: _send(client, prefix, _SENDING[what]) for what in tried})


def _send(client: redis.Redis, prefix: str, how: str) -> str:
    script = f"local answer = {how} return type(answer) == 'table' and answer.err or ''"
    for number in range(TAGS):
        # The second channel is in the slot of the key. The first one is as that of an inbox.
        tag = f"{prefix}:{{{number}}}"
        try:
            answer = client.eval(script, 1, f"{tag}:-", f"{prefix}:inbox:-", f"{tag}:inbox:-")
            return _text_of(answer)
        except (AskError, ClusterDownError, TryAgainError):
            continue  # nobody has the slot here and now
        except ResponseError as error:
            # If no script runs, `refused` says so.
            return "" if scripts.switched_off(_text_of(error)) else _text_of(error)
    return ""


def _text_of(answer: Any) -> str:
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
    return " ".join(text.removeprefix("ERR ").removeprefix("NOPERM ").split())


def acl_rules(prefix: str, unneeded: frozenset[str], *, channels: bool) -> str:
    """Return the rules that a user needs. `channels`: name the channels; Redis refuses this
    for a user who may use all channels."""
    patterns = _pattern("~", prefix)
    if channels:
        patterns += f" {_pattern('&', prefix)}"
        if "client|tracking" not in unneeded:
            patterns += f" &{INVALIDATED}"
    return f"{patterns} {scripts.permissions(unneeded)}"


def _pattern(kind: str, prefix: str) -> str:
    return f"{kind}{label.escaped(prefix)}:*"


def _try_in_script(client: redis.Redis, script: str, key: str) -> str:
    try:
        client.eval(f"#!lua flags=no-writes\n{script}", 1, key)
    except ResponseError as error:
        text = str(error)
        return text if "user executing the script" in text or "in script" in text else ""
    return ""


def _try(client: redis.Redis, command: str, prefix: str, channel: str = "") -> str:
    """Return why a command can't be run. "": it can."""
    # A key of a name that no lock can have.
    replaced = {KEY: Keys.of(prefix, "{}").history, CHANNEL: channel or f"{prefix}:inbox:-"}
    words = [replaced.get(word, word) for word in HARMLESS.get(command, ())]
    try:
        if command in WRITING:
            return _try_in_script(client, WRITING[command], str(replaced[KEY]))
        if command.endswith("subscribe"):
            with client.pubsub() as pubsub:
                getattr(pubsub, command)(*words)
                pubsub.parse_response()
        else:
            client.execute_command(*command.upper().split("|"), *words)
    except ResponseError as error:
        text = _text_of(error)
        denied = isinstance(error, NoPermissionError)
        return text if denied or text.lower().startswith(_UNKNOWN) else ""
    return ""

"""The facts about one server, as the user that locks log in as sees them. rules.py judges them.

A bounded number of bounded commands asks for them, over a pool of its own. A fact is listed as
unseen if that user may not ask for it, or if the server does not know the command: managed servers
have no CONFIG.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, TypeVar

import redis
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from ..base import people
from ..base.exceptions import LockError, LockUnavailable
from ..base.people import Holder
from ..inspection.tasks import TasksInfo, names
from ..primitives import fence, scripts
from ..primitives.contract import run
from ..primitives.keys import COUNTED, Keys, counter, name_of
from ..settings import conf
from ..transport import connections
from ..transport.command import primaries
from ..transport.inbox import INVALIDATED
from ..transport.ports import SyncPort, find_out_slots
from ..transport.protocol import known, text_of
from ..transport.server import Server, server_of
from . import vendors
from .caches import hosts_of

T = TypeVar("T")

# The permissions of the user, found by trying each command that locks send.
#
# ACL DRYRUN exists only from Redis 7 on, and a restricted user may not run it. The commands here
# change nothing: their key does not exist, or their arguments are refused. Redis checks the
# permissions before the arguments.


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


def _refused(client: redis.Redis, prefix: str, unneeded: frozenset[str]) -> Refused:
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


_SENDING = {
    "publish": "redis.pcall('PUBLISH', ARGV[1], '-')",
    "numsub": "redis.pcall('PUBSUB', 'NUMSUB', ARGV[1])",
    "spublish": "redis.pcall('SPUBLISH', ARGV[2], '-')",
    "shardnumsub": "redis.pcall('PUBSUB', 'SHARDNUMSUB', ARGV[2])",
}
"""As lua/queue.lua sends them. Nobody listens at the channels."""
TAGS = 100
"""Hash tags that are tried to find a slot that a node of a cluster has."""


def _send(client: redis.Redis, prefix: str, what: str) -> str:
    """Try in a script to send messages to waiters, or to ask who listens. A command that a user
    may run is sometimes refused there, or carried out in another way. Return why it can't be done;
    "": it can."""
    script = f"local answer = {_SENDING[what]} return type(answer) == 'table' and answer.err or ''"
    for number in range(TAGS):
        # The second channel is in the slot of the key. The first one is as that of an inbox.
        tag = f"{prefix}:{{{number}}}"
        try:
            answer = client.eval(script, 1, f"{tag}:-", f"{prefix}:inbox:-", f"{tag}:inbox:-")
            return _text_of(answer)
        except ResponseError as error:
            if isinstance(known(error), AskError | ClusterDownError | TryAgainError):
                continue  # nobody has the slot here and now
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
    return f"{kind}{people.escaped(prefix)}:*"


def _try(client: redis.Redis, command: str, prefix: str, channel: str = "") -> str:
    """Return why a command can't be run. "": it can."""
    # A key of a name that no lock can have.
    replaced = {KEY: Keys.of(prefix, "{}").history, CHANNEL: channel or f"{prefix}:inbox:-"}
    words = [replaced.get(word, word) for word in HARMLESS.get(command, ())]
    try:
        if command in WRITING:
            script = f"#!lua flags=no-writes\n{WRITING[command]}"
            client.eval(script, 1, str(replaced[KEY]))
        elif command.endswith("subscribe"):
            with client.pubsub() as pubsub:
                getattr(pubsub, command)(*words)
                pubsub.parse_response()
        else:
            client.execute_command(*command.upper().split("|"), *words)
    except ResponseError as error:
        text = _text_of(error)
        denied = isinstance(error, NoPermissionError) or text.lower().startswith(_UNKNOWN)
        if command in WRITING:
            text = str(error)
            denied = "user executing the script" in text or "in script" in text
        return text if denied else ""
    return ""


# The facts.


SLOTS_LOOKED_AT = 50
"""Slots by which a node of a cluster is told from a server with all slots behind one address."""


SWEPT_WITHIN = 120.0
"""Seconds. `runperiodic` sweeps once a minute."""


class Unreachable(Exception):
    """The server could not be reached. The message is one line."""


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


@dataclass(slots=True, kw_only=True)
class ServerFacts:
    """The facts about one server. Times are seconds. What was not seen keeps its default."""

    alias: str
    prefix: str
    user: str
    db: int
    """The number of the database."""
    replicas: int
    """How many replicas have to confirm a lock."""
    after_loss: str = "go"
    """wait: a lock here waits after lost data; go: none does."""
    guard: float | None = None
    """Since when the server has forgotten nothing, by its clock. None: nobody has seen."""
    unneeded: frozenset[str] = frozenset()
    """Commands that locks don't send to this server."""
    round_trip: float = 0.0
    skew: float = 0.0
    """How far its clock is ahead of the clock of this host, at least. Negative: behind."""
    node: str = ""
    """The address of a node of a cluster."""
    sharded: bool = False
    """Whether the keys of one script must be in one slot."""
    has_all_slots: bool = True
    """Whether a single server that is a Redis Cluster serves all slots, as far as was seen."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """The answer to INFO. Empty: unseen."""
    vendor: vendors.Vendor = vendors.SOMEBODY
    active_active: bool = False
    """Whether other servers accept writes of the same data, as far as that can be seen."""
    missed_wakeups: int = 0
    """How many handovers no message announced to a waiter that listened."""
    unreadable_clocks: int = 0
    """How often the last fencing token could not be read."""
    save: str | None = None
    """When the server writes its data to disk. None: unseen."""
    refused: Refused = field(default_factory=Refused)
    messages: Mapping[str, str] = field(default_factory=dict)
    """Why a script can't publish, spublish, numsub or shardnumsub. A script sends messages when it
    hands a lock over; to a sharded server, sharded ones."""
    keys: KeyFacts = field(default_factory=KeyFacts)
    stuck: tuple[TasksInfo, ...] = ()
    """Names of tasks that wait for a call or a sweep, for longer than `SWEPT_WITHIN`."""
    unseen: tuple[str, ...] = ()
    """Facts that could not be seen, and why."""


def ask(alias: str, *, thorough: bool = True) -> list[ServerFacts]:
    """Ask the server of an alias, or each primary of its cluster. Raises `Unreachable`.

    If not `thorough`, leave out what takes long, and the commands that may be refused.
    """
    with ExitStack() as stack:
        try:
            pool = server_of(alias).background_pool()
            stack.callback(connections.close, pool)
            clients = [redis.Redis(connection_pool=its) for its in primaries(pool)]
            for client in clients:
                with suppress(NoPermissionError):
                    client.ping()  # if this fails, no question can be asked
        except Exception as error:  # a provider of credentials may raise anything
            raise _unreachable(alias, error) from error
        try:
            return [_Asking(client, alias).facts(thorough=thorough) for client in clients]
        except (RedisError, OSError) as error:
            raise _unreachable(alias, error) from error


def _unreachable(alias: str, error: Exception) -> Unreachable:
    what = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return Unreachable(f"Redis could not be reached through CACHES[{alias!r}]: {what}")


class _Asking:
    def __init__(self, client: redis.Redis, alias: str) -> None:
        self._client = client
        self._alias = alias
        self._unseen: list[str] = []

    def facts(self, *, thorough: bool) -> ServerFacts:
        prefix, server = conf.prefix(), server_of(self._alias)
        routed, sharded = connections.routed(server.shared_pool()), server.clustered
        if thorough:
            with suppress(LockUnavailable):  # without permissions, which is told below
                sharded = find_out_slots(server, prefix)
        options = self._client.connection_pool.connection_kwargs
        # To ask a provider of credentials again may cost something.
        unknown = options.get("credential_provider") is not None
        facts = ServerFacts(
            alias=self._alias,
            node=f"{options.get('host')}:{options.get('port')}" if routed else "",
            sharded=sharded,
            prefix=prefix,
            user="<user>" if unknown else str(options.get("username") or "default"),
            db=int(options.get("db") or 0),
            replicas=conf.replicas(self._alias),
            after_loss=conf.after_loss(self._alias),
        )
        needed = {
            "select": facts.db,
            "wait": facts.replicas,
            "cluster|slots": routed,
            "asking": routed,
            **dict.fromkeys(scripts.TRACKING, not sharded),
            **dict.fromkeys(scripts.SHARDED, sharded),
        }
        facts.unneeded = frozenset(its for its in scripts.SOMETIMES if not needed[its])
        with self._perhaps("its clock"):
            facts.round_trip, facts.skew = _clock(self._client.time)
        with self._perhaps("version, role, eviction, persistence, replicas"):
            facts.info = self._client.info()
        with self._perhaps("whether it saves its data") as error:
            facts.save = self._client.config_get("save").get("save")
        configurable = not error or isinstance(error[0], NoPermissionError)
        facts.vendor = vendors.vendor_of(
            hosts_of(self._alias), facts.info, configurable=configurable
        )
        facts.active_active = self._active_active(facts.vendor, facts.info)
        if facts.info.get("cluster_enabled") and not routed:
            facts.has_all_slots = self._has_all_slots(prefix)
        if facts.after_loss == "wait":
            with self._perhaps("its guard"):
                guard = self._client.get(Keys.of(prefix, "-").guard)
                facts.guard = None if guard is None else float(guard) / 1e6
        with self._perhaps("what is counted"):
            for what in ("missed_wakeups", fence.COUNTER):
                try:
                    counted: Any = self._client.get(counter(Keys.of(prefix, "-").index, what))
                    setattr(facts, what, people.number(counted) or 0)
                except ResponseError as error:
                    if not isinstance(known(error), MovedError):  # another node has this one
                        raise
        if thorough:
            self._look_closely(server, facts)
        facts.unseen = tuple(self._unseen)
        return facts

    def _look_closely(self, server: Server, facts: ServerFacts) -> None:
        prefix, sharded = facts.prefix, facts.sharded
        with suppress(LockUnavailable):  # without permissions, which is told below
            clock = run(fence.above(SyncPort(server), Keys.of(prefix, "-"), 0, yes=False))
            facts.unreadable_clocks += clock.code == fence.UNREADABLE
        with self._perhaps("what is left of locks"):
            facts.keys = _Looking(self._client, prefix, listed=not sharded).facts()
        with suppress(LockError):  # without permissions, which is told below
            stuck = (one for one in names(self._alias, MOST_NAMES) if one.stuck)
            facts.stuck = tuple(
                one for one in stuck if not one.first or (one.first.age or 0.0) > SWEPT_WITHIN
            )
        facts.refused = _refused(self._client, prefix, facts.unneeded)
        tried = _SENDING if sharded else ("publish", "numsub")
        facts.messages = {what: _send(self._client, prefix, what) for what in tried}
        if facts.keys.cut_short:
            self._unseen.append(f"all keys (the first {facts.keys.looked_at} were looked at)")

    def _active_active(self, vendor: vendors.Vendor, info: Mapping[str, Any]) -> bool:
        """Return whether other servers accept writes, too, and merge them later."""
        if info.get("role") == "active-replica":
            return True
        with suppress(ResponseError):
            if vendor == vendors.KEYDB:  # the role of one that follows nobody is "master"
                return "yes" in self._client.config_get("active-replica").values()
            if info:  # Redis Enterprise has this section, with such fields, for Active-Active
                return any(key.startswith("crdt_") for key in self._client.info("crdt"))
        return False

    def _has_all_slots(self, prefix: str) -> bool:
        """Return whether this address serves the keys of some slots, which are anywhere."""
        pipeline = self._client.pipeline(transaction=False)
        for number in range(SLOTS_LOOKED_AT):
            pipeline.pttl(f"{prefix}:slot:{{{number}}}")
        answers = pipeline.execute(raise_on_error=False)
        return not any(isinstance(known(one), AskError | ClusterDownError) for one in answers)

    @contextmanager
    def _perhaps(self, what: str) -> Iterator[list[ResponseError]]:
        """Note a fact that can't be seen. The list gets the error."""
        errors: list[ResponseError] = []
        try:
            yield errors
        except ResponseError as error:
            errors.append(error)
            self._unseen.append(f"{what} ({error})")


def _clock(ask: Callable[[], tuple[int, int]], tries: int = 5) -> tuple[float, float]:
    """Return the shortest round trip, and how far the server's clock is ahead, at least."""
    seen = []
    for _ in range(tries):
        began, wall = time.monotonic(), time.time()
        seconds, microseconds = ask()
        took = time.monotonic() - began
        # The server read its clock at some time within the round trip.
        seen.append((took, seconds + microseconds / 1e6 - wall - took / 2))
    took, ahead = min(seen)
    return took, max(0.0, ahead - took / 2) + min(0.0, ahead + took / 2)


# The keys of locks at a server: where the index and the locks differ, and which never expire.
#
# Between two commands a lock may be acquired or released, so what seems wrong is checked twice.

AT_ONCE = 500
"""Keys in one request. Redis is busy with them for about a millisecond."""
MOST_NAMES = 10_000
MOST_KEYS = 100_000
"""How many keys of the database are looked at, of whatever kind."""
FOR_GOOD = (":index", ":clock", ":guard", "}:record", *(f":{what}" for what in COUNTED))
"""Ends of keys that have no TTL, or need none: a record may be kept for good."""
WITHIN = 2.0
"""Seconds after which the scan stops."""


class _Looking:
    """A look at the keys of a server. On a cluster, no lock is `listed` in an index."""

    def __init__(self, client: redis.Redis, prefix: str, *, listed: bool) -> None:
        self._client = client
        self._listed = listed
        self._prefix = prefix
        self._index: str = Keys.of(prefix, "-").index

    def facts(self) -> KeyFacts:
        until = time.monotonic() + WITHIN
        gone: list[str] = []
        if self._listed:
            members: Any = self._client.zrange(self._index, 0, MOST_NAMES - 1)
            listed = self._locks(map(text_of, members))
            gone = [its.name for its in self._twice(self._gone, listed)]
        unlisted, endless = set[str](), set[str]()
        looked_at, cursor = 0, 0
        while True:
            found: list[bytes]
            cursor, found = self._client.scan(  # type: ignore[assignment]
                cursor, match=f"{people.escaped(self._prefix)}:*", count=1000
            )
            looked_at += 1000
            keys = [*map(text_of, found)]
            if self._listed:
                its = self._twice(self._unlisted, self._locks(keys))
                unlisted.update(one.name for one in its)
            mortal = [key for key in keys if not key.endswith(FOR_GOOD)]
            endless.update(self._twice(self._endless, mortal))
            if cursor == 0 or looked_at >= MOST_KEYS or time.monotonic() > until:
                break
        return KeyFacts(
            gone=tuple(gone),
            unlisted=tuple(sorted(unlisted)),
            endless=tuple(sorted(endless)),
            looked_at=looked_at,
            cut_short=cursor != 0,
        )

    def _locks(self, keys: Iterable[str]) -> list[Keys]:
        """Return those of the keys that are of locks."""
        named = ((Keys.of(self._prefix, name_of(key) or ""), key) for key in keys)
        return [its for its, key in named if its.name and its.lock == key]

    @staticmethod
    def _twice(wrong: Callable[[list[T]], Iterable[T]], what: list[T]) -> list[T]:
        first = list(wrong(what))
        return list(wrong(first)) if first else []

    def _gone(self, locks: list[Keys]) -> Iterator[Keys]:
        if not locks:
            return
        seconds, _ = self._client.time()
        rows = self._each(locks, lambda its: [self._end(its), ("EXISTS", its.lock)])
        for its, ends, there in rows:
            # A name stays in the index after its lease has ended, until the next grant.
            if ends is not None and float(ends) > (seconds + 1) * 1000 and not there:
                yield its

    def _unlisted(self, locks: list[Keys]) -> Iterator[Keys]:
        # The index has no locks without a TTL.
        rows = self._each(locks, lambda its: [self._end(its), ("PTTL", its.lock)])
        found = [its for its, ends, pttl in rows if ends is None and pttl > 0]
        rows = self._each(found, lambda its: [("GET", its.lock), ("HVALS", its.holders)])
        for its, value, records in rows:
            # If several hold the lock, its key is no string, so GET answers an error.
            several = isinstance(value, ResponseError) and isinstance(records, list)
            if any(map(_says_listed, records if several else [value])):
                yield its

    def _endless(self, keys: list[str]) -> list[str]:
        return [key for key, pttl in self._each(keys, lambda key: [("PTTL", key)]) if pttl == -1]

    def _end(self, its: Keys) -> tuple[str, ...]:
        return "ZSCORE", self._index, its.lock

    def _each(
        self, what: list[T], commands: Callable[[T], list[tuple[str, ...]]]
    ) -> Iterator[tuple[Any, ...]]:
        """Return each of these with the answers to its commands, which are asked together."""
        asked = [commands(one) for one in what]
        answers = iter(self._ask([*chain.from_iterable(asked)]))
        return ((one, *islice(answers, len(its))) for one, its in zip(what, asked, strict=True))

    def _ask(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        """Return the answers of commands. For a key of another type, that is the error."""
        answers: list[Any] = []
        for start in range(0, len(commands), AT_ONCE):
            pipeline = self._client.pipeline(transaction=False)
            for word, *rest in commands[start : start + AT_ONCE]:
                its = (one.encode(errors="surrogateescape") for one in rest)
                pipeline.execute_command(word, *its)
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

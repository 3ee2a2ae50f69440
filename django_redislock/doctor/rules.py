"""The rules about a server, by the facts about it. One rule, one function."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from . import permissions
from .facts import ServerFacts
from .finding import Finding, listed

OLDEST = (6, 2)
NEWEST_REDIS = 8
"""The newest major version that was tested."""
SKEW = 1.0
"""Seconds by which clocks may differ. cron starts jobs to the second."""
FULL = 0.8
"""The share of `maxclients` from which on a server counts as full."""


Rule = Callable[[ServerFacts], Iterator[Finding]]


def judge(server: ServerFacts) -> Iterator[Finding]:
    """Apply all rules to the facts about a server."""
    where = f"Node {server.node}: " if server.node else ""
    for rule in RULES:
        for finding in rule(server):
            yield replace(finding, message=f"{where}{finding.message}", alias=server.alias)


def _some(replicas: int) -> str:
    return f"{replicas or 'no'} replica{'s' * (replicas != 1)}"


def _version(server: ServerFacts) -> tuple[str, tuple[int, ...]]:
    """Return the version as text and as numbers. Empty: it is unknown."""
    text = str(server.info.get("redis_version", ""))
    return text, tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


def version(server: ServerFacts) -> Iterator[Finding]:
    text, numbers = _version(server)
    if numbers and numbers < OLDEST:
        yield Finding(
            "redislock.E102",
            f"The server is Redis {text}; locks need 6.2 or later.",
            "Upgrade it, to Redis 6.2–8 or Valkey.",
        )
    elif numbers and numbers[0] > NEWEST_REDIS and "valkey_version" not in server.info:
        yield Finding(
            "redislock.W110",
            f"The server is Redis {text}, which is newer than all that were tested.",
            "Look for a newer django-redislock: python -m pip install -U django-redislock",
        )


def role(server: ServerFacts) -> Iterator[Finding]:
    if server.info.get("role", "master") != "master":
        where = f"{server.info.get('master_host')}:{server.info.get('master_port')}"
        yield Finding(
            "redislock.E103",
            f"The server is a replica of {where}; locks live on the primary.",
            f'"LOCATION": "redis://{where}/0", or that of Sentinel',
        )


def cluster(server: ServerFacts) -> Iterator[Finding]:
    if server.info.get("cluster_enabled") and not server.has_all_slots:
        yield Finding(
            "redislock.E104",
            f"The server is a node of a Redis Cluster, and CACHES[{server.alias!r}] uses it as a "
            f"single server: most locks belong on other nodes.",
            '"OPTIONS": {"CONNECTION_FACTORY": '
            '"django_redislock.cluster.ClusterConnectionFactory"}. If the service has one address '
            "for all slots, write that into LOCATION.",
        )


def allowed(server: ServerFacts) -> Iterator[Finding]:
    if server.refused.rules:
        # Up to 6.2, a user may use all channels unless an administrator revoked that.
        restricted = any(rule.startswith("&") for rule in server.refused.rules)
        channels = restricted or not (0,) < _version(server)[1] < (7,)
        yield Finding(
            "redislock.E105",
            f"The Redis user {server.user} lacks permissions that locks need. Missing: "
            f"{' '.join(server.refused.rules)}",
            permissions.acl_rule(server.user, server.prefix, server.unneeded, channels=channels),
        )
    if server.refused.unknown:
        yield Finding(
            "redislock.E106",
            f"The server does not know {', '.join(server.refused.unknown)}: renamed, switched "
            f"off, or it is not Redis.",
            "Remove rename-command from its configuration for: "
            f"{' '.join(server.refused.unknown)}",
        )


def replicas(server: ServerFacts) -> Iterator[Finding]:
    if "connected_slaves" not in server.info:
        return
    connected = int(server.info["connected_slaves"])
    if server.replicas > connected:
        yield Finding(
            "redislock.E107",
            f"REPLICAS is {server.replicas}, and the server has {_some(connected)}: no lock with "
            f"this setting can be acquired.",
            f'"REPLICAS": {connected}, or connect more of them',
        )
    elif connected and not server.replicas:
        yield Finding(
            "redislock.W103",
            f"The server has {_some(connected)}, and REPLICAS is 0: after a failover the new "
            f"primary may not know a lock, so two may hold it.",
            'REDISLOCK = {"REPLICAS": 1}',
        )
    # INFO has this number only if the option is set.
    if connected and "min_slaves_good_slaves" not in server.info:
        yield Finding(
            "redislock.W104",
            "min-replicas-to-write is 0: an old primary that is cut off from its replicas "
            "continues to grant locks.",
            "CONFIG SET min-replicas-to-write 1",
        )


def eviction(server: ServerFacts) -> Iterator[Finding]:
    policy = server.info.get("maxmemory_policy", "noeviction")
    limit = int(server.info.get("maxmemory", 0))
    if limit and policy != "noeviction":
        # volatile-* is as bad: all locks have a TTL.
        yield Finding(
            "redislock.W101",
            f"When its memory of {limit / 2**20:.0f} MiB is full, the server drops keys "
            f"({policy}), including locks that are held.",
            "CONFIG SET maxmemory-policy noeviction; if a cache needs eviction, give locks "
            "another server, and name it in REDISLOCK['USING'].",
        )


def persistence(server: ServerFacts) -> Iterator[Finding]:
    if server.save == "" and not server.info.get("aof_enabled", 1):
        yield Finding(
            "redislock.W102",
            "The server saves nothing to disk: when it restarts, all locks are free at once, and "
            "the order of waiters is lost. Fencing tokens still grow, by its clock.",
            "CONFIG SET appendonly yes; and add appendonly yes to its configuration file. "
            'Besides, "AFTER_LOSS": "wait" lets holders keep their locks.',
        )


def clock(server: ServerFacts) -> Iterator[Finding]:
    if abs(server.skew) > SKEW:
        which = "ahead of" if server.skew > 0 else "behind"
        yield Finding(
            "redislock.W105",
            f"The clock of the server is at least {abs(server.skew):.1f} s {which} that of this "
            f"host. Leases are not affected; jobs that the clock starts, and times that people "
            f"read, are.",
            "Let chrony or systemd-timesyncd set the clocks of both: timedatectl set-ntp true",
        )


def clients(server: ServerFacts) -> Iterator[Finding]:
    most = int(server.info.get("maxclients", 0))
    now = int(server.info.get("connected_clients", 0))
    if most and now > FULL * most:
        yield Finding(
            "redislock.W106",
            f"The server has {now} clients, and its limit is {most}: soon nobody can connect.",
            f"CONFIG SET maxclients {2 * most}; and look for unused clients: CLIENT LIST",
        )


def index(server: ServerFacts) -> Iterator[Finding]:
    if server.keys.gone:
        yield Finding(
            "redislock.W107",
            f"Locks are missing that should still be held: "
            f"{listed([repr(name) for name in server.keys.gone])}. They were evicted, or "
            f"their keys were deleted.",
            "Clear locks with manage.py redislock clear NAME, which notifies their holders; and "
            "see redislock.W101. The index drops such a name a minute after its lease would have "
            "ended.",
        )
    if server.keys.unlisted:
        yield Finding(
            "redislock.W108",
            f"The index does not list these locks, which are held: "
            f"{listed([repr(name) for name in server.keys.unlisted])}. It was deleted, or "
            f"old data was restored.",
            "Wait for a third of their ttl: renewal adds them again.",
        )


def leftovers(server: ServerFacts) -> Iterator[Finding]:
    if server.keys.endless:
        # Only keys that a terminal can show, so that the command can be pasted.
        shown = [key for key in server.keys.endless if key.isprintable()][:3]
        words = shlex.join(["redis-cli", "-n", str(server.db), "DEL", *(shown or ["KEY"])])
        yield Finding(
            "redislock.W109",
            f"Keys with the prefix {server.prefix!r} have no TTL and never expire: "
            f"{listed([repr(key) for key in server.keys.endless])}.",
            f"The next renewal gives a lock its TTL back. Delete keys that remain after a minute: "
            f"{words}",
        )


def _after_loss(server: ServerFacts) -> str:
    if server.after_loss == "go":
        return "AFTER_LOSS: go"
    if server.guard is None:
        return "AFTER_LOSS: wait (no guard: from the first acquire on, new locks wait for a ttl)"
    since = datetime.fromtimestamp(server.guard, UTC)
    return f"AFTER_LOSS: wait (nothing was lost since {since:%Y-%m-%d %H:%M:%S} UTC)"


def summary(server: ServerFacts) -> Iterator[Finding]:
    info = server.info
    parts = []
    if info:
        kind = "Valkey" if "valkey_version" in info else "Redis"
        parts += [f"{kind} {info.get('valkey_version', info.get('redis_version'))}"]
    parts += [f"a round trip takes {server.round_trip * 1000:.1f} ms"]
    if info:
        parts += [f"clients: {info.get('connected_clients')} of {info.get('maxclients', '?')}"]
        parts += [f"replicas: {info.get('connected_slaves')}"]
    parts += [_after_loss(server)]
    text = ", ".join(parts)
    yield Finding("redislock.I101", f"{text[0].upper()}{text[1:]}.", "")
    if server.unseen:
        yield Finding(
            "redislock.I102",
            f"Not seen: {'; '.join(server.unseen)}.",
            f"ACL SETUSER {server.user} +info +config|get",
        )


RULES: tuple[Rule, ...] = (
    version,
    role,
    cluster,
    allowed,
    replicas,
    eviction,
    persistence,
    clock,
    clients,
    index,
    leftovers,
    summary,
)

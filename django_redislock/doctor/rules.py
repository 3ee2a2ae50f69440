"""What is wrong with a server, by what was seen of it. One rule, one function."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import NamedTuple

from . import permissions
from .facts import Server
from .finding import Finding, listed

OLDEST = (6, 2)
NEWEST_REDIS = 8
"""The newest major version that is supported."""
SKEW = 1.0
"""Seconds by which clocks may differ: cron starts jobs by the second."""
FULL = 0.8
"""Of the clients that a server takes."""


class Told(NamedTuple):
    """By a rule; `judge` knows the rest of a finding."""

    number: str
    message: str
    hint: str


Rule = Callable[[Server], Iterator[Told]]


def judge(server: Server) -> Iterator[Finding]:
    where = f"Node {server.node}: " if server.node else ""
    for rule in RULES:
        for number, message, hint in rule(server):
            yield Finding(
                id=f"redislock.{number}",
                message=f"{where}{message}",
                hint=hint,
                alias=server.alias,
            )


def _some(replicas: int) -> str:
    return f"{replicas or 'no'} replica{'s' * (replicas != 1)}"


def _version(server: Server) -> tuple[str, tuple[int, ...]]:
    """As text and as numbers; empty: it is not known."""
    text = str(server.info.get("redis_version", ""))
    return text, tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


def version(server: Server) -> Iterator[Told]:
    text, numbers = _version(server)
    if numbers and numbers < OLDEST:
        yield Told(
            "E102",
            f"The server is Redis {text}; locks need 6.2 or later.",
            "Upgrade it, to Redis 6.2–8 or Valkey.",
        )
    elif numbers and numbers[0] > NEWEST_REDIS and "valkey_version" not in server.info:
        yield Told(
            "W110",
            f"The server is Redis {text}, which is newer than any that is supported yet.",
            "Look for a newer django-redislock: python -m pip install -U django-redislock",
        )


def role(server: Server) -> Iterator[Told]:
    if server.info.get("role", "master") != "master":
        where = f"{server.info.get('master_host')}:{server.info.get('master_port')}"
        yield Told(
            "E103",
            f"The server is a replica of {where}; locks live on the primary.",
            f'"LOCATION": "redis://{where}/0", or that of Sentinel',
        )


def cluster(server: Server) -> Iterator[Told]:
    if server.info.get("cluster_enabled") and not server.node:
        yield Told(
            "E104",
            f"The server is a node of a Redis Cluster, and CACHES[{server.alias!r}] takes it for "
            f"all of it: other nodes have most of the locks.",
            '"OPTIONS": {"CONNECTION_FACTORY": '
            '"django_redislock.cluster.ClusterConnectionFactory"}',
        )


def allowed(server: Server) -> Iterator[Told]:
    if server.refused.rules:
        # Up to 6.2, a user may use all channels unless somebody has taken that back.
        restricted = any(rule.startswith("&") for rule in server.refused.rules)
        channels = restricted or not (0,) < _version(server)[1] < (7,)
        yield Told(
            "E105",
            f"The Redis user {server.user} may not do what locks do. Missing: "
            f"{' '.join(server.refused.rules)}",
            permissions.acl_rule(server.user, server.prefix, server.unneeded, channels=channels),
        )
    if server.refused.unknown:
        yield Told(
            "E106",
            f"The server does not know {', '.join(server.refused.unknown)}: renamed, switched "
            f"off, or it is no Redis.",
            "Remove rename-command from its configuration for: "
            f"{' '.join(server.refused.unknown)}",
        )


def replicas(server: Server) -> Iterator[Told]:
    if "connected_slaves" not in server.info:
        return
    connected = int(server.info["connected_slaves"])
    if server.replicas > connected:
        yield Told(
            "E107",
            f"REPLICAS is {server.replicas}, and the server has {_some(connected)}: no such "
            f"lock can be acquired.",
            f'"REPLICAS": {connected}, or connect more of them',
        )
    elif connected and not server.replicas:
        yield Told(
            "W103",
            f"The server has {_some(connected)}, and REPLICAS is 0: after a failover the new "
            f"primary may not know a lock, and two hold it.",
            'REDISLOCK = {"REPLICAS": 1}',
        )
    # Redis tells this number only where the option is set.
    if connected and "min_slaves_good_slaves" not in server.info:
        yield Told(
            "W104",
            "An old primary that is cut off from its replicas goes on granting locks, since "
            "min-replicas-to-write is 0.",
            "CONFIG SET min-replicas-to-write 1",
        )


def eviction(server: Server) -> Iterator[Told]:
    policy = server.info.get("maxmemory_policy", "noeviction")
    limit = int(server.info.get("maxmemory", 0))
    if limit and policy != "noeviction":
        # volatile-* as well: all locks have a TTL.
        yield Told(
            "W101",
            f"When its memory of {limit / 2**20:.0f} MiB is full, the server drops keys "
            f"({policy}), locks that are held among them.",
            "CONFIG SET maxmemory-policy noeviction; where a cache needs eviction, give locks a "
            "server of their own, and name it in REDISLOCK['USING'].",
        )


def persistence(server: Server) -> Iterator[Told]:
    if server.save == "" and not server.info.get("aof_enabled", 1):
        yield Told(
            "W102",
            "The server saves nothing: when it restarts, all locks are free at once, and the "
            "order of waiting is lost. Fencing tokens still grow, by its clock.",
            "CONFIG SET appendonly yes; and write appendonly yes into its configuration, too",
        )


def clock(server: Server) -> Iterator[Told]:
    if abs(server.skew) > SKEW:
        which = "ahead of" if server.skew > 0 else "behind"
        yield Told(
            "W105",
            f"The clock of the server is at least {abs(server.skew):.1f} s {which} that of this "
            f"host. Leases don't mind; what is started by the clock, and times that people read, "
            f"do.",
            "Let chrony or systemd-timesyncd set the clocks of both: timedatectl set-ntp true",
        )


def clients(server: Server) -> Iterator[Told]:
    most = int(server.info.get("maxclients", 0))
    now = int(server.info.get("connected_clients", 0))
    if most and now > FULL * most:
        yield Told(
            "W106",
            f"The server has {now} clients, and takes {most}: soon nobody can connect.",
            f"CONFIG SET maxclients {2 * most}; and look for clients that nobody needs: "
            f"CLIENT LIST",
        )


def index(server: Server) -> Iterator[Told]:
    if server.keys.gone:
        yield Told(
            "W107",
            f"Locks that should still be held are not there: "
            f"{listed([repr(name) for name in server.keys.gone])}. They were evicted, or "
            f"somebody deleted their keys.",
            "Clear locks with manage.py redislock clear NAME, which tells their holders; and see "
            "redislock.W101. The index forgets such a name a minute after its lease would have "
            "ended.",
        )
    if server.keys.unlisted:
        yield Told(
            "W108",
            f"Locks are held that the index does not list: "
            f"{listed([repr(name) for name in server.keys.unlisted])}. Somebody deleted it, or "
            f"restored old data.",
            "Renewal enters them again; wait for a third of their ttl.",
        )


def leftovers(server: Server) -> Iterator[Told]:
    if server.keys.endless:
        # As it can be pasted, also from a terminal that can't show any bytes.
        shown = [key for key in server.keys.endless if key.isprintable()][:3]
        words = shlex.join(["redis-cli", "-n", str(server.db), "DEL", *(shown or ["KEY"])])
        yield Told(
            "W109",
            f"Keys of ours have no TTL and stay for ever: "
            f"{listed([repr(key) for key in server.keys.endless])}.",
            f"A lock that is held gets its TTL back at its next renewal. What is still here after "
            f"a minute: {words}",
        )


def summary(server: Server) -> Iterator[Told]:
    info = server.info
    parts = []
    if info:
        kind = "Valkey" if "valkey_version" in info else "Redis"
        parts += [f"{kind} {info.get('valkey_version', info.get('redis_version'))}"]
    parts += [f"a round trip takes {server.round_trip * 1000:.1f} ms"]
    if info:
        parts += [f"clients: {info.get('connected_clients')} of {info.get('maxclients', '?')}"]
        parts += [f"replicas: {info.get('connected_slaves')}"]
    text = ", ".join(parts)
    yield Told("I101", f"{text[0].upper()}{text[1:]}.", "")
    if server.unseen:
        yield Told(
            "I102",
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

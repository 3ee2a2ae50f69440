"""The rules about a server, by the facts about it: each is an `if` and its finding. And all
findings, for the system checks and for `manage.py redislock doctor`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain

from ..base.servers import MEMORY
from ..inspection.words import duration
from ..primitives import scripts
from ..settings.conf import aliases
from . import vendors
from .caches import advice, alias_findings, at, in_memory
from .finding import Finding, Level, changed, into_cache, into_redislock, joined, listed
from .server import ServerFacts, Unreachable, acl_rules, ask
from .settings import job_findings, settings_findings, usage_findings

SKEW = 1.0
"""Seconds by which clocks may differ. cron starts jobs to the second."""
FULL = 0.8
"""The share of `maxclients` from which on a server counts as full."""


_FACTORY = "django_redislock.cluster.ClusterConnectionFactory"


def judge(server: ServerFacts) -> Iterator[Finding]:
    """Apply all rules to the facts about a server."""
    where = f"Node {server.node}: " if server.node else ""
    all_rules = (_server, _permissions, _messages, _replicas, _operation, _keys, _tasks, _summary)
    for finding in chain.from_iterable(rules(server) for rules in all_rules):
        yield replace(finding, message=f"{where}{finding.message}", alias=server.alias)


def _some(replicas: int) -> str:
    return f"{replicas or 'no'} replica{'s' * (replicas != 1)}"


def _at_most(replicas: int) -> str:
    return changed("REPLICAS", lambda its: min(its, replicas))


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version. Empty: it is unknown."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def _server(server: ServerFacts) -> Iterator[Finding]:
    engine = vendors.engine_of(server.vendor, server.info)
    text = str(server.info.get(engine.version, ""))
    numbers = _numbers(text)
    if numbers and numbers < engine.oldest:
        yield Finding(
            "redislock.E102",
            f"The server is {engine.name} {text}; locks need 6.2 or later.",
            "Upgrade it, to Redis 6.2–8 or Valkey.",
        )
    elif numbers and engine.newest and numbers[0] > engine.newest:
        yield Finding(
            "redislock.W110",
            f"The server is {engine.name} {text}, which is newer than all that were tested.",
            "python -m pip install -U django-redislock",
        )
    if server.active_active:
        yield Finding(
            "redislock.E108",
            "The server is one of several that accept writes and merge them later "
            "(active-active): two callers can hold one lock, each at another server. All locks "
            "have to use one.",
            "CONFIG SET active-replica no"
            if server.vendor == vendors.KEYDB
            else "Give locks a database that is not Active-Active, for the callers of all regions",
        )
    if server.info.get("role", "master") not in ("master", "active-replica"):
        where = f"{server.info.get('master_host')}:{server.info.get('master_port')}"
        yield Finding(
            "redislock.E103",
            f"The server is a replica of {where}; locks live on the primary.",
            joined(
                [into_cache(server.alias, {"LOCATION": at(server.alias, where)})], "or Sentinel"
            ),
        )
    if server.info.get("cluster_enabled") and not server.has_all_slots:
        yield Finding(
            "redislock.E104",
            f"The server is a node of a Redis Cluster, and CACHES[{server.alias!r}] uses it as a "
            f"single server: most locks belong on other nodes.",
            joined(
                [into_cache(server.alias, {"CONNECTION_FACTORY": _FACTORY}, "OPTIONS")],
                "or, if the service has one address for all slots, write that into LOCATION",
            ),
        )


def _permissions(server: ServerFacts) -> Iterator[Finding]:
    if server.refused.rules:
        # Up to 6.2, a user may use all channels unless an administrator revoked that.
        restricted = any(rule.startswith("&") for rule in server.refused.rules)
        compatible = _numbers(str(server.info.get("redis_version", "")))
        channels = restricted or not (0,) < compatible < (7,)
        yield Finding(
            "redislock.E105",
            f"The Redis user {server.user} lacks permissions that locks need"
            f"{_scripts(server.refused.rules)}. Missing: {' '.join(server.refused.rules)}",
            server.vendor.allows(
                server.user,
                acl_rules(server.prefix, server.unneeded, channels=channels),
            ),
        )
    if server.refused.optional:
        yield Finding(
            "redislock.I105",
            f"The Redis user {server.user} lacks permissions with which locks would do better: a "
            f"holder would be told at once that its lease is lost, or a killed waiter would cost "
            f"the next one nothing. Missing: {' '.join(server.refused.optional)}",
            server.vendor.allows(server.user, " ".join(server.refused.optional)),
        )
    if server.refused.unknown:
        yield Finding(
            "redislock.E106",
            f"The server does not know {', '.join(server.refused.unknown)}: renamed, switched "
            f"off, or it is not Redis{_scripts(server.refused.unknown)}.",
            _restore(server),
        )


def _scripts(missing: Iterable[str]) -> str:
    """Return why a command that runs scripts is needed."""
    return f"; {scripts.NEEDED}" if "eval" in " ".join(missing).lower() else ""


def _restore(server: ServerFacts) -> str:
    unknown = server.refused.unknown
    if unknown == ("WAIT",):
        return _at_most(0)
    if server.vendor.name and server.vendor != vendors.KEYDB:
        return f"Ask {server.vendor.name} for them, or give locks another server"
    return f"Remove rename-command from its configuration for: {' '.join(unknown)}"


def _messages(server: ServerFacts) -> Iterator[Finding]:
    its = server.messages
    # Without sharded pub/sub, locks on a sharded server send plain messages.
    refused = "nknown" in its.get("spublish", "") or "+ssubscribe" in server.refused.optional
    sharded = server.sharded and not refused
    sending = its.get("spublish" if sharded else "publish")
    asking = its.get("shardnumsub" if sharded else "numsub")
    if sending:
        late = server.missed_wakeups
        missed = f" Handovers that were late so far: {late}." if late else ""
        yield Finding(
            "redislock.W111",
            "A script can't send messages (PUBLISH, SPUBLISH), so no waiter of another process "
            "is told that it was handed a lock. It finds out by asking: a handover takes 0.4 s on "
            f"average, and up to 0.9 s, instead of a few ms.{missed} The server says: {sending}",
            "See redislock.E105"
            if "+publish" in server.refused.rules
            else "Give locks a server whose scripts may run PUBLISH, or SPUBLISH (Redis 7)",
        )
    elif asking and sharded == server.sharded:
        yield Finding(
            "redislock.W112",
            "A script can't ask who listens (PUBSUB), so a waiter that was killed keeps the lock "
            f"from the next one for up to a second. The server says: {asking}",
            "See redislock.E105"
            if "+pubsub" in server.refused.rules
            else "Give locks a server whose scripts may run PUBSUB",
        )


def _replicas(server: ServerFacts) -> Iterator[Finding]:
    if "connected_slaves" not in server.info:
        return
    connected = int(server.info["connected_slaves"])
    if server.replicas > connected:
        yield Finding(
            "redislock.E107",
            f"REPLICAS is {server.replicas}, and the server has {_some(connected)}: no lock with "
            f"this setting can be acquired.",
            joined([_at_most(connected)], "or connect more of them"),
        )
    elif connected and not server.replicas and not server.vendor.durable:
        yield Finding(
            "redislock.W103",
            f"The server has {_some(connected)}, and REPLICAS is 0: after a failover the new "
            f"primary may not know a lock, so two may hold it.",
            into_redislock(REPLICAS=1),
        )
    # INFO has this number only if the option is set.
    unguarded = "min_slaves_good_slaves" not in server.info and not server.vendor.durable
    if connected and unguarded:
        yield Finding(
            "redislock.W104",
            "min-replicas-to-write is 0: an old primary that is cut off from its replicas "
            "continues to grant locks.",
            server.vendor.sets("min-replicas-to-write", 1),
        )


def _operation(server: ServerFacts) -> Iterator[Finding]:
    policy = server.info.get("maxmemory_policy", "noeviction")
    limit = int(server.info.get("maxmemory", 0))
    if limit and policy != "noeviction":
        # volatile-* is as bad: all locks have a TTL.
        yield Finding(
            "redislock.W101",
            f"When its memory of {limit / 2**20:.0f} MiB is full, the server drops keys "
            f"({policy}), including locks that are held. A cache that needs eviction belongs on "
            f"another server than locks.",
            server.vendor.sets("maxmemory-policy", "noeviction"),
        )
    if server.save == "" and not server.info.get("aof_enabled", 1):
        yield Finding(
            "redislock.W102",
            "The server saves nothing to disk: when it restarts, all locks are free at once, and "
            "the order of waiters is lost. Fencing tokens still grow, by its clock. Its "
            'configuration file needs the setting in the hint as well; "AFTER_LOSS": "wait" lets '
            "holders keep their locks.",
            server.vendor.sets("appendonly", "yes"),
        )
    if abs(server.skew) > SKEW:
        which = "ahead of" if server.skew > 0 else "behind"
        yield Finding(
            "redislock.W105",
            f"The clock of the server is at least {abs(server.skew):.1f} s {which} that of this "
            f"host. Leases are not affected; jobs that the clock starts, and times that people "
            f"read, are. Let chrony or systemd-timesyncd set both.",
            "timedatectl set-ntp true",
        )
    most = int(server.info.get("maxclients", 0))
    now = int(server.info.get("connected_clients", 0))
    if most and now > FULL * most:
        yield Finding(
            "redislock.W106",
            f"The server has {now} clients, and its limit is {most}: soon nobody can connect. "
            f"CLIENT LIST shows those that are idle.",
            server.vendor.sets("maxclients", 2 * most),
        )


def _keys(server: ServerFacts) -> Iterator[Finding]:
    if server.keys.gone:
        yield Finding(
            "redislock.W107",
            f"Locks are missing that should still be held: {listed(server.keys.gone)}. They were "
            f"evicted (see redislock.W101), or their keys were deleted; `manage.py redislock "
            f"clear` would have told their holders.",
            "The index drops such a name a minute after its lease would have ended.",
        )
    if server.keys.unlisted:
        yield Finding(
            "redislock.W108",
            f"The index does not list these locks, which are held: "
            f"{listed(server.keys.unlisted)}. It was deleted, or old data was restored.",
            "Wait for a third of their ttl: renewal adds them again.",
        )
    if server.keys.endless:
        # Only keys that a terminal can show, so that the command can be pasted.
        shown = [key for key in server.keys.endless if key.isprintable()][:3] or ["KEY"]
        if server.node:  # it has one database, and the keys are in several slots
            words = "; ".join(shlex.join(["redis-cli", "-c", "DEL", key]) for key in shown)
        else:
            words = shlex.join(["redis-cli", "-n", str(server.db), "DEL", *shown])
        yield Finding(
            "redislock.W109",
            f"Keys with the prefix {server.prefix!r} have no TTL and never expire: "
            f"{listed(server.keys.endless)}. The next renewal gives a lock its TTL back; those "
            f"that remain after a minute can be deleted.",
            words,
        )
    if server.unreadable_clocks:
        times = "once" if server.unreadable_clocks == 1 else f"{server.unreadable_clocks} times"
        yield Finding(
            "redislock.W113",
            f"The last fencing token could not be read ({times}), and the server's clock took its "
            f"place: rows that have seen larger tokens refuse every new lease.",
            "For each model with a fencing token: manage.py redislock fence NAME "
            "--model=APP.MODEL --yes",
        )


def _tasks(server: ServerFacts) -> Iterator[Finding]:
    if server.stuck:
        oldest = max((one.first.age or 0.0 for one in server.stuck if one.first), default=None)
        since = "" if oldest is None else f", the first for {duration(oldest)}"
        yield Finding(
            "redislock.W114",
            f"Tasks of {listed([one.name for one in server.stuck])} wait{since}, and none of "
            f"their name runs that would let them go on. The workers of those before them were "
            f"killed, and no call and no sweep came since then. `manage.py runperiodic` sweeps "
            f"once a minute.",
            f"manage.py redislock sweep --using={shlex.quote(server.alias)}",
        )


def _after_loss(server: ServerFacts) -> str:
    if server.after_loss == "go":
        return "AFTER_LOSS: go"
    if server.guard is None:
        return "AFTER_LOSS: wait (no guard: from the first acquire on, new locks wait for a ttl)"
    since = datetime.fromtimestamp(server.guard, UTC)
    return f"AFTER_LOSS: wait (nothing was lost since {since:%Y-%m-%d %H:%M:%S} UTC)"


def _summary(server: ServerFacts) -> Iterator[Finding]:
    info = server.info
    parts: list[str] = [*filter(None, [vendors.described(server.vendor, info)])]
    parts += [f"a round trip takes {server.round_trip * 1000:.1f} ms"]
    if info:
        parts += [f"clients: {info.get('connected_clients')} of {info.get('maxclients', '?')}"]
        parts += [f"replicas: {info.get('connected_slaves')}"]
    if server.missed_wakeups:
        parts += [f"handovers that no message announced: {server.missed_wakeups}"]
    parts += [_after_loss(server)]
    text = ", ".join(parts)
    yield Finding("redislock.I101", f"{text[0].upper()}{text[1:]}.", "")
    if server.unseen:
        yield Finding(
            "redislock.I102",
            f"Not seen: {'; '.join(server.unseen)}.",
            server.vendor.allows(server.user, "+info +config|get")
            if server.vendor == vendors.SOMEBODY
            else "",
        )


# All findings.


UNREACHABLE = "redislock.E101"


def all_findings(using: Iterable[str] | None = None) -> Iterator[Finding]:
    """Return the findings about the settings, the jobs and the servers of these aliases; by
    default, of all that locks use."""
    found = list(settings_findings())
    yield from found
    if None not in _broken(found):
        yield from job_findings()
        yield from usage_findings()
    yield from deployment_findings(using)


def deployment_findings(using: Iterable[str] | None = None) -> Iterator[Finding]:
    """Return the findings that need a deployed project: each server is asked."""
    broken = _broken(settings_findings())
    if None in broken:
        return  # with wrong settings it is unclear which servers to ask
    used = aliases()
    for alias in dict.fromkeys(using or used):
        wrong = [] if alias in used else [*alias_findings(alias)]
        yield from wrong
        if alias == MEMORY and not wrong and alias not in broken:
            yield in_memory()
        elif not wrong and alias not in broken:
            yield from advice(alias)
            yield from server_findings(alias)


def server_findings(alias: str, *, thorough: bool = True) -> Iterator[Finding]:
    """Return the findings about the servers of an alias, after asking them as `ask` does."""
    try:
        servers = ask(alias, thorough=thorough)
    except Unreachable as error:
        hint = f'Check that it runs, and the address, user and password in CACHES["{alias}"].'
        yield Finding(UNREACHABLE, str(error), hint, alias)
    else:
        for server in servers:
            yield from judge(server)


def _broken(findings: Iterable[Finding]) -> set[str | None]:
    """Return the aliases that can't be used. None stands for the settings."""
    return {finding.alias for finding in findings if finding.level == Level.ERROR}

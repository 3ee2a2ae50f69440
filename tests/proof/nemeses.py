"""What is done to the processes and the server, and what is promised for each kind of lock.

The table is written before anything runs, and the judges read it: docs/proof.md shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.peers.adapters import Peer, Pottery, PythonRedisLock, RedisPy

from .deeds import RULES, Limited, Notes, Once, Ticks, Unique
from .kinds import KINDS, Majority, Mutex, WaitingMutex


@dataclass(frozen=True, eq=False)
class Nemesis:
    """One kind of harm, as changes of the arena's plan."""

    name: str
    does: str
    """One sentence of docs/proof.md."""
    harm: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    """How long a run has to be, if it takes longer than others."""

    @property
    def lossy(self) -> bool:
        """Whether a process may not hear of what the server has done."""
        return "lost" in self.harm or "outage" in self.harm


KILL = Nemesis("kill", "SIGKILL to a process that asks for the lock or holds it.", {"kills": 0.25})
STOP = Nemesis(
    "stop",
    "SIGSTOP to such a process, for between a quarter of its lease and two and a half of them.",
    {"stops": 0.2},
)
LOSE = Nemesis(
    "lost reply",
    "The server carries a command out, and its answer gets lost: with a reset, or in silence.",
    {"lost": 0.05},
)
RESTART = Nemesis(
    "restart",
    "The server is killed with SIGKILL and started again with its data (`appendfsync always`).",
    {"outage": "restart"},
)
PAUSE = Nemesis(
    "server stop",
    "SIGSTOP to the server for up to half a second, so that requests are carried out late.",
    {"outage": "pause"},
)
TOGETHER = Nemesis(
    "all at once",
    "Kills, stops, lost replies and restarts, half as often.",
    {"kills": 0.12, "stops": 0.1, "lost": 0.025, "outage": "restart", "every": 1.2},
)
EMPTY = Nemesis(
    "empty restart",
    "The server is killed and comes back without its data.",
    {"outage": "empty", "long": 0.3},
)
OLD_FILE = Nemesis(
    "old file",
    "The server is killed and comes back with its append-only file of up to half a second before,"
    " as after a power failure with `appendfsync everysec`.",
    {"outage": "old_file", "long": 0.1},
)
FORWARD = Nemesis(
    "clock forward",
    "The server's clock is set forward by up to half a second, by libfaketime.",
    {"outage": "clock_forward", "long": 0.1},
)
BACK = Nemesis(
    "clock back", "The same, and it is set back.", {"outage": "clock_back", "long": 0.1}
)
# A lease has to outlast the failover.
_FAILOVER = {"outage": "failover", "every": 1.0, "lease": 4.0, "long": 0.0}
FAILOVER = Nemesis(
    "failover",
    "The replica is cut off, the primary is killed up to 0.5 s later, and Sentinel promotes"
    " the replica.",
    _FAILOVER,
    seconds=8.0,
)
CONFIRMED = Nemesis(
    "failover, `REPLICAS`",
    "The same, and locks have `REPLICAS: 1`.",
    {**_FAILOVER, "settings": {"REPLICAS": 1}},
    seconds=8.0,
)
_PROMOTION = {**_FAILOVER, "outage": "promotion"}
PROMOTION = Nemesis(
    "failover in a cluster",
    "The primary of the lock is killed, and its replica takes over (`CLUSTER FAILOVER TAKEOVER`).",
    _PROMOTION,
    seconds=8.0,
)
MOVE = Nemesis(
    "slot moves",
    "The slot of the lock moves to another node of a cluster, with all that is in it.",
    {"outage": "move", "lease": 1.0, "long": 0.004},
    seconds=4.0,
)
SLOW = Nemesis(
    "slow member",
    "One of three servers answers later than a `Redlock` waits for it, for up to 0.8 s.",
    {"outage": "slow"},
)
SLOW_MAJORITY = Nemesis(
    "slow majority", "The same, and there are two of them.", {"outage": "slow_majority"}
)


@dataclass(frozen=True, eq=False)
class Promise:
    """What a kind of lock promises under a nemesis: no violation, unless it says why not."""

    nemesis: Nemesis
    kind: type[Peer]
    breaks: frozenset[str] = frozenset()
    """The rules that may be broken."""
    why: str = ""


LOSES = frozenset({"exclusive", "linearizable", "starved"})
"""Locks that are forgotten are granted again; so are places in the queue."""

LASTS = frozenset({"linearizable", "starved", "left"})
"""A lock is refused although nobody holds it any more."""

AGAIN = frozenset({"again"})

FORGETS = frozenset({"exclusive", "again", "skipped", "inherited"})
"""What is done is done again, and notes, claims and parked tasks are lost."""

NO_TOKEN = frozenset({"fence", "starved"})
"""What Redlock does not promise: it has no fencing token, and serves waiters in no order."""

PLAIN = (KILL, STOP, LOSE, RESTART, PAUSE, TOGETHER)
SINGLE = (*KINDS, WaitingMutex)
TASKS = (Unique, Limited)
"""The kinds with one primary."""

_TOKENS = "only late writes and passed waiters: no fencing token, no queue"
_FILE = "what is not in the file is forgotten"
_REPLICA = "what the replica has not heard is free"

PROMISES = (
    *(Promise(nemesis, kind) for kind in SINGLE for nemesis in PLAIN),
    *(Promise(EMPTY, kind, LOSES, "what the server has forgotten is free") for kind in KINDS),
    Promise(EMPTY, WaitingMutex),
    *(Promise(OLD_FILE, kind, LOSES, _FILE) for kind in SINGLE),
    *(Promise(FORWARD, kind, LOSES, "leases end early") for kind in SINGLE),
    *(Promise(BACK, kind, LASTS, "leases live longer") for kind in SINGLE),
    *(Promise(FAILOVER, kind, LOSES, _REPLICA) for kind in SINGLE),
    *(Promise(CONFIRMED, kind) for kind in SINGLE),
    *(Promise(PROMOTION, kind, LOSES, _REPLICA) for kind in KINDS),
    *(Promise(MOVE, kind) for kind in KINDS),
    *(Promise(nemesis, Majority, NO_TOKEN, _TOKENS) for nemesis in (*PLAIN, SLOW, SLOW_MAJORITY)),
    Promise(EMPTY, Majority, LOSES | NO_TOKEN, "a server that forgets gives its vote twice"),
    Promise(OLD_FILE, Majority, LOSES | NO_TOKEN, _FILE),
    *(Promise(nemesis, Once) for nemesis in (KILL, STOP)),
    *(
        Promise(nemesis, Once, AGAIN, "done again if Redis did not hear in time that it was done")
        for nemesis in (LOSE, RESTART, PAUSE, TOGETHER)
    ),
    *(Promise(nemesis, kind) for kind in (Ticks, Notes, *TASKS) for nemesis in PLAIN),
    *(Promise(EMPTY, kind, FORGETS, "what was done is forgotten") for kind in RULES),
)

NOT_RUN = {(nemesis, WaitingMutex): "refused with a `ValueError`" for nemesis in (PROMOTION, MOVE)}
"""What the table says where there is no promise, and it is not "not run"."""

PEERS = tuple(
    Promise(nemesis, peer)
    for peer in (Mutex, RedisPy, PythonRedisLock, Pottery)
    for nemesis in (KILL, STOP, LOSE, RESTART)
)
"""What this mutex promises, asked of other libraries as well."""

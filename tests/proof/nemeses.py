"""What is done to the processes and the server, and what is promised for each kind of lock.

The table is written before anything runs, and the judges read it: docs/proof.md shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.peers.adapters import Ours

from .kinds import KINDS, Majority, WaitingMutex


@dataclass(frozen=True, eq=False)
class Nemesis:
    """One kind of harm, as changes of the arena's plan."""

    name: str
    does: str
    """One sentence of docs/proof.md."""
    harm: Mapping[str, Any] = field(default_factory=dict)


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
    {"restarts": 0.6},
)
PAUSE = Nemesis(
    "server stop",
    "SIGSTOP to the server for up to half a second, so that requests are carried out late.",
    {"pauses": 0.6},
)
TOGETHER = Nemesis(
    "all at once",
    "Kills, stops, lost replies and restarts, half as often.",
    {"kills": 0.12, "stops": 0.1, "lost": 0.025, "restarts": 1.2},
)
EMPTY = Nemesis(
    "empty restart",
    "The server is killed and comes back without its data.",
    {"restarts": 0.6, "keeps": False, "long": 0.3},
)


@dataclass(frozen=True, eq=False)
class Promise:
    """What a kind of lock promises under a nemesis: no violation, unless it says why not."""

    nemesis: Nemesis
    kind: type[Ours]
    breaks: frozenset[str] = frozenset()
    """The rules that may be broken."""
    why: str = ""


LOSES = frozenset({"exclusive", "linearizable", "starved"})
"""Locks that are forgotten are granted again; so are places in the queue."""

NO_TOKEN = frozenset({"fence", "starved"})
"""What Redlock does not promise: it has no fencing token, and serves waiters in no order."""

PROMISES = (
    *(
        Promise(nemesis, kind)
        for kind in KINDS
        for nemesis in (KILL, STOP, LOSE, RESTART, PAUSE, TOGETHER)
    ),
    *(Promise(EMPTY, kind, LOSES, "what the server has forgotten is free") for kind in KINDS),
    Promise(EMPTY, WaitingMutex),
    *(
        Promise(
            nemesis,
            Majority,
            NO_TOKEN,
            "only late writes and passed waiters: no fencing token, no queue",
        )
        for nemesis in (KILL, STOP, LOSE, RESTART, PAUSE, TOGETHER)
    ),
    Promise(EMPTY, Majority, LOSES | NO_TOKEN, "a server that forgets gives its vote twice"),
)

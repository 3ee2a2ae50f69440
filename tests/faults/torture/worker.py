"""A process that takes the lock again and again, and writes down what it saw."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django_redislock.base.clock import now
from tests.peers.adapters import Held, NotOurs, Peer

from .history import Journal
from .register import Writer
from .site import LONG

NAME = "torture"


@dataclass(frozen=True)
class Task:
    """What all workers of a run are told."""

    peer: type[Peer]
    url: str
    timeout: float
    """Seconds after which a connection gives up on an answer."""
    journal: Path
    register: Path
    lease: float
    section: tuple[float, float]
    """Seconds that a section lasts, at least and at most."""
    long: float
    """The share of sections that last for several leases, and need renewals."""
    waits: tuple[int, int, int]
    """How often they wait for as long as it takes, try once, and give up soon."""
    until: float
    """When to begin no more rounds, on the common clock."""
    seed: int
    settings: Mapping[str, Any]
    """`REDISLOCK`."""


def work(task: Task, who: str) -> None:
    """Go round until the time is up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the arena, which ends us
    worker = _Worker(task, who)
    while now() < task.until or worker.owes():
        worker.round()


def take_once(
    peer: type[Peer], url: str, ttl: float, settings: Mapping[str, Any], directory: Path
) -> None:
    """Take the whole lock when nobody else wants it, and give it back."""
    mode = max(peer.modes, key=lambda mode: peer.modes[mode])
    held = _connect(peer, url, None, settings, directory).acquire_as(mode, NAME, ttl, 5)
    assert held is not None
    with suppress(NotOurs):  # it took longer than the ttl
        held.release()


def _connect(
    peer: type[Peer], url: str, timeout: float | None, its: Mapping[str, Any], directory: Path
) -> Peer:
    connected = peer(url, timeout=timeout)
    connected.directory = directory
    if its:
        from django.conf import settings

        settings.REDISLOCK = its
    return connected


class _Worker:
    def __init__(self, task: Task, who: str) -> None:
        self._task = task
        self._dice = random.Random(f"{task.seed} {who}")
        self._journal = Journal(task.journal, who)
        self._writer = Writer(task.register, who)
        directory = task.journal.parent
        self._peer = _connect(task.peer, task.url, task.timeout, task.settings, directory)
        self.owes = self._peer.owes
        self._number = 0

    def round(self) -> None:
        """Ask for the lock, and with it, go through the section."""
        self._number += 1
        [wait] = self._dice.choices([None, 0, 1.5 * self._task.lease], self._task.waits)
        mode = self._dice.choice(list(self._peer.modes))
        self._alone = self._peer.modes[mode] == self._peer.places
        self._journal.write(
            "ask",
            number=self._number,
            patient=wait is None,
            waits=wait != 0,
            places=self._peer.modes[mode],
            **self._peer.about(),
        )
        try:
            held = self._peer.acquire_as(mode, NAME, self._task.lease, wait)
        except Exception as error:
            self._journal.write("failed", error=type(error).__name__)
            held = None
        else:
            if held is not None:
                self._journal.write(
                    "granted",
                    at=now(),
                    number=self._number,
                    token=held.fencing_token,
                    ends=held.ends(),
                    **held.about(),
                )
                self._section(held)
                return
            self._journal.write("refused")
        time.sleep(self._dice.uniform(*self._task.section))

    def _section(self, held: Held) -> None:
        """Write at the beginning and at the end, and never ask whether the lock is still ours:
        what comes late is for the register to refuse."""
        self._write(held)
        held.work(self._journal.write)
        time.sleep(self._length())
        self._journal.write("step", ends=held.ends())
        self._write(held)
        self._journal.write("give")
        try:
            held.release()
        except NotOurs:
            self._journal.write("lost")
        except Exception as error:
            self._journal.write("unsure", error=type(error).__name__)
        else:
            self._journal.write("released")

    def _write(self, held: Held) -> None:
        """Only who is alone writes: the others' tokens say nothing of whose turn it is."""
        if self._alone:
            self._writer.write(self._number, held.fencing_token)

    def _length(self) -> float:
        """Most sections are much shorter than the lease: only a renewed one could be longer."""
        if self._task.journal.with_name(LONG).exists():
            return self._dice.uniform(0.75, 1.25) * self._task.lease
        if self._task.peer.renews and self._dice.random() < self._task.long:
            return self._dice.uniform(1, 3) * self._task.lease
        return self._dice.uniform(*self._task.section)

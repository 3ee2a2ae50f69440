"""What tasks say: events in a stream of the broker's Redis, in the order in which they happened.

Tasks call `work()`; tests read with `Log`, and open gates.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

from redis import Redis

from tests.waiting import PATIENCE

BROKER = "REDISLOCK_TEST_BROKER"
"""The variable with the URL of the broker's Redis: database 0, where the events are."""
WORKER = "REDISLOCK_TEST_WORKER"
"""The variable with the number of the worker that a task runs in."""
STREAM = "events"
TRIES = 3
"""How often a flaky task is begun: it fails all times but the last."""


class Flaky(Exception):
    """What a flaky task raises."""


class Event(NamedTuple):
    at: int
    """Milliseconds of the server's clock."""
    what: str
    """`begin`, `end` or `fail`; `pause`: its worker can be killed now."""
    name: str
    """The name of the task."""
    pk: str
    item: int
    id: str
    """The id that the queue gives to the message."""
    pid: int
    worker: str


def broker_url(database: int = 0) -> str:
    url = os.environ[BROKER]
    assert url.endswith("db=0")
    return f"{url[:-1]}{database}"


@cache
def broker(database: int = 0) -> Redis:
    """A client of the broker's Redis. After a fork it makes connections of its own."""
    url = broker_url(database)
    return Redis.from_url(url, decode_responses=True, socket_timeout=2 * PATIENCE)


def processes_of(worker: str) -> str:
    """The set of the processes in which tasks of a worker run."""
    return f"processes:{worker}"


def say(event: Event) -> None:
    broker().xadd(STREAM, {key: str(value) for key, value in event._asdict().items()})


def work(name: str, pk: object, item: int, gate: bool, secs: float, id: str) -> None:
    """The body of all tasks: it lasts so many seconds, or until the test opens its gate."""
    redis, worker = broker(), os.environ.get(WORKER, "")

    def tell(what: str) -> None:
        say(Event(0, what, name, str(pk), item, id, os.getpid(), worker))

    redis.sadd(processes_of(worker), os.getpid())
    tell("begin")
    if gate:
        redis.blpop([f"gate:{pk}"], timeout=PATIENCE)
    time.sleep(secs)
    fails = name.startswith("flaky") and redis.incr(f"tries:{pk}:{item}") < TRIES
    # Its process may end now, and another one have its number.
    redis.srem(processes_of(worker), os.getpid())
    tell("fail" if fails else "end")
    if fails:
        raise Flaky(pk)


class Log:
    """The events since the test has begun."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        last = broker().xrevrange(STREAM, count=1)
        self._last: Any = last[0][0] if last else "0"

    def read(self, wait: float = 0) -> None:
        """Read what is new, or wait for it."""
        block = max(1, int(wait * 1000))
        for _, entries in broker().xread({STREAM: self._last}, block=block) or ():
            for self._last, fields in entries:
                fields["at"] = self._last.partition("-")[0]
                for number in ("at", "item", "pid"):
                    fields[number] = int(fields[number])
                self.events.append(Event(**fields))

    def now(self) -> int:
        """The server's clock, in milliseconds."""
        seconds, micro = broker().time()
        return int(seconds) * 1000 + int(micro) // 1000

    def of(self, what: str, pk: object = None, name: str | None = None) -> list[Event]:
        """The events so far of a kind, of a `pk` and of a task."""
        return [
            event
            for event in self.events
            if event.what == what and pk in (None, event.pk) and name in (None, event.name)
        ]

    def wait(
        self, what: str, pk: object = None, *, name: str | None = None, count: int = 1
    ) -> list[Event]:
        """Wait for so many events, and return all that are there."""
        give_up = time.monotonic() + PATIENCE
        while len(found := self.of(what, pk, name)) < count:
            left = give_up - time.monotonic()
            assert left > 0, f"no {count} × {what} {name or ''} {pk or ''} in {self.events}"
            self.read(left)
        return found

    def until(self, look: Callable[[], object], again: Callable[[], object] = int) -> None:
        """Read until there is something to see, and do something again each tenth of a second."""
        give_up = time.monotonic() + PATIENCE
        while not look():
            assert time.monotonic() < give_up, f"did not happen: {self.events}"
            again()
            self.read(0.1)

    def open(self, pk: object) -> None:
        """Let a task with a gate end, one that waits or that comes."""
        broker().rpush(f"gate:{pk}", "open")

    def most(self, pk: object) -> int:
        """How many tasks of a `pk` have run at the same time, at most."""
        return peak(event for event in self.events if event.pk == pk)


def peak(events: Iterable[Event]) -> int:
    """How many have run at the same time, at most. All of them have ended."""
    running, most = 0, 0
    for event in events:
        running += {"begin": 1, "pause": 0}.get(event.what, -1)
        most = max(most, running)
    return most

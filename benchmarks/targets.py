"""The targets of the project, and whether the recorded run met them.

A target that is missed is shown as missed, and nothing else happens: figures of time are facts
about a run, not about the code alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from devtools.pages import table

from . import crowd, uncontended
from . import kinds as of_kinds
from . import pairs as of_pairs
from .harness import Row, find, median, ratio
from .tables import WHERE, Record, conditions, parsers_of, ratio_within, rows_of


class Seen(NamedTuple):
    """One figure to which a target applies."""

    what: str
    bound: float
    measured: float
    where: str

    @property
    def excess(self) -> float:
        """The figure in relation to the target; above 1 the target is missed. A negative bound is
        a minimum; of a bound of zero it is the figure itself."""
        value = round(self.measured, 3)
        if self.bound == 0:
            return value
        return value / self.bound if self.bound > 0 else -self.bound / max(value, 1e-9)


ASYNCIO = {1: 0.7, 50: 0.3, 128: 0.25}
"""By the number of tasks."""


def text(record: Record, *figures: Iterator[Seen]) -> str:
    """Return the commit, the date and the machine; and a line for each target, with the worst
    figure, and where it occurred."""
    targets: dict[tuple[str, float], list[Seen]] = {}
    for some in figures:
        for seen in some:
            targets.setdefault((seen.what, seen.bound), []).append(seen)
    lines = [["target", "wanted", "worst", "where", "holds"]]
    for (what, bound), every in targets.items():
        worst = max(every, key=lambda seen: seen.excess)
        holding = sum(seen.excess <= 1 for seen in every)
        share = "everywhere" if len(every) > 1 else "yes"
        if holding < len(every):
            share = f"in {holding} of {len(every)}" if len(every) > 1 else "no"
        mark = "✓" if holding == len(every) else "✗"
        wanted = f"{'≤' if bound >= 0 else '≥'} {abs(bound):g}"
        lines.append([what, wanted, f"{worst.measured:.2f}", worst.where, f"{mark} {share}"])
    return f"{conditions(record)}\n\n{table(lines)}"


def free(record: Record) -> Iterator[Seen]:
    """The targets of `uncontended`."""
    ours, floor = uncontended.OURS, uncontended.FLOOR
    for hiredis in parsers_of(record):
        parser = "with hiredis" if hiredis else "without hiredis"
        for cores, place in WHERE.items():
            rows = rows_of(record, kind="sync", hiredis=hiredis, cores=cores)
            named = {row["contestant"]: row for row in rows}
            us, decorated = named[ours], named[f"{ours} as decorator"]
            plain, theirs = (0.95, 0.90) if cores == "two" else (0.80, 0.65)
            yield Seen(f"a free lock {place}, ÷ plain", plain, ratio(us, named[floor]), parser)
            slower = ratio(us, named["redis-py Lock"])
            yield Seen(f"a free lock {place}, ÷ redis-py's", theirs, slower, parser)
            where = f"{place}, {parser}"
            dropped_in = ratio(named[uncontended.DROP_IN], named["cache.lock"])
            yield Seen("the drop-in, ÷ `cache.lock`", 0.75, dropped_in, where)
            cpu = ratio(decorated, us, "client_cpu")
            yield Seen("client CPU of the decorator, ÷ that of a block", 1.05, cpu, where)
            yield Seen("round trips", 2, median(us, "round_trips"), where)
            for tasks in uncontended.TASKS:
                rows = rows_of(record, tasks=tasks, hiredis=hiredis, cores=cores)
                named = {row["contestant"]: row for row in rows}
                slower = ratio(named[ours], named["redis.asyncio Lock"])
                what = f"asyncio, {tasks} at a time, ÷ `redis.asyncio.Lock`"
                yield Seen(what, ASYNCIO[tasks], slower, where)


def crowded(record: Record) -> Iterator[Seen]:
    """The targets of `contended`."""
    rows = [row for row in record["rows"] if row["contestant"] == crowd.OURS]
    for us in rows:
        if us["case"].get("thinking") is False and us["case"]["kind"] != "lone":
            yield from _crowd(record, us)
    for us in rows:
        if us["case"].get("thinking"):
            yield from _speed(record, us, ", with time to think")
    if lone := find(rows, crowd.OURS, kind="lone"):
        turns = median(lone, "lone")
        yield Seen("one waiter beside 31 of another process, ÷ each of them", -0.9, turns, "")
    if gone := find(rows, crowd.OURS, kind="expiry"):
        late = median(gone, "late") * 1e3
        yield Seen("ms until a holder that is gone is succeeded", 10, late, "")


def _crowd(record: Record, us: Row) -> Iterator[Seen]:
    case = us["case"]
    where = f"{case['waiters']} {case['kind']}"
    yield from _speed(record, us, "")
    if peer := find(record["rows"], crowd.PEER, **case):
        handoff = ratio(us, peer, "handoff")
        yield Seen("handoff, ÷ python-redis-lock's", 1.0, handoff, where)
    floor = find(record["rows"], crowd.FLOOR, **case)
    if floor and (bound := crowd.HANDOFF.get((case["kind"], case["waiters"]))):
        yield Seen(f"handoff of {where}, ÷ BLPOP's", bound, ratio(us, floor, "handoff"), "")
    yield Seen("longest ÷ median wait", 2, ratio_within(us), where)
    yield Seen("Jain index", -0.99, median(us, "jain"), where)
    yield Seen("requests per section", 3, median(us, "requests"), where)
    # A thread or task has one command under way at a time, and so has each process of one thread.
    active = 1 if case["kind"] == "processes" else case["waiters"]
    spare = max(us["values"]["connections"]) - active
    yield Seen("connections of a process, less one for each that asks", 2, spare, where)


def _speed(record: Record, us: Row, how: str) -> Iterator[Seen]:
    case = us["case"]
    floor = find(record["rows"], crowd.FLOOR, **case)
    if floor:
        speed = ratio(us, floor, "sections_per_second")
        what = f"sections of {case['waiters']} waiters{how}, ÷ BLPOP's"
        yield Seen(what, -0.9, speed, case["kind"])


def kinds(record: Record) -> Iterator[Seen]:
    """The targets of `kinds`."""
    for cores, place in WHERE.items():
        rows = rows_of(record, cores=cores, process="")
        named = {row["contestant"]: row for row in rows}
        floor = named[uncontended.FLOOR]
        slower = ratio(named[of_kinds.REDLOCK], floor)
        yield Seen("a free Redlock of three servers, ÷ plain", 2.5, slower, place)
    wanted = {
        **dict.fromkeys(of_kinds.SHARED, ("a free semaphore or read-write lock", 1.0)),
        of_kinds.MULTI: ("two free names", 1.2),
        of_kinds.ONCE: ("`once`", 1.6),
        of_kinds.FLIGHT: ("`single_flight`", 1.8),
        of_kinds.VIEW: ("`lock_view`", 1.6),
    }
    for title, (what, bound) in wanted.items():
        row, floor = (
            find(record["rows"], it, cores="one", process="") for it in (title, uncontended.FLOOR)
        )
        if row and floor:
            yield Seen(f"{what} on one core, ÷ plain", bound, ratio(row, floor), title)


def pairs(record: Record) -> Iterator[Seen]:
    """The targets of `pairs`."""
    for us in rows_of(record):
        floor = find(record["rows"], of_pairs.NESTED, **us["case"])
        if us["contestant"] == of_pairs.MULTI and floor:
            speed = ratio(us, floor, "sections_per_second")
            what = f"two names for each of {us['case']['processes']} processes, ÷ nested locks"
            yield Seen(what, -1, speed, f"{us['case']['names']} names")

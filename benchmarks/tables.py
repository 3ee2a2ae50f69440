"""Tables of what was recorded, as Markdown. Nothing is measured here."""

from __future__ import annotations

from typing import Any

from devtools.pages import table

from . import crowd, uncontended
from . import pairs as of_pairs
from .harness import Row, find, median, quartiles, ratio

Record = dict[str, Any]

WHERE = {"one": "on one core", "two": "across two cores"}
KINDS = ["threads", "processes", "tasks"]


def conditions(record: Record) -> str:
    """Return the versions and the date of a measurement; parts may differ."""
    packages = ", ".join(f"{name} {number}" for name, number in record["packages"].items())
    return (
        f"Measured {record['recorded']} at {record['commit']}, {record['options']['rounds']} "
        f"rounds: {record['server']}, {record['python']}, {packages}; {record['cpu']}, "
        f"{record['system']}; load of the machine before it: {record['load']:.1f}."
    )


def micro(seconds: float) -> str:
    return f"{seconds * 1e6:.0f}"


def milli(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


# A free lock.


def rows_of(record: Record, **case: Any) -> list[Row]:
    return [row for row in record["rows"] if case.items() <= row["case"].items()]


def plain_of(rows: list[Row]) -> Row:
    [floor] = (row for row in rows if row["contestant"] == uncontended.FLOOR)
    return floor


def best_first(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: ratio(row, plain_of(rows)))


def cpu(row: Row) -> float:
    """Return the processor seconds of client and server per cycle."""
    return median(row, "client_cpu") + median(row, "server_cpu")


def parsers_of(record: Record) -> list[bool]:
    return sorted({row["case"]["hiredis"] for row in record["rows"]}, reverse=True)


def free(record: Record) -> str:
    """Each contestant with its time, in relation to the floor, and the parts of that time."""
    parts = [conditions(record)]
    for hiredis in parsers_of(record):
        parts.append(f"**{'With' if hiredis else 'Without'} hiredis**")
        one = best_first(rows_of(record, kind="sync", hiredis=hiredis, cores="one"))
        two = rows_of(record, kind="sync", hiredis=hiredis, cores="two")
        parts.append(_free(one, two))
    return "\n\n".join(parts)


def free_async(record: Record) -> str:
    parts = []
    for hiredis in parsers_of(record):
        for tasks in uncontended.TASKS:
            case = {"kind": "async", "hiredis": hiredis, "tasks": tasks}
            people = "one task" if tasks == 1 else f"{tasks} tasks"
            parts.append(f"**{'With' if hiredis else 'Without'} hiredis, {people}**")
            one = best_first(rows_of(record, **case, cores="one"))
            parts.append(_free(one, rows_of(record, **case, cores="two")))
    return "\n\n".join(parts)


def _free(one: list[Row], two: list[Row]) -> str:
    head = ["acquire and release"]
    for where in WHERE.values():
        head += [f"µs {where}", "× plain", "× socket"]
    head += ["client CPU, µs", "server CPU, µs", "both, × plain", "round trips", "commands"]
    lines = [head]
    for row in one:
        line = [shown(row["contestant"])]
        for rows in (one, two):
            [same] = (same for same in rows if same["contestant"] == row["contestant"])
            _, low, high = quartiles(same, "seconds")
            time = f"{micro(median(same, 'seconds'))} ({micro(low)}–{micro(high)})"
            bare = find(rows, uncontended.BARE)
            line += [time, f"{ratio(same, plain_of(rows)):.2f}"]
            line.append(f"{ratio(same, bare):.2f}" if bare else "")
        line += [micro(median(row, name)) for name in ("client_cpu", "server_cpu")]
        line.append(f"{cpu(row) / cpu(plain_of(one)):.2f}")
        line += [f"{median(row, name):.0f}" for name in ("round_trips", "commands")]
        lines.append(line)
    return table(lines)


def shown(contestant: str) -> str:
    """Emphasise the contestants of this package."""
    return f"**{contestant}**" if is_ours(contestant) else contestant


def is_ours(contestant: str) -> bool:
    return "redis_lock" in contestant.split() or "LockingClient" in contestant.split()


def brief(record: Record) -> str:
    """For the README: the comparison with this package, in one column for each place."""
    hiredis = parsers_of(record)[0]
    one = best_first(rows_of(record, kind="sync", hiredis=hiredis, cores="one"))
    two = rows_of(record, kind="sync", hiredis=hiredis, cores="two")
    lines = [["a free lock, acquire and release", *WHERE.values(), "round trips"]]
    for row in one:
        ratios = []
        for rows in (one, two):
            [same] = (same for same in rows if same["contestant"] == row["contestant"])
            ratios.append(f"{ratio(same, plain_of(rows)):.2f}")
        lines.append([shown(row["contestant"]), *ratios, f"{median(row, 'round_trips'):.0f}"])
    return table(lines)


# A lock with many waiters.


def crowds(record: Record) -> str:
    parts = [conditions(record)]
    for kind in KINDS:
        rows = rows_of(record, kind=kind, thinking=False)
        if rows:
            parts += [f"**{kind.capitalize()}, who ask again at once**", _crowd(rows)]
    thinking = rows_of(record, thinking=True)
    if thinking:
        parts += ["**With time to think**: sections per second, × BLPOP", _thinking(thinking)]
    return "\n\n".join(parts)


def _crowd(rows: list[Row]) -> str:
    head = ["waiters", "", "sections per second", "× BLPOP", "handoff, ms", "÷ BLPOP's"]
    head += ["median wait, ms", "longest ÷ median wait", "Jain index", "requests per section"]
    head += ["client CPU, µs", "server CPU, µs", "connections"]
    lines = [head]
    for row in rows:
        floor = find(rows, crowd.FLOOR, **row["case"])
        assert floor is not None
        speed = "sections_per_second"
        lines.append(
            [
                str(row["case"]["waiters"]),
                shown(row["contestant"]),
                f"{median(row, speed):.0f}",
                f"{ratio(row, floor, speed):.2f}",
                _spread(row, "handoff"),
                f"{ratio(row, floor, 'handoff'):.2f}",
                f"{median(row, 'wait_median') * 1e3:.1f}",
                f"{ratio_within(row):.1f}",
                f"{median(row, 'jain'):.3f}",
                f"{median(row, 'requests'):.2f}",
                *(micro(median(row, name)) for name in ("client_cpu", "server_cpu")),
                f"{max(row['values']['connections']):.0f}",
            ]
        )
    return table(lines)


def _spread(row: Row, value: str) -> str:
    _, low, high = quartiles(row, value)
    return f"{milli(median(row, value))} ({milli(low)}–{milli(high)})"


def ratio_within(row: Row) -> float:
    """The longest wait of a turn, for its median one; the median of all turns."""
    return ratio(
        {"values": {"wait": row["values"]["wait_max"]}},
        {"values": {"wait": [max(wait, 1e-6) for wait in row["values"]["wait_median"]]}},
        "wait",
    )


def _thinking(rows: list[Row]) -> str:
    waiters = sorted({row["case"]["waiters"] for row in rows})
    titles = dict.fromkeys(row["contestant"] for row in rows)
    lines = [["", "", *(f"{number} waiters" for number in waiters)]]
    speed = "sections_per_second"
    for kind in KINDS:
        for title in titles:
            cells = []
            for number in waiters:
                row = find(rows, title, kind=kind, waiters=number)
                floor = find(rows, crowd.FLOOR, kind=kind, waiters=number)
                if row and floor:
                    cells.append(f"{median(row, speed):.0f}, {ratio(row, floor, speed):.2f}")
            if cells:
                lines.append([kind, shown(title), *cells])
    return table(lines)


def others(record: Record) -> str:
    """A single waiter next to a crowd, and a holder that died."""
    lines = [["", "turns of one waiter ÷ those of each of 31 in another process", "Jain index"]]
    for row in rows_of(record, kind="lone"):
        cells = [f"{median(row, 'lone'):.2f}", f"{median(row, 'jain'):.3f}"]
        lines.append([shown(row["contestant"]), *cells])
    late = [["", "succeeded after the end of its lease, ms", "at the latest, ms"]]
    for row in rows_of(record, kind="expiry"):
        slowest = max(row["values"]["late"])
        cells = [f"{median(row, 'late') * 1e3:.0f}", f"{slowest * 1e3:.0f}"]
        late.append([shown(row["contestant"]), *cells])
    return f"{table(lines)}\n\n{table(late)}"


# Other kinds of locks.


def kinds(record: Record) -> str:
    lines = [["acquire and release, µs, ÷ plain", *WHERE.values(), "round trips of a server"]]
    for row in rows_of(record, cores="one"):
        title, process = row["contestant"], row["case"]["process"]
        if process and title == uncontended.FLOOR:
            continue
        cells = []
        for cores in WHERE:
            rows = rows_of(record, cores=cores, process=process)
            [same] = (its for its in rows if its["contestant"] == title)
            slower = ratio(same, plain_of(rows))
            cells.append(f"{micro(median(same, 'seconds'))}, {slower:.2f}")
        where = f", in a process {process}" if process else ""
        lines.append([f"{shown(title)}{where}", *cells, f"{median(row, 'round_trips'):.0f}"])
    return f"{conditions(record)}\n\n{table(lines)}"


def pairs(record: Record) -> str:
    head = ["of so many names", "", "sections per second", "÷ nested", "requests per section"]
    lines = [[*head, "Jain index"]]
    for row in record["rows"]:
        floor = find(record["rows"], of_pairs.NESTED, **row["case"])
        assert floor is not None
        speed = "sections_per_second"
        lines.append(
            [
                str(row["case"]["names"]),
                shown(row["contestant"]),
                f"{median(row, speed):.0f}",
                f"{ratio(row, floor, speed):.2f}",
                f"{median(row, 'requests'):.2f}",
                f"{median(row, 'jain'):.3f}",
            ]
        )
    return f"{conditions(record)}\n\n{table(lines)}"

"""Tables and pictures of how cost grows, for docs/capacity.md. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from devtools.pages import table

from . import fleet, latency, leases, startup
from .harness import Row, find, median, ratio
from .style import MARKERS, OTHERS, OURS, colours
from .tables import Record, micro, rows_of
from .tables import conditions as _conditions
from .targets import Seen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MB = 1e6


def conditions(record: Record) -> str:
    """A value of a record without rounds, too."""
    return _conditions({**record, "options": {"rounds": 1, **record["options"]}})


def held(record: Record) -> str:
    """The table of the cost of held leases."""
    head = [
        "leases",
        "",
        "client CPU, s in 10 s",
        "requests in 10 s",
        "threads",
        "latest renewal, s",
    ]
    lines = [head]
    for row in rows_of(record, kind="held"):
        late = f"{max(row['values']['late']):.2f}" if "late" in row["values"] else ""
        lines.append(
            [
                f"{row['case']['leases']:,}",
                row["contestant"],
                f"{median(row, 'client_cpu'):.3f}",
                f"{median(row, 'requests'):.0f}",
                f"{median(row, 'threads'):.0f}",
                late,
            ]
        )
    return f"{conditions(record)}\n\n{table(lines)}"


def memory(record: Record) -> str:
    """The table of the memory that leases need in their process."""
    lines = [["leases", "bytes of a lease", "bytes for renewing it", "more while renewing, MB"]]
    for row in rows_of(record, kind="memory"):
        number = row["case"]["leases"]
        lines.append(
            [
                f"{number:,}",
                f"{median(row, 'bytes'):.0f}",
                f"{median(row, 'renewal_bytes'):.0f}",
                f"{median(row, 'renewing_bytes') * number / MB:.2f}",
            ]
        )
    return table(lines)


def waiting(record: Record) -> str:
    """The table of the cost of waiting for as many names."""
    head = ["tasks, each for a name of its own", "client CPU, s in 10 s", "server CPU, s in 10 s"]
    lines = [[*head, "requests in 10 s", "threads", "connections", "s until all are served"]]
    lines += [
        [
            f"{row['case']['names']:,}",
            f"{median(row, 'client_cpu'):.2f}",
            f"{median(row, 'server_cpu'):.2f}",
            f"{median(row, 'requests'):.0f}",
            f"{median(row, 'threads'):.0f}",
            f"{median(row, 'connections'):.0f}",
            f"{median(row, 'served'):.2f}",
        ]
        for row in rows_of(record, kind="waiting")
    ]
    return table(lines)


def _back(record: Record) -> tuple[float, float]:
    """Bytes of a name at most; and the seconds from the last release until Redis has its memory
    back, all but a hundredth of it: whole ones, since it is looked at each second."""
    [row] = rows_of(record)[:1]
    end = find(record["rows"], "the last release")
    assert end is not None
    readings = list(zip(row["values"]["second"], row["values"]["bytes"], strict=True))
    most = max(bytes_ for _, bytes_ in readings)
    released = median(end, "released")
    free = (second for second, bytes_ in readings if second > released and bytes_ <= most / 100)
    return most / row["case"]["names"], float(round(min(free) - released))


def forgotten(record: Record) -> str:
    """The table of the cost of names that are locked once."""
    most, seconds = _back(record)
    number = record["rows"][0]["case"]["names"]
    end = find(record["rows"], "the last release")
    assert end is not None
    lines = [
        ["names", "seconds of locking", "bytes of Redis' memory for each", "gone after, s"],
        [f"{number:,}", f"{median(end, 'released'):.0f}", f"{most:.0f}", f"{seconds:.0f}"],
    ]
    return f"{conditions(record)}\n\n{table(lines)}"


def far(record: Record) -> str:
    """The table of a free lock on a distant server."""
    delays = sorted({row["case"]["delay"] for row in record["rows"]})
    head = ["ms for acquire and release, × plain"]
    for delay in delays:
        row = rows_of(record, delay=delay)[0]
        head.append(f"{delay:g} ms away (PING: {median(row, 'round_trip') * 1e3:.2f})")
    lines = [[*head, "round trips"]]
    for title in latency.TITLES:
        line = [f"**{title}**" if title == latency.OURS else title]
        row = None
        for delay in delays:
            row, floor = (find(record["rows"], one, delay=delay) for one in (title, latency.FLOOR))
            if row is not None and floor is not None:
                line.append(f"{median(row, 'seconds') * 1e3:.2f}, {ratio(row, floor):.2f}")
        if row is not None:
            lines.append([*line, f"{median(row, 'round_trips'):.0f}"])
    return f"{conditions(record)}\n\n{table(lines)}"


def carries(record: Record) -> str:
    """The table of the load that one server carries."""
    head = ["processes", "", "cycles per second", "share of the server's core"]
    lines = [[*head, "its CPU for a cycle, µs", "so it carries, per second"]]
    for row in record["rows"]:
        cpu = _least(row, "server_cpu")
        title = row["contestant"]
        lines.append(
            [
                str(row["case"]["processes"]),
                f"**{title}**" if title == fleet.OURS else title,
                f"{median(row, 'per_second'):,.0f}",
                f"{median(row, 'server_share'):.0%}",
                micro(cpu),
                f"{1 / cpu:,.0f}",
            ]
        )
    return f"{conditions(record)}\n\n{table(lines)}"


def _least(row: Row, value: str) -> float:
    """The least counts, since other work of the machine only adds to it."""
    return float(min(row["values"][value]))


def listing(record: Record) -> str:
    """The table of the time to look at many locks."""
    lines = [["10,000 locks beside 2,000,000 other keys", "ms", "raw read, ms", "×"]]
    for row in rows_of(record):
        if row["contestant"] == "ours":
            raw = find(record["rows"], "raw read", what=row["case"]["what"])
            assert raw is not None
            lines.append(
                [
                    row["case"]["what"],
                    f"{median(row, 'seconds') * 1e3:.1f}",
                    f"{median(raw, 'seconds') * 1e3:.1f}",
                    f"{ratio(row, raw):.2f}",
                ]
            )
    return f"{conditions(record)}\n\n{table(lines)}"


def start(record: Record) -> str:
    """The table of the addition to the start of a process."""
    lines = [["start of a process", "ms", "CPU, ms"]]
    for title in (startup.WITHOUT, startup.WITH):
        row = find(record["rows"], title)
        assert row is not None
        times = (f"{median(row, name) * 1e3:.0f}" for name in ("seconds", "client_cpu"))
        lines.append([title, *times])
    lines.append(["adds", *(f"{_added(record, name):.0f}" for name in ("seconds", "client_cpu"))])
    return f"{conditions(record)}\n\n{table(lines)}"


def _added(record: Record, value: str) -> float:
    """Milliseconds: the least with it less the least without. What else the machine does only adds
    to a start."""
    with_, without = (find(record["rows"], title) for title in (startup.WITH, startup.WITHOUT))
    assert with_ is not None
    assert without is not None
    return (min(with_["values"][value]) - min(without["values"][value])) * 1e3


def targets(of_leases: Record, of_names: Record, of_start: Record) -> Iterator[Seen]:
    rows = of_leases["rows"]
    most = max(row["case"]["leases"] for row in rows_of(of_leases, kind="held"))
    row = find(rows, leases.OURS, kind="held", leases=most)
    assert row is not None
    where = f"{most:,} leases"
    yield Seen("CPU s in 10 s, to renew", 0.08, median(row, "client_cpu"), where)
    yield Seen("requests in 10 s", 400, median(row, "requests"), where)
    yield Seen("threads", 1, median(row, "threads"), where)
    yield Seen("latest renewal, s", 3, max(row["values"]["late"]), where)
    row = find(rows, leases.OURS, kind="memory", leases=most)
    assert row is not None
    all_of_it = (median(row, "renewal_bytes") + median(row, "renewing_bytes")) * most / MB
    yield Seen("MB over the leases themselves", 6, all_of_it, where)
    row = rows_of(of_leases, kind="waiting")[-1]
    where = f"{row['case']['names']:,} tasks that wait"
    yield Seen("threads of waiters", 2, median(row, "threads"), where)
    yield Seen("connections of waiters, of a pool of 50", 53, median(row, "connections"), where)
    _, seconds = _back(of_names)
    number = of_names["rows"][0]["case"]["names"]
    yield Seen("s until Redis has its memory back", 60, seconds, f"{number:,} names")
    yield Seen("ms of CPU that the import adds", 30, _added(of_start, "client_cpu"), "")


# Pictures.


def curve(record: Record) -> Figure:
    """The memory of Redis while names are locked, and afterwards."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2))
    axes = figure.subplots()
    [row] = rows_of(record)[:1]
    end = find(record["rows"], "the last release")
    assert end is not None
    at = median(end, "released")
    seconds = [second - at for second in row["values"]["second"]]
    axes.plot(seconds, [bytes_ / MB for bytes_ in row["values"]["bytes"]], color=OURS)
    axes.axvline(0, color="#7d7d7d", linestyle=":")
    axes.set_xlabel("seconds since the last release")
    axes.set_ylabel("MB of Redis' memory")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True)
    return figure


def growth(record: Record) -> Figure:
    """What leases cost as they become more."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2))
    panels = figure.subplots(1, 3)
    measures = [
        ("client_cpu", "CPU s in 10 s"),
        ("requests", "requests in 10 s"),
        ("threads", "threads"),
    ]
    for axes, (value, label) in zip(panels, measures, strict=True):
        looks = zip((leases.OURS, leases.THEIRS), (OURS, OTHERS[0]), MARKERS, strict=False)
        for title, colour, marker in looks:
            mine = [row for row in rows_of(record, kind="held") if row["contestant"] == title]
            numbers = [row["case"]["leases"] for row in mine]
            values = [median(row, value) for row in mine]
            axes.plot(numbers, values, color=colour, marker=marker, label=title)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(label, fontsize=10)
        axes.set_xlabel("leases")
        axes.grid(visible=True)
        axes.minorticks_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def distance(record: Record) -> Figure:
    """A free lock, over the time of a round trip."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4))
    axes = figure.subplots()
    colour = colours(latency.TITLES, [latency.OURS])
    for title, marker in zip(latency.TITLES, MARKERS, strict=False):
        mine = [row for row in record["rows"] if row["contestant"] == title]
        away = [median(row, "round_trip") * 1e3 for row in mine]
        times = [median(row, "seconds") * 1e3 for row in mine]
        axes.plot(away, times, color=colour[title], marker=marker, label=title)
    axes.set_xlabel("ms of a round trip, as PING measures it")
    axes.set_ylabel("ms for acquire and release")
    axes.grid(visible=True)
    figure.legend(loc="outside right upper")
    return figure


def hosts(record: Record) -> Figure:
    """What a server does for ever more processes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2))
    panels = figure.subplots(1, 2)
    titles = [fleet.OURS, fleet.FLOOR]
    colour = colours(titles, [fleet.OURS])
    measures = [
        ("per_second", 1.0, "cycles per second"),
        ("server_cpu", 1e6, "server CPU for a cycle, µs"),
    ]
    for axes, (value, scale, label) in zip(panels, measures, strict=True):
        for title, marker in zip(titles, MARKERS, strict=False):
            mine = [row for row in record["rows"] if row["contestant"] == title]
            numbers = [row["case"]["processes"] for row in mine]
            best = median if value == "per_second" else _least
            values = [best(row, value) * scale for row in mine]
            axes.plot(numbers, values, color=colour[title], marker=marker, label=title)
        axes.set_xscale("log", base=2)
        axes.set_xticks(numbers, [str(number) for number in numbers])
        axes.set_ylim(bottom=0)
        axes.set_title(label, fontsize=10)
        axes.set_xlabel("processes")
        axes.grid(visible=True)
        axes.minorticks_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


PICTURES = {
    "benchmark-leases.svg": ("leases", growth),
    "benchmark-names.svg": ("names", curve),
    "benchmark-latency.svg": ("latency", distance),
    "benchmark-fleet.svg": ("fleet", hosts),
}

"""Tables and pictures of how cost grows, for docs/capacity.md. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from devtools.pages import table

from . import fleet, inspection, latency, leases, server, startup
from .harness import Row, find, median, ratio
from .style import MARKERS, colours
from .tables import Record, micro, rows_of, shown
from .tables import conditions as _conditions
from .targets import Seen

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def conditions(record: Record) -> str:
    """A value of a record without rounds, too."""
    return _conditions({**record, "options": {"rounds": 1, **record["options"]}})


def held(record: Record) -> str:
    """The table of the cost of held leases."""
    head = ["leases", "ttl, s", "", "client CPU, s in 10 s", "server CPU, s in 10 s"]
    lines = [[*head, "requests in 10 s", "threads", "latest renewal, s"]]
    lines += [
        [
            f"{row['case']['leases']:,}",
            f"{row['case']['ttl']:g}",
            shown(row["contestant"]),
            f"{median(row, 'client_cpu'):.3f}",
            f"{median(row, 'server_cpu'):.3f}",
            f"{median(row, 'requests'):.0f}",
            f"{median(row, 'threads'):.0f}",
            f"{max(row['values']['late']):.2f}",
        ]
        for row in rows_of(record, kind="held")
    ]
    return f"{conditions(record)}\n\n{table(lines)}"


def memory(record: Record) -> str:
    """The table of the memory that leases need in their process."""
    lines = [["leases", "", "bytes of the lease objects", "bytes beside them"]]
    lines += [
        [
            f"{row['case']['leases']:,}",
            shown(row["contestant"]),
            f"{median(row, 'bytes'):.0f}" if median(row, "bytes") else "",
            f"{median(row, 'over'):.0f}",
        ]
        for row in rows_of(record, kind="memory")
    ]
    return table(lines)


def piling(record: Record) -> str:
    """The table of what it costs to take leases as they pile up, and free locks beside them."""
    lines = [["leases held", "one more, µs", "a free lock, µs", "two plain commands, µs", "×"]]
    for row in rows_of(record, kind="beside"):
        if row["contestant"] == leases.OURS:
            held = row["case"]["held"]
            floor = find(record["rows"], leases.FLOOR, kind="beside", held=held)
            more = find(record["rows"], leases.OURS, kind="piling", held=held)
            assert floor is not None
            lines.append(
                [
                    f"{held:,}",
                    micro(median(more, "seconds")) if more else "",
                    micro(median(row, "seconds")),
                    micro(median(floor, "seconds")),
                    f"{ratio(row, floor):.2f}",
                ]
            )
    return table(lines)


def cycle(record: Record) -> str:
    """The table of what a free cycle costs the server."""
    head = ["acquire and release", "server CPU, µs", "÷ plain", "commands"]
    head += ["bytes held", "bytes left", "bytes for replicas", "÷ plain"]
    lines = [head]
    floor = find(record["rows"], server.FLOOR, kind="free")
    assert floor is not None
    lines += [
        [
            shown(row["contestant"]),
            f"{median(row, 'server_cpu') * 1e6:.1f}",
            f"{ratio(row, floor, 'server_cpu'):.2f}",
            *(f"{median(row, name):.0f}" for name in ("commands", "held", "left", "stream")),
            f"{ratio(row, floor, 'stream'):.2f}",
        ]
        for row in rows_of(record, kind="free")
    ]
    return f"{conditions(record)}\n\n{table(lines)}"


def batch(record: Record) -> str:
    """The table of what 250 renewals in one request cost the server."""
    lines = [["250 renewals in one request", "server CPU, µs", "÷ by hand"]]
    for row in rows_of(record, kind="renewals"):
        floor = find(record["rows"], server.BY_HAND[row["contestant"]], kind="renewals")
        assert floor is not None
        lines.append(
            [
                shown(row["contestant"]),
                micro(median(row, "server_cpu")),
                f"{ratio(row, floor, 'server_cpu'):.2f}",
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
        raw = find(record["rows"], "raw read", what=row["case"]["what"])
        if row["contestant"] == "ours" and raw:
            lines.append(
                [
                    row["case"]["what"],
                    f"{median(row, 'seconds') * 1e3:.1f}",
                    f"{median(raw, 'seconds') * 1e3:.1f}",
                    f"{ratio(row, raw):.2f}",
                ]
            )
    return f"{conditions(record)}\n\n{table(lines)}"


def admin_pages(record: Record) -> str:
    """The table of the admin's first page."""
    lines = [["locks", "CPU of the first page, ms"]]
    for row in rows_of(record):
        if row["case"]["what"] == inspection.ADMIN:
            cpu = f"{median(row, 'client_cpu') * 1e3:.0f}"
            lines.append([f"{row['case']['locks']:,}", cpu])
    return table(lines)


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


def targets(
    of_server: Record, of_leases: Record, of_list: Record, of_start: Record
) -> Iterator[Seen]:
    yield from _of_server(of_server["rows"])
    rows = of_leases["rows"]
    for row in rows_of(of_leases, kind="held"):
        if row["contestant"] == leases.OURS:
            floor = find(rows, leases.HAND, **row["case"])
            assert floor is not None
            where = f"{row['case']['leases']:,} leases, ttl {row['case']['ttl']:g} s"
            client, its = (ratio(row, floor, name) for name in ("client_cpu", "server_cpu"))
            yield Seen("client CPU to renew, ÷ by hand", 2, client, where)
            yield Seen("server CPU to renew, ÷ by hand", 1.5, its, where)
            yield Seen("threads", 1, median(row, "threads"), where)
            late = max(row["values"]["late"]) / row["case"]["ttl"]
            yield Seen("latest renewal, ÷ ttl", 0.1, late, where)
    ours, floor = (find(rows, title, kind="memory") for title in (leases.OURS, leases.HAND))
    assert ours is not None
    assert floor is not None
    where = f"{ours['case']['leases']:,} leases"
    yield Seen(
        "memory beside the lease objects, ÷ by hand", 1.5, ratio(ours, floor, "over"), where
    )
    yield from _growth(of_leases)
    row = rows_of(of_leases, kind="waiting")[-1]
    where = f"{row['case']['names']:,} tasks that wait"
    yield Seen("threads of waiters", 2, median(row, "threads"), where)
    yield Seen("connections of waiters, of a pool of 50", 53, median(row, "connections"), where)
    yield from _of_list(of_list)
    yield Seen("ms of CPU that the import adds", 30, _added(of_start, "client_cpu"), "")


def _of_server(rows: list[Row]) -> Iterator[Seen]:
    named = {row["contestant"]: row for row in rows if row["case"]["kind"] == "free"}
    ours, floor = named[server.OURS], named[server.FLOOR]
    cpu = ratio(ours, floor, "server_cpu")
    yield Seen("server CPU of a free cycle, pipelined, ÷ plain", 3, cpu, server.OURS)
    for title, most in ((server.OURS, 9), (server.SEMAPHORE, 14), (server.MULTI, 13)):
        commands = float(round(median(named[title], "commands")))
        yield Seen(f"commands of a cycle: {title}", most, commands, "")
    yield Seen("bytes of a held lock", 300, median(ours, "held"), server.OURS)
    for title in (server.OURS, server.SEMAPHORE, server.MULTI):
        yield Seen("bytes that a released name leaves", 0, median(named[title], "left"), title)
    stream = ratio(ours, floor, "stream")
    yield Seen("bytes for replicas, ÷ plain", 2, stream, server.OURS)
    for title, by_hand in server.BY_HAND.items():
        pair = [find(rows, one, kind="renewals") for one in (title, by_hand)]
        if title != by_hand and pair[0] and pair[1]:
            slower = ratio(pair[0], pair[1], "server_cpu")
            yield Seen("250 renewals in one request, ÷ by hand", 1.3, slower, title)
    for row in rows:
        if row["case"]["kind"] == "round trips":
            trips = float(min(row["values"]["round_trips"]))
            yield Seen("round trips of shared results", 2, trips, row["contestant"])


def _of_list(record: Record) -> Iterator[Seen]:
    for what in ("the most urgent 100", "all"):
        ours, raw = (find(record["rows"], title, what=what) for title in ("ours", "raw read"))
        if ours and raw:
            yield Seen("list of 10,000 locks, ÷ a raw read", 3, ratio(ours, raw), what)
    pages = [row for row in rows_of(record) if row["case"]["what"] == inspection.ADMIN]
    if pages:
        cpu = median(pages[-1], "client_cpu") / median(pages[0], "client_cpu")
        where = f"{pages[-1]['case']['locks']:,} locks, ÷ {pages[0]['case']['locks']}"
        yield Seen("CPU of the admin's first page", 1.25, cpu, where)


def _growth(record: Record) -> Iterator[Seen]:
    """How much slower it gets, beside the plain commands of the same moment."""
    beside = []
    for row in rows_of(record, kind="beside"):
        floor = find(record["rows"], leases.FLOOR, **row["case"])
        if row["contestant"] == leases.OURS and floor:
            beside.append((row["case"]["held"], ratio(row, floor)))
    slower = beside[-1][1] / beside[0][1]
    where = f"{beside[-1][0]:,} leases held"
    yield Seen("a free lock beside them, ÷ beside none", 1.25, slower, where)
    steps = [median(row, "seconds") for row in rows_of(record, kind="piling")]
    yield Seen("one more lease, the slowest tenth ÷ the first", 1.25, max(steps) / steps[0], where)


# Pictures.


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
    "benchmark-latency.svg": ("latency", distance),
    "benchmark-fleet.svg": ("fleet", hosts),
}

"""Pictures of what was recorded, as SVG: the same bytes from the same records.

They have no background and no colour that needs one, so they can be read on a light page and on a
dark one; what tells lines apart is a marker as well as a colour; text is text.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from . import crowd, growth, tables
from .harness import median, quartiles, ratio, recorded
from .style import INK, MARKERS, OTHERS, OURS, colours
from .tables import KINDS, WHERE, Record, best_first, is_ours, parsers_of, rows_of

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "django-redislock",
    "font.family": "sans-serif",
    "font.size": 10,
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.25,
    **dict.fromkeys(
        ["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"], INK
    ),
    "grid.color": INK,
}


def write(directory: Path) -> None:
    if record := recorded("uncontended"):
        draw(directory / "benchmark-free.svg", free, record)
        draw(directory / "benchmark-cpu.svg", cpu, record)
    if record := recorded("contended"):
        draw(directory / "benchmark-crowds.svg", crowds, record)
    for name, (part, picture) in growth.PICTURES.items():
        if record := recorded(part):
            draw(directory / name, picture, record)


def draw(path: Path, function: Callable[[Record], Figure], record: Record) -> None:
    """Save the figure that `function(record)` makes, titled by what that one says of itself."""
    with mpl.rc_context(STYLE):
        figure = function(record)
        metadata = {"Date": None, "Title": function.__doc__}
        figure.savefig(path, transparent=True, metadata=metadata)
    # Without the blanks around lines: a third of the file.
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(line.strip() for line in lines) + "\n", encoding="utf-8")


def free(record: Record) -> Figure:
    """Times of a free lock, as multiples of two plain commands."""
    figure = Figure(figsize=(9, 3.4))
    panels = figure.subplots(1, 2, sharey=True)
    hiredis = parsers_of(record)[0]
    first = rows_of(record, kind="sync", hiredis=hiredis, cores="one")
    names = [row["contestant"] for row in reversed(best_first(first))]
    for axes, (cores, where) in zip(panels, WHERE.items(), strict=True):
        rows = rows_of(record, kind="sync", hiredis=hiredis, cores=cores)
        named = {row["contestant"]: row for row in rows}
        values = [ratio(named[name], tables.plain_of(rows)) for name in names]
        colour = [OURS if is_ours(name) else INK for name in names]
        bars = axes.barh(names, values, color=colour)
        axes.bar_label(bars, [f"{value:.2f}" for value in values], padding=3)
        axes.axvline(1, color=INK, linestyle=":", zorder=0)
        axes.set_title(where, fontsize=10)
        axes.set_xlabel("time ÷ that of two plain commands")
        axes.margins(x=0.12)
    return figure


def cpu(record: Record) -> Figure:
    """What the client and the server spend on a free lock."""
    figure = Figure(figsize=(9, 3.2))
    axes = figure.subplots()
    rows = rows_of(record, kind="sync", hiredis=parsers_of(record)[0], cores="one")
    rows.sort(key=lambda row: -tables.cpu(row))
    names = [row["contestant"] for row in rows]
    client = [median(row, "client_cpu") * 1e6 for row in rows]
    server = [median(row, "server_cpu") * 1e6 for row in rows]
    axes.barh(names, client, color=OTHERS[0], label="client")
    bars = axes.barh(names, server, left=client, color=OTHERS[3], hatch="//", label="server")
    axes.bar_label(bars, [f"{tables.cpu(row) * 1e6:.0f}" for row in rows], padding=3)
    axes.set_xlabel("µs of a processor, for each acquire and release")
    axes.margins(x=0.08)
    figure.legend(loc="outside upper right", ncols=2)
    return figure


def crowds(record: Record) -> Figure:
    """How a lock behaves as ever more wait for it."""
    measures = [
        ("sections_per_second", "sections per second", 1, "linear"),
        ("handoff", "handoff, ms", 1e3, "log"),
        ("jain", "Jain index", 1, "linear"),
    ]
    figure = Figure(figsize=(9, 7.5))
    panels = figure.subplots(len(measures), len(KINDS), sharex=True, sharey="row")
    titles = list(dict.fromkeys(row["contestant"] for row in record["rows"]))
    colour = colours(titles, [crowd.OURS])
    for column, kind in enumerate(KINDS):
        rows = rows_of(record, kind=kind, thinking=False)
        for line, (value, label, scale, axis) in enumerate(measures):
            axes = panels[line][column]
            for title, marker in zip(titles, MARKERS, strict=False):
                mine = [row for row in rows if row["contestant"] == title]
                waiters = [row["case"]["waiters"] for row in mine]
                middle = [median(row, value) * scale for row in mine]
                spread = [quartiles(row, value) for row in mine]
                if not any(middle):
                    continue
                axes.plot(waiters, middle, color=colour[title], marker=marker, label=title)
                low, high = ([spot[side] * scale for spot in spread] for side in (1, 2))
                axes.fill_between(waiters, low, high, color=colour[title], alpha=0.2, linewidth=0)
            axes.set_xscale("log", base=2)
            axes.set_yscale(axis)
            ticks = sorted({row["case"]["waiters"] for row in rows})
            axes.set_xticks(ticks, [str(number) for number in ticks])
            axes.grid(visible=True)
            if axis == "log":
                axes.yaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
            if column == 0:
                axes.set_ylabel(label)
            if line == 0:
                axes.set_title(kind, fontsize=10)
            if line == len(measures) - 1:
                axes.set_xlabel("waiters")
    for row_of_panels, (_, _, _, axis) in zip(panels, measures, strict=True):
        if axis == "linear":  # Last, or what is drawn later would not fit in.
            row_of_panels[0].set_ylim(bottom=0)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure

"""The last runs of a job as a strip of bars: an SVG without styles of its own.

The height of a bar is how long the run took. Each outcome has its own shape, so the strip can be
read without colours, and each bar has a `<title>` with the facts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime

from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _

from ..inspection.words import clean, duration
from ..primitives.ledger import RunInfo, RunOutcome
from . import cells, tables

SHOWN = 20
"""The most runs of a strip."""

_STEP = 7
_WIDTH = 5
_BASE = 25
_HIGHEST = 16
_LOWEST = 2


def _bar(x: int, height: int) -> str:
    return f"M{x} {_BASE}v-{height}h{_WIDTH}v{height}z"


def _cross(x: int, height: int) -> str:
    top = _BASE - height - 7
    return f"M{x} {top}l{_WIDTH} {_WIDTH}m0 -{_WIDTH}l-{_WIDTH} {_WIDTH}"


def _arrow(x: int, height: int) -> str:
    return f"M{x} {_BASE - height - 7}l{_WIDTH} 2.5l-{_WIDTH} 2.5z"


def _dash(x: int, _height: int) -> str:
    return f"M{x} {_BASE}h{_WIDTH}"


_Shape = Callable[[int, int], str]
_SHAPES: dict[RunOutcome, tuple[_Shape, ...]] = {
    RunOutcome.DONE: (_bar,),
    RunOutcome.FAILED: (_bar, _cross),
    RunOutcome.LOST: (_bar, _cross),
    RunOutcome.RUNNING: (_bar, _arrow),
    RunOutcome.SKIPPED: (_dash,),
    RunOutcome.UNREADABLE: (_dash, _cross),
}
"""The paths of a run. The style sheet fills the bar of a run that has come to its end, and leaves
the others hollow."""


def strip(runs: Sequence[RunInfo], now: datetime) -> str:
    """The last runs, the newest at the right end."""
    shown = list(reversed(runs[:SHOWN]))
    if not shown:
        return cells.NOTHING
    took = [_took(run, now) for run in shown]
    longest = max(took)
    first = (SHOWN - len(shown)) * _STEP + 1
    bars = []
    for number, (run, seconds) in enumerate(zip(shown, took, strict=True)):
        share = seconds / longest if longest else 0.0
        height = _LOWEST + round(share * (_HIGHEST - _LOWEST))
        x = first + number * _STEP
        bars.append((run.outcome, _said(run), _paths(run.outcome, x, height)))
    return format_html(
        '<svg class="redislock-strip" role="img" aria-label="{}" viewBox="0 0 {} {}"'
        ' width="{}" height="{}">{}</svg>',
        _summary(shown),
        SHOWN * _STEP,
        _BASE + 2,
        SHOWN * _STEP,
        _BASE + 2,
        format_html_join("", '<g class="redislock-run-{}"><title>{}</title>{}</g>', bars),
    )


def _paths(outcome: RunOutcome, x: int, height: int) -> str:
    # The empty rectangle makes the whole column show the title.
    hover = format_html(
        '<rect x="{}" y="0" width="{}" height="{}" fill="none" stroke="none"'
        ' pointer-events="all"></rect>',
        x - 1,
        _STEP,
        _BASE + 2,
    )
    paths = ((shape(x, height),) for shape in _SHAPES[outcome])
    return hover + format_html_join(mark_safe(""), '<path d="{}"></path>', paths)


def _took(run: RunInfo, now: datetime) -> float:
    if run.outcome == RunOutcome.RUNNING and run.started is not None:
        return max(0.0, (now - run.started).total_seconds())
    return run.duration or 0.0


def _said(run: RunInfo) -> str:
    """The facts of a run, on one line."""
    facts = [cells.moment(run.started or run.planned or run.ended), tables.outcome_name(run)]
    if run.duration is not None:
        facts.append(duration(run.duration))
    if run.why:
        facts.append(clean(run.why))
    return ", ".join(facts)


def _summary(shown: Sequence[RunInfo]) -> str:
    """What the strip shows, for those who can't see it: how many runs ended in which way."""
    names = Counter(tables.outcome_name(run) for run in shown)
    counted = ", ".join(f"{name}: {number}" for name, number in names.items())
    return _("Last runs: %(counts)s") % {"counts": counted}

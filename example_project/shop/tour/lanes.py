"""The lanes of the tour's page: what each customer did in the last 30 seconds, as bars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..templatetags.times import duration
from .moments import Doing, Moment

SECONDS = 30
AT_ONCE = "two at once"
LEASE = "lease of a killed process"


class Bar(NamedTuple):
    """What a customer did. Times are seconds since the beginning of the lanes."""

    kind: str
    start: float
    end: float

    @property
    def x(self) -> str:
        return percent(max(0, self.start))

    @property
    def width(self) -> str:
        return percent(self.end - max(0, self.start))

    @property
    def title(self) -> str:
        return f"{self.kind}: {duration(self.end - self.start)}"


class Label(NamedTuple):
    """A word at one moment."""

    text: str
    at: float

    @property
    def x(self) -> str:
        return percent(self.at)

    @property
    def anchor(self) -> str:
        """Whether the text begins at the moment, or ends there since there is no room after it."""
        return "end" if self.at > SECONDS * 0.8 else "start"


@dataclass
class Lane:
    """One customer. The process that replaces a killed one goes on in its lane."""

    who: str
    doing: Doing = Doing.NOTHING
    bars: list[Bar] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    _since: float = 0
    _before_the_stop: Doing = Doing.NOTHING

    def goes_on(self, doing: Doing, at: float) -> None:
        """Follow the customer to what it does next."""
        if doing in (Doing.KILLED, Doing.REFUSED):
            self.labels.append(Label(doing, at))
        if doing is Doing.REFUSED:
            return
        self.ends(at)
        if doing is Doing.STOPPED:
            self._before_the_stop = self.doing
        self.doing = self._before_the_stop if doing is Doing.WOKEN else doing
        self._since = at

    def ends(self, at: float) -> None:
        """End the present bar."""
        if self.doing in (Doing.WAITS, Doing.WORKS, Doing.STOPPED):
            self.bars.append(Bar(self.doing, self._since, at))

    def working(self) -> list[Bar]:
        return [bar for bar in self.bars if bar.kind == Doing.WORKS]

    @property
    def summary(self) -> str:
        """The bars in words."""
        total = Counter[str]()
        for bar in self.bars:
            total[bar.kind] += bar.end - max(0, bar.start)
        return ", ".join(f"{kind} {duration(seconds)}" for kind, seconds in total.items())


def lanes(moments: Iterable[Moment], now: float) -> list[Lane]:
    """Return the lane of each customer: what it did, where it worked at the same time as another,
    and the time from a kill until anybody works again."""
    first = now - SECONDS
    by_name: dict[str, Lane] = {}
    for moment in moments:
        by_name.setdefault(moment.who, Lane(moment.who)).goes_on(moment.doing, moment.at - first)
    found = [by_name[who] for who in sorted(by_name)]
    for lane in found:
        lane.ends(SECONDS)
    begins = [bar.start for lane in found for bar in lane.working()]
    for lane in found:
        others = [bar for other in found if other is not lane for bar in other.working()]
        lane.bars += [both for bar in lane.working() for both in at_once(bar, others)]
        for text, at in lane.labels:
            if text == Doing.KILLED:
                again = min((begin for begin in begins if begin > at), default=SECONDS)
                lane.bars.append(Bar(LEASE, at, again))
    for lane in found:
        lane.bars = [bar for bar in lane.bars if bar.end > 0]
        lane.labels = [label for label in lane.labels if label.at > 0]
    return found


def at_once(bar: Bar, others: Iterable[Bar]) -> Iterator[Bar]:
    """Return the parts of a bar in which others work, too."""
    done = bar.start
    for other in sorted(others, key=lambda other: other.start):
        start, end = max(done, other.start), min(bar.end, other.end)
        if start < end:
            yield Bar(AT_ONCE, start, end)
            done = end


def percent(seconds: float) -> str:
    return f"{seconds / SECONDS * 100:.2f}%"


LEGEND = [
    Bar(kind, 0, SECONDS) for kind in (Doing.WAITS, Doing.WORKS, AT_ONCE, Doing.STOPPED, LEASE)
]

"""The drawings of docs/: `python -m devtools.diagrams` writes docs/images/*.svg.

A sequence is written in lines. Its lanes are named first:

    A > B: text     a message
    A + text        from here on A holds the lock; the text stands beside the bar
    A ~ text        A goes on as if it held the lock, and does not hold it
    A - text        from here on A does not hold the lock
    A: text         something happens at A
    A ! text        something wrong happens at A
    A * text        something prevents the damage

Each drawing has a background, light or dark as the reader prefers, so that it can be read on any
page. Its title and description say in words what it shows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from .stories import STORIES

IMAGES = Path(__file__).parent.parent / "docs" / "images"

LANE = 200
ROW = 30
TOP = 64
BAR = 10

STYLE = """\
  .ground { fill: #ffffff; stroke: #d0d7de }
  text { fill: #1f2328; font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif }
  .lane { font-weight: 600; font-size: 14px }
  .small { font-size: 12px }
  .life { stroke: #b6bec8; stroke-dasharray: 3 4 }
  .arrow { stroke: #57606a; fill: none }
  .head { fill: #57606a }
  .plain { fill: #f6f8fa; stroke: #b6bec8 }
  .holds { fill: #2da44e }
  .late { fill: #ffffff; stroke: #cf222e; stroke-width: 2; stroke-dasharray: 4 2 }
  .bad { fill: #ffebe9; stroke: #cf222e }
  .good { fill: #dafbe1; stroke: #1a7f37 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #161b22; stroke: #30363d }
    text { fill: #e6edf3 }
    .life { stroke: #484f58 }
    .arrow { stroke: #9198a1 }
    .head { fill: #9198a1 }
    .plain { fill: #21262d; stroke: #484f58 }
    .holds { fill: #3fb950 }
    .late { fill: #161b22; stroke: #f85149 }
    .bad { fill: #3c1618; stroke: #f85149 }
    .good { fill: #12301c; stroke: #3fb950 }
  }
"""

BOXES = {":": "plain", "!": "bad", "*": "good"}
LINE = re.compile(
    r"(?P<lane>\w+)(?: > (?P<to>\w+): | (?P<sign>[+~*!-]) ?|(?P<box>:) )(?P<text>.*)"
)


@dataclass
class Sequence:
    """A sequence that is being drawn, from top to bottom."""

    lanes: list[str]
    y: int = TOP
    behind: list[str] = field(default_factory=list)
    bars: list[str] = field(default_factory=list)
    front: list[str] = field(default_factory=list)
    since: dict[str, tuple[str, int]] = field(default_factory=dict)
    """For each lane that holds the lock, or believes so: the kind of bar and where it begins."""

    @property
    def width(self) -> int:
        return LANE * len(self.lanes)

    def x(self, lane: str) -> int:
        return LANE * self.lanes.index(lane) + LANE // 2

    def draw(self, line: str) -> None:
        parts = LINE.fullmatch(line)
        assert parts is not None, line
        lane, text = parts["lane"], parts["text"]
        if parts["to"]:
            self._message(lane, parts["to"], text)
        elif (sign := parts["sign"] or parts["box"]) in BOXES:
            self._box(lane, text, BOXES[sign])
        else:
            self._turn(lane, sign, text)

    def _message(self, lane: str, to: str, text: str) -> None:
        start, end = self.x(lane), self.x(to)
        side = 1 if end > start else -1
        start, end = start + side * BAR // 2, end - side * BAR // 2
        self.front.append(
            f'<text class="small" x="{start + side * (LANE - BAR) // 2}" y="{self.y}" '
            f'text-anchor="middle">{escape(text, quote=False)}</text>'
            f'<line class="arrow" x1="{start}" y1="{self.y + 7}" '
            f'x2="{end - side * 6}" y2="{self.y + 7}"/>'
            f'<path class="head" d="M{end} {self.y + 7} l{-side * 8} -4 v8 z"/>'
        )
        self.y += ROW

    def _box(self, lane: str, text: str, kind: str) -> None:
        width = max(60, 7 * len(text) + 16)
        left = min(max(self.x(lane) - width // 2, 4), self.width - width - 4)
        self.front.append(
            f'<rect class="{kind}" x="{left}" y="{self.y - 13}" '
            f'width="{width}" height="22" rx="4"/>'
            f'<text class="small" x="{left + width // 2}" y="{self.y + 2}" '
            f'text-anchor="middle">{escape(text, quote=False)}</text>'
        )
        self.y += ROW

    def _turn(self, lane: str, sign: str, text: str) -> None:
        here = self.y - 18
        if lane in self.since:
            kind, since = self.since.pop(lane)
            self.bars.append(
                f'<rect class="{kind}" x="{self.x(lane) - BAR // 2}" y="{since}" '
                f'width="{BAR}" height="{here - since}" rx="2"/>'
            )
        if sign != "-":
            self.since[lane] = ("holds" if sign == "+" else "late", here)
        if text:
            last = lane == self.lanes[-1]
            x, anchor = (self.x(lane) - 10, "end") if last else (self.x(lane) + 10, "start")
            self.front.append(
                f'<text class="small" x="{x}" y="{self.y - 2}" '
                f'text-anchor="{anchor}">{escape(text, quote=False)}</text>'
            )
            self.y += ROW - 6

    def finish(self) -> tuple[int, int, str]:
        for lane in list(self.since):
            self._turn(lane, "-", "")
        for lane in self.lanes:
            x = self.x(lane)
            name = lane.replace("_", " ")
            self.behind.append(
                f'<text class="lane" x="{x}" y="28" text-anchor="middle">{name}</text>'
                f'<line class="life" x1="{x}" y1="38" x2="{x}" y2="{self.y - 10}"/>'
            )
        return self.width, self.y, "\n".join(self.behind + self.bars + self.front)


def svg(name: str, title: str, description: str, size: tuple[int, int], body: str) -> str:
    width, height = size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'role="img" aria-labelledby="{name}-title {name}-desc">\n'
        f'<title id="{name}-title">{escape(title, quote=False)}</title>\n'
        f'<desc id="{name}-desc">{escape(description, quote=False)}</desc>\n'
        f"<style>\n{STYLE}</style>\n"
        f'<rect class="ground" x="0.5" y="0.5" '
        f'width="{width - 1}" height="{height - 1}" rx="6"/>\n'
        f"{body}\n</svg>\n"
    )


def states() -> str:
    """Return the drawing of the states of a lease and the ways between them."""
    places = {
        "held": (100, 120),
        "unknown": (390, 120),
        "lost": (680, 120),
        "released": (390, 230),
    }
    ways = [  # where it begins and ends, how it is bent, what it is for, and where that stands
        ("M150 112 H332", "a renewal got no answer", 241, 104),
        ("M340 128 H158", "a renewal is answered", 241, 146),
        ("M440 120 H622", "the same", 531, 112),
        (
            "M100 102 C100 30 680 30 680 94",
            "its deadline passes, or the server says that it is gone",
            390,
            40,
        ),
        ("M390 138 V204", "release", 418, 176),
        ("M100 138 C100 190 200 230 332 230", "release", 250, 248),
    ]
    body = [
        f'<path class="arrow" d="{path}" marker-end="url(#head)"/>'
        f'<text class="small" x="{x}" y="{y}" text-anchor="middle">{text}</text>'
        for path, text, x, y in ways
    ]
    for place, (x, y) in places.items():
        kind = {"held": "good", "lost": "bad"}.get(place, "plain")
        body.append(
            f'<rect class="{kind}" x="{x - 50}" y="{y - 18}" width="100" height="36" rx="8"/>'
            f'<text class="lane" x="{x}" y="{y + 5}" text-anchor="middle">{place}</text>'
        )
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="0" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker>'
    )
    return svg(
        "states",
        "The states of a lease",
        "Held at first. A renewal without an answer makes it unknown, an answered one held again. "
        "From both it is lost when its deadline passes, or when the server says that it is gone; "
        "and from both it is released.",
        (780, 270),
        "\n".join([head, *body]),
    )


def drawings() -> dict[str, str]:
    """Return the content of each file, by its name."""
    found = {"states.svg": states()}
    for name, (title, description, lanes, lines) in STORIES.items():
        sequence = Sequence(lanes.split())
        for line in lines.strip().splitlines():
            sequence.draw(line.strip())
        width, height, body = sequence.finish()
        found[f"{name}.svg"] = svg(
            name, title, " ".join(description.split()), (width, height), body
        )
    return found


if __name__ == "__main__":
    for file, text in drawings().items():
        (IMAGES / file).write_text(text, encoding="utf-8")

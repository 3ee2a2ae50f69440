"""Colours and markers of the pictures."""

from __future__ import annotations

# Each has a contrast of 3 and more to white and to a dark page alike.
INK = "#7d7d7d"
OURS = "#d9480f"
OTHERS = ["#1c7ed6", "#2b8a3e", "#9c50c0", "#8a7400"]
MARKERS = ["o", "s", "^", "D", "v"]


def colours(titles: list[str], ours: list[str]) -> dict[str, str]:
    """Return a colour for each title."""
    others = [title for title in titles if title not in ours]
    return {**dict.fromkeys(ours, OURS), **dict(zip(others, OTHERS, strict=False))}

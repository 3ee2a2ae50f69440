"""Tables and pictures, made from the records in `results/` and from nothing else.

Each section stands between two markers in a page; a test compares the pages with the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from devtools import pages

from . import growth, tables, targets
from .harness import recorded, say

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
CAPACITY = ROOT / "docs" / "capacity.md"
README = ROOT / "README.md"
IMAGES = ROOT / "docs" / "images"

Record = dict[str, Any]

SECTIONS: Mapping[tuple[Path, str], tuple[list[str], Callable[..., str]]] = {
    (README, "benchmark"): (["uncontended"], tables.brief),
    (PAGE, "free"): (["uncontended"], tables.free),
    (PAGE, "free-async"): (["uncontended"], tables.free_async),
    (PAGE, "crowds"): (["contended"], tables.crowds),
    (PAGE, "others"): (["contended"], tables.others),
    (PAGE, "kinds"): (["kinds"], tables.kinds),
    (PAGE, "pairs"): (["pairs"], tables.pairs),
    (PAGE, "targets"): (
        ["uncontended", "contended", "kinds", "pairs"],
        lambda free, crowd, kinds, pairs: targets.text(
            free,
            targets.free(free),
            targets.crowded(crowd),
            targets.kinds(kinds),
            targets.pairs(pairs),
        ),
    ),
    (CAPACITY, "fleet"): (["fleet"], growth.carries),
    (CAPACITY, "latency"): (["latency"], growth.far),
    (CAPACITY, "leases"): (["leases"], growth.held),
    (CAPACITY, "memory"): (["leases"], growth.memory),
    (CAPACITY, "piling"): (["leases"], growth.piling),
    (CAPACITY, "waiting"): (["leases"], growth.waiting),
    (CAPACITY, "server"): (["server"], growth.cycle),
    (CAPACITY, "renewals"): (["server"], growth.batch),
    (CAPACITY, "listing"): (["inspection"], growth.listing),
    (CAPACITY, "pages"): (["inspection"], growth.admin_pages),
    (CAPACITY, "start"): (["startup"], growth.start),
    (CAPACITY, "growth-targets"): (
        ["server", "leases", "inspection", "startup"],
        lambda *records: targets.text(records[0], growth.targets(*records)),
    ),
}
"""A section: its place, the records that it needs, and the function that makes its text."""


def text(page: Path, name: str) -> str | None:
    """Return the text of the section. None: its records are missing."""
    parts, function = SECTIONS[page, name]
    records = [recorded(part) for part in parts]
    return None if None in records else function(*records)


def write() -> None:
    """Make all sections and pictures whose records exist."""
    for page, name in SECTIONS:
        content = text(page, name)
        if content is not None:
            new = pages.replace(page.read_text(encoding="utf-8"), name, content)
            page.write_text(new, encoding="utf-8")
    if find_spec("matplotlib") is None:
        say("matplotlib is not installed: no pictures")
        return
    from . import plots

    plots.write(IMAGES)

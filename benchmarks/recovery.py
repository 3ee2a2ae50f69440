"""How long it takes until locks work again after a fault, and until a loss is told.

    python -m benchmarks recovery

runs the tests that are marked `recovery`, and writes what they have measured into
docs/promises.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from devtools.pages import replace, table
from tests.recovery import RECORD

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "promises.md"


def write() -> None:
    """Measure, and write the table."""
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "recovery"]
        subprocess.run(command, cwd=ROOT, env={**os.environ, RECORD: file.name}, check=True)
        rows = [json.loads(line) for line in Path(file.name).read_text("utf-8").splitlines()]
    page = replace(PAGE.read_text(encoding="utf-8"), "recovery", made_of(rows))
    PAGE.write_text(page, encoding="utf-8")


def made_of(rows: list[dict[str, str | float]]) -> str:
    """Return the table: for each fault and what has to work again, the longest time."""
    longest: dict[tuple[str, str, str, str], float] = {}
    for row in rows:
        seconds = float(row["seconds"])
        key = str(row["fault"]), str(row["what"]), f"{row['within']:g}", str(row["test"])
        longest[key] = max(seconds, longest.get(key, 0.0))
    lines = [
        [f"{fault[0].upper()}{fault[1:]}: {what}.", f"{within} s", _seen(seconds), f"`{test}`"]
        for (fault, what, within, test), seconds in longest.items()
    ]
    return table([["promise", "within", "seen", "test"], *sorted(lines)])


def _seen(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"

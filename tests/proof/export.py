"""Histories in the form that other judges read: Knossos, Porcupine, and elle-cli.

A form with an operation for each line: it is called (`invoke`), and took effect (`ok`), did not
(`fail`), or nobody knows (`info`). A lease that ended by itself, or may have done so, is written
as a release that begins when it can have ended at the earliest. After an `info`, the process has
another number, since for these judges it has crashed.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.faults.torture.history import Attempt, History

from .court import Run

Operation = dict[str, Any]


def operations(history: History) -> list[Operation]:
    """Return the history as operations, in the order of their times, in nanoseconds."""
    told: list[tuple[float, Operation]] = []
    numbers = itertools.count()
    process: dict[str, int] = {}

    def tell(attempt: Attempt, f: str, asked: float, answered: float | None, end: str) -> None:
        if attempt.who not in process:
            process[attempt.who] = next(numbers)
        number = process[attempt.who]
        value = {"places": attempt.places, "token": attempt.token}
        for at, kind in ((asked, "invoke"), (answered or asked, end)):
            told.append((at, {"process": number, "type": kind, "f": f, "value": value}))
        if end == "info":
            del process[attempt.who]

    for attempt in history.attempts:
        end = {"granted": "ok", "refused": "fail"}.get(attempt.outcome, "info")
        tell(attempt, "acquire", attempt.asked, attempt.answered, end)
        if not attempt.granted:
            continue
        assert attempt.answered is not None
        begin = max(attempt.over_from, attempt.answered)
        if attempt.returned is not None and attempt.release in ("released", "lost"):
            tell(attempt, "release", begin, max(attempt.returned, begin), "ok")
        elif begin < math.inf:
            tell(attempt, "release", begin, None, "info")
    told.sort(key=lambda one: one[0])
    return [
        {"index": index, "time": round(at * 1e9), **operation}
        for index, (at, operation) in enumerate(told)
    ]


def write_all(runs: Sequence[Run], path: Path) -> None:
    """Write each history to a file of its own, beside `path`: history-mutex-kill-1.edn."""
    for number, run in enumerate(runs, 1):
        words = re.findall(r"\w+", f"{run.promise.kind.title} {run.promise.nemesis.name} {number}")
        write(run.history, path.with_stem("-".join([path.stem, *words])))


def write(history: History, path: Path) -> None:
    """Write the history, as JSON or EDN by the ending of `path`."""
    done = operations(history)
    if path.suffix == ".json":
        lines = ",\n".join(json.dumps(operation) for operation in done)
        path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    else:
        path.write_text("".join(f"{_edn(operation)}\n" for operation in done), encoding="utf-8")


def _edn(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f":{key} {_edn(one)}" for key, one in value.items()) + "}"
    if value is None:
        return "nil"
    return f":{value}" if isinstance(value, str) else str(value)

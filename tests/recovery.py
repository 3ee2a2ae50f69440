"""How long it takes until locks work again after a fault: held against what is promised, and
recorded for the table in docs/promises.md.

    recovery.begins()
    ...
    recovery.done("the primary is killed", "a lock is acquired", within=20)

`python -m benchmarks recovery` runs the tests that are marked `recovery`, and makes the table of
what they have measured. So a new row is a new test.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tests.contract.api import Api

RECORD = "REDISLOCK_RECOVERY"
"""The variable that names the file for the times: a line of JSON for each."""


class Recovery:
    """What one test measures. `test` is the part of its name that pages give."""

    def __init__(self, test: str) -> None:
        self._test = test
        self.began = time.monotonic()
        """When the fault began."""

    @property
    def recorded(self) -> bool:
        """Whether the times are for the table: then nothing is made shorter than it is."""
        return RECORD in os.environ

    def begins(self) -> None:
        """Say that the fault begins now."""
        self.began = time.monotonic()

    def done(self, fault: str, what: str, *, within: float) -> None:
        """Say what works again now, and how many seconds after the fault it has to."""
        self.took(time.monotonic() - self.began, fault, what, within=within)

    def took(self, seconds: float, fault: str, what: str, *, within: float) -> None:
        """Say what worked again so many seconds after the fault."""
        if path := os.environ.get(RECORD):
            row = {"fault": fault, "what": what, "within": within, "test": self._test}
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(json.dumps({**row, "seconds": round(seconds, 3)}) + "\n")
        assert seconds < within, f"{what}: {seconds:.1f} s after {fault}"

    def start(self, api: Api, call: Callable[[], Any]) -> Future[tuple[Any, float]]:
        """Begin something in another thread. The result comes with the seconds since the fault
        began."""
        return api.start(lambda: (call(), time.monotonic() - self.began))

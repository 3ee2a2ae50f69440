"""SQLite whose commits take a moment: who had the lock too early would read what was there"""

from __future__ import annotations

import time

from django.db.backends.sqlite3 import base

SECONDS = 0.05


class DatabaseWrapper(base.DatabaseWrapper):
    def _commit(self) -> None:
        time.sleep(SECONDS)
        super()._commit()  # type: ignore[misc]

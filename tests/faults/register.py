"""A register that refuses late writers, as a project's database would: `fence <= ?`."""

from __future__ import annotations

import sqlite3
from contextlib import closing


class Register:
    """One row of an SQLite file. Any process may write to it, with a fencing token."""

    def __init__(self, path: str) -> None:
        self._path = path
        with closing(self._connect()) as database:
            database.execute("CREATE TABLE IF NOT EXISTS register (fence INTEGER, value TEXT)")
            database.execute(
                "INSERT INTO register SELECT 0, '' WHERE NOT EXISTS (SELECT * FROM register)"
            )

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None, timeout=30)

    def write(self, fencing_token: int, value: str) -> bool:
        """False: somebody with a larger fencing token has been here, and nothing is written."""
        with closing(self._connect()) as database:
            written = database.execute(
                "UPDATE register SET fence = ?, value = ? WHERE fence <= ?",
                (fencing_token, value, fencing_token),
            )
            return written.rowcount == 1

    def read(self) -> str:
        with closing(self._connect()) as database:
            (value,) = database.execute("SELECT value FROM register").fetchone()
            return str(value)

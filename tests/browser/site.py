"""The shop under a web server, with a Redis and a database of its own, as its operators see it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from redis import Redis

from devtools.redis_server import RedisServer
from tests.browser.hands import Hands
from tests.operations.calling import granted
from tests.processes import ROOT
from tests.servers.server import EXAMPLE, Server
from tests.waiting import PATIENCE, eventually

USERS = {
    # Their permissions on locks; None: all that there are.
    "superuser": None,
    "operator": ["view_lockstatus", "clear_lock"],
    "reader": ["view_lockstatus"],
    "dispatcher": ["view_periodicjob", "run_periodicjob", "pause_periodicjob"],
    "staff": [],
}
INDEX = "redislock:index"
LIST = "/admin/django_redislock/lockstatus/"


class Site:
    def __init__(self, directory: Path, settings: str) -> None:
        self.directory = directory
        self.database = directory / "shop.sqlite3"
        self.redis_server = RedisServer()
        self.redis_server.start()
        self._closing: list[Callable[[], None]] = [self.redis_server.stop]
        try:
            self._open(settings)
        except BaseException:
            self.close()
            raise

    def _open(self, settings: str) -> None:
        env = {
            "DJANGO_SETTINGS_MODULE": settings,
            "REDIS_URL": self.redis_server.url,
            "SHOP_DB": str(self.database),
        }
        self.env = {**os.environ, **env, "PYTHONPATH": f"{EXAMPLE}:{ROOT}"}
        """For further processes of the same project."""
        self.sessions: dict[str, str] = json.loads(
            subprocess.run(
                [sys.executable, "-m", "tests.browser.users"],
                cwd=ROOT,
                env=self.env,
                stdout=subprocess.PIPE,
                timeout=PATIENCE,
                check=True,
            ).stdout
        )
        self.redis = Redis.from_url(self.redis_server.url)
        self._closing.append(self.redis.close)
        self.server = Server("gunicorn gthread", env, self.directory / "log")
        self._closing.append(self.server.close)
        self.url = f"http://127.0.0.1:{self.server.port}"
        self.us = Hands(self.redis_server.url)
        self._closing.append(self.us.close)
        self.others = Hands(self.redis_server.url)
        self._closing.append(self.others.close)

    def close(self) -> None:
        while self._closing:
            self._closing.pop()()

    def clean(self) -> None:
        """No lock is held, and nothing is known of those that were."""
        self.us.let_go()
        self.others.let_go()
        self.forget()
        self.us.is_free()
        self.others.is_free()
        self.forget()
        self._query("DELETE FROM django_admin_log")

    # Locks.

    def list_of(self, **parameters: str) -> str:
        """The address of the list, with filters."""
        query = "&".join(f"{name}={quote(value)}" for name, value in parameters.items())
        return f"{LIST}?{query}" if query else LIST

    def address_of(self, name: str, page: str = "change") -> str:
        return f"{LIST}{quote_pk(f'default:{name}')}/{page}/"

    def left_behind(self, name: str, **facts: Any) -> None:
        """A lock of a process that has been gone for a quarter of an hour, and is stale."""
        granted(self.redis, name, **facts)

    def strangers(self, name: str, value: str = "mine", seconds: int = 600) -> None:
        """A value that django-redislock did not write, where a lock would be, and that stays for
        so many seconds (0: for ever)."""
        self.redis.set(f"redislock:{{{name}}}", value, ex=seconds or None)
        self.redis.zadd(
            INDEX, {f"redislock:{{{name}}}": int((time.time() + (seconds or 1e9)) * 1000)}
        )

    def many(self, count: int) -> None:
        """Locks of a process of which nothing is seen but them."""
        for number in range(count):
            self.left_behind(f"many:{number:04}")

    def parked(self, name: str, *ids: str, seconds: int = 90) -> None:
        """Tasks of such a name, parked so long ago. None of them runs."""
        now = time.time()
        key, since = f"redislock:{{task:{name}}}", int((now - seconds) * 1e6)
        self.redis.rpush(f"{key}:parked", *ids)
        for id in ids:
            self.redis.hset(f"{key}:messages", mapping={id: "1|text", f"\t{id}": since})
        self.redis.zadd("redislock:tasks", {f"task:{name}": int((now + 3600) * 1000)})

    def forget(self) -> None:
        """Let Redis know nothing of any lock, as after a restart."""
        if keys := list(self.redis.scan_iter(match="redislock*", count=1000)):
            self.redis.delete(*keys)

    def await_queue(self, name: str, length: int) -> None:
        """Return when so many wait for the lock."""
        eventually(lambda: self.redis.zcard(f"redislock:{{{name}}}:queue") == length)

    def token(self, name: str) -> str:
        """That of who holds the lock; empty when it is free."""
        value: bytes = self.redis.get(f"redislock:{{{name}}}") or b""
        return value.partition(b"|")[0].decode()

    def fencing_token(self, name: str) -> str:
        """That of who holds the lock."""
        value: bytes = self.redis.get(f"redislock:{{{name}}}") or b""
        return value.split(b"|")[1].decode()

    # The database.

    def log_entries(self) -> list[tuple[str, str, str]]:
        """Who did it, to what, and what is said of it."""
        return self._query(
            "SELECT username, object_repr, change_message FROM django_admin_log "
            "JOIN auth_user ON auth_user.id = user_id ORDER BY django_admin_log.id"
        )

    def make_group(self, name: str) -> None:
        """One of users, the first."""
        self._query(f"INSERT OR REPLACE INTO auth_group (id, name) VALUES (1, {name!r})")

    def _query(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self.database, timeout=PATIENCE)) as database, database:
            return database.execute(query).fetchall()


def quote_pk(pk: str) -> str:
    """As the admin does it in its addresses."""
    from django.contrib.admin.utils import quote as admin_quote

    return str(admin_quote(pk))

"""A private Redis and a private database, which are removed afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.test import override_settings

from devtools.redis_server import RedisServer


@contextmanager
def sandbox() -> Iterator[RedisServer]:
    """Let the shop use a private Redis and database, in this process and in those that it
    starts."""
    with RedisServer() as server, TemporaryDirectory(prefix="shop-") as directory:
        database = f"{directory}/shop.sqlite3"
        # For the workers, which read the settings when they start,
        os.environ.update(REDIS_URL=server.url, SHOP_DB=database)
        # and for this process, which has read them, but is not connected yet.
        connection.settings_dict["NAME"] = database
        caches = {"default": {**settings.CACHES["default"], "LOCATION": server.url}}
        with override_settings(CACHES=caches):
            try:
                call_command("migrate", verbosity=0)
                yield server
            finally:
                connection.close()

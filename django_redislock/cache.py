"""Django's own cache backend for Redis, with `cache.lock()`.

"BACKEND": "django_redislock.cache.RedisCache"
"""

from __future__ import annotations

from typing import Any

from django.core.cache.backends import redis as backend
from django.core.exceptions import ImproperlyConfigured
from redis import Redis

from .client import Lock
from .transport.connections import made_by
from .transport.entries import of_django


class RedisCache(backend.RedisCache):
    """Django's backend. Its locks are those of `django_redislock.client`, and their keys are made
    like those of cached values."""

    def __init__(self, server: Any, params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self._for_locks = made_by(of_django(server, params.get("OPTIONS") or {}))

    def lock(
        self,
        key: str,
        version: int | None = None,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
    ) -> Lock:
        """Return a lock with the interface of redis-py's `Lock`, of which its class is a subclass.

        `timeout`: seconds after which it is free; None: it is renewed until it is released.
        `blocking_timeout`: seconds to wait for it; None: no limit. `sleep` has no effect: waiters
        are woken.
        """
        if isinstance(self._for_locks, str):
            raise ImproperlyConfigured(f"The entry of this cache{self._for_locks}")
        pool: Any = self._for_locks.shared()
        client = Redis(connection_pool=pool)
        name = self.make_and_validate_key(key, version=version)
        return Lock(client, name, timeout, sleep, blocking, blocking_timeout, thread_local)

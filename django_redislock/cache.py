"""Django's own cache backend for Redis, with `cache.lock()`.

"BACKEND": "django_redislock.cache.RedisCache"
"""

from __future__ import annotations

from typing import Any

from django.core.cache.backends import redis as backend
from redis import Redis

from .client import Lock
from .transport.entries import primary_of_django


class RedisCache(backend.RedisCache):
    """Django's backend. Its locks are those of `django_redislock.client`, and their keys are made
    as those of cached values are."""

    def __init__(self, server: Any, params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self._primary = Redis(
            connection_pool=primary_of_django(server, params.get("OPTIONS") or {})
        )

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
        """Return a lock with the interface of redis-py's `Lock`, which it is a subclass of.

        `timeout`: seconds after which it is free; None: it is renewed until it is released.
        `blocking_timeout`: seconds to wait for it; None: no limit. `sleep` has no effect: waiters
        are woken.
        """
        lock: Lock = self._primary.lock(
            self.make_and_validate_key(key, version=version),
            timeout=timeout,
            sleep=sleep,
            blocking=blocking,
            blocking_timeout=blocking_timeout,
            lock_class=Lock,
            thread_local=thread_local,
        )
        return lock

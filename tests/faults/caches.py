"""CACHES for the fault tests."""

from __future__ import annotations

from typing import Any

from devtools.redis_sentinel import RedisSentinels


def caches(url: str, **options: Any) -> dict[str, Any]:
    """`CACHES` for override_settings: everybody works on the server at `url`."""
    return {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": url,
            "OPTIONS": options,
        }
    }


def through(sentinels: RedisSentinels, timeout: float) -> dict[str, Any]:
    """The same: everybody asks the sentinels for the primary."""
    return caches(
        f"redis://{sentinels.service}/0",
        CLIENT_CLASS="django_redis.client.SentinelClient",
        CONNECTION_FACTORY="django_redis.pool.SentinelConnectionFactory",
        SENTINELS=sentinels.addresses,
        SOCKET_TIMEOUT=timeout,
        SOCKET_CONNECT_TIMEOUT=0.5,
    )

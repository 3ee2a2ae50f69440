"""CACHES for tests: entries that lead to a server, to sentinels, or to a cluster."""

from __future__ import annotations

from typing import Any, NamedTuple

from devtools.redis_sentinel import RedisSentinels


def entry(url: Any, **options: Any) -> dict[str, Any]:
    """An entry of django-redis."""
    return {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, "OPTIONS": options}


def caches(url: Any, **options: Any) -> dict[str, Any]:
    """`CACHES` for override_settings: everybody works on the server at `url`."""
    return {"default": entry(url, **options)}


class Service(NamedTuple):
    """A service of sentinels, as other processes know it."""

    service: str
    addresses: list[tuple[str, int]]


def through(sentinels: RedisSentinels | Service, timeout: float | None) -> dict[str, Any]:
    """The same: everybody asks the sentinels for the primary."""
    return caches(
        f"redis://{sentinels.service}/0",
        CLIENT_CLASS="django_redis.client.SentinelClient",
        CONNECTION_FACTORY="django_redis.pool.SentinelConnectionFactory",
        SENTINELS=sentinels.addresses,
        SOCKET_TIMEOUT=timeout,
        SOCKET_CONNECT_TIMEOUT=0.5,
    )


def cluster(urls: list[str], **options: Any) -> dict[str, Any]:
    """The same: everybody works on the cluster that these nodes belong to."""
    factory = "django_redislock.cluster.ClusterConnectionFactory"
    return caches(urls, **{"CONNECTION_FACTORY": factory, "SOCKET_TIMEOUT": 5, **options})

"""CACHES for a Redis Cluster."""

from __future__ import annotations

from typing import Any


def cluster(urls: list[str], **options: Any) -> dict[str, Any]:
    """`CACHES`: everybody works on the cluster that these nodes belong to."""
    factory = "django_redislock.cluster.ClusterConnectionFactory"
    return {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": urls,
            "OPTIONS": {"CONNECTION_FACTORY": factory, "SOCKET_TIMEOUT": 5, **options},
        }
    }

"""CACHES for the fault tests."""

from __future__ import annotations

from typing import Any


def caches(url: str, **options: Any) -> dict[str, Any]:
    """`CACHES` for override_settings: everybody works on the server at `url`."""
    return {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": url,
            "OPTIONS": options,
        }
    }

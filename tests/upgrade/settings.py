"""What both versions can be configured by."""

from __future__ import annotations

import os

SECRET_KEY = "not a secret: for tests only"
USE_TZ = True
INSTALLED_APPS = ["django_redislock"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}

URL = os.environ["REDISLOCK_TEST_URL"]


def _at(url: str, **options: str) -> dict[str, object]:
    return {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": url,
        "OPTIONS": options,
    }


CACHES = {
    "default": _at(URL, CLIENT_CLASS="django_redislock.client.LockingClient"),
    # The servers of a Redlock.
    **{
        f"node-{number}": _at(url)
        for number, url in enumerate(os.environ.get("REDISLOCK_TEST_NODES", "").split())
    },
}

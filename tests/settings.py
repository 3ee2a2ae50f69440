"""The Django project that the tests run in."""

from __future__ import annotations

import os

SECRET_KEY = "not a secret: for tests only"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django_redislock",
    "django_redislock.contrib.once",
    "tests",
]

# What the admin needs.
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
STATIC_URL = "static/"

# Two of them, since a lock that is released on commit follows one database and not another.
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}

CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        # Set by tests/plugin.py. Without it no Redis is reached, least of all by accident the one
        # on port 6379; tools that only import the settings do without.
        "LOCATION": os.environ.get("REDISLOCK_TEST_URL", "unix:///REDISLOCK_TEST_URL-is-not-set"),
    },
}

# Only what pytest captures; the end of the shared server is no news.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"null": {"class": "logging.NullHandler"}},
    "loggers": {"django_redislock": {"handlers": ["null"]}},
}

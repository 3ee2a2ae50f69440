"""Settings of the example shop. The environment says which Redis and database, and how to run it:
REDIS_URL, SHOP_DB, SHOP_DEBUG, SHOP_EVERY."""

import os
from pathlib import Path

import django

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = "not a secret: this shop sells nothing"
DEBUG = os.environ.get("SHOP_DEBUG") == "1"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]
TIME_ZONE = "UTC"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django_redislock",
    "shop",
    # The admin needs all of these.
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
]

ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
if django.VERSION >= (6, 0):
    # Scripts and styles from here only, and none within a page. The admin needs no more.
    MIDDLEWARE.insert(0, "django.middleware.csp.ContentSecurityPolicyMiddleware")
    SECURE_CSP = {"default-src": ["'self'"]}
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"

CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ.get("REDIS_URL", "redis://localhost:6379/0"),
        # Makes every cache.lock() a lock of django-redislock; receipts.py has one.
        "OPTIONS": {"CLIENT_CLASS": "django_redislock.client.LockingClient"},
    },
}

EVERY = os.environ.get("SHOP_EVERY")


def jobs(every: float) -> dict[str, dict[str, float]]:
    """To see periodic jobs run without a long wait."""
    return {"shop.periodic.*": {"EVERY": every, "JITTER": 0}}


REDISLOCK = {
    "PREFIX": "redislock-shop",
    # Short, since a sale is short: if its worker is killed, nobody waits for longer than this. A
    # worker that lives renews its lease, so it may work for longer.
    "LOCKS": {
        "stock:*": {"TTL": 2},
        "export": {"KIND": "semaphore", "LIMIT": 3},
    },
    "JOBS": jobs(every=float(EVERY)) if EVERY else {},
}

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DB", BASE_DIR / "shop.sqlite3"),
        # A view's transaction ends after the view. The next holder at the same stock has to wait
        # for that, too; lock_view does this.
        "ATOMIC_REQUESTS": True,
        # SQLite takes one writer at a time. For many processes that write at once:
        "OPTIONS": {
            # - who finds it busy tries again for so many seconds, in place of the default 5;
            "timeout": 30,
            # - readers and the writer don't block each other, and a commit does not wait for the
            #   disk. What a power cut may then lose is the last moment, never the consistency.
            "init_command": "PRAGMA journal_mode=wal; PRAGMA synchronous=normal",
            # Transactions that begin by reading and want to write later fail with "database is
            # locked", whatever the timeout: ours begin by writing. The usual cure, to let them
            # queue when they begin ("transaction_mode": "IMMEDIATE"), does not go with
            # ATOMIC_REQUESTS: a request would keep all writers away while it waits for its lock.
        },
    },
}

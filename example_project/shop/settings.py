"""Settings of the example shop. REDIS_URL and SHOP_DB say which Redis and which database."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = "not a secret: this shop sells nothing"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = ["shop"]

CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ.get("REDIS_URL", "redis://localhost:6379/0"),
    },
}

REDISLOCK = {
    "PREFIX": "redislock-shop",
    # Short, since a sale is: when its worker is killed, nobody waits for longer than this. A
    # worker that lives renews its lease, so it may well work for longer.
    "LOCKS": {"stock:*": {"TTL": 2}},
}

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DB", BASE_DIR / "shop.sqlite3"),
        # SQLite takes one writer at a time. For many processes that write at once:
        "OPTIONS": {
            # - who finds it busy tries again for so many seconds, in place of the default 5;
            "timeout": 30,
            # - a transaction queues for its turn when it begins. Those that begin by reading and
            #   want to write later fail with "database is locked", whatever the timeout;
            "transaction_mode": "IMMEDIATE",
            # - readers and the writer don't block each other, and a commit does not wait for the
            #   disk. What a power cut may then lose is the last moment, never the consistency.
            "init_command": "PRAGMA journal_mode=wal; PRAGMA synchronous=normal",
        },
    },
}

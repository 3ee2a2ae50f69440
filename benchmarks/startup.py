"""The time and memory that `django_redislock` adds to the start of a process.

Each run is a fresh interpreter that imports Django and what a project with django-redis has of it,
and calls `django.setup()`. With ours, it is an installed app, and `redis_lock` is imported. Both
take turns; files are in the cache of the system, and compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys

from .harness import RESULTS, Row, add, say, turns

PROJECT = """
import time
begun = time.perf_counter(), time.process_time()
import django
from django.conf import settings
cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
contrib = ["django.contrib.auth", "django.contrib.contenttypes"]
settings.configure(CACHES={"default": cache}, INSTALLED_APPS=[*contrib, *OURS])
django.setup()
from django.core.cache import cache
cache.client
if OURS:
    from django_redislock import redis_lock
print(time.perf_counter() - begun[0], time.process_time() - begun[1])
"""
WITHOUT, WITH = "without it", "with it"


def measure(*, rounds: int) -> list[Row]:
    say("startup")
    rows: list[Row] = []
    run(WITH)
    run(WITHOUT)
    for title in turns([WITHOUT, WITH], rounds):
        seconds, cpu = run(title)
        add(rows, {"kind": "start"}, title, {"seconds": seconds, "client_cpu": cpu})
    return rows


def run(title: str) -> list[float]:
    ours = ["django_redislock"] if title == WITH else []
    program = PROJECT.replace("OURS", repr(ours))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=RESULTS.parent.parent,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [round(float(word), 6) for word in done.stdout.split()]

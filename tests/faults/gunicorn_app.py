"""An application that takes a lock when it is loaded: with --preload, in the master."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import django

django.setup()

from django_redislock import redis_lock  # noqa: E402

lease = redis_lock("job", ttl=2).acquire(wait=0)
assert lease is not None


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer with what a worker knows of the master's lease, or hold a lock for ever."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    assert lease is not None
    if environ["PATH_INFO"] == "/hold":
        with redis_lock("request", ttl=20):
            os.read(os.pipe()[0], 1)
    with redis_lock("request", ttl=20):
        conflict = redis_lock("job").acquire(wait=0) is None
        return [f"{os.getpid()} {lease.state} {conflict}".encode()]

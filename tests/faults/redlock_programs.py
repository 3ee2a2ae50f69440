"""What the processes of test_redlock.py run."""

from __future__ import annotations

from django.test import override_settings

from django_redislock import Redlock
from tests.faults.caches import caches
from tests.worker import say, told


def hold(ttl: str, *urls: str) -> None:
    """Hold the job on all these servers, until told to go on."""
    entries = {f"server-{number}": caches(url)["default"] for number, url in enumerate(urls)}
    with override_settings(CACHES=caches(urls[0]) | entries):
        with Redlock("job", list(entries), ttl=float(ttl)):
            say("held")
            told()
        say("left")

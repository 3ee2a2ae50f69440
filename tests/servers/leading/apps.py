"""The app, which notes who began to lead and who ended."""

from __future__ import annotations

import os

from django.apps import AppConfig
from django_redis import get_redis_connection

from django_redislock.leader import Leader


def note(word: str) -> None:
    get_redis_connection("default").rpush("noted", f"{word} {os.getpid()}")


leader = Leader("scheduler", on_gain=lambda: note("gain"), on_loss=lambda: note("loss"), ttl=2)


class Leading(AppConfig):
    name = "tests.servers.leading"

    def ready(self) -> None:
        leader.start()

"""The examples of docs/admin.md."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import path
from redis import Redis

from django_redislock.admin import LockAdmin
from django_redislock.models import Lock
from tests.blocks import blocks
from tests.operations.calling import granted

BLOCKS = blocks("admin.md")


class Urls:
    """Stands for a module with URLs."""

    def __init__(self, *patterns: Any) -> None:
        self.urlpatterns = patterns


def test_a_site_of_their_own(admin_client: Client, settings: Any, redis: Redis) -> None:
    """Its pages lead to each other, and not to those of the default one."""
    names: dict[str, Any] = {"admin": admin}
    exec(BLOCKS[0], names)
    site = names["site"]
    settings.ROOT_URLCONF = Urls(path("operators/", site.urls))
    granted(redis, "job")
    text = admin_client.get("/operators/django_redislock/lock/").content.decode()
    assert "/operators/django_redislock/lock/default_3Ajob/change/" in text
    text = admin_client.get(
        "/operators/django_redislock/lock/default_3Ajob/clear/"
    ).content.decode()
    assert 'action="/operators/django_redislock/lock/clear/"' in text


def test_unfold(
    admin_client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch, redis: Redis
) -> None:
    """Its class and ours are one, and in place of ours. tests/browser has the real one."""

    class Theirs(admin.ModelAdmin):
        list_before_template = "theirs"

    theirs = SimpleNamespace(admin=SimpleNamespace(ModelAdmin=Theirs))
    monkeypatch.setitem(sys.modules, "unfold", theirs)
    monkeypatch.setitem(sys.modules, "unfold.admin", theirs.admin)
    granted(redis, "job")
    try:
        exec(BLOCKS[1], {"admin": admin, "Lock": Lock, "LockAdmin": LockAdmin})
        settings.ROOT_URLCONF = Urls(path("unfold/", admin.site.urls))
        page = admin_client.get("/unfold/django_redislock/lock/")
    finally:
        admin.site.unregister(Lock)
        admin.site.register(Lock, LockAdmin)
    assert page.context["cl"].model_admin.list_before_template == "theirs"
    assert page.context["cl"].result_count == 1


@pytest.mark.django_db
def test_live(redis: Redis) -> None:
    """A query that asks Redis."""
    granted(redis, "old", owner="web3:1:x")
    granted(redis, "older", owner="web4:1:x")
    names: dict[str, Any] = {}
    exec(BLOCKS[2], names)
    assert [lock.name for lock in names["stale"]] == ["old"]
    assert names["Lock"] is Lock

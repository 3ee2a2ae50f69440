"""Who looks at the admin, and what there is to see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.test import Client, override_settings

from django_redislock.admin import pages

LIST = "/admin/django_redislock/lockstatus/"


@pytest.fixture(autouse=True)
def _admin() -> Iterator[None]:
    """Its URLs, and nothing known of servers yet."""
    pages._known.clear()
    with override_settings(ROOT_URLCONF="tests.admin.urls"):
        yield


def client_of(name: str, *permissions: str) -> Client:
    """Somebody of the staff, who may do so much with locks."""
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def operator(db: Any) -> Client:
    """Who may look, and clear."""
    return client_of("eva", "view_lockstatus", "clear_lock")


@pytest.fixture
def reader(db: Any) -> Client:
    """Who may look."""
    return client_of("ron", "view_lockstatus")


class Replica:
    """A router that reads content types from a replica, and allows no relation between it and the
    primary."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "other" if model is ContentType else None

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


@pytest.fixture
def replica() -> Iterator[None]:
    """A project with a replica. Mark the test with its two databases."""
    ContentType.objects.clear_cache()
    with override_settings(DATABASE_ROUTERS=[Replica()]):
        yield
    ContentType.objects.clear_cache()

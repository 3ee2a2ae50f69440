"""The list of the records in the database: to look at, for those who may."""

from __future__ import annotations

from io import StringIO

import pytest
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from django_redislock.contrib.once.models import Record
from tests.admin.conftest import client_of

LIST = "/admin/redislock_once/record/"

pytestmark = pytest.mark.django_db


@pytest.fixture
def record() -> Record:
    return Record.objects.create(
        pk="7a",
        name="idempotency:7",
        label="shop/views.py:7 in pay",
        token="t0ken",
        done=True,
        value=b"s3cret",
        at=timezone.now(),
    )


def test_who_may(record: Record, reader: Client) -> None:
    """One permission, to look; that of locks is another one."""
    permissions = Permission.objects.filter(content_type__app_label="redislock_once")
    assert [one.codename for one in permissions] == ["view_record"]
    assert reader.get(LIST).status_code == 403
    client = client_of("max", "view_record")
    page = client.get(LIST).content.decode()
    assert "idempotency:7" in page
    assert "shop/views.py:7 in pay" in page


def test_nothing_can_be_changed(record: Record, admin_client: Client) -> None:
    """Not even by a superuser: the work of a deleted record might be done again."""
    assert f"{LIST}add/" not in admin_client.get(LIST).content.decode()
    for page in ("add/", "7a/delete/"):
        assert admin_client.get(LIST + page).status_code == 403
    assert admin_client.post(f"{LIST}7a/change/", {"name": "x"}).status_code == 403
    deleting = {"action": "delete_selected", "_selected_action": ["7a"]}
    admin_client.post(LIST, deleting)
    assert Record.objects.get().name == "idempotency:7"


def test_what_it_does_not_show(record: Record, admin_client: Client) -> None:
    """Responses are what clients get, and tokens are secrets."""
    for page in ("", "?q=pay", "?done__exact=1", "7a/change/"):
        text = admin_client.get(LIST + page).content.decode()
        assert "idempotency:7" in text
        assert "s3cret" not in text
        assert "t0ken" not in text


def test_the_migration() -> None:
    """The models have no change that it lacks."""
    call_command("makemigrations", "redislock_once", "--check", "--dry-run", stdout=StringIO())

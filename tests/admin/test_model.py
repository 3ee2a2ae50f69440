"""A model without a table: what goes through all models must not notice."""

from __future__ import annotations

from io import StringIO

import pytest
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.db import connection

from django_redislock import redis_lock
from django_redislock.inspection import Kind, State
from django_redislock.models import FREE, JOB_STATES, KINDS, STATES, LockStatus
from django_redislock.periodic import JobState


def test_every_state_and_kind_has_a_name() -> None:
    """They are written out, so that the models can be imported without what reads locks."""
    assert [value for value, _ in JOB_STATES] == [*JobState]
    assert {value for value, _ in STATES} == {*State, FREE}
    assert {value for value, _ in KINDS} == {*Kind}


@pytest.mark.django_db
@pytest.mark.parametrize("options", [[], ["--all"]], ids=["default", "all"])
def test_dumpdata(options: list[str]) -> None:
    """dumpdata has no locks, so no token leaves by it."""
    out = StringIO()
    with redis_lock("job") as lease:
        call_command("dumpdata", *options, stdout=out)
    assert '"auth.permission"' in out.getvalue()
    assert "redislock.lockstatus" not in out.getvalue()
    assert lease.token not in out.getvalue()


@pytest.mark.django_db
def test_no_rows_for_others() -> None:
    """Only `live` asks Redis; other managers find nothing."""
    with redis_lock("job"):
        assert LockStatus.objects.count() == 0
        assert LockStatus._default_manager.count() == LockStatus._base_manager.count() == 0
        assert LockStatus.live.count() == 1


@pytest.mark.django_db
def test_no_migrations() -> None:
    """`makemigrations --check` is silent, and there is no table."""
    out = StringIO()
    call_command("makemigrations", check=True, dry_run=True, stdout=out)
    assert "redislock" not in out.getvalue()
    assert LockStatus._meta.db_table not in connection.introspection.table_names()


@pytest.mark.django_db
def test_permissions() -> None:
    """`migrate` makes the permissions, although there is no table."""
    found = Permission.objects.filter(content_type__app_label="django_redislock")
    assert {one.codename for one in found} == {
        "view_lockstatus",
        "clear_lock",
        "view_note",
        "view_periodicjob",
        "pause_periodicjob",
        "run_periodicjob",
    }

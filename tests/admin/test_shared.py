"""The admin's pages of locks that several hold."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from redis import Redis

from django_redislock import LeaseRevoked, ReadWriteLock, Semaphore
from tests.admin.conftest import LIST
from tests.admin.test_clear import ask, confirm, plain
from tests.operations.calling import granted

pytestmark = pytest.mark.django_db


def text(page: Any) -> str:
    return str(page.content.decode())


def test_the_list(operator: Client, redis: Redis) -> None:
    """The list says how many hold a lock, of how many, and filters by kind."""
    granted(redis, "exports", places=3)
    with Semaphore("exports", 3), ReadWriteLock("catalogue").read():
        page = text(operator.get(LIST))
        assert "2 of 3" in page
        assert "1 reader" in page
        assert "exports" in text(operator.get(LIST, {"kind": "semaphore"}))
        assert "exports" not in text(operator.get(LIST, {"kind": "read"}))


def test_a_lock(operator: Client, redis: Redis) -> None:
    """The page has all holders, with the rest of their leases."""
    granted(redis, "exports", places=3, owner="web3:77:x")
    with Semaphore("exports", 3, label="here") as lease:
        page = text(operator.get(f"{LIST}default_3Aexports/change/"))
    for words in ("2 of 3", "Holders", "web3 · 77", "here", str(lease.fencing_token), "stale"):
        assert words in page
    assert lease.token not in page


def test_clear_takes_it_from_those_who_were_seen(operator: Client, redis: Redis) -> None:
    """A later holder keeps its place."""
    granted(redis, "exports", places=3)
    seen = Semaphore("exports", 3).acquire()
    page = ask(operator, "exports")
    assert "2 of 3" in text(page)
    with Semaphore("exports", 3) as since:
        [said] = confirm(operator, page)
        assert said.startswith("Cleared “exports”. Now it is held by ")
        since.extend()
        with pytest.raises(LeaseRevoked):
            seen.extend()
        assert "changed hands" in confirm(operator, page)[0]


def test_clear_only_those_that_are_stale(operator: Client, redis: Redis) -> None:
    """If some of the holders live, those that are stale can lose it alone, which is offered."""
    granted(redis, "exports", places=3, owner="web3:77:x")
    alive = Semaphore("exports", 3).acquire()
    page = ask(operator, "exports")
    assert "It is safer to clear only those that are stale: 1 of 2." in plain(page)
    assert re.search('name="stale_only"[^>]* checked', text(page))
    assert confirm(operator, page, stale_only="on")[0].startswith("Cleared “exports”.")
    alive.extend()
    page = ask(operator, "exports")
    assert 'name="stale_only"' not in text(page)
    assert "more than 3 may work at once" in plain(page)
    confirm(operator, page)
    with pytest.raises(LeaseRevoked):
        alive.extend()

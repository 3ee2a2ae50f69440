"""What operators see of the notes of holders, and do with them."""

from __future__ import annotations

import pytest
from redis import Redis

from django_redislock import redis_lock
from tests.operations.calling import call

NOTE = "redislock:{export:7}:note"


@pytest.fixture(autouse=True)
def _left_behind(redis: Redis) -> None:
    with pytest.raises(ZeroDivisionError), redis_lock("export:7") as lease:
        lease.note(cursor=41, done=41, total=900, mail="eva@example.com")
        raise ZeroDivisionError


def test_of_a_free_lock() -> None:
    """`show` has the note, although nobody holds the lock."""
    done = call("show", "export:7")
    assert done.code == 3
    assert "inherited 0 times: " in done.out
    assert '"cursor": 41' in done.out


def test_of_a_lock_that_is_held() -> None:
    """`list` has the progress, and not the note."""
    with redis_lock("export:7") as lease:
        lease.checkpoint(done=50, total=900)
        listed = call("list").out
        assert "PROGRESS" in listed
        assert "50 of 900, 6 %" in listed
        shown = call("show", "export:7").out
        assert "Progress:        50 of 900, 6 %" in shown
        assert 'inherited 1 time: {"done": 50, "total": 900}' in shown
    assert "PROGRESS" not in call("list").out


def test_forget_it(redis: Redis) -> None:
    """First it is shown, with the command that removes it."""
    done = call("forget-note", "export:7")
    assert (done.code, redis.exists(NOTE)) == (0, 1)
    assert "eva@example.com" in done.out
    command = done.out.splitlines()[-1].split()
    assert command[:2] == ["manage.py", "redislock"]
    done = call(*command[2:])
    assert (done.code, redis.exists(NOTE)) == (0, 0)
    assert done.out == "Removed the note of 'export:7'.\n"
    done = call("forget-note", "export:7", "--yes")
    assert (done.code, done.out) == (3, "There is no note of 'export:7'.\n")


def test_forget_that_of_a_holder(redis: Redis) -> None:
    with redis_lock("export:7"):
        assert "its holder may write another note" in call("forget-note", "export:7").out

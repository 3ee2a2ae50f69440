"""Event loops that end while a task of theirs holds the lock or waits for it."""

from __future__ import annotations

import pytest
from redis import Redis

from django_redislock import redis_lock
from tests.faults.remains import late, remains, seen
from tests.processes import Start
from tests.waiting import PATIENCE, eventually


def test_asyncio_run_ends(start: Start, redis: Redis) -> None:
    """It cancels its tasks, and so their blocks are left: nothing remains."""
    worker = start("tests.faults.loops_programs:run")
    assert worker.says() == "holding True"
    assert seen(redis)
    worker.go_on()
    assert worker.says() == "ended"
    assert not remains(redis)


@pytest.mark.parametrize("lock", ["temporary", "kept"])
def test_a_loop_is_closed_with_a_lease_held(start: Start, redis: Redis, lock: str) -> None:
    """Without shutdown its task never goes on. Nothing hangs, and when it is garbage, the lock is
    free within its ttl, for nobody renews it any more; also when the lock object lives on."""
    worker = start("tests.faults.loops_programs:close", lock)
    assert worker.says() == "closed"
    worker.go_on()
    assert worker.says() == "forgotten"
    with redis_lock("job", wait=PATIENCE):
        pass
    eventually(lambda: not remains(redis))
    worker.go_on()
    assert worker.ends() == 0


def test_a_loop_is_closed_with_a_waiter(start: Start, redis: Redis) -> None:
    """It does not come for the lock that it is handed: that costs one claim window."""
    with redis_lock("job"):
        worker = start("tests.faults.loops_programs:close", "waiting")
        assert worker.says() == "closed"
    handed = seen(redis)
    assert handed is not None
    with redis_lock("job", wait=PATIENCE) as lease:
        late(lease, handed)
    worker.go_on()
    assert worker.says() == "forgotten"
    eventually(lambda: not remains(redis))
    worker.go_on()
    assert worker.ends() == 0

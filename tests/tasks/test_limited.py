"""`limited` on real queues: what is too much is parked, and holds no worker."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from redis import Redis

from tests.tasks.defining import DEPLOY
from tests.tasks.events import TRIES, Log, peak
from tests.tasks.pausing import PLACE, SEND, START
from tests.tasks.queues import Queue
from tests.waiting import eventually

pytest.importorskip("django_redislock.tasks")


@pytest.fixture(autouse=True)
def _limits(started: Queue) -> None:
    if not started.limits:
        pytest.skip("it has no limited tasks")


@pytest.mark.slow
def test_forty_tasks(queue: Queue, log: Log, pk: str) -> None:
    """Never more than three run at the same time, and all end, each of them once."""
    for item in range(40):
        queue.call(queue.tasks.api, pk, item, secs=0.05)
    ended = log.wait("end", pk, count=40)
    assert Counter(event.item for event in ended) == dict.fromkeys(range(40), 1)
    assert len(log.of("begin", pk)) == 40
    assert log.most(pk) <= 3  # all three at once: see below


def test_no_worker_waits(queue: Queue, log: Log, pk: str) -> None:
    """While more tasks are parked than a worker can run, tasks of other names run."""
    for item in range(8):
        queue.call(queue.tasks.single, pk, item, gate=item == 0)
    log.wait("begin", pk)
    queue.call(queue.tasks.single, f"{pk}-other")
    log.wait("end", f"{pk}-other")
    log.open(pk)
    log.wait("end", pk, count=8)
    assert log.most(pk) == 1


@pytest.mark.slow
def test_what_is_parked_asks_nothing(queue: Queue, log: Log, pk: str, redis: Redis) -> None:
    """While 37 of 40 tasks are parked, there are the requests for the three that run, and no
    more."""
    for item in range(40):
        queue.call(queue.tasks.api, pk, item, gate=True)
    eventually(lambda: redis.llen(f"redislock:{{task:api:{pk}}}:parked") == 37)

    def scripts() -> int:
        return int(redis.info("commandstats")["cmdstat_evalsha"]["calls"])

    log.wait("begin", pk, count=3)
    before = scripts()
    log.read(4)  # nothing is said meanwhile
    # A renewal once a second for each that runs, and a sweep in each process once in three.
    assert scripts() - before < 37
    assert len(log.events) == 3
    for _ in range(40):
        log.open(pk)
    log.wait("end", pk, count=40)
    assert len(log.of("begin", pk)) == 40


def test_another_deploy(
    unattended: Queue, log: Log, pk: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two deploys run side by side, and have other names for a task. The name is that of the
    call in both, so none runs beside another one."""
    queue = unattended
    old = queue.start(1)
    queue.call(queue.tasks.both, pk, 0, gate=True)
    log.wait("begin", pk)
    monkeypatch.setenv(DEPLOY, "new-")
    queue.start(2)
    for item in range(1, 7):
        queue.call(queue.tasks.both, pk, item)
    # The old one has no room, so it is the new one that parks.
    eventually(lambda: redis.llen(f"redislock:{{task:both:{pk}}}:parked") > 0)
    assert {event.worker for event in log.of("begin", pk)} == {old.number}
    log.open(pk)
    log.wait("end", pk, count=7)
    assert log.most(pk) == 1
    assert not list(redis.scan_iter(f"redislock:*new-both:{pk}*"))


def test_the_order_is_kept(queue: Queue, log: Log, pk: str, redis: Redis) -> None:
    """Parked tasks run in the order in which workers have taken them from the queue."""
    queue.call(queue.tasks.single, pk, 0, gate=True)
    log.wait("begin", pk)
    parked = f"redislock:{{task:single:{pk}}}:parked"
    for item in range(1, 5):
        queue.call(queue.tasks.single, pk, item)
        eventually(lambda number=item: redis.llen(parked) == number)
    log.open(pk)
    log.wait("end", pk, count=5)
    assert [event.item for event in log.of("begin", pk)] == [0, 1, 2, 3, 4]


def test_ids_are_kept(queue: Queue, log: Log, pk: str) -> None:
    """A task that was parked has the id that its caller knows; with RQ, the beginning of it.

    Backends of django.tasks choose another one.
    """
    handles = [queue.call(queue.tasks.single, pk, item, gate=item == 0) for item in range(4)]
    log.wait("begin", pk)
    queue.settle()
    log.open(pk)
    ended = log.wait("end", pk, count=4)
    ids = {event.id.partition("-again")[0] for event in ended}
    known = {queue.id_of(handle) for handle in handles}
    # On a busy machine its worker fetches some only when the first one has ended.
    assert ids == known if queue.name != "django-tasks-db" else ids & known


def test_a_retry(queue: Queue, log: Log, pk: str) -> None:
    """Parking eats no retries, and a task that has failed gives back its permit."""
    if not queue.retries:
        pytest.skip("it has no retries")
    for item in range(3):
        queue.call(queue.tasks.flaky_api, pk, item)
    log.wait("end", pk, count=3)
    assert Counter(event.item for event in log.of("begin", pk)) == dict.fromkeys(range(3), TRIES)
    assert peak(event for event in log.events if event.pk == pk) == 1


def test_unique_and_limited(queue: Queue, log: Log, pk: str) -> None:
    """Both stand above one task: equal calls coalesce, others run one after the other."""
    queue.call(queue.tasks.both, pk, 0, gate=True)
    log.wait("begin", pk)
    for item in (1, 1, 1, 2, 2):
        queue.call(queue.tasks.both, pk, item)
    log.open(pk)
    log.wait("end", pk, name="both", count=3)
    assert log.most(pk) == 1


@pytest.mark.slow
def test_a_killed_worker(queue: Queue, log: Log, pk: str) -> None:
    """The permits of the dead are free when their ttl is over, and parked tasks go on."""
    for item in range(3):
        queue.call(queue.tasks.api, pk, item, gate=True)
    log.wait("begin", pk, count=3)
    for item in range(3, 8):
        queue.call(queue.tasks.api, pk, item)
    queue.settle()
    plain = f"{pk}-plain"
    queue.call(queue.tasks.plain, plain)  # all before it are parked
    log.wait("end", plain)
    queue.kill()
    queue.start()
    # A call heals the name, as `redislock sweep` does.
    log.until(
        lambda: {event.item for event in log.of("end", pk)} >= set(range(3, 9)),
        again=lambda: queue.call(queue.tasks.api, pk, 8),
    )


@pytest.mark.slow
def test_killed_at_its_start(
    unattended: Queue, log: Log, pk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that had its permit, and whose function had not begun, is sent again, too."""
    queue = unattended
    with monkeypatch.context() as patch:
        patch.setenv(PLACE, START)
        queue.start()
    queue.call(queue.tasks.healed, pk, 0)
    log.wait("pause", pk)
    queue.kill()
    assert log.of("begin", pk) == []
    queue.start()
    looks = count()
    log.until(
        lambda: 0 in {event.item for event in log.of("end", pk)},
        again=lambda: next(looks) % 20 or queue.call(queue.tasks.healed, pk, 1),
    )


@pytest.mark.slow
def test_killed_between_promoting_and_sending(
    unattended: Queue, log: Log, pk: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was promoted, and not sent, is promoted again, and keeps its place."""
    queue, parked = unattended, f"redislock:{{task:single:{pk}}}:parked"
    with monkeypatch.context() as patch:
        patch.setenv(PLACE, SEND)
        queue.start()
    queue.call(queue.tasks.single, pk, 0, gate=True)
    log.wait("begin", pk)
    for item in (1, 2):
        queue.call(queue.tasks.single, pk, item)
        eventually(lambda number=item: redis.llen(parked) == number)
    log.open(pk)
    log.wait("pause", pk)
    queue.kill()
    assert [event.item for event in log.of("begin", pk)] == [0]
    queue.start()
    looks = count()
    log.until(
        lambda: {event.item for event in log.of("end", pk)} >= {1, 2},
        again=lambda: next(looks) % 20 or queue.call(queue.tasks.single, pk, 3),
    )
    runs = [event.item for event in log.of("begin", pk) if event.item < 3]
    assert runs == [0, 1, 2]
    assert log.most(pk) == 1


@pytest.mark.slow
def test_recover(queue: Queue, log: Log, pk: str, redis: Redis) -> None:
    """What a killed worker had begun is sent again, although the queue may have let it go."""
    queue.start()
    for item in range(30):
        queue.call(queue.tasks.healed, pk, item, gate=True)
    begun = log.wait("begin", pk, count=3)
    # What a worker has fetched and not begun would belong to the queue, which may never give it
    # again: so all others are parked.
    eventually(lambda: redis.llen(f"redislock:{{task:healed:{pk}}}:parked") == 27)
    killed = next(worker for worker in queue.workers if worker.number == begun[0].worker)
    killed.kill()
    for _ in range(40):
        log.open(pk)
    looks = count()
    log.until(
        lambda: {event.item for event in log.of("end", pk)} >= set(range(30)),
        again=lambda: next(looks) % 20 or queue.call(queue.tasks.healed, pk, 30),
    )
    begins = Counter(event.item for event in log.of("begin", pk))
    assert all(begins[one.item] > 1 for one in begun if one.worker == killed.number)

"""An upgrade while locks are held: an earlier version and this one share keys and messages.

The earlier version is a commit that stays the same, so that a change of what is in Redis is seen
as an upgrade meets it. It comes from the history of the repository.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from devtools.redis_server import RedisServer, find_server
from django_redislock.inspection import Inspector
from tests.processes import ROOT, Worker
from tests.upgrade.side import LOCKS
from tests.waiting import eventually

EARLIER = "29a3fe5441c453c0eabddd98db628be1e271e562"

POLLED = ("redlock", "timestamp")
"""Kinds whose waiters stand in no queue."""


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the earlier version."""
    # In a container, the clone may belong to another user.
    git = ["git", "-c", f"safe.directory={ROOT}", "archive", EARLIER, "django_redislock"]
    try:
        archive = subprocess.run(git, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        why = (
            f"no git clone with the history, which has the earlier version {EARLIER[:7]}: {error}"
        )
        if os.environ.get("REDISLOCK_REQUIRE_HISTORY"):
            pytest.fail(why)
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


class Side(Worker):
    """A process that does what `tests/upgrade/side.py` can do, with the package in a folder."""

    def __init__(self, package: Path, nodes: list[RedisServer]) -> None:
        env = {
            "DJANGO_SETTINGS_MODULE": "tests.upgrade.settings",
            "PYTHONPATH": str(ROOT),
            "REDISLOCK_TEST_NODES": " ".join(node.url for node in nodes),
        }
        super().__init__("tests.upgrade.side:serve", env=env, cwd=package)
        assert self.do("package") == str(package / "django_redislock")

    def begin(self, method: str, *arguments: object) -> None:
        self.go_on(json.dumps([method, *arguments]))

    def ended(self) -> Any:
        return json.loads(self.says())

    def do(self, method: str, *arguments: object) -> Any:
        self.begin(method, *arguments)
        return self.ended()


@pytest.fixture(scope="session")
def nodes() -> Iterator[list[RedisServer]]:
    """The servers of a Redlock."""
    found = find_server()
    number = 3 if found.url is None else 0
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer(found)) for _ in range(number)]


@pytest.fixture(scope="session")
def processes() -> Iterator[dict[Path, Side]]:
    """One of each version, once a test has started them: by the folder of the package."""
    running: dict[Path, Side] = {}
    yield running
    for side in running.values():
        side.close()


@pytest.fixture(params=[1, -1], ids=["upgrade", "downgrade"])
def sides(
    request: pytest.FixtureRequest,
    processes: dict[Path, Side],
    earlier: Path,
    nodes: list[RedisServer],
) -> Iterator[list[Side]]:
    """Processes of both versions: the one that begins, and the one that continues."""
    for node in nodes:
        with Redis.from_url(node.url) as client:
            client.flushall()
    for package in earlier, ROOT:
        if package not in processes:
            processes[package] = Side(package, nodes)
    failed = request.session.testsfailed
    yield [processes[package] for package in (earlier, ROOT)[:: request.param]]
    for package, side in [*processes.items()]:
        if request.session.testsfailed > failed or side.process.poll() is not None:
            processes.pop(package).close()
        else:
            side.do("forget")


@pytest.fixture(params=LOCKS)
def kind(request: pytest.FixtureRequest, redis: Redis, nodes: list[RedisServer]) -> str:
    """A kind of lock."""
    if request.param == "redlock" and not nodes:
        pytest.skip("Redlock needs servers of its own")
    redis.set("redislock:guard", 0)  # nothing was lost
    # The server's clock was set back, so tokens grow by the key that both versions have.
    redis.set("redislock:clock", (redis.time()[0] + 60) * 1_000_000)
    return str(request.param)


def against(kind: str) -> str:
    """The kind that can't be held at the same time."""
    return {"read": "write", "write": "read"}.get(kind, kind)


def waiting(kind: str, number: int) -> None:
    """Wait until so many waiters stand in the queue."""
    name = {
        "several": "another",
        "once": "once:job",
        "compute": "single_flight:job",
    }.get(kind, "job")
    if kind not in POLLED:
        eventually(lambda: (lock := Inspector().get(name)) and lock.waiters == number)


def grew(later: dict[str, int], earlier: dict[str, int]) -> bool:
    """Whether the fencing tokens of all names did."""
    return later.keys() == earlier.keys() and all(later[name] > earlier[name] for name in earlier)


@pytest.mark.parametrize("how", ["thread", "task"])
def test_a_lock(sides: list[Side], kind: str, how: str) -> None:
    """A conflict names the holder, whose lease is renewed while others wait. A waiter gets the
    released lock, by a message if this kind has messages. Fencing tokens grow."""
    first, second = sides
    tokens = [first.do("acquire", kind, how)]
    assert second.do("busy", against(kind)) == first.do("owner")
    second.do("wait", against(kind), how)
    waiting(kind, 1)
    first.do("renewed")
    first.do("release")
    tokens.append(second.do("granted"))
    if kind not in POLLED:
        assert second.do("learned") == "message"
    assert first.do("busy", kind) == second.do("owner")
    second.do("renewed")
    second.do("release")
    for side in first, second, first:
        tokens.append(side.do("acquire", kind, how))
        side.do("release")
    assert all(grew(later, before) for before, later in pairwise(tokens))


def test_waiters_of_both_are_served_in_order(sides: list[Side]) -> None:
    """Although a release looks at the waiters of its own process first."""
    holder, other = sides
    holder.do("acquire", "mutex")
    queue = [other, holder, other, holder, holder, other]
    for number, side in enumerate(queue, 1):
        side.do("wait", "mutex")
        waiting("mutex", number)
    tokens = []
    for before, side in zip([holder, *queue], queue, strict=False):
        before.do("release")
        tokens.append(side.do("granted")["job"])
    queue[-1].do("release")
    assert tokens == sorted(tokens)


@pytest.mark.parametrize("kind", ["mutex", "semaphore", "write"], indirect=True)
def test_a_waiter_that_was_killed(sides: list[Side], kind: str) -> None:
    """Is passed over."""
    first, second = sides
    first.do("acquire", kind)
    second.do("wait", kind)
    waiting(kind, 1)
    first.do("wait", kind)
    waiting(kind, 2)
    second.kill()
    first.do("release")
    first.do("granted")
    first.do("release")


def test_a_holder_that_was_killed(sides: list[Side], kind: str) -> None:
    """Its lease ends, and the waiter has the lock."""
    first, second = sides
    tokens = first.do("acquire", kind)
    second.do("wait", against(kind))
    waiting(kind, 1)
    first.kill()
    assert grew(second.do("granted"), tokens)
    second.do("release")


@pytest.mark.parametrize("kind", sorted({*LOCKS} - {"after loss"}), indirect=True)
def test_a_lock_is_cleared(sides: list[Side], kind: str) -> None:
    """Its holder learns by whom, and why."""
    first, second = sides
    first.do("acquire", kind)
    second.do("clear", kind)
    assert first.do("extend") == ["eva", "it hangs"]
    second.do("acquire", against(kind))
    second.do("release")


@pytest.mark.parametrize("kind", ["mutex", "semaphore", "read", "migration"], indirect=True)
def test_a_lease_goes_to_another_process(sides: list[Side], kind: str) -> None:
    """The text of `export()` is read there."""
    first, second = sides
    first.do("acquire", kind)
    second.do("restore", first.do("export"))
    second.do("renewed")
    assert first.do("busy", against(kind)) == second.do("owner")
    second.do("release")
    first.do("acquire", against(kind))
    first.do("release")


@pytest.mark.parametrize("kind", ["mutex", "semaphore", "read", "write"], indirect=True)
def test_what_operators_see(sides: list[Side], kind: str) -> None:
    """Both versions show the holders, waiters and past holders of both."""
    first, second = sides
    first.do("acquire", kind)
    second.do("wait", against(kind))
    waiting(kind, 1)
    # A lock that is held for less than a second is not remembered.
    eventually(lambda: (lock := Inspector().get("job")) and lock.holders[0].holder.held > 1.1)
    while_held = [side.do("seen") for side in sides]
    first.do("release")
    second.do("granted")
    later = [side.do("seen") for side in sides]
    owners = first.do("owner"), second.do("owner")
    second.do("release")
    assert while_held[0] == while_held[1]
    assert while_held[0] == {
        "holders": [[owners[0], "held"]],
        "waiters": [owners[1]],
        "past": [],
    }
    assert later[0] == later[1]
    assert later[0] == {
        "holders": [[owners[1], "held"]],
        "waiters": [],
        "past": [[owners[0], "released"]],
    }


def test_cache_lock(sides: list[Side], redis: Redis) -> None:
    """`cache.lock()` of the drop-in is held by one of them."""
    first, second = sides

    def token() -> bytes:
        return (redis.get(":1:cached") or b"")[:32]

    first.do("hold_cache_lock")
    held = eventually(token)
    second.do("hold_cache_lock")
    eventually(lambda: redis.hlen("redislock:key:{:1:cached}:waiters") == 1)
    assert token() == held
    first.do("go_on")
    first.do("result")
    assert eventually(token) != held
    second.do("go_on")
    second.do("result")


@pytest.mark.parametrize("work", ["once", "compute"])
def test_work_that_leaves_a_record(sides: list[Side], work: str) -> None:
    """One does it, and the other one waits and has the result."""
    first, second = sides
    first.do(work)
    eventually(lambda: first.do("calls"))
    second.do(work)
    waiting(work, 1)
    first.do("go_on")
    second.do("go_on")
    results = [side.do("result") for side in sides]
    assert second.do("calls") == 0
    assert results[0].startswith("made by")
    assert results[1] == (None if work == "once" else results[0])


def test_a_first_value(sides: list[Side]) -> None:
    """The one of the first stands."""
    results = []
    for side in sides:
        side.do("go_on")
        side.do("initialise")
        results.append(side.do("result"))
    assert results[0] == results[1]
    assert sides[1].do("calls") == 0


def test_a_response_is_replayed(sides: list[Side]) -> None:
    """With its status, body and cookies."""
    first, second = (side.do("request") for side in sides)
    assert first == second
    assert first[:2] == [201, "ordered"]
    assert "order=42" in first[2]
    assert sides[1].do("calls") == 0


def test_a_periodic_job(sides: list[Side]) -> None:
    """One of them runs each tick. Both show its runs, and that it is paused."""
    first, second = sides

    def both_have_run_it() -> bool:
        for side in sides:
            side.do("run_due")
        return all(side.do("calls") for side in sides)

    eventually(both_have_run_it)
    first.do("pause")
    second.do("run_due")
    shown = second.do("job")
    assert shown == first.do("job")
    assert shown["state"] == "paused"
    assert {outcome for _, outcome in shown["runs"]} == {"done"}
    ticks = {planned for planned, _ in shown["runs"]}
    assert len(ticks) == len(shown["runs"]) == sum(side.do("calls") for side in sides)
    second.do("resume")
    assert first.do("job")["state"] != "paused"

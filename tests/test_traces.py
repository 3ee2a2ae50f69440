"""Real runs of the mutex are runs of its model, docs/model/handoff.pml.

The scripts write a journal while they run: who asked for what, the answer, and who has the lock
then. A search through the model has to find a run that carries out the same requests, with the
same answers. So the model knows what the code does.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from redis import Redis

from devtools import model
from devtools.model import Step, allows
from devtools.redis_server import RedisServer
from django_redislock import Lease, LeaseLost, redis_lock
from django_redislock.primitives import scripts
from django_redislock.primitives.scripts import Script
from django_redislock.transport.server import server_of
from tests.caches import caches, entry
from tests.waiting import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(model.missing()) and "REDISLOCK_REQUIRE_SPIN" not in os.environ,
        reason=f"not installed: {', '.join(model.missing())}",
    ),
]

CLIENTS = 3
LOCK, JOURNAL = "redislock:{job}", "redislock:journal"
RECORD = """
local answer = (function()
{}
end)()
if KEYS[1] == '{lock}' then
  local code = type(answer) == 'string' and 1
  if not code and answer[2] then code = answer[2][1] end
  local entry = {{'{name}', ARGV, code or 0, redis.call('GET', KEYS[1])}}
  redis.call('RPUSH', '{journal}', cjson.encode(entry))
end
return answer
"""


class Recorder:
    """Lets the scripts of the mutex write a journal."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self._load = scripts.load
        self.spoiled: dict[str, Callable[[str], str]] = {}
        """What is changed in a script, to see that the model notices it."""

    def load(self, name: str) -> Script:
        if not name.startswith("mutex_"):
            return self._load(name)
        source = self.spoiled.get(name, str)(self._load(name).source)
        source = RECORD.format(source, lock=LOCK, journal=JOURNAL, name=name)
        return Script(source, hashlib.sha1(source.encode()).hexdigest())

    def steps(self) -> list[Step]:
        """Return what the journal says, in the words of the model."""
        return list(self._steps(map(json.loads, self.redis.lrange(JOURNAL, 0, -1))))

    def _steps(self, entries: Iterable[Any]) -> Iterator[Step]:
        clients: dict[str, int] = {}
        for name, args, code, value in entries:
            asked = name.removeprefix("mutex_")
            token = args[2] if asked == "extend" else args[0]
            if asked == "write_down":
                token = args[1]
            if asked in ("take", "acquire"):
                clients[token] = int(args[2].partition("|")[0].rpartition("client-")[2])
            if asked == "acquire":
                asked = "acquire" if args[3] else "last_acquire"
            said = {1: "held", 0: "taken", -1: "refused"}[code]
            if asked == "release":
                asked, said = ("withdraw" if args[1] == "1" else "release"), ""
            then = clients[value[:32]] if value else None
            yield Step(clients[token], asked, said, then, value[32] if value else "")


@pytest.fixture(params=["one process", "a process each"])
def places(request: pytest.FixtureRequest, settings: Any, redis_server: RedisServer) -> list[str]:
    """The aliases of the clients. Those of one address have one inbox, as a process has."""
    if request.param == "one process":
        return ["default"] * CLIENTS
    names = [f"p{number}" for number in range(CLIENTS)]
    addresses = {its: caches(f"{redis_server.url}#{its}")["default"] for its in names}
    settings.CACHES = {"default": entry(redis_server.url), **addresses}
    return names


@pytest.fixture
def recorder(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    server_of("default").busy.clear()  # of the test before
    its = Recorder(redis)
    monkeypatch.setattr(scripts, "load", its.load)
    return its


Client = Callable[[int, random.Random], None]


def run(client: Client, seed: int = 0, rounds: int = 4) -> None:
    """Let clients do something so often, all at the same time."""
    begin = threading.Barrier(CLIENTS)

    def work(number: int) -> None:
        chance = random.Random(f"{seed}/{number}")
        threading.current_thread().name = f"client-{number}"
        begin.wait(PATIENCE)
        for _ in range(rounds):
            client(number, chance)

    with ThreadPoolExecutor(CLIENTS) as threads:
        for end in [threads.submit(work, number) for number in range(CLIENTS)]:
            end.result(PATIENCE)


def taking_turns(places: Sequence[str]) -> Client:
    """Some wait, some give up."""

    def client(number: int, chance: random.Random) -> None:
        wait = chance.choice([0, 0.005, None, None])
        lease = redis_lock("job", using=places[number], wait=wait).acquire()
        time.sleep(chance.random() / 200)
        if lease is not None:
            with suppress(LeaseLost):  # of a spoiled script
                lease.release()

    return client


@pytest.mark.parametrize("seed", range(3))
def test_clients_take_turns(seed: int, places: list[str], recorder: Recorder) -> None:
    run(taking_turns(places), seed)
    steps = recorder.steps()
    assert allows(steps, CLIENTS), steps


def test_leases_are_renewed(places: list[str], recorder: Recorder) -> None:
    def client(number: int, _: random.Random) -> None:
        with redis_lock("job", using=places[number], ttl=0.3, wait=None):
            time.sleep(0.15)

    run(client, rounds=2)
    steps = recorder.steps()
    assert "extend" in {its.asked for its in steps}
    assert allows(steps, CLIENTS, timeless=False), steps


def test_a_lease_ends_by_itself(places: list[str], recorder: Recorder) -> None:
    """Its holder does nothing any more; somebody waits."""

    def client(number: int, _: random.Random) -> None:
        options: Any = {"using": places[number], "wait": None}
        if number == 0:
            kept.append(redis_lock("job", ttl=0.2, renew=False, **options).acquire())
            held.set()
        else:
            assert held.wait(PATIENCE)
            with redis_lock("job", **options):
                pass

    kept: list[Lease | None] = []
    held = threading.Event()
    run(client, rounds=1)
    steps = recorder.steps()
    assert not allows(steps, CLIENTS), steps
    assert allows(steps, CLIENTS, timeless=False), steps


def changed(its: Step) -> Iterator[Step]:
    """What could have been otherwise."""
    other = {"held": "taken", "taken": "held", "refused": "taken", "": ""}
    marks = {"": "", "|": "+", "+": "|", "?": "+"}
    yield its._replace(said=other[its.said])
    yield its._replace(mark=marks[its.mark])
    yield its._replace(then=((its.then or 0) + 1) % CLIENTS, mark=its.mark or "|")


def test_what_did_not_happen_is_not_in_the_model(recorder: Recorder) -> None:
    """A journal in which one thing is changed is that of no run."""
    run(taking_turns(["default"] * CLIENTS), rounds=2)
    steps = recorder.steps()
    wrong = [
        [*steps[:number], another, *steps[number + 1 :]]
        for number, its in enumerate(steps)
        for another in changed(its)
        if another != its
    ]
    for journal in random.Random(0).sample(wrong, 12):
        assert not allows(journal, CLIENTS), journal


SPOILED = {
    "mutex_drop": ("'0', '32') ~= ours", "'0', '31') ~= token"),
    "mutex_release": ("if hand_over(grant) then", "if false then"),
    "mutex_take": ("#keys - 1)) == 0", "#keys - 1)) >= 0"),
    "mutex_acquire": ("  list(value, pttl)\n  if LOCKS", "  if LOCKS"),
}
"""A fault in each script: it drops a lock for which others wait; it hands the lock to nobody; it
takes a lock that is held; it does not mark a lock for which somebody waits."""


@pytest.mark.parametrize("places", ["a process each"], indirect=True)
@pytest.mark.parametrize("name", SPOILED)
def test_a_fault_of_the_code_is_not_in_the_model(
    name: str, places: list[str], recorder: Recorder
) -> None:
    before, after = SPOILED[name]
    recorder.spoiled[name] = lambda source: source.replace(before, after)
    assert before in recorder._load(name).source
    run(taking_turns(places))
    steps = recorder.steps()
    assert not allows(steps, CLIENTS), steps

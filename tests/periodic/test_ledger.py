"""The ledger: a tick is claimed once, with the lock, and what came of it is kept."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from redis import Redis

from django_redislock import (
    LeaseRevoked,
    LockError,
    LockNotAcquired,
    LockUnavailable,
    current_lease,
    redis_lock,
)
from django_redislock.periodic import JobInfo, JobState, Ledger, RunInfo, RunOutcome
from django_redislock.periodic.execution import JobRun, Workers, aperform, perform
from django_redislock.periodic.job import Job
from django_redislock.periodic.runner import runners
from django_redislock.primitives import ledger, mutex
from django_redislock.primitives.contract import run
from django_redislock.primitives.keys import Keys
from django_redislock.primitives.ledger import Answer, Wanted
from django_redislock.primitives.waiting import DEAF
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of
from tests.periodic.conftest import Make, Now
from tests.test_bounds import crowd
from tests.test_decorators import held_elsewhere
from tests.test_hostile import TEXTS, TYPES, fields, harmless, printed
from tests.waiting import PATIENCE

LOCK = "redislock:{periodic:job}"
LEDGER = f"{LOCK}:ledger"


def claim(job: Job, tick: int | None, **terms: Any) -> Answer:
    """Claim a tick as a scheduler does, each time as another one."""
    return wanted_run(job, tick, **terms).ask()


def wanted_run(job: Job, tick: int | None, **terms: Any) -> JobRun:
    return JobRun(job, Wanted(tick=tick, **{"overlap": "skip", **terms}))


def finish(job: Job, answer: Answer, outcome: RunOutcome = RunOutcome.DONE, why: str = "") -> Any:
    assert answer.run is not None
    return run(ledger.finish(SyncPort(server_of("default")), job.keys, answer.run, outcome, why))


def info() -> JobInfo:
    found = Ledger().job("job")
    assert found is not None
    return found


def newest() -> RunInfo:
    return info().runs[0]


def test_a_tick_is_claimed_once(make: Make, now: Now, redis: Redis) -> None:
    """A tick is claimed with the lock. Later schedulers learn which tick was claimed last."""
    job, tick = make(), now()
    first = claim(job, tick)
    assert first.what == "run"
    assert first.run.fencing_token == first.grant.fencing_token
    assert redis.get(LOCK) is not None
    second = claim(job, tick)
    assert (second.what, second.claimed) == ("taken", tick)
    finish(job, first)
    redis.delete(LOCK)
    assert claim(job, tick).what == "taken"
    assert claim(job, tick - 1).what == "taken", "nor an earlier one"
    assert claim(job, now()).what == "run"


def test_sent_again_it_is_the_same_run(make: Make, now: Now, redis: Redis) -> None:
    """A claim whose answer was lost is sent again. The lease lives for another ttl from then
    on."""
    asked = wanted_run(make(), now())
    first = asked.ask()
    redis.pexpire(LOCK, 1000)
    second = asked.ask()
    assert redis.pttl(LOCK) > 20_000
    assert second.what == "run"
    assert (second.run, second.grant and second.grant.fencing_token) == (
        first.run,
        first.grant and first.grant.fencing_token,
    )
    assert len(info().runs) == 1


def test_sent_again_when_its_lease_has_ended(make: Make, now: Now, redis: Redis) -> None:
    """If answers were lost for longer than the ttl, the run keeps its tick, under a new lease."""
    asked = wanted_run(make(), now())
    first = asked.ask()
    redis.delete(LOCK)
    second = asked.ask()
    assert second.what == "run"
    assert second.grant.fencing_token > first.grant.fencing_token
    assert [(one.fencing_token, one.attempt) for one in info().runs] == [
        (second.grant.fencing_token, 1)
    ]


def test_taken_back_it_is_not_run_by_a_late_message(make: Make, now: Now) -> None:
    """A claim that was undone frees the lock, and a late message gets nothing."""
    asked = wanted_run(make(), now())
    asked.ask()
    asked.claim.doubtful = True
    asked.undo()
    assert asked.ask().what == "taken"
    assert redis_lock("periodic:job").holder() is None
    assert newest().outcome == RunOutcome.LOST


def test_not_before_its_time(make: Make, now: Now) -> None:
    """The server's clock decides, and the answer says how long to wait."""
    job, tick = make(), now() + 60_000_000
    answer = claim(job, tick, ready=tick)
    assert answer.what == "early"
    assert 30 < answer.early <= 60
    assert info().runs == ()


def test_not_too_late(make: Make, now: Now) -> None:
    """A late tick is passed over, and is claimed thereby."""
    job, tick = make(), now() - 5_000_000
    answer = claim(job, tick, ready=tick, deadline=tick + 2_000_000)
    assert answer.what == "skipped"
    assert newest() == answer.run
    assert newest().why.startswith("too late, by ")
    assert claim(job, tick).what == "taken"


def test_a_paused_job_passes_over_its_ticks(make: Make, now: Now, redis: Redis) -> None:
    """A pause makes one entry for all its ticks, or they would push out earlier runs. Resumed, the
    job goes on from then."""
    job = make()
    before = claim(job, now())
    finish(job, before, RunOutcome.FAILED, "no paper")
    redis.delete(LOCK)
    assert Ledger().pause("job", by="ann", reason="the printer is broken | empty")
    assert info().state == JobState.PAUSED
    for tick in [now() for _ in range(3)]:
        for _ in range(2):
            claim(job, tick)
    assert [run.outcome for run in info().runs] == [RunOutcome.SKIPPED, RunOutcome.FAILED]
    assert newest().why == "paused by ann: the printer is broken | empty"
    late = now()
    assert Ledger().resume("job")
    assert not Ledger().resume("job"), "it is not paused any more"
    assert claim(job, late).what == "taken", "what came due meanwhile is not caught up with"
    assert claim(job, now()).what == "run"


def test_a_clock_that_was_wrong(make: Make, now: Now, redis: Redis) -> None:
    """A tick claimed in the future makes the job overdue; pausing and resuming puts it right."""
    job = make()
    redis.hset(LEDGER, "claimed", now() + 31_536_000_000_000)
    assert claim(job, now()).what == "taken"
    assert info().state == JobState.OVERDUE
    assert Ledger().pause("job", by="ann", reason="the clock was wrong")
    assert Ledger().resume("job")
    assert claim(job, now()).what == "run"


def test_no_such_job() -> None:
    """A job that is not known can't be paused."""
    assert Ledger().job("job") is None
    assert Ledger().runs("job") == ()
    assert not Ledger().pause("job", by="ann", reason="why")
    assert not Ledger().resume("job")


def test_while_it_runs_a_tick_is_passed_over(make: Make, now: Now) -> None:
    """The entry says why."""
    job = make()
    claim(job, now())
    tick = now()
    answer = claim(job, tick)
    assert answer.what == "skipped"
    assert newest().why.startswith("the lock was held by ")
    assert info().state == JobState.RUNNING
    assert info().last is not None
    assert claim(job, tick).what == "taken"


def test_or_waits(make: Make, now: Now, redis: Redis) -> None:
    """With overlap='wait', a tick is not claimed before the lock is free."""
    job, tick = make(overlap="wait"), now()
    first = claim(job, tick - 1)
    answer = claim(job, tick, overlap="wait")
    assert answer.what == "busy"
    assert answer.holder.remaining is not None
    finish(job, first)
    redis.delete(LOCK)
    assert claim(job, tick, overlap="wait").what == "run"


def test_killed_waiters(make: Make, now: Now, redis: Redis) -> None:
    """Killed waiters don't keep a job from running; a waiter that lives gets the lock first."""
    job, keys = make(), Keys.of("redislock", "periodic:job")
    crowd(redis, 2500, keys)
    assert claim(job, now()).what == "run"
    redis.delete(LOCK)
    crowd(redis, 1, keys, inbox=DEAF)
    answer = claim(job, now(), overlap="wait")
    assert answer.what == "busy"
    assert answer.holder.owner == "owner"


def test_a_run_without_its_lease_is_lost(make: Make, now: Now, redis: Redis, told: Any) -> None:
    """The next claim finds the lost run and reports it."""
    job = make()
    first = claim(job, now())
    redis.delete(LOCK)
    assert newest().outcome == RunOutcome.LOST, "to whoever looks, before it is written"
    assert info().state == JobState.FAILING
    second = claim(job, now())
    assert second.what == "run"
    assert (second.closed.id, second.closed.outcome) == (first.run.id, RunOutcome.LOST)
    assert [event.outcome for event in told.settle()] == ["running", "lost", "running"]


def test_its_tick_is_not_run_again(make: Make, now: Now, redis: Redis) -> None:
    """By default, the tick of a lost run is not run again."""
    job, tick = make(), now()
    claim(job, tick)
    redis.delete(LOCK)
    answer = claim(job, tick)
    assert answer.what == "taken"
    assert answer.closed is not None


def test_or_is_tried_again(make: Make, now: Now, redis: Redis) -> None:
    """With on_crash='retry', it is tried three times in all, each time under another lease."""
    job, tick = make(on_crash="retry"), now()
    fences = []
    for attempt in (1, 2, 3):
        answer = claim(job, tick, attempts=3)
        assert answer.what == "run"
        assert answer.run.attempt == attempt
        fences.append(answer.run.fencing_token)
        assert claim(job, tick, attempts=3).what == "taken", "as long as its lease lives"
        redis.delete(LOCK)
    assert fences == sorted(set(fences))
    last = claim(job, tick, attempts=3)
    assert last.what == "taken"
    assert last.closed is not None
    assert [(one.outcome, one.attempt) for one in info().runs] == [
        (RunOutcome.LOST, 3),
        (RunOutcome.LOST, 2),
        (RunOutcome.LOST, 1),
    ]


def test_paused_it_is_not_tried_again(make: Make, now: Now, redis: Redis) -> None:
    """While the job is paused, a lost run is not tried again."""
    job, tick = make(on_crash="retry"), now()
    claim(job, tick, attempts=3)
    redis.delete(LOCK)
    Ledger().pause("job", by="ann", reason="why")
    assert claim(job, tick, attempts=3).what == "paused"
    Ledger().resume("job")
    assert claim(job, tick, attempts=3).what == "run"


def test_whose_end_is_entered_late(make: Make, now: Now, redis: Redis) -> None:
    """The outcome that the run itself reports replaces 'lost'."""
    job = make()
    first = claim(job, now())
    redis.delete(LOCK)
    claim(job, now())
    assert finish(job, first).outcome == RunOutcome.DONE
    assert finish(job, first, RunOutcome.FAILED).outcome == RunOutcome.DONE, "once"
    assert [one.outcome for one in info().runs] == [RunOutcome.RUNNING, RunOutcome.DONE]
    assert info().done is not None


def test_a_run_by_hand(make: Make, now: Now) -> None:
    """A run by hand has no tick, takes none from the plan, and needs the lock."""
    job = make()
    tick = now()
    answer = claim(job, None)
    assert answer.what == "run"
    assert newest().planned is None
    busy = claim(job, None)
    assert busy.what == "busy"
    assert claim(job, tick).what == "skipped", "the lock is held, and this tick is known by that"


def test_it_is_bounded(make: Make, now: Now, redis: Redis) -> None:
    """The ledger keeps twenty runs, and any run that has not ended."""
    job = make()
    first = claim(job, now())
    for _ in range(30):
        assert claim(job, now()).what == "skipped"
    runs = info().runs
    assert len(runs) == 21
    assert (runs[-1].outcome, info().state) == (RunOutcome.RUNNING, JobState.RUNNING)
    assert redis.hlen(LEDGER) == 21 + len({"claimed", "open", "runs"})
    assert finish(job, first).outcome == RunOutcome.DONE
    assert len(info().runs) == 20
    assert newest().outcome == RunOutcome.DONE
    assert redis.hlen(LEDGER) == 20 + len({"claimed", "runs", "done"})
    assert 0 < redis.pttl(LEDGER) <= 366 * 86_400_000


def test_a_job_begins_when_the_first_scheduler_looks(make: Make, now: Now, redis: Redis) -> None:
    """Ticks before that do not count."""
    job = make()
    assert info().state == JobState.OVERDUE, "nobody runs it"
    before = now()
    _, [sight] = run(ledger.known(SyncPort(server_of("default")), [job.keys]))
    assert before <= sight.claimed <= now()
    _, [again] = run(ledger.known(SyncPort(server_of("default")), [job.keys]))
    assert again.claimed == sight.claimed
    assert info().state == JobState.NEW
    assert redis.pttl(LEDGER) > 0


def test_overdue(make: Make, now: Now, redis: Redis) -> None:
    """A job is overdue a minute after a tick that nobody has claimed, unless its last run goes
    on."""
    job = make(every=10, overlap="wait")
    redis.hset(LEDGER, "claimed", now() - 45_000_000)
    assert info().state == JobState.NEW
    redis.hset(LEDGER, "claimed", now() - 75_000_000)
    assert info().state == JobState.OVERDUE
    redis.hset(LEDGER, "claimed", now() - 200_000_000)
    claim(job, now() - 100_000_000)
    assert info().state == JobState.RUNNING
    redis.delete(LOCK)
    assert info().state == JobState.OVERDUE


@pytest.mark.parametrize("key", [LOCK, LEDGER])
def test_a_key_that_is_not_ours(make: Make, now: Now, redis: Redis, key: str) -> None:
    """A key of another type is an error, and is not overwritten."""
    redis.lpush(key, "ours")
    with pytest.raises(LockError, match="a type that such a lock does not use"):
        claim(make(), now())
    assert redis.lrange(key, 0, -1) == [b"ours"]


def test_of_one_job_among_many(make: Make, redis: Redis) -> None:
    """A broken key does not affect other jobs."""
    redis.lpush(LEDGER, "ours")
    its, others = make(), make(name="other")
    _, [bad, good] = run(ledger.known(SyncPort(server_of("default")), [its.keys, others.keys]))
    assert bad.claimed is None
    assert good.claimed is not None
    assert [job.state for job in Ledger().jobs()] == [JobState.OVERDUE, JobState.NEW]


class TestReplacing:
    """With overlap='replace', a tick that is due takes the lock away from the run before it."""

    def test_a_run(self, make: Make, now: Now, redis: Redis) -> None:
        """It is told so, and counts as lost; the next one has a larger fencing token."""
        job, tick = make(overlap="replace"), now()
        first = wanted_run(job, tick, overlap="replace")
        assert first.ask().what == "run"
        lease = run(first.hold(SyncPort))
        second = wanted_run(job, tick + 1, overlap="replace")
        answer = second.ask()
        assert (answer.what, answer.closed.id) == ("run", first.id)
        assert answer.grant.fencing_token > first.grant.fencing_token
        with pytest.raises(LeaseRevoked, match="its next tick is due"):
            lease.extend()
        heir = run(second.hold(SyncPort))
        assert redis.get(LOCK).startswith(heir.token.encode())
        assert [one.outcome for one in info().runs] == [RunOutcome.RUNNING, RunOutcome.LOST]
        heir.release()
        assert not redis.exists(LOCK)

    def test_a_coroutine(self, make: Make, now: Now, settings: Any) -> None:
        """It is cancelled."""
        told: list[str] = []

        async def job() -> None:
            try:
                begun.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                told.append("cancelled")
                raise

        async def both() -> RunInfo | None:
            first = wanted_run(its, tick, overlap="replace")
            first.ask()
            task = asyncio.create_task(aperform(first))
            await asyncio.wait_for(begun.wait(), PATIENCE)
            second = wanted_run(its, tick + 1, overlap="replace")
            answer = await asyncio.to_thread(second.ask)
            assert answer.what == "run"
            lost = await asyncio.wait_for(task, PATIENCE)
            second.undo()
            return lost

        begun, tick = asyncio.Event(), now()
        settings.REDISLOCK = {"TTL": 3}
        its = make(job, overlap="replace")
        asyncio.run(both())
        assert told == ["cancelled"]

    def test_a_holder_that_is_no_run(self, make: Make, now: Now) -> None:
        """Such as a view: its lock is waited for."""
        job, tick = make(overlap="replace"), now()
        with held_elsewhere("periodic:job"):
            assert claim(job, tick, overlap="replace").what == "busy"

    def test_another_scheduler_is_faster(
        self, make: Make, now: Now, redis: Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The tick was claimed between the theft and the claim: the lock is given back."""
        job, tick = make(overlap="replace"), now()
        claim(job, tick, overlap="replace")
        clearing = mutex.clearing

        def faster(*args: Any) -> Any:
            redis.hset(LEDGER, "claimed", tick + 1)
            return clearing(*args)

        monkeypatch.setattr(mutex, "clearing", faster)
        assert claim(job, tick + 1, overlap="replace").what == "taken"
        assert not redis.exists(LOCK)

    def test_a_request(self, make: Make, now: Now) -> None:
        """A run that somebody has asked for replaces nobody."""
        job = make(overlap="replace")
        claim(job, now(), overlap="replace")
        assert claim(job, None, overlap="replace").what == "busy"


class TestPerforming:
    """A run that this process performs."""

    def perform(self, job: Job, **terms: Any) -> RunInfo | None:
        # As a scheduler does when it begins.
        run(ledger.known(SyncPort(server_of("default")), [job.keys]))
        asked = wanted_run(job, None, **terms)
        asked.ask()
        return perform(asked)

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_a_note(self, make: Make, redis: Redis, asynchronous: bool) -> None:
        """A run that fails leaves its note to the next one; one that is done does not."""
        seen: list[Any] = []

        def job() -> None:
            lease = current_lease()
            seen.append((lease.inherited, lease.resumptions))
            lease.note(cursor=len(seen))
            if len(seen) in (1, 2):
                raise ZeroDivisionError

        async def ajob() -> None:
            job()

        its = make(ajob if asynchronous else job)
        if asynchronous:
            self.perform_async(its, 4)
        else:
            for _ in range(4):
                self.perform(its)
        assert seen == [(None, 0), ({"cursor": 1}, 1), ({"cursor": 2}, 2), (None, 0)]

    def perform_async(self, job: Job, times: int) -> None:
        run(ledger.known(SyncPort(server_of("default")), [job.keys]))

        async def perform_all() -> None:
            for _ in range(times):
                asked = wanted_run(job, None)
                asked.ask()
                await aperform(asked)

        asyncio.run(perform_all())

    def test_too_many_heirs_of_a_note(self, make: Make, redis: Redis, settings: Any) -> None:
        """The run is lost, and says why."""
        settings.REDISLOCK = {"LOCKS": {"periodic:job": {"MAX_RESUMPTIONS": 1}}}

        def job() -> None:
            current_lease().note(cursor=1)
            raise ZeroDivisionError

        its = make(job)
        outcomes = [self.perform(its).outcome for _ in range(3)]
        assert outcomes == [RunOutcome.FAILED, RunOutcome.FAILED, RunOutcome.LOST]
        assert "max_resumptions is 1" in newest().why
        assert not redis.exists(LOCK)

    def test_done(self, make: Make, told: Any, caplog: pytest.LogCaptureFixture) -> None:
        """The job runs under its lock. Its end is entered and logged, and the lock is free."""
        caplog.set_level("DEBUG", "django_redislock")
        seen = []

        def job() -> None:
            seen.append(redis_lock("periodic:job").holder())

        ended = self.perform(make(job))
        assert ended == newest()
        assert (ended.outcome, info().state) == (RunOutcome.DONE, JobState.OK)
        [holder] = seen
        assert holder.fencing_token == ended.fencing_token
        assert redis_lock("periodic:job").holder() is None
        assert [event.outcome for event in told.settle()] == ["running", "done"]
        of_job = [vars(record) for record in caplog.records if hasattr(record, "job_job")]
        assert [record["job_outcome"] for record in of_job] == ["running", "done"]
        json.dumps([{k: v for k, v in record.items() if k != "args"} for record in of_job])

    def test_lost(self, make: Make) -> None:
        """A run whose lock was cleared is lost, even if the function came to its end."""

        def job() -> None:
            redis_lock("periodic:job").clear(by="ann", reason="stuck")
            with pytest.raises(LockNotAcquired), held_elsewhere("periodic:job"):
                with pytest.raises(LockError):
                    current_lease().extend()
                redis_lock("periodic:job", wait=0).__enter__()

        ended = self.perform(make(job))
        assert ended.outcome == RunOutcome.LOST
        assert "cleared by ann (stuck)" in ended.why

    def test_lost_and_tried_again(self, make: Make, now: Now, redis: Redis) -> None:
        """A run that lost its lease is tried again, unless its function came to its end."""

        def job() -> None:
            redis.delete(LOCK)
            if attempt < 3:
                current_lease().extend()

        retried, tick = make(job, on_crash="retry"), now()
        for attempt in (1, 2, 3):
            asked = wanted_run(retried, tick, attempts=4)
            answer = asked.ask()
            assert answer.run.attempt == attempt
            perform(asked)
        assert claim(retried, tick, attempts=4).what == "taken"

    def test_a_coroutine_is_cancelled(self, make: Make) -> None:
        """A coroutine is cancelled as soon as its lease is known to be lost."""

        async def job() -> None:
            await redis_lock("periodic:job").aclear(by="ann", reason="stuck")
            with pytest.raises(LockError):
                await current_lease().aextend()
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError as error:
                cancelled.append(str(error))
                raise

        cancelled: list[str] = []
        asked = wanted_run(make(job), None)
        asked.ask()

        ended = asyncio.run(aperform(asked))
        assert cancelled == ["the lease was lost"]
        assert ended.outcome == RunOutcome.LOST
        assert "cleared by ann (stuck)" in ended.why

    def test_a_coroutine_that_cancels_itself(self, make: Make) -> None:
        """It has failed: nobody has stopped its scheduler, and its lease is not lost."""

        async def job() -> None:
            inner = asyncio.create_task(asyncio.sleep(PATIENCE))
            inner.cancel()
            await inner

        asked = wanted_run(make(job), None)
        asked.ask()
        ended = asyncio.run(aperform(asked))
        assert (ended.outcome, ended.why) == (RunOutcome.FAILED, "CancelledError: ")

    def test_a_listener_that_raises_breaks_nothing(self, make: Make, told: Any) -> None:
        """The run and the next listener go on."""
        from django_redislock.periodic import job_started

        def bad(**_: Any) -> None:
            raise ZeroDivisionError

        job_started.connect(bad)
        try:
            ended = self.perform(make())
        finally:
            job_started.disconnect(bad)
        assert ended.outcome == RunOutcome.DONE
        assert len(told.settle()) == 2


def _broken() -> list[dict[str, Any]]:
    """Fields of a ledger, each of which says what none of ours says."""
    found: list[dict[str, Any]] = [
        {"claimed": 1, "open": "r", "runs": "r ", "r": text}
        for text in (*TEXTS, "1|2|3|teapot|1|4|owner|why", "1|2|3|running|nan|4|owner|why", 7)
    ]
    for field in ("claimed", "paused", "done", "open", "runs"):
        found += [{field: text} for text in TEXTS if text != ""]
    return [{"claimed": 1, **fields} for fields in found]


@pytest.mark.parametrize("write", [*TYPES, *(fields(**said) for said in _broken())])
def test_a_broken_ledger(make: Make, redis: Redis, write: Any) -> None:
    """What can be read is shown, the job is claimed or refused, and the other jobs run."""
    broken, healthy = make(name="job"), make(name="healthy", every=1)
    write(redis, LEDGER)
    infos = {info.name: info for info in Ledger().jobs()}
    assert infos["healthy"].runs == ()
    for words in (["jobs"], ["jobs", "job"], ["jobs", "--json"]):
        harmless(printed(*words))
    if redis.type(LEDGER) != b"hash":
        assert [run.outcome for run in infos["job"].runs] == [RunOutcome.UNREADABLE]
        assert "unreadable" in printed("jobs", "job")
    now, (sight, _) = run(
        ledger.known(SyncPort(server_of("default")), [broken.keys, healthy.keys])
    )
    tick = now // 1_000_000 * 1_000_000
    for wanted in (tick - 2_000_000, tick, None):
        try:
            answer = claim(broken, wanted, attempts=2)
        except LockUnavailable:
            raise
        except LockError:  # of another type: the scheduler says so, and goes on
            assert sight.claimed is None
        else:
            if answer.what == "run":
                finish(broken, answer)
                redis.delete(LOCK)
    workers = Idle()
    redis.hset("redislock:{periodic:healthy}:ledger", "claimed", tick - 1_000_000)
    [runner] = runners([broken, healthy], workers, stays=True)
    runner.step()
    assert "healthy" in workers.started


class Idle(Workers):
    """Workers that are free, and do nothing."""

    def __init__(self) -> None:
        super().__init__(1, lambda: None)
        self.started: list[str] = []

    def free(self, job: Job) -> bool:
        return job.name not in self.started

    def start(self, job_run: JobRun) -> None:
        self.started.append(job_run.job.name)

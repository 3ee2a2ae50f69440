"""The judges of the proof, on histories written by hand: what fits, and what they refuse."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.faults.torture.arena import Plan
from tests.faults.torture.story import Story
from tests.peers.adapters import Ours, RedisPy
from tests.proof.court import verdict
from tests.proof.deeds import Limited, Notes, Once, Ticks, Unique
from tests.proof.kinds import KINDS, Majority, Mutex, Places, ReadWrite
from tests.proof.planted import DEEDS, FAULTS

WRITER = ReadWrite.places
BOTH = ["checker", "z3"]


def refused_by(
    story: Story, kind: type[Ours] = Mutex, *, lost: float = 0.0, outage: str = ""
) -> list[str]:
    """A lease lives for ten seconds; after eleven, nothing is left of a dead process."""
    plan = Plan(peer=kind, lease=10.0, kills=0, stops=0, lost=lost, outage=outage)
    return verdict(plan, story.history()).refused_by


def held_and_handed_on(places: int = 1) -> Story:
    """A holds it, then B, then C, who is killed; then D. Each writes. E tries in vain."""
    story = Story()
    at = 1.0
    for who in "ABCD":
        story.grant(who, at, asked=at - 0.5, ends=at + 9, places=places)
        story.write(who)
        if who == "A":
            story.refuse("E", at + 0.3, asked=at + 0.2, places=places)
        if who == "C":
            story.event(at + 1, "monkey", "kill", whom=who)
            at += 9
        else:
            story.release(who, at + 1, until=at + 1.1)
        at += 2
    return story


def test_a_good_history_fits() -> None:
    assert refused_by(held_and_handed_on()) == []


@pytest.mark.parametrize(
    ("at", "judges"),
    [
        pytest.param(29.5, BOTH, id="before the lease ends"),
        pytest.param(30.5, [], id="after it"),
    ],
)
def test_the_lease_of_a_killed_holder(at: float, judges: list[str]) -> None:
    """It lasts until its deadline, whatever became of its holder."""
    story = Story()
    story.grant("A", 20, asked=19, ends=30)
    story.event(21, "monkey", "kill", whom="A")
    story.grant("B", at, asked=19, ends=at + 10)
    story.release("B", at + 1, until=at + 2)
    assert refused_by(story) == judges


@pytest.mark.parametrize(
    ("end", "last"),
    [
        pytest.param("kill", 32, id="of a killed holder"),
        pytest.param("unsure", 34, id="of one that does not know whether it released"),
    ],
)
def test_what_keeps_a_lock_is_over_in_the_end(end: str, last: float) -> None:
    """Nobody renews it any more, so somebody may be refused for a ttl, and not for longer."""
    for at, judges in ((last - 0.5, []), (last + 0.5, BOTH)):
        story = Story()
        story.grant("A", 20, asked=19, ends=30)
        if end == "kill":
            story.event(21, "monkey", "kill", whom="A")
        else:
            story.release("A", 23, until=24, told="unsure")
        story.refuse("B", at, asked=at - 0.1)
        assert refused_by(story) == judges


def test_a_release_of_which_nobody_knows() -> None:
    """The lock may be free from the moment at which it was asked for, and not before."""
    for at, judges in ((23.5, []), (22.5, BOTH)):
        story = Story()
        story.grant("A", 20, asked=19, ends=30)
        story.release("A", 23, until=24, told="unsure")
        story.grant("B", at, asked=at - 1, ends=at + 10)
        story.release("B", 25, until=26)
        assert refused_by(story) == judges


@pytest.mark.parametrize("what", ["failed", "kill"])
def test_a_request_of_which_nobody_knows(what: str) -> None:
    """It may hold the lock for somebody who never hears of it: for a ttl."""
    for at, judges in ((31.5, []), (32.5, BOTH)):
        story = Story()
        story.ask("A", 20, patient=False)
        if what == "kill":
            story.event(21, "monkey", "kill", whom="A")
        else:
            story.event(21, "A", "failed")
        story.refuse("B", at, asked=at - 0.1)
        assert refused_by(story) == judges


def test_a_waiter_may_be_the_reason_of_a_refusal() -> None:
    """It is promised the lock. One that only tries is promised nothing."""
    for patient, judges in ((True, []), (False, BOTH)):
        story = Story()
        story.refuse("A", 21.5, asked=21)
        # B has the lock after C, and so did not hold it when A was refused.
        story.grant("C", 21.7, asked=21.6, ends=31, patient=False)
        story.release("C", 21.8, until=21.9)
        story.grant("B", 22, asked=20, ends=30, patient=patient)
        story.release("B", 23, until=24)
        assert refused_by(story) == judges


def test_with_lost_replies_any_request_may_hold_the_lock() -> None:
    """Also one that was refused in the end."""
    story = Story()
    story.refuse("A", 21, asked=20)
    assert refused_by(story) == BOTH
    story.refuse("B", 22, asked=20)
    assert refused_by(story) == BOTH
    assert refused_by(story, lost=0.1) == []


def test_a_failover_may_forget_a_release() -> None:
    """The lock is there again, until its lease ends."""
    for at, outage, judges in (
        (32, "restart", BOTH),
        (32, "failover", []),
        (33.5, "failover", BOTH),
    ):
        story = Story()
        story.grant("A", 20, asked=19, ends=30)
        story.release("A", 21, until=22)
        story.refuse("B", at, asked=at - 0.1)
        assert refused_by(story, outage=outage) == judges


def test_places_of_a_semaphore() -> None:
    """Three at a time, and a refusal only when all are taken."""
    story = Story()
    for who in "ABC":
        story.grant(who, 20, asked=19, ends=30, patient=False)
    story.refuse("D", 21, asked=20.5)
    assert refused_by(story, Places) == []
    story.release("A", 22, until=22.5)
    story.refuse("D", 24, asked=23)
    assert refused_by(story, Places) == BOTH


def test_a_place_too_many() -> None:
    story = Story()
    for who in "ABCD":
        story.grant(who, 20, asked=19, ends=30)
    assert refused_by(story, Places) == BOTH


def test_readers_are_together() -> None:
    """In the order of their tokens, whatever the order in which they heard of it; and a reader is
    refused only because of a writer."""
    story = Story()
    story.grant("A", 20, asked=19, ends=30, token=2, patient=False)
    story.grant("B", 20.5, asked=19, ends=30, token=1, patient=False)
    assert refused_by(story, ReadWrite) == []
    story.refuse("C", 22, asked=21)
    assert refused_by(story, ReadWrite) == BOTH


@pytest.mark.parametrize("places", [(1, WRITER), (WRITER, 1), (WRITER, WRITER)])
def test_a_writer_is_alone(places: tuple[int, int]) -> None:
    story = Story()
    for who, taken in zip("AB", places, strict=True):
        story.grant(who, 20, asked=19, ends=30, places=taken)
    assert refused_by(story, ReadWrite) == BOTH


def test_without_fencing_tokens() -> None:
    """z3 may put the grants in any order, but they are still one after the other."""
    for at, judges in ((30.5, []), (25, BOTH)):
        story = Story()
        story.grant("A", 20, asked=19, ends=30)
        story.grant("B", at, asked=19, ends=at + 10)
        history = story.history()
        for attempt in history.attempts:
            attempt.token = None
        plan = Plan(peer=Majority, lease=10.0, kills=0, stops=0)
        assert verdict(plan, history).refused_by == judges


def test_a_library_without_deadlines() -> None:
    """Its lease may have ended at any time before its holder is told that it had lost it. That is
    one mistake, and what comes later is none."""
    story = Story()
    story.grant("A", 20, asked=19, ends=None)
    story.release("A", 21, until=22, told="lost")
    for at in (23, 25):
        story.grant("B", at, asked=at - 0.5, ends=None)
        story.release("B", at + 1, until=at + 1.1)
    plan = Plan(peer=RedisPy, lease=10.0, kills=0, stops=0)
    found = verdict(plan, story.history())
    assert [one.rule for one in found.checker] == ["linearizable"]
    assert found.solver == "fits"


def test_an_answer_that_comes_too_late() -> None:
    """Its lock may have been held all that time, and the next one is refused rightly."""
    for answered, judges in ((30.5, []), (21, BOTH)):
        story = Story()
        story.refuse("B", 20.5, asked=20.4)
        story.refuse("A", answered, asked=20)
        story.grant("C", answered - 0.2, asked=answered - 0.4, ends=answered + 9)
        assert refused_by(story) == judges


def history_of(kind: type[Ours]) -> Callable[[], Story]:
    """A history with a place for each fault that this kind can have."""
    if kind is not Places:
        return lambda: held_and_handed_on(kind.places)

    def full() -> Story:
        story = Story()
        for who in "ABC":
            story.grant(who, 20, asked=19, ends=29)
        story.event(21, "monkey", "kill", whom="C")
        story.release("A", 22, until=22.5)
        story.release("B", 23, until=23.5)
        return story

    return full


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.title)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_refused(fault: str, kind: type[Ours]) -> None:
    """By one of the judges; the same history without it fits both."""
    plan = Plan(peer=kind, lease=10.0, kills=0, stops=0)
    story = history_of(kind)()
    assert verdict(plan, story.history()).refused_by == []
    for seed in range(5):
        changed = story.history()
        if not FAULTS[fault](changed, random.Random(seed), kind):
            assert fault in HAS_NO_PLACE.get(kind, ALONE)
            return
        assert verdict(plan, changed).refused_by


ALONE = {"a reader beside a writer"}
HAS_NO_PLACE: dict[type[Ours], set[str]] = {
    ReadWrite: set(),
    # Its leases do not exclude each other, and who is not alone writes to nothing.
    Places: {
        "a release later than it was",
        "fencing tokens swapped",
        "a reader beside a writer",
        "a stale write that is accepted",
    },
}


@pytest.mark.parametrize(
    ("kind", "first", "second", "third"),
    [
        pytest.param(Once, {"item": 7}, {"item": 8}, {"item": 7}, id="once"),
        pytest.param(
            Ticks, {"item": ["a", 7]}, {"item": ["a", 8]}, {"item": ["a", 7]}, id="ticks"
        ),
        pytest.param(
            Notes,
            {"inherited": None, "noted": 5},
            {"inherited": None, "noted": 6},
            {"inherited": 6},
            id="notes of one that ended",
        ),
    ],
)
def test_what_is_done_under_a_lock(
    kind: type[Ours], first: object, second: object, third: object
) -> None:
    """A holds the lock, and B, and then C, who does again what A has done, or finds what B has
    left behind although it came to its end."""
    for abouts, judges in (((first, second), []), ((first, second, third), ["checker"])):
        story = Story()
        for at, who, about in zip((1, 4, 7), "ABC", abouts, strict=False):
            story.grant(who, at + 1, asked=at, ends=at + 10)
            story.event(at + 1.1, who, "noted", about=about)
            story.release(who, at + 2, until=at + 2.1)
        assert refused_by(story, kind) == judges


def test_the_note_of_one_that_was_killed() -> None:
    """The last one has to be found."""
    for found, judges in ((5, []), (6, []), (4, ["checker"]), (None, ["checker"])):
        story = Story()
        story.grant("A", 2, asked=1, ends=12)
        story.event(2.1, "A", "noted", about={"inherited": None, "noting": 6, "noted": 5})
        story.event(3, "monkey", "kill", whom="A")
        story.grant("B", 20, asked=19, ends=30)
        story.event(20.1, "B", "noted", about={"inherited": found})
        assert refused_by(story, Notes) == judges


def tasks(kind: type[Ours]) -> Story:
    """A and B queue tasks, D and E run them together if they may; what else a call can meet."""
    story = Story()

    def does(who: str, at: float, until: float, **about: str) -> None:
        story.grant(who, at + 0.5, asked=at, ends=at + 10)
        story.event(at + 0.6, who, "noted", about={"item": 7, **about})
        story.release(who, until, until=until + 0.1)

    def runs(who: str, at: float, id: str) -> None:
        does(who, at, at + (6 if kind is Limited else 1), run=id)

    does("A", 1, 2, call="m1", got="m1")
    runs("D", 5, "m1")
    does("B", 7, 8, call="m2", got="m2")
    if kind is Limited:
        does("C", 7, 8, call="m3", got="m3")
        runs("F", 9, "m3")
    else:
        does("C", 7, 8, call="m3", got="m2")
    story.ask("G", 9)
    story.event(9.1, "G", "refused", about={"item": 7, "run": "m2"})  # it is parked
    runs("E", 10, "m2")
    return story


@pytest.mark.parametrize(
    ("kind", "fault"), [(kind, fault) for kind in (Unique, Limited) for fault in DEEDS[kind]]
)
def test_a_fault_of_tasks_is_refused(kind: type[Ours], fault: str) -> None:
    """The same history without it fits."""
    assert refused_by(tasks(kind), kind) == []
    for seed in range(5):
        changed = tasks(kind).history()
        assert DEEDS[kind][fault](changed, random.Random(seed), kind)
        plan = Plan(peer=kind, lease=10.0, kills=0, stops=0)
        assert verdict(plan, changed).refused_by == ["checker"]


@pytest.mark.parametrize("end", ["killed", "killed while it runs", "failed"])
def test_a_start_of_which_nobody_knows(end: str) -> None:
    """It counts for nothing: the message comes again, and runs to its end."""
    for again in (False, True):
        story = Story()
        story.grant("A", 1.5, asked=1, ends=None)
        story.event(1.6, "A", "noted", about={"item": 7, "call": "m1", "got": "m1"})
        story.ask("B", 2)
        story.event(2.1, "B", "noted", about={"item": 7, "run": "m1"})
        if end == "killed while it runs":
            story.event(2.5, "B", "granted", token=7, ends=12)
        if end == "failed":
            story.event(3, "B", "failed")
        else:
            story.event(3, "monkey", "kill", whom="B")
        if again:
            story.grant("C", 20, asked=19, ends=30)
            story.event(20.1, "C", "noted", about={"item": 7, "run": "m1"})
            story.release("C", 21, until=21.1)
        plan = Plan(peer=Unique, lease=10.0, kills=0, stops=0)
        broken = {one.rule for one in verdict(plan, story.history()).checker}
        assert broken == (set() if again else {"skipped"})


def test_a_call_that_counts_on_one_that_was_killed() -> None:
    """That is one call that was lost."""
    story = Story()
    story.ask("A", 1)
    story.event(1.1, "A", "noted", about={"item": 7, "call": "m1"})
    story.event(2, "monkey", "kill", whom="A")
    story.grant("B", 3, asked=2.5, ends=None)
    story.event(3.1, "B", "noted", about={"item": 7, "call": "m2", "got": "m1"})
    plan = Plan(peer=Unique, lease=10.0, kills=0, stops=0)
    assert {one.rule for one in verdict(plan, story.history()).checker} == {"skipped"}

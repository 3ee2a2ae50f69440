"""The checker finds what it is there for: each rule has a history that breaks it."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path

import pytest

from tests.faults.torture.history import SIZE, Journal, Reader, read
from tests.faults.torture.register import Register, RegisterServer, Writer
from tests.faults.torture.story import Story
from tests.peers.forkserver import CONTEXT
from tests.waiting import eventually


@pytest.fixture
def story() -> Story:
    """Begins well: A holds the lock and releases it, B waits and has it next."""
    story = Story()
    story.grant("A", 1, asked=0, ends=11)
    story.write("A")
    story.grant("B", 4, asked=2, ends=14)
    story.release("A", 3, until=3.5)
    story.write("B")
    story.release("B", 6, until=7)
    return story


def test_a_good_history_has_no_problem(story: Story) -> None:
    """Whatever may rightly happen in one."""
    # Refused while A of the beginning held it; and while the lock was free, but promised.
    story.refuse("C", 2.5, asked=2)
    story.refuse("C", 3.7, asked=3.6)
    # Its answer came too late to be of use, and somebody else had it meanwhile.
    story.grant("A", 20, asked=8, ends=18)
    story.release("A", 20.1, until=20.2, told="lost")
    story.grant("B", 19, asked=9, ends=29)
    # B is stopped, C has the lock after B's lease, and B's late write is refused.
    story.write("B")
    story.grant("C", 30, asked=10, ends=40)
    story.write("C")
    story.write("B", accepted=False)
    story.release("B", 31, until=32, told="lost")
    # C is killed in its section, D while it asks.
    story.event(33, "monkey", "kill", whom="C")
    story.ask("D", 33)
    story.event(34, "monkey", "kill", whom="D")
    story.grant("A", 41, asked=34, ends=51)
    story.event(42, "A", "step", ends=61)
    # A refusal after D's death may be due to what D had asked for.
    story.release("A", 43, until=44, told="unsure")
    story.refuse("B", 38.5, asked=38)
    assert story.verdict().problems == []


@pytest.mark.parametrize("first", ["as it was", "renewed", "of a killed holder"])
def test_two_that_were_valid_at_once_are_found(story: Story, first: str) -> None:
    """By their intervals, and because no order of grants explains them. A renewed lease has the
    deadline that its holder has learnt of last; that of a killed holder is kept until its end."""
    story.grant("A", 20, asked=19, ends=30)
    if first == "renewed":
        story.event(28, "A", "step", ends=38)
    if first == "of a killed holder":
        story.event(21, "monkey", "kill", whom="A")
    at = 35 if first == "renewed" else 25
    story.grant("B", at, asked=19, ends=at + 10)
    assert story.broken() == {"exclusive", "linearizable"}


def test_a_grant_that_fits_nowhere_is_found(story: Story) -> None:
    """It was never valid, so it overlaps with nothing; but the lock was held all the time."""
    story.grant("A", 20, asked=19, ends=60)
    story.grant("B", 50, asked=30, ends=40)
    story.release("A", 55, until=56)
    assert story.broken() == {"linearizable"}


def test_a_loss_that_was_none_is_found(story: Story) -> None:
    """The holder was told so, while its lease had time left and nobody else had the lock."""
    story.grant("A", 20, asked=19, ends=30)
    story.release("A", 25, until=26, told="lost")
    assert story.broken() == {"linearizable"}


@pytest.mark.parametrize(
    ("token", "asked", "at", "ends"),
    [
        pytest.param(8, 19, 23, 33, id="smaller"),
        # It was never valid; but it was asked for after the larger one was granted.
        pytest.param(8, 23, 40, 33, id="smaller, in a late answer"),
        pytest.param(9, 19, 23, 33, id="the same"),
    ],
)
def test_a_token_that_does_not_grow_is_found(
    story: Story, token: int, asked: float, at: float, ends: float
) -> None:
    story.grant("A", 20, asked=19, ends=30, token=9)
    story.release("A", 21, until=22)
    story.grant("B", at, asked=asked, ends=ends, token=token)
    assert story.broken() == {"tokens"}


def paused(story: Story) -> None:
    """A sleeps through its lease in its section, and B has the lock by then."""
    story.grant("A", 20, asked=19, ends=30)
    story.write("A")
    story.grant("B", 31, asked=19, ends=41)


def test_a_stale_write_that_was_accepted_is_found(story: Story) -> None:
    """B has written already, and A writes after it."""
    paused(story)
    story.write("B")
    story.write("A", accepted=True)
    verdict = story.verdict()
    assert {problem.rule for problem in verdict.problems} == {"fence"}
    assert (verdict.stale, verdict.stale_accepted) == (1, 1)


def test_a_fresh_write_that_was_refused_is_found(story: Story) -> None:
    """Nobody had the lock after it."""
    paused(story)
    story.write("B", accepted=False)
    assert story.broken() == {"fence"}


def test_an_unfair_wait_is_found() -> None:
    """One waits for many times the mean: that is a problem only without faults, and only when all
    have had their first turn."""
    story = Story()
    for turn in range(20):
        story.grant("A", turn + 0.1, asked=turn, ends=turn + 9)
        story.release("A", turn + 0.5, until=turn + 0.6)
    story.grant("B", 20.1, asked=10, ends=29)
    story.release("B", 20.2, until=20.3)
    for turn in range(21, 41):
        story.grant("A", turn + 0.1, asked=turn, ends=turn + 9)
        story.release("A", turn + 0.5, until=turn + 0.6)
    assert story.broken(fair=True) == set()
    story.grant("B", 41.1, asked=31, ends=50)
    assert story.broken(fair=True) == {"fair"}
    assert story.broken() == set()


def in_turn(story: Story, turns: int) -> None:
    """The others have the lock so many times, and ask for it after 10."""
    for turn in range(turns):
        at = 11 + turn
        story.grant("A", at, asked=at - 0.5, ends=at + 9)
        story.release("A", at + 0.1, until=at + 0.2)


def test_a_starved_waiter_is_found(story: Story) -> None:
    """It is passed over more often than the others would have had five turns each."""
    in_turn(story, 11)
    story.grant("C", 30, asked=10, ends=40)
    assert story.broken() == {"starved"}


def test_a_waiter_that_never_has_its_turn_is_found(story: Story) -> None:
    """It was there until the end, and had no answer."""
    story.ask("C", 20)
    assert story.broken() == {"starved"}


@pytest.mark.parametrize("left", [["redislock:{torture}"], None])
def test_a_key_that_remains_is_found(story: Story, left: list[str] | None) -> None:
    """So is it if nobody looked for keys: a run that was cut short proves nothing."""
    story.left = left
    assert story.broken() == {"left"}


def scribble(path: Path) -> None:
    """Write records without an end."""
    journal = Journal(path, "scribbler")
    while True:
        journal.write("step", ends=math.pi)


def test_a_killed_process_leaves_whole_records(tmp_path: Path) -> None:
    """Whenever it is killed, and two write to one file at the same time."""
    assert os.sysconf("SC_PAGE_SIZE") % SIZE == 0
    path = tmp_path / "journal"
    for enough in (10**5, 4 * 10**5):
        processes = [CONTEXT.Process(target=scribble, args=(path,)) for _ in range(2)]
        for process in processes:
            process.start()
        eventually(lambda enough=enough: path.exists() and path.stat().st_size > enough)
        for process in processes:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
    data = path.read_bytes()
    assert len(data) % SIZE == 0
    kinds = {json.loads(line)["what"] for line in data[-1000 * SIZE :].splitlines()}
    assert kinds == {"step"}


def test_a_journal_can_be_followed(tmp_path: Path) -> None:
    """Each record is news once."""
    path = tmp_path / "journal"
    journal, reader = Journal(path, "A"), Reader(path)
    journal.write("ask", at=1.0, number=1, patient=True, waits=True, places=1)
    assert [event["what"] for event in reader.news()] == ["ask"]
    assert reader.news() == []
    journal.write("granted", at=2.0, token=7, ends=12.0)
    assert [event["what"] for event in reader.news()] == ["granted"]
    journal.close()
    [attempt] = read(path).attempts
    assert (attempt.asked, attempt.valid_from, attempt.valid_until) == (1.0, 2.0, 12.0)
    assert attempt.token == 7


def test_the_register_refuses_an_older_token() -> None:
    """And accepts the same one again, a newer one, and whoever has none."""
    register = Register()
    refused = [token for token in (2, 2, 1, None, 3, 2) if not register.accepts(token)]
    assert refused == [1, 2]


def test_the_register_records_each_write(tmp_path: Path) -> None:
    """In the order in which they came, with what became of them."""
    path, journal = tmp_path / "register", Journal(tmp_path / "journal", "register")
    with RegisterServer(path, journal):
        newer, older = Writer(path, "B"), Writer(path, "A")
        assert newer.write(1, 2)
        assert not older.write(1, 1)
        newer.close()
        older.close()
    journal.close()
    told = [(event["writer"], event["accepted"]) for event in Reader(tmp_path / "journal").news()]
    assert told == [("B", True), ("A", False)]

"""The model of the handoff protocol, docs/model/handoff.pml: it holds, and it could fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from devtools import model
from devtools.model import DEFAULT, SERVED, Outcome, Setup, check

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(model.missing()) and "REDISLOCK_REQUIRE_SPIN" not in os.environ,
        reason=f"not installed: {', '.join(model.missing())}",
    ),
]

TWO_MISHAPS = Setup(2, 2)
assert TWO_MISHAPS in DEFAULT

ALONE = "one at a time"
IN_ORDER = "first come, first served"
NO_GHOSTS = "no ghosts"
ONE_WINDOW = "a claim window and no more"

FOUND = {
    # A mistake that somebody could make, in which model it shows, and which invariant it breaks.
    Setup(2, 1, fault="ACQUIRE_IS_NOT_IDEMPOTENT"): "the holder is never turned away",
    Setup(2, 1, fault="BARGING"): IN_ORDER,
    Setup(2, 1, fault="BARGING", liveness=True): SERVED,
    Setup(2, 1, fault="DEADLINE_COUNTS_FROM_THE_ANSWER"): ALONE,
    Setup(2, 1, fault="DROP_OVERLOOKS_THE_MARK"): "no free lock while somebody waits",
    Setup(2, 1, fault="EXTEND_WITHOUT_CHECK"): ALONE,
    Setup(2, 1, fault="FENCE_DIES_WITH_THE_LOCK"): "fencing tokens grow",
    Setup(2, 1, fault="GIVING_UP_STAYS_IN_THE_QUEUE"): NO_GHOSTS,
    Setup(2, 1, fault="HANDS_OVER_A_FULL_LEASE"): ONE_WINDOW,
    Setup(2, 1, fault="HANDS_TO_THE_DEAD"): "the dead are passed over",
    Setup(2, 1, fault="HANDOVER_COUNTS_FROM_THE_ANSWER"): ALONE,
    Setup(2, 2, fault="LATE_RENEWAL_REVIVES"): "the store refuses nobody in time",
    Setup(2, 1, fault="NO_CLAIM_WINDOW"): ONE_WINDOW,
    Setup(2, 1, fault="NO_CLAIM_WINDOW", liveness=True): SERVED,
    Setup(2, 1, fault="NO_HANDOFF"): "no free lock while somebody waits",
    Setup(2, 1, fault="NO_LAST_WORD"): NO_GHOSTS,
    Setup(2, 1, fault="NO_PAUSE", loss=True): ALONE,
    Setup(2, 1, fault="NO_SLICES", liveness=True): SERVED,
    Setup(2, 1, fault="NO_TOMBSTONE"): NO_GHOSTS,
    Setup(2, 2, fault="PUTS_BACK_WHAT_HAS_ENDED", loss=True): NO_GHOSTS,
    Setup(2, 1, fault="RELEASE_WITHOUT_CHECK"): "a release never removes another's lease",
    Setup(2, 1, fault="WAKEUP_IS_A_GRANT"): ALONE,
}


Search = Callable[[Setup], Outcome]


@pytest.fixture(scope="module")
def search() -> Iterator[Search]:
    """What the search through a model found. All of them are under way from the first use on."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        under_way = {
            setup: pool.submit(check, setup, shorten=False) for setup in (*DEFAULT, *FOUND)
        }
        yield lambda setup: under_way[setup].result()
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("setup", DEFAULT, ids=str)
def test_the_protocol_holds(setup: Setup, search: Search) -> None:
    """In no state that the protocol can come to is an invariant broken."""
    outcome = search(setup)
    assert not outcome.violated, "\n".join([*outcome.story, outcome.violated])
    assert outcome.states > 5_000, "the model was not explored"


def test_every_line_of_the_model_is_reached(search: Search) -> None:
    """Nothing in the model is dead: each step of it is taken in some run."""
    assert not search(TWO_MISHAPS).unreached


@pytest.mark.parametrize(("setup", "invariant"), FOUND.items(), ids=str)
def test_a_fault_is_found(setup: Setup, invariant: str, search: Search) -> None:
    """One thing is done wrong, and the invariant that it should break is broken."""
    assert search(setup).violated == invariant


def test_every_fault_is_tried() -> None:
    """No fault is left in the model of which nobody knows whether it is found."""
    assert {setup.fault for setup in FOUND} == set(model.faults())


def test_every_invariant_can_break() -> None:
    """Each invariant is broken by some fault, so none of them is idle."""
    named = set(model.INVARIANT.findall(model.MODEL.read_text()))
    assert set(FOUND.values()) == named

"""The comparison with other libraries: its adapters, our outcomes, and the page in the docs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec

import pytest

from devtools import pages
from devtools.redis_server import RedisServer
from tests.peers import report
from tests.peers.adapters import PEERS, Ours, Peer
from tests.peers.agent import Agent
from tests.peers.scenarios import SCENARIOS, Outcome, play


@pytest.fixture(scope="module")
def plays() -> Iterator[dict[str, Future[Outcome]]]:
    """Ours in all scenarios. They mostly wait, so several can be played at a time."""
    with ThreadPoolExecutor(8) as pool:
        yield {title: pool.submit(play, Ours, title, slack=10.0) for title in SCENARIOS}


@pytest.mark.parametrize("title", SCENARIOS)
def test_ours_comes_well_out_of(title: str, plays: dict[str, Future[Outcome]]) -> None:
    """Each scenario ends as a user would want it."""
    outcome = plays[title].result()
    assert outcome.good, outcome.fact


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(tcp_port=0) as server:
        yield server


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.title)
def test_each_library_can_be_used_through_its_adapter(
    peer: type[Peer], server: RedisServer
) -> None:
    """It takes the lock, refuses it to another process, extends it and releases it."""
    # Not imported here: pottery replaces json.dumps() for the whole process.
    if find_spec(peer.module) is None:
        pytest.skip(f"{peer.distribution} is not installed")
    url = f"redis://127.0.0.1:{server.tcp_port}/0"
    name = f"adapter of {peer.title}"
    first, second = Agent(peer, url), Agent(peer, url)
    try:
        assert first.do("acquire", name, 30.0, None).value
        assert second.do("acquire", name, 30.0, 0).value is False
        assert first.do("is_ours").value
        assert first.do("extend").value
        assert first.do("release").value
        assert second.do("acquire", name, 30.0, 0).value
    finally:
        first.close()
        second.close()


def test_the_page_has_a_row_for_each_scenario() -> None:
    """In the same words; the figures may be those of another day."""
    page = report.PAGE.read_text(encoding="utf-8")
    rows = report.titles(page, "scenarios")
    assert rows == [*(peer.title for peer in PEERS), *SCENARIOS]


def test_the_page_shows_nothing_bad_of_ours() -> None:
    """When the table was made, ours came well out of each scenario."""
    page = pages.part(report.PAGE.read_text(encoding="utf-8"), "scenarios")
    rows = [line.split("|")[2] for line in page.splitlines() if line.startswith("|")]
    ours = [cell.strip() for cell in rows if cell.strip()[:1] in report.MARKS.values()]
    assert len(ours) == len(SCENARIOS)
    assert all(cell.startswith(report.MARKS[True]) for cell in ours)


PAGE = """\
Before.

<!-- scenarios -->
old
<!-- end of scenarios -->

After.
"""


def test_a_table_is_put_between_its_markers() -> None:
    """And what is written around it by hand stays."""
    results = {"It rains": [Outcome("dry", True)], "It snows": [Outcome("a\\1b", False)]}
    page = pages.replace(PAGE, "scenarios", report.outcomes([Ours], results))
    assert page.startswith("Before.\n\n<!-- scenarios -->\n")
    assert page.endswith("<!-- end of scenarios -->\n\nAfter.\n")
    assert "old" not in page
    assert "| It snows | ✗ a\\1b |" in page
    assert report.titles(page, "scenarios") == ["It rains", "It snows"]
    assert report.worse([Ours], results) == ["It snows"]


def test_a_page_without_markers_is_an_error() -> None:
    """A table that went nowhere would not be missed."""
    with pytest.raises(ValueError, match="markers"):
        pages.replace("nothing", "scenarios", "table")

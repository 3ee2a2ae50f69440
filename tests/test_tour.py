"""The tour of example_project/: what its processes do, and what its buttons do to them.

tests/browser/test_tour.py has what only a browser can show: the script of the page, and its looks.
"""

from __future__ import annotations

import html
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.processes import ROOT
from tests.tour import Tour

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tour]:
    tour = Tour(tmp_path_factory.mktemp("tour"))
    yield tour
    tour.close()


@pytest.fixture
def tour(started: Tour) -> Tour:
    """With customers at work, under the lock."""
    started.get()
    started.press("with-lock", "take the lock")
    started.sees(r"customer-\d for")
    return started


def test_all_kinds_of_locks(tour: Tour) -> None:
    """The stock's lock goes from hand to hand, and each stop's lock is at work."""
    first = tour.until(tour.holder)
    tour.until(lambda: tour.holder() not in ("", first))
    tour.sees(r"customer-\d waits for \d")
    tour.sees(r"export semaphore, 3 of 3")
    tour.sees(r"catalogue read")
    tour.sees(r"catalogue write")
    tour.sees(r"ask_for_bestsellers-\w+ waits for")
    tour.sees(r"redislock-shop:prices timestamp\s+another program")
    tour.sees(r"redislock-shop:prices timestamp\s+\S+import_prices")
    tour.sees(r"Stock reports: [1-9]")


def test_without_the_lock_and_with_it(tour: Tour) -> None:
    """Lamps are sold twice, and then no more of them."""
    tour.press("without-lock", "buy without the lock")
    tour.sees("The customers buy without the lock")
    before = tour.sales()[1]
    tour.until(lambda: tour.sales()[1] > before)
    tour.press("with-lock", "take the lock")
    tour.sees("The customers buy under the lock")
    twice = tour.await_sales(6)  # the customers who began without the lock are done
    assert tour.await_sales(3) == twice


def test_the_holder_is_killed(tour: Tour) -> None:
    """It is gone, another one takes its place, and nothing is sold twice."""
    twice = tour.await_sales(6)
    pid = re.findall(r"\d+", tour.press("kill", r"Process \d+ is killed\."))[0]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    tour.sees(rf"killed stock:1, process {pid}")
    tour.until(lambda: tour.holder() not in ("", pid))
    assert tour.await_sales(4) == twice
    tour.until(lambda: len(re.findall(r"customer-\d", tour.lock("stock:1"))) == 3)


def test_two_clicks_kill_one_process(tour: Tour) -> None:
    """One process dies and one is started, and further clicks say why they do nothing. Until its
    lease ends, the killed holder looks dead."""

    def try_it() -> bool:
        tour.until(lambda: len(tour.customers()) == 3)
        tour.sees(r"customer-\d for 0\.[0-4]")  # its sale will not end meanwhile
        before = tour.customers()
        with ThreadPoolExecutor(2) as clicks:
            said = " ".join(clicks.map(tour.push, ["kill", "kill"]))
        [pid] = re.findall(r"Process (\d+) is killed\.", said)
        after = tour.customers()
        assert (len(after), before - after) == (3, {pid})
        answers = [tour.push("kill"), tour.push("stop")]
        looks = tour.get("/tour/live/")
        if not re.search(rf":{pid}:customer-\d</s>", looks):
            return False  # so slow that its lease has ended
        for answer in answers:
            assert f"Process {pid} is killed already. Its lease ends in " in answer
        return bool(
            re.search(rf'<p class="killed"><s>[^<]*:{pid}:.*</s>\s+<strong>killed<', looks)
        )

    tour.until(try_it)


def test_a_stopped_holder_is_not_stopped_again(tour: Tour) -> None:
    """The button says so, the holder looks stopped, and it can be killed."""

    def try_it() -> bool:
        tour.until(lambda: len(tour.customers()) == 3)
        tour.sees(r"customer-\d for 0\.[0-4]")  # its sale will not end meanwhile
        pid = re.findall(r"\d+", tour.press("stop", r"Process \d+ is stopped for"))[0]
        answer = tour.push("stop")
        looks = tour.get("/tour/live/")
        if tour.push("kill") != f"Process {pid} is killed.":
            return False  # so slow that its lease has ended
        assert f"Process {pid} is stopped already. Its lease ends in " in answer
        assert re.search(rf"<b>[^<]*:{pid}:customer-\d</b>\s+<strong>stopped<", looks)
        customers = tour.customers()
        return len(customers) == 3 and pid not in customers

    tour.until(try_it)


def test_the_holder_stands_still(tour: Tour) -> None:
    """Its late write is refused, nothing is sold twice, and it goes on."""
    twice = tour.await_sales(6)
    for _ in range(3):  # it may have been stopped while it released the lock, or while it wrote
        pid = re.findall(r"\d+", tour.press("stop", r"Process \d+ is stopped for"))[0]
        tour.until(lambda pid=pid: tour.holder() not in ("", pid))
        assert tour.await_sales(3) == twice
        tour.until(lambda pid=pid: tour.holder() == pid)
        if "refused" in tour.live():
            break
    tour.sees(rf"lost stock:1, \S+:{pid}:")
    tour.sees(r"refused stock:1, customer-\d: ")


def test_a_lock_is_taken_away(tour: Tour) -> None:
    """Its holder learns who did it; the lock of a killed process is stale first, then free."""
    tour.press("clear", r"stock:1 is taken away from \S+customer-\d")
    tour.sees(r"cleared stock:1, \S+customer-\d: ")
    tour.until(lambda: "stale" in tour.lock("export:accounts"))
    tour.press("clear-accounts", r"export:accounts is taken away")
    tour.until(lambda: not tour.lock("export:accounts"))
    tour.press("clear-accounts", "is free")


def test_buttons_are_for_the_page(tour: Tour) -> None:
    """Another site can't press them, and there are no others."""
    for press, code in (
        (lambda: urllib.request.urlopen(f"{tour.url}/tour/press/kill/", b""), 403),
        (lambda: tour.post("/tour/press/nothing/"), 404),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            press()
        with refused.value as answer:
            assert answer.code == code


def test_the_code_is_shown(tour: Tour) -> None:
    """It is shown as it stands in the files that are named."""
    details = re.findall(
        r"<details.*?<code>([^<:]+):(\d+)</code>.*?<pre[^>]*>(.*?)</pre>", tour.get(), re.DOTALL
    )
    assert len(details) > 10
    for path, line, shown in details:
        lines = (ROOT / "example_project" / path).read_text().splitlines()[int(line) - 1 :]
        source = html.unescape(re.sub("<[^>]*>", "", shown)).strip("\n").rstrip().splitlines()
        assert source == lines[: len(source)]
        assert len(source) > 2

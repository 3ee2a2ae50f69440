"""What an operator does about a periodic job, in a real browser and with a real scheduler."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.browser.site import Site
from tests.browser.test_looks import QUIET
from tests.browser.window import PHONE, WIDE, Open, expect
from tests.processes import ROOT

LIST = "/admin/django_redislock/periodicjob/"
JOB = "shop.periodic.stock_report"
PAGE = f"{LIST}{JOB.replace('_', '_5F')}/change/"
LEDGER = f"redislock:{{periodic:{JOB}}}:ledger"


@pytest.fixture
def failed(site: Site) -> Site:
    """The job has failed a moment ago, after a run that was done; a scheduler was there then."""
    now = int(time.time() * 1e6)
    runs = {
        "a": f"{now - 900_000_000}|{now - 900_000_000}|{now - 899_000_000}|done|1|7|web-1:1:x|",
        "b": f"{now - 2_000_000}|{now - 2_000_000}|{now - 1_000_000}|failed|1|8|web-1:1:x|"
        "OperationalError: db-1 does not answer",
    }
    site.redis.hset(LEDGER, mapping={**runs, "runs": "a b ", "claimed": now, "seen": now})
    other = LEDGER.replace("stock_report", "abandoned_carts")
    site.redis.hset(other, mapping={"claimed": now, "seen": now})
    return site


@pytest.fixture
def scheduler(failed: Site) -> Iterator[None]:
    command = [sys.executable, "-m", "django", "runperiodic"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=failed.env, stderr=subprocess.DEVNULL, start_new_session=True
    )
    yield
    process.terminate()
    process.wait()


@pytest.mark.usefixtures("scheduler")
def test_find_the_failing_job_and_run_it_again(failed: Site, open_window: Open) -> None:
    """It stands first, with its error; a click runs it, and the list says that it is well."""
    window = open_window("dispatcher")
    window.goes_to(LIST)
    first = window.rows.first
    expect(first).to_contain_text("OperationalError: db-1 does not answer")
    first.get_by_role("link").click()
    expect(window.page.locator(".redislock-run-failed")).to_be_visible()
    window.page.get_by_role("button", name="Run now").click()
    expect(window.page.locator(".messagelist .success")).to_contain_text(JOB)
    window.goes_to(LIST)  # which refreshes itself
    row = window.rows.filter(has_text="stock_report")
    expect(row.locator(".redislock-ok")).to_be_visible()
    expect(row.locator(".redislock-strip g")).to_have_count(3)
    row.get_by_role("link").click()
    expect(window.page.locator(".redislock-facts").first).to_contain_text("by hand")
    assert failed.log_entries() == [("dispatcher", JOB, "Asked for a run.")]


def test_pause_and_resume_without_javascript(failed: Site, open_window: Open) -> None:
    """By the keyboard: Enter in the reason pauses, and does nothing else."""
    window = open_window("dispatcher", java_script_enabled=False, viewport=PHONE)
    window.goes_to(PAGE)
    window.page.get_by_label("Reason").fill("the database is being moved")
    window.page.get_by_label("Reason").press("Enter")
    expect(window.page.locator(".messagelist")).to_contain_text("Paused")
    window.page.get_by_role("button", name="Resume").click()
    expect(window.page.locator(".messagelist")).to_contain_text("Resumed")
    window.page.get_by_role("link", name="History").click()
    expect(window.page.locator("#change-history")).to_contain_text("the database is being moved")
    assert failed.redis.hget(LEDGER, "request") is None


def test_looks(failed: Site, open_window: Open) -> None:
    """axe finds no barrier, in bright and in dark; no page moves sideways."""
    window = open_window("superuser", bypass_csp=True)
    for address in (LIST, PAGE):
        window.goes_to(address)
        window.page.add_style_tag(content=QUIET)
        for size in (WIDE, PHONE):
            window.page.set_viewport_size(size)
            assert window.does_not_scroll_sideways()
            for scheme in ("light", "dark"):
                window.page.emulate_media(color_scheme=scheme)
                assert window.barriers() == {}, (address, scheme)


def test_right_to_left(failed: Site, open_window: Open) -> None:
    """In Arabic, names, errors and times read from left to right all the same."""
    window = open_window("superuser", locale="ar")
    window.goes_to(LIST)
    expect(window.page.locator("html")).to_have_attribute("dir", "rtl")
    row = window.rows.first
    assert row.locator(".field-name_and_plan bdi").count() == 2
    for part in (".redislock-error", "time"):
        for one in row.locator(part).all():
            assert one.locator("bdi").count() == 1
    assert window.does_not_scroll_sideways()

"""What an operator does in a real browser: look for locks, open one, clear it. tests/admin asserts
what the pages say, with Django's test client; here clicks, keys and Django's scripts are real."""

from __future__ import annotations

from tests.browser.fleet import fleet
from tests.browser.site import Site
from tests.browser.window import Open, Window, expect

WAREHOUSE = "warehouse:synchronisation:with-the-supplier:2026-11-21"


def test_find_the_stuck_lock(site: Site, window: Window) -> None:
    """Among 61 locks, the first rows are those in trouble: one that is broken, and the one that is
    stuck, which says who left it where. Numbers above the list lead to all such locks."""
    fleet(site)
    window.goes_to_list()
    expect(window.rows).to_have_count(61)
    assert window.names()[:4] == ["mailbox", "export:accounts", WAREHOUSE, "stock:1"]
    expect(window.rows.first.locator(".redislock-state")).to_have_text("broken")
    stuck = window.rows.nth(1)
    expect(stuck.locator(".redislock-state")).to_have_text("stale")
    expect(stuck.locator(".field-holder")).to_contain_text("worker-2 · 77")
    expect(stuck.locator(".field-holder")).to_contain_text("accounts/export.py:15 in run")
    expect(stuck.locator(".field-waiters")).to_have_text("1")
    broken, stale, *others = window.page.locator("#redislock-summary a").all()
    assert broken.inner_text() == "1 broken"
    assert stale.inner_text() == "2 stale"
    assert [one.inner_text() for one in others] == [
        "58 held",
        "4 waited for",
        "304 waiting",
        "61 locks",
    ]
    stale.click()
    expect(window.rows).to_have_count(2)
    window.row("export:accounts").get_by_role("link").click()
    expect(window.page.locator("#content")).to_contain_text("no sign of life")


def test_find_the_stuck_tasks(site: Site, window: Window) -> None:
    """Above the list, tasks can be unfolded by their names. One of them leads to a page that says
    what to do. Both pages show what is parked meanwhile."""
    site.us.hold("invoice:42")
    site.parked("sync:acme", "m1")
    window.goes_to_list()
    tasks = window.page.locator("#redislock-tasks")
    expect(tasks.locator("summary")).to_have_text("Tasks (1)")
    link = tasks.get_by_role("link", name="task:sync:acme")
    expect(link).not_to_be_visible()
    tasks.locator("summary").click()
    expect(link).to_be_visible()
    expect(tasks.locator("tbody td").nth(3)).to_have_text("1")
    site.parked("sync:acme", "m2")
    window.page.locator("#redislock-refresh").select_option("2")
    expect(tasks.locator("tbody td").nth(3)).to_have_text("2")
    expect(link).to_be_visible()
    link.click()
    story = window.page.locator("#redislock-story")
    expect(story).to_contain_text("Next: the task m1, parked for 1 min 3")
    expect(story).to_contain_text("manage.py redislock sweep --using=default task:sync:acme")
    rows = window.page.locator("#redislock-tables section", has_text="Tasks").locator("tbody tr")
    expect(rows).to_have_count(2)
    site.parked("sync:acme", "m3", seconds=0)
    expect(rows).to_have_count(3)
    expect(rows.nth(2)).to_contain_text("m3")


def test_find_a_lock(site: Site, window: Window) -> None:
    """Filter, search, order and turn pages, by clicks and keys."""
    site.many(101)
    site.us.hold("import:42", label="the monthly run")
    site.strangers("strange", seconds=0)
    window.goes_to_list()
    expect(window.rows).to_have_count(100)
    window.page.locator(".paginator a", has_text="2").click()
    expect(window.rows).to_have_count(3)

    window.goes_to_list()
    # Of more than a page, they are counted when somebody asks.
    window.page.get_by_role("link", name="Show counts").click()
    stale = window.page.locator('#changelist-filter a[href*="state=stale"]')
    expect(stale).to_contain_text("(102)")
    stale.click()
    window.page.locator('#changelist-filter a[href*="kind=foreign"]').click()
    expect(window.rows).to_have_count(1)
    expect(window.row("strange").locator(".redislock-state")).to_be_visible()

    window.goes_to_list()
    window.page.locator("#searchbar").fill("monthly run")
    window.page.locator("#searchbar").press("Enter")
    expect(window.rows).to_have_count(1)
    expect(window.row("import:42").locator("meter")).to_be_visible()

    window.goes_to_list(q="r")
    head = window.page.locator("#result_list thead .column-name")
    for names in (["import:42", "strange"], ["strange", "import:42"]):
        before = window.page.url
        head.locator(".text a").click()
        window.page.wait_for_url(lambda url, before=before: url != before)
        assert [name for name in window.names() if not name.startswith("many")] == names


def test_clear_from_the_list(site: Site, window: Window) -> None:
    """The confirmation shows only the chosen lock; the holder, the next waiter and the history
    learn the reason."""
    site.us.hold("invoice:42", label="the monthly run")
    site.us.hold("untouched")
    site.others.wait_for("invoice:42", label="the next one")
    site.await_queue("invoice:42", 1)
    window.goes_to_list()
    window.asks_to_clear("invoice:42")
    content = window.page.locator("#content")
    expect(content).to_contain_text("invoice:42")
    expect(content).to_contain_text("the monthly run")
    expect(content).not_to_contain_text("untouched")
    assert site.us.state("invoice:42") == "held"

    window.confirms("it hangs since Monday")
    messages = window.page.locator(".messagelist")
    expect(messages.locator(".success")).to_contain_text("invoice:42")
    site.others.gets("invoice:42")
    told = site.us.is_told("invoice:42")
    assert told.startswith("LeaseRevoked")
    assert "operator" in told
    assert "it hangs since Monday" in told
    assert site.us.is_told("untouched") == ""
    [(user, name, message)] = site.log_entries()
    assert (user, name) == ("operator", "invoice:42")
    assert "it hangs since Monday" in message


def test_understand_it_clear_it_see_who_has_it(site: Site, window: Window) -> None:
    """From the filtered list to the lock, whose page says what goes on and what clearing would
    do; to the confirmation, and back; then to the end. The page says who has the lock now, and
    leads back to the list with its filters."""
    site.us.hold("job", label="the monthly run")
    site.others.wait_for("job", label="the next one")
    site.await_queue("job", 1)
    window.goes_to_list(q="job")
    window.page.get_by_role("link", name="job", exact=True).click()
    story = window.page.locator("#redislock-story")
    expect(story).to_contain_text("(the monthly run) for ")
    expect(story).to_contain_text("Its process is alive.")
    expect(story).to_contain_text("two may work at once for up to 3 min 20 s")
    expect(window.page.locator("svg.redislock-timeline g > rect").first).to_be_visible()
    window.page.get_by_role("link", name="Clear…").click()
    content = window.page.locator("#content")
    expect(content).to_contain_text("two may work at once for up to 3 min 20 s. Next: ")
    expect(content).to_contain_text("It is safer to end process ")
    window.page.locator("#content .closelink").click()
    expect(story).to_contain_text("(the monthly run) for ")
    assert site.us.is_told("job") == ""

    window.page.get_by_role("link", name="Clear…").click()
    window.confirms("it hangs")
    said = window.page.locator(".messagelist .success")
    expect(said).to_contain_text("Cleared “job”. Now it is held by ")
    expect(said).to_contain_text("(the next one)")
    expect(story).to_contain_text("(the next one) for ")
    expect(window.page.locator("#redislock-tables")).to_contain_text("operator (it hangs)")
    assert site.us.is_told("job").startswith("LeaseRevoked")
    site.others.gets("job")
    window.page.get_by_role("link", name="All locks").click()
    expect(window.row("job")).to_be_visible()
    assert window.page.url.endswith("?q=job")
    window.page.get_by_role("link", name="Clearings").click()
    expect(window.page.locator("#content tbody tr")).to_have_count(1)
    expect(content).to_contain_text("Cleared: it hangs. Held by ")


def test_a_lock_that_is_gone(site: Site, window: Window) -> None:
    """Its page, open since before, says so without a click; a later look leads to the list."""
    site.us.hold("job", label="the monthly run")
    window.remembers("django-redislock.refresh", "2")
    window.goes_to(site.address_of("job"))
    story = window.page.locator("#redislock-story")
    expect(story).to_contain_text("Held by ")
    site.us.release("job")
    expect(story).to_contain_text("Nobody holds it now.")
    expect(window.page.get_by_role("link", name="Clear…")).to_have_count(0)
    site.forget()
    window.goes_to(site.address_of("job"))
    expect(window.page.locator(".messagelist")).to_contain_text("Nobody holds “job” now.")
    expect(window.page.locator("#redislock-summary")).to_be_attached()


def test_without_javascript(site: Site, open_window: Open) -> None:
    """Everything but the refresh works; the server asks again for a reason."""
    site.us.hold("job")
    window = open_window(java_script_enabled=False)
    window.goes_to_list()
    expect(window.page.locator("#redislock-refresh")).not_to_be_visible()
    window.asks_to_clear("job")
    window.confirms("   ")
    expect(window.page.locator(".errorlist")).to_be_visible()
    assert site.us.is_told("job") == ""
    window.confirms("it hangs")
    expect(window.page.locator(".messagelist .success")).to_contain_text("job")
    assert site.us.is_told("job").startswith("LeaseRevoked")

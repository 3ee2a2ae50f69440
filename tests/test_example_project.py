"""example_project/: the demo as it is run by people, what it says at the end, and the shop."""

from __future__ import annotations

import json
import os
import pty
import re
import runpy
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from django.core.management import CommandError
from redis import Redis

from devtools.redis_server import RedisServer
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parent.parent / "example_project"
SMALL = ("demo", "--units", "30", "--workers", "8")

REPORT = runpy.run_path(str(EXAMPLE / "shop" / "demo" / "report.py"))
Round, Crash, table, verdict = (REPORT[name] for name in ("Round", "Crash", "table", "verdict"))


@pytest.fixture
def manage(tmp_path: Path) -> Iterator[Any]:
    """Start `manage.py`; it must leave no file behind, and no warning of a leak."""
    started: list[subprocess.Popen[str]] = []

    def start(
        *arguments: str, program: Sequence[str] = (str(EXAMPLE / "manage.py"),), **env: str
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **{k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"},
                "TMPDIR": str(tmp_path),
                "PYTHONWARNINGS": "always::ResourceWarning",
                **env,
            },
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:  # only if its test has failed
            process.terminate()  # which also ends what it runs
            process.communicate()
    assert list(tmp_path.iterdir()) == []


# communicate() returns when everybody has closed the pipe on standard error, which the demo's
# workers share: so each of these tests also shows that none is left.


def test_the_demo_keeps_its_promises(manage: Any) -> None:
    """Without the lock units are oversold; with it none, killed holder or not."""
    demo = manage(*SMALL)
    output, errors = demo.communicate(timeout=120)
    assert (demo.returncode, errors) == (0, ""), output

    rows = {
        title: [int(number) for number in numbers.split()]
        for title, numbers in re.findall(r"^(\w.*?)  +((?:\d+ +){4})[\d.]+$", output, re.M)
    }
    units, orders, oversold, left = rows.pop("without the lock")
    assert (units, left) == (30, 0)
    assert oversold == orders - units > 0
    assert rows == {"with the lock": [30, 30, 0, 0], "holder killed (SIGKILL)": [10, 10, 0, 0]}
    assert re.search(r"late write, with fencing token \d+: refused", output)
    assert output.endswith("Every promise was kept.\n")


def test_the_demo_fails_when_a_promise_is_broken(manage: Any) -> None:
    """Here one that nobody could keep: the lock has to be free before its holder is killed."""
    program = (
        "import runpy, sys; sys.path.insert(0, 'example_project');"
        "from shop.demo import report; report.SLACK = -60;"
        "runpy.run_path('example_project/manage.py', run_name='__main__')"
    )
    demo = manage("demo", "--units", "5", "--workers", "2", program=("-c", program))
    output, errors = demo.communicate(timeout=120)
    assert demo.returncode == 1
    assert "with the lock" in output
    assert errors.startswith("CommandError: A promise was broken.\nThe next one held the lock ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
@pytest.mark.parametrize("when", ["1. ", "3. "])
def test_interrupted_the_demo_takes_everything_with_it(
    manage: Any, number: signal.Signals, when: str
) -> None:
    """Ctrl-C and a polite kill: no worker is left, no file, and no traceback."""
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("ignored here, as by a shell that was told to run us in the background")
    demo = manage("demo", "--units", "5", "--workers", "3")
    while not demo.stdout.readline().startswith(when):
        assert demo.poll() is None
    demo.send_signal(number)
    _, errors = demo.communicate(timeout=60)
    assert (demo.returncode, errors) == (130, "CommandError: Interrupted.\n")


def address(tour: subprocess.Popen[str]) -> str:
    """Where it is, as soon as it says so."""
    while not (url := re.search(r"http://127.0.0.1:\d+/tour/", line := tour.stdout.readline())):
        assert line, tour.communicate()
    return url[0]


def read(url: str) -> str:
    with urlopen(url, timeout=PATIENCE) as answer:
        return answer.read().decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_the_tour_is_served_until_it_is_interrupted(manage: Any, number: signal.Signals) -> None:
    """With processes that hold locks; none is left, and no server."""
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("ignored here, as by a shell that was told to run us in the background")
    tour = manage("tour", "--port=0")
    url = address(tour)
    eventually(lambda: "customer-" in read(f"{url}live/"))
    assert 'name="password"' in read(url.replace("/tour/", "/admin/"))
    tour.send_signal(number)
    output, errors = tour.communicate(timeout=PATIENCE)
    assert (tour.returncode, errors) == (0, ""), output
    with pytest.raises(URLError):
        read(url)


def test_a_killed_tour_leaves_no_process(manage: Any, tmp_path: Path) -> None:
    """Not even when it can't say goodbye: they notice that it is gone."""
    tour = manage("tour", "--port=0")
    url = address(tour)
    eventually(lambda: "customer-" in read(f"{url}live/"))
    tour.kill()
    tour.communicate(timeout=PATIENCE)  # returns when they have all ended
    for left in tmp_path.iterdir():  # the database, which nobody was there to remove
        shutil.rmtree(left)


def test_on_a_terminal_the_demo_goes_on_with_the_tour(tmp_path: Path) -> None:
    """The story, then the tour until Ctrl-C, which here is the key itself."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TMPDIR"] = str(tmp_path)
        os.environ.pop("DJANGO_SETTINGS_MODULE", None)
        # What a shell starts in the background ignores it, and so would the demo.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        demo = [str(EXAMPLE / "manage.py"), "demo", "--units=5", "--workers=2"]
        os.execv(sys.executable, [sys.executable, *demo])
    said = b""
    output = select.poll()  # select() knows the first 1024 descriptors only
    output.register(terminal)

    def hears(what: bytes) -> bool:
        nonlocal said
        if output.poll(50):
            try:
                said += os.read(terminal, 10_000)
            except OSError:  # the other end is closed
                assert what in said, said.decode()
        return what in said

    try:
        eventually(lambda: hears(b"Every promise was kept."), within=120)
        eventually(lambda: hears(b"leaves nothing behind."))
        url = re.search(rb"http://127.0.0.1:\d+/tour/", said)[0].decode()
        assert "Locks now" in read(url)
        os.write(terminal, b"\x03")
        _, status = eventually(lambda: ended if (ended := os.waitpid(pid, os.WNOHANG))[0] else ())
    except BaseException:
        os.kill(pid, signal.SIGTERM)
        raise
    finally:
        os.close(terminal)
    assert (os.waitstatus_to_exitcode(status), list(tmp_path.iterdir())) == (0, [])


def test_the_tour_that_is_told_is_the_tour_that_is_there() -> None:
    """The README has the stops of the page, by their titles."""
    page = (EXAMPLE / "shop" / "templates" / "shop" / "tour.html").read_text()
    stops = re.findall(r'id="stop-(\d+)">\n.*stop\.html" with number=(\d+) title="(.+)" %}', page)
    numbers = [str(number) for number in range(1, 11)]
    assert [stop[:2] for stop in stops] == list(zip(numbers, numbers, strict=True))
    readme = (EXAMPLE / "README.md").read_text()
    assert re.findall(r"^\d+\. \*\*(.+?)\.\*\*", readme, re.M) == [title for *_, title in stops]


def test_the_shops_own_tests_pass(manage: Any, redis_server: RedisServer) -> None:
    """Among them: the database refuses an older fencing token."""
    tests = manage("test", "shop", REDIS_URL=redis_server.url)
    output, errors = tests.communicate(timeout=120)
    assert tests.returncode == 0, output + errors


def test_the_shops_migrations_are_complete(manage: Any) -> None:
    """They make the tables that its models describe."""
    check = manage("makemigrations", "--check", "--dry-run", SHOP_DB=":memory:")
    output, errors = check.communicate(timeout=120)
    assert check.returncode == 0, output + errors


def test_the_shop_needs_no_more_than_the_demo(manage: Any) -> None:
    """What serves it, and what else the tests have, may be missing."""
    program = (
        "import runpy, sys; sys.path.insert(0, 'example_project');"
        "sys.modules |= dict.fromkeys(['rest_framework', 'gunicorn', 'uvicorn', 'pytest']);"
        "runpy.run_path('example_project/manage.py', run_name='__main__')"
    )
    check = manage("check", "--fail-level=WARNING", program=("-c", program))
    output, errors = check.communicate(timeout=120)
    assert check.returncode == 0, output + errors


class TestCommands:
    """What is done with locks by `manage.py` of the shop."""

    @pytest.fixture
    def database(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("shop") / "shop.sqlite3"

    @pytest.fixture
    def shop(self, manage: Any, redis_server: RedisServer, database: Path) -> Any:
        """`manage.py` of a shop whose database is ready."""
        shop = partial(manage, REDIS_URL=redis_server.url, SHOP_DB=str(database))
        migrate = shop("migrate")
        output, errors = migrate.communicate(timeout=PATIENCE)
        assert migrate.returncode == 0, output + errors
        return shop

    @staticmethod
    def enter(process: subprocess.Popen[str], line: str) -> str:
        """Type a line; returns what is answered, so that it is known to run."""
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        return process.stdout.readline()

    def test_restock_is_busy(self, shop: Any) -> None:
        """A second delivery is refused with exit code 75 while the first is being entered."""
        first = shop("restock")
        assert self.enter(first, "5 lamp") == "lamp: 5 left (no. 1)\n"
        second = shop("restock")
        output, errors = second.communicate("5 lamp\n", timeout=PATIENCE)
        assert (second.returncode, output) == (75, "")
        assert "'command:restock'" in errors
        assert first.communicate("1 lamp\n", timeout=PATIENCE)[0] == "lamp: 6 left (no. 1)\n"
        assert first.returncode == 0

    def test_restock_loses_its_lock(self, shop: Any, redis: Redis, database: Path) -> None:
        """Nothing more is stocked, the exit code is 76, and the incident is written down."""
        restock = shop("restock", "--lock-ttl=0.6")
        self.enter(restock, "5 lamp")
        redis.delete("redislock-shop:{command:restock}")
        with closing(sqlite3.connect(database)) as connection:
            incidents = "SELECT outcome, name FROM shop_lockincident"
            rows = eventually(lambda: connection.execute(incidents).fetchall())
        assert rows == [("lost", "command:restock")]
        output, errors = restock.communicate("5 lamp\n", timeout=PATIENCE)
        assert (restock.returncode, output) == (76, "")
        assert "Another run may have overlapped" in errors

    def test_three_schedulers(self, shop: Any, redis: Redis, database: Path) -> None:
        """Each report is made once, by one of them, and each unit is put back once."""

        def rows(query: str) -> list[Any]:
            with closing(sqlite3.connect(database, timeout=PATIENCE)) as connection, connection:
                return connection.execute(query).fetchall()

        rows("INSERT INTO shop_product (id, name, stock, fencing_token) VALUES (1, 'lamp', 5, 0)")
        for number in range(20):
            rows(
                "INSERT INTO shop_cart (product_id, customer, created) "
                f"VALUES (1, '{number}', '2020-01-01 00:00:00')"
            )
        schedulers = [shop("runperiodic", SHOP_EVERY="1") for _ in range(3)]
        for scheduler in schedulers:  # from then on signals stop them in good order
            assert scheduler.stderr.readline() == "2 jobs, 4 workers.\n"
        reports = "SELECT units, fencing_token FROM shop_stockreport ORDER BY id"
        eventually(lambda: len(rows(reports)) >= 4)
        eventually(lambda: rows("SELECT stock FROM shop_product") == [(25,)])
        for scheduler in schedulers:
            scheduler.send_signal(signal.SIGTERM)
        for scheduler in schedulers:
            _, errors = scheduler.communicate(timeout=PATIENCE)
            assert scheduler.returncode == 0, errors

        jobs = shop("redislock", "jobs", "--json")
        output, _ = jobs.communicate(timeout=PATIENCE)
        _, report = json.loads(output)["items"]
        assert report["name"] == "shop.periodic.stock_report"
        done = [run for run in reversed(report["runs"]) if run["outcome"] == "done"]
        assert len({run["planned"] for run in done}) == len(done)
        assert [run["fencing_token"] for run in done] == [fence for _, fence in rows(reports)]
        assert rows("SELECT count(*) FROM shop_cart") == [(0,)]
        redis.delete(*redis.keys("redislock-shop:*"))


def good(**changes: Any) -> tuple[Any, Any, list[bool]]:
    """A good locked round, a good end of the crash, good outages; with some changes."""
    locked = Round("with the lock", units=100, orders=100, left=0, seconds=1.0)
    sales = Round("holder killed", units=10, orders=10, left=0, seconds=1.0)
    values = {"ttl": 2, "takeover": 1.9, "dead_token": 6, "next_token": 7, "refused": True}
    outages = changes.pop("outages", [True, True, False])
    return locked, Crash(**{"sales": sales, **values, **changes}), outages


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"takeover": 3.5}, "The next one held the lock 3.5 s after its holder was killed"),
        ({"next_token": 6}, "The fencing token did not grow: 6, then 6."),
        ({"refused": False}, "The database took a late write with fencing token 6."),
        ({"outages": [True, False, False]}, "With 1 of 3 servers gone the Redlock was refused."),
        ({"outages": [True, True, True]}, "With 2 of 3 servers gone the Redlock was held."),
        ({"sales": Round("killed", 10, 11, 0, 1.0)}, "killed: 10 units made 11 orders, and 0"),
        ({"sales": Round("killed", 10, 10, 9, 1.0)}, "killed: 10 units made 10 orders, and 9"),
    ],
    ids=["late", "same token", "accepted", "no majority", "minority", "oversold", "put back"],
)
def test_the_verdict_on_a_bad_crash(changes: dict[str, Any], sentence: str) -> None:
    """Each broken promise has its sentence."""
    with pytest.raises(CommandError, match=rf"^A promise was broken\.\n{re.escape(sentence)}"):
        verdict(*good(**changes))

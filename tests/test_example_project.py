"""example_project/: the demo as it is run by people, what it says at the end, and the shop."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError

from devtools.redis_server import RedisServer

EXAMPLE = Path(__file__).parent.parent / "example_project"
SMALL = ("demo", "--units", "30", "--workers", "8")

REPORT = runpy.run_path(str(EXAMPLE / "shop" / "demo" / "report.py"))
Round, Crash, table, verdict = (REPORT[name] for name in ("Round", "Crash", "table", "verdict"))


@pytest.fixture
def manage(tmp_path: Path) -> Iterator[Any]:
    """Start `manage.py`; it must leave no file behind, and no warning of a leak."""

    def start(
        *arguments: str, program: Sequence[str] = (str(EXAMPLE / "manage.py"),), **env: str
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *program, *arguments],
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

    yield start
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


def good(**changes: Any) -> tuple[Any, Any]:
    """A good locked round, and a good end of the crash with some changes."""
    locked = Round("with the lock", units=100, orders=100, left=0, seconds=1.0)
    sales = Round("holder killed", units=10, orders=10, left=0, seconds=1.0)
    values = {"ttl": 2, "takeover": 1.9, "dead_token": 6, "next_token": 7, "refused": True}
    return locked, Crash(**{"sales": sales, **values, **changes})


def test_the_verdict_on_a_good_run() -> None:
    """Nothing to say."""
    verdict(*good())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"takeover": 3.5}, "The next one held the lock 3.5 s after its holder was killed"),
        ({"next_token": 6}, "The fencing token did not grow: 6, then 6."),
        ({"refused": False}, "The database took a late write with fencing token 6."),
        ({"sales": Round("killed", 10, 11, 0, 1.0)}, "killed: 10 units made 11 orders, and 0"),
        ({"sales": Round("killed", 10, 10, 9, 1.0)}, "killed: 10 units made 10 orders, and 9"),
    ],
    ids=["late", "same token", "accepted", "oversold", "put back"],
)
def test_the_verdict_on_a_bad_crash(changes: dict[str, Any], sentence: str) -> None:
    """Each broken promise has its sentence."""
    with pytest.raises(CommandError, match=rf"^A promise was broken\.\n{re.escape(sentence)}"):
        verdict(*good(**changes))


@pytest.mark.parametrize(("orders", "left"), [(101, 0), (99, 0), (99, 1)])
def test_the_verdict_on_a_bad_round(orders: int, left: int) -> None:
    """Too many, too few, and not sold out."""
    locked = Round("with the lock", 100, orders, left, 1.0)
    with pytest.raises(CommandError, match=f"100 units made {orders} orders, and {left} are left"):
        verdict(locked, good()[1])


def test_the_table_does_not_hide_an_accepted_write() -> None:
    """It is the loudest word there."""
    locked, crash = good(refused=False)
    assert "ACCEPTED" in table(locked, locked, crash)

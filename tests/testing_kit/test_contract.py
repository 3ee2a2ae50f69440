"""Locks in memory owe what locks owe on a real server: the contract, test by test."""

from __future__ import annotations

import pytest

from tests.testing_kit.conftest import ROOT

pytestmark = pytest.mark.slow

COUNTS_MESSAGES = "tests/contract/test_mutex.py::test_a_waiter_elsewhere_is_told_by_a_message"

ON_DRAGONFLY = [
    *("tests/contract/test_mutex.py", "tests/contract/test_semaphore.py"),
    *("tests/contract/test_rwlock.py", "tests/contract/test_multi.py"),
    *("tests/test_inspection.py::TestDiscover", "tests/test_inspection.py::TestPlaces"),
]
"""Files and classes of tests that use most scripts."""
COUNTS_COMMANDS = "tests/test_inspection.py::TestDiscover::test_it_ends"

pytest.importorskip("fakeredis")
pytest_plugins = ["pytester"]


def test_the_contract(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, but for the one test that has the server count its messages."""
    monkeypatch.chdir(ROOT)
    options = ("-q", "-p", "no:cacheprovider", "-p", "tests.testing_kit.in_memory")
    chosen = ("--deselect", COUNTS_MESSAGES, "tests/contract")
    result = pytester.runpytest_subprocess(*options, *chosen, timeout=900)
    outcomes = result.parseoutcomes()
    assert result.ret == 0
    assert outcomes["passed"] > 500
    assert not set(outcomes) - {"passed", "deselected"}


def test_on_dragonfly(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Lua is another version, it refuses keys that a script was not given, and scores and
    times are numbers there."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("FAKEREDIS_LUA_VERSION", "5.4")
    options = ("-q", "-p", "no:cacheprovider", "-p", "tests.testing_kit.dragonfly")
    options += ("-p", "tests.testing_kit.in_memory", "-n", "0")
    chosen = ("--deselect", COUNTS_MESSAGES, "--deselect", COUNTS_COMMANDS, *ON_DRAGONFLY)
    result = pytester.runpytest_subprocess(*options, *chosen, timeout=900)
    outcomes = result.parseoutcomes()
    assert result.ret == 0
    assert outcomes["passed"] > 100
    assert not set(outcomes) - {"passed", "deselected"}

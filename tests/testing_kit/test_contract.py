"""Locks in memory owe what locks owe on a real server: the contract, test by test."""

from __future__ import annotations

import pytest

from tests.testing_kit.conftest import ROOT

pytestmark = pytest.mark.slow

COUNTS_MESSAGES = "tests/contract/test_mutex.py::test_a_waiter_elsewhere_is_told_by_a_message"

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

"""Locks in memory owe what locks owe on a real server: the contract, test by test."""

from __future__ import annotations

import pytest

from tests.testing_kit.conftest import ROOT

pytest.importorskip("fakeredis")
pytest_plugins = ["pytester"]


def test_the_contract(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, but for what it says of the number of commands."""
    monkeypatch.chdir(ROOT)
    options = ("-q", "-p", "no:cacheprovider", "-p", "tests.testing_kit.in_memory")
    result = pytester.runpytest_subprocess(*options, str(ROOT / "tests" / "contract"), timeout=900)
    outcomes = result.parseoutcomes()
    assert result.ret == 0
    assert outcomes["passed"] > 500
    assert outcomes["skipped"] < 30
    assert not set(outcomes) - {"passed", "skipped"}

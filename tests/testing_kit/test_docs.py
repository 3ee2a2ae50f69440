"""docs/testing.md is a project whose tests pass, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.testing_kit.conftest import Run

pytestmark = pytest.mark.slow

pytest.importorskip("fakeredis")
pytest_plugins = ["pytester"]

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
FILES = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
INI = re.findall(r"^```ini\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("for_every_test", [False, True], ids=["plain", "with its ini"])
def test_its_tests_pass(run: Run, for_every_test: bool) -> None:
    """All of them, without any Redis; and where all tests have free locks besides."""
    assert len(re.findall(r"^```python$", PAGE, re.MULTILINE)) == len(FILES) == 9
    files = {**dict(FILES), "shop/gateway.py": "def pay(number): ...\n"}
    if for_every_test:
        files["pytest.ini"] = INI[0]
    result = run("tests", files=files)
    result.assert_outcomes(passed=15)

"""Type checkers see the public names as a user should: tests/typing is read by them, not run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "tests" / "typing").glob("*.py"))


def check(*command: str, within: Path) -> None:
    """The checker finds nothing. It is not to find our settings either, which a user has not."""
    # The interpreter that runs the tests is the one whose packages are looked at.
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=within,
        env={"PATH": "/usr/bin:/bin", "HOME": str(within), "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy(tmp_path: Path) -> None:
    """Strict, and errors within the package are not the user's."""
    files = [str(file) for file in FILES]
    check(
        "mypy",
        "--config-file=",
        "--strict",
        "--follow-imports=silent",
        "--allow-empty-bodies",
        "--cache-dir=cache",
        *files,
        within=tmp_path,
    )


def test_pyright(tmp_path: Path) -> None:
    """Strict as well; by basedpyright, which is pyright and brings its Node.js along."""
    settings = {
        "typeCheckingMode": "strict",
        # What is wrong on purpose has to stay so.
        "enableTypeIgnoreComments": False,
        "reportUnnecessaryTypeIgnoreComment": True,
        "include": [str(file) for file in FILES],
        "extraPaths": [str(ROOT)],
        "pythonVersion": f"{sys.version_info.major}.{sys.version_info.minor}",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    check(
        "basedpyright", "--project", str(tmp_path), "--pythonpath", sys.executable, within=tmp_path
    )

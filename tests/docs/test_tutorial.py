"""docs/tutorial.md, carried out: its files are written, and its commands say what it says.

A command that begins in the background has the lock, or waits for it, before the next one is
begun: whoever types is slow enough for that, and a test is not.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.redis_server import RedisServer
from django_redislock.inspection import Inspector
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^## .*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
BLOCK = re.compile(
    r"(?P<before>(?:[^\n]*\n)?[^\n]*)\n\n^```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

NOISE = "PYTHONWARNINGS"  # would be told among what the page shows
DONE = "-- done --"
SHELL = f"""
set -m
python() {{ {shlex.quote(sys.executable)} "$@"; }}
django-admin() {{ python -m django "$@"; }}
exec 2>&1
"""
OWN_LINES = re.compile(r"(\[\d+\]|\S+: line \d+: +\d+ )")
"""What the shell says of its jobs."""


class Shell:
    """One that a person could have before them, with its background jobs."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            ["bash"],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={k: v for k, v in os.environ.items() if k not in ("DJANGO_SETTINGS_MODULE", NOISE)}
            | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        )
        self.run(SHELL)

    def run(self, command: str) -> str:
        """What it says until it is done."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{command}\necho '{DONE}'\n")
        said = ""
        for line in stdout:
            if line == f"{DONE}\n":
                return said
            if not OWN_LINES.match(line):
                said += f"{line.rstrip()}\n"
        raise AssertionError(f"the shell has ended: {said}")

    def close(self) -> None:
        self.run("kill -9 $(jobs -p) 2>/dev/null; wait")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.close()


def expected(lines: list[str]) -> re.Pattern[str]:
    """… is anything on a line, and as a line of its own any lines. Columns may be wider."""
    parts = []
    for line in lines:
        text = r"[^\n]*".join(re.escape(part) for part in line.split("…"))
        parts.append(
            r"(.*\n)*?" if line == "…" else re.sub(r"(\\ ){2,}", r" [^\\n]*", text) + "\n"
        )
    return re.compile("".join(parts))


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a block, with what it is to say."""
    first, *others = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert first == ""
    for other in others:
        command, *lines = other.rstrip("\n").split("\n")
        yield command, lines


def involved() -> int:
    """So many hold the lock or wait for it."""
    lock = Inspector().get("product:lamp")
    return 0 if lock is None else 1 + lock.waiters


def carry_out(shell: Shell, text: str) -> None:
    early = ""  # from the background, before anybody reads it
    for command, lines in commands(text):
        if command.startswith("python -m pip install"):
            continue
        if command.startswith("kill -STOP"):
            time.sleep(2)  # it has the lock: nothing tells when it has read the row as well
        before, give_up = involved(), time.monotonic() + PATIENCE
        early += shell.run(command)
        while lines:
            if expected(lines).fullmatch(early):
                early = ""
                break
            # Whoever looks may look again.
            assert "redislock list" in command, f"$ {command}\n{early}"
            assert time.monotonic() < give_up, f"$ {command}\n{early}"
            early = shell.run(command)
        if command.endswith(" &"):
            eventually(lambda before=before: involved() > before)  # type: ignore[misc]
    assert early == ""


def write(directory: Path, before: str, text: str, server: RedisServer) -> None:
    """The file that the words before the block name."""
    named = re.search(r"(at the end of|in) `([\w./]+)`:$", " ".join(before.split()), re.IGNORECASE)
    assert named is not None, before
    path = directory / named[2]
    path.parent.mkdir(parents=True, exist_ok=True)
    text = text.replace("redis://localhost:6379/0", server.url)
    if named[1].lower() == "in":
        path.write_text(text)
    else:
        path.write_text(path.read_text() + text)
    # Else Python may take what it has compiled of another text of the same second and size.
    for compiled in path.parent.glob("__pycache__/*.pyc"):
        compiled.unlink()


def test_the_tutorial(shell: Shell, tmp_path: Path, redis_server: RedisServer) -> None:
    """From the first section to the last."""
    carried_out = 0
    for section in SECTIONS:
        for block in BLOCK.finditer(section):
            if block["kind"] == "console":
                carry_out(shell, block["text"])
            else:
                write(tmp_path, block["before"], block["text"], redis_server)
            carried_out += 1
    assert carried_out == PAGE.count("\n```\n") - 2  # Python and Redis are there already

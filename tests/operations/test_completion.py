"""`redislock completion`: what a real shell offers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from django_redislock.management.commands.redislock import SUBCOMMANDS
from tests.manage import environ
from tests.operations.calling import call, granted
from tests.operations.terminal import Terminal
from tests.processes import ROOT

pytestmark = pytest.mark.slow

ASK = """
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_redislock
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def offered(*words: str) -> list[str]:
    """What bash offers for the last word, where colons split words as they do by default."""
    script = call("completion", "bash").out + ASK.format(words=" ".join(map(repr, words)))
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environ(), capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


MANAGE = (sys.executable, "-m", "tests.manage", "redislock")


def test_subcommands() -> None:
    assert set(offered(*MANAGE, "")) == set(SUBCOMMANDS)
    assert offered(*MANAGE, "sh") == ["show"]


def test_options() -> None:
    assert offered(*MANAGE, "clear", "--st") == ["--stale"]
    assert "--limit" in offered(*MANAGE, "list", "--")


def test_names(redis: Redis) -> None:
    """Held locks are offered, behind colons, too."""
    for name in ("invoice:41", "invoice:42", "report"):
        granted(redis, name)
    assert set(offered(*MANAGE, "show", "")) == {"invoice:41", "invoice:42", "report"}
    assert offered(*MANAGE, "clear", "rep") == ["report"]
    assert set(offered(*MANAGE, "show", "invoice", ":")) == {"41", "42"}
    assert offered(*MANAGE, "show", "invoice", ":", "42") == ["42"]
    assert offered(*MANAGE, "list", "") != ["report"]


def test_names_that_a_shell_would_run(redis: Redis, tmp_path: Path) -> None:
    """Names of locks often come from users. A shell neither runs nor offers what is in them."""
    for number, name in enumerate(
        ["$(touch${{IFS}}{})", "`touch${{IFS}}{}`", "x;touch${{IFS}}{}"]
    ):
        granted(redis, name.format(tmp_path / str(number)))
    granted(redis, "r*")
    granted(redis, "report")
    words = offered(*MANAGE, "show", "")
    assert list(tmp_path.iterdir()) == []
    assert words == ["report"]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_on_a_terminal(
    shell: str, redis: Redis, tmp_path: Path, terminal: Callable[..., Terminal]
) -> None:
    """The tabulator completes what is typed into a real shell; and other words as before."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    granted(redis, "invoice:42")
    script, manage = tmp_path / "completion", tmp_path / "manage.py"
    script.write_text(call("completion", shell).out)
    manage.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.manage "$@"\n')
    manage.chmod(0o755)
    (tmp_path / "others.txt").write_text("as before\n")
    start = {"bash": ("bash", "--norc", "-i"), "zsh": ("zsh", "-f", "-i")}
    screen = terminal(program=start[shell], columns=200)
    screen.types(f"source {script}; echo it is lo'a'ded\n")
    screen.says("it is loaded")
    screen.types(f"{manage} redislock sh\tinv\t\n")
    screen.says("invoice:42 on 'default'")
    screen.types(f"{manage} redislock show invoice:4\t --js\t\n")
    screen.says('"name": "invoice:42"')
    screen.types(f"cat {tmp_path}/oth\t\n")
    screen.says("as before")
    screen.types(f"{manage} {tmp_path}/oth\t\n")
    screen.says("Unknown command")
    assert "others.txt" in screen.says("Unknown command").rpartition("Unknown command")[2]
    assert "_redislock:" not in screen.text  # where zsh complains of a function
    screen.types("exit\n")
    screen.ends()

"""`redislock completion`: what a real shell offers."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from redis import Redis

from django_redislock.management.commands.redislock import SUBCOMMANDS
from tests.manage import environ
from tests.operations.calling import call, granted
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


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_it() -> None:
    script = call("completion", "zsh").out + "\nwhence -w _redislock\n"
    done = subprocess.run(["zsh", "-fc", script], capture_output=True, text=True, check=False)
    assert done.stdout == "_redislock: function\n", done.stderr

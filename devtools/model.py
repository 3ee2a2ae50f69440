"""Checks docs/model/handoff.pml with SPIN, and says what came out.

    python -m devtools.model                        # as the tests do
    python -m devtools.model --larger               # more clients, more mishaps: needs patience
    python -m devtools.model --fault NO_TOMBSTONE   # with a planted fault: shows what happens

SPIN turns the model into a C program that visits every state; all of that happens in a
temporary folder. The exit status is 0 when everything holds, 1 when something is violated, and
2 when that could not be found out.
"""

# It prints for a terminal.
# ruff: noqa: T201

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

MODEL = Path(__file__).parent.parent / "docs" / "model" / "handoff.pml"
PROGRAMS = ("spin", "cc")
SERVED = "everybody is served"
"""The name of the invariant that is a formula and no assertion."""

INVARIANT = re.compile(r"/\* Invariant: (.+?)\.")
"""The comment above each of them, which begins with its name."""
CHATTER = ("spin:", "ltl ", "starting claim", "Never claim")
"""Beginnings of lines of a replay that say nothing about events."""


class ModelError(Exception):
    """The check of the model could not be started or finished."""


@dataclass(frozen=True)
class Setup:
    """The size of the model, and what is checked."""

    clients: int
    mishaps: int
    liveness: bool = False
    fault: str = ""
    loss: bool = False
    """The server may lose its data, and locks wait after that."""

    def __str__(self) -> str:
        words = [f"{self.clients} clients", f"{self.mishaps} mishap" + "s" * (self.mishaps != 1)]
        words += ["liveness"] * self.liveness + ["lost data"] * self.loss
        return ", ".join(words + [self.fault] * bool(self.fault))

    @property
    def macros(self) -> list[str]:
        return [
            f"-DCLIENTS={self.clients}",
            f"-DMISHAPS={self.mishaps}",
            *["-DLIVENESS"] * self.liveness,
            *["-DLOSS"] * self.loss,
            *[f"-DFAULT_{self.fault}"] * bool(self.fault),
        ]


DEFAULT = (
    *(Setup(3, 1), Setup(2, 2), Setup(2, 2, loss=True)),
    *(Setup(3, 0, liveness=True), Setup(2, 1, liveness=True)),
)
LARGER = (Setup(2, 3), Setup(3, 2), Setup(2, 3, liveness=True), Setup(3, 1, liveness=True))


@dataclass(frozen=True)
class Outcome:
    """The result of a search through all states."""

    setup: Setup
    states: int
    depth: int
    seconds: float
    megabytes: float
    unreached: tuple[str, ...]
    """Lines of the model that are never carried out."""
    violated: str = ""
    """The invariant, by its name in the model; empty when everything holds."""
    story: tuple[str, ...] = ()
    """The events until the violation, one line for each step that matters."""

    def __str__(self) -> str:
        found = f"VIOLATED: {self.violated}" if self.violated else "holds"
        return (
            f"{self.setup!s:<29} {self.states:>12,} states  {self.depth:>7,} deep  "
            f"{self.seconds:6.1f} s  {self.megabytes:6.0f} MB  {found}"
        )


Story = tuple[str, tuple[str, ...]]
"""The violated invariant, and the events until then."""


def missing() -> list[str]:
    """Return the required programs that are not installed."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


def faults() -> list[str]:
    """Return the names of all faults that can be planted."""
    return sorted(set(re.findall(r"\bFAULT_(\w*[A-Z])\b", MODEL.read_text())))


def check(setup: Setup, *, memory: int = 2048, shorten: bool = True) -> Outcome:
    """Visit all states, in up to `memory` MB. Raises `ModelError` when it does not get so far.

    A search in depth finds a violation by a long way round; with `shorten` another one follows,
    in breadth, that finds the shortest.
    """
    if setup.fault and setup.fault not in faults():
        raise ModelError(f"there is no fault {setup.fault!r}, only {', '.join(faults())}")
    with tempfile.TemporaryDirectory(prefix="redislock-model-") as folder:
        shutil.copy(MODEL, folder)
        outcome = _search(setup, Path(folder), memory)
        if outcome.violated and shorten and not setup.liveness:
            with suppress(ModelError):  # it takes more memory
                outcome = _search(setup, Path(folder), memory, shortest=True)
    return outcome


def _search(setup: Setup, folder: Path, memory: int, *, shortest: bool = False) -> Outcome:
    # Not gcc, which spin would use by default.
    spin = ["spin", "-Pcc -E -xc", *setup.macros]
    _run([*spin, "-a", MODEL.name], folder)
    # With a fault it ends early: compiling takes longer, and a small table will do.
    flags = ["-O0" if setup.fault else "-O1", "-w", f"-DMEMLIM={memory}"]
    options = ["-m300000", "-w18" if setup.fault else "-w24"]
    if setup.liveness:
        # Weak fairness: every process that can go on does so in the end.
        flags += ["-DNFAIR=4"]
        options += ["-a", "-f"]
    else:
        flags += ["-DSAFETY", *["-DBFS"] * shortest]
    _run(["cc", *flags, "-o", "pan", "pan.c"], folder)
    began = time.monotonic()
    said = _run(["./pan", *options], folder)
    seconds = time.monotonic() - began

    errors = int(_number(r"errors: (\d+)", said))
    if not errors and ("not completed" in said or "too small" in said):
        raise ModelError(f"{setup}: not all states were visited:\n{said}")
    told: Story = ("", ())
    if errors:
        told = _tell(_run([*spin, "-T", "-t", MODEL.name], folder))
    return Outcome(
        setup,
        states=int(_number(r"(\d+) states, stored", said)),
        depth=int(_number(r"depth reached (\d+)", said)),
        seconds=seconds,
        megabytes=_number(r"([\d.]+)\s+total actual memory usage", said),
        unreached=tuple(
            re.findall(rf'^\t({re.escape(MODEL.name)}:\d+), state \d+, "(?!-end-)', said, re.M)
        ),
        violated=told[0],
        story=told[1],
    )


class Step(NamedTuple):
    """A request that a real server has carried out, in the model's words."""

    client: int
    asked: str
    said: str
    """The answer; "": a release has none here."""
    then: int | None
    """The client that had the lock afterwards."""
    mark: str
    """The mark in the value of the lock, as in lua/value.lua."""


MARKS = {"": "NO_MARK", "|": "PLAIN", "+": "LISTED", "?": "HANDED"}


def allows(journal: Sequence[Step], clients: int, *, timeless: bool = True) -> bool:
    """Return whether a run of the model carries out these requests, with these answers; if it is
    `timeless`, one in which no lease ends by itself."""
    lines = [
        f"whose[{number}] = {its.client}; asked[{number}] = {its.asked}; "
        f"said[{number}] = {its.said or 0}; mark[{number}] = {MARKS[its.mark]}; "
        f"then[{number}] = {'NOBODY' if its.then is None else its.then};"
        for number, its in enumerate(journal)
    ]
    body = "\n".join(lines)
    text = f"#define STEPS {len(journal)}\ninline read_journal() {{\n{body}\n}}\n"
    with tempfile.TemporaryDirectory(prefix="redislock-model-") as folder:
        shutil.copy(MODEL, folder)
        Path(folder, "journal.pml").write_text(text)
        macros = ["-DJOURNAL", *["-DTIMELESS"] * timeless, *Setup(clients, 0).macros]
        _run(["spin", "-Pcc -E -xc", *macros, "-a", MODEL.name], Path(folder))
        _run(["cc", "-O0", "-w", "-DSAFETY", "-DMEMLIM=2048", "-o", "pan", "pan.c"], Path(folder))
        said = _run(["./pan", "-E", "-m100000", "-w20"], Path(folder))
    if "errors: 0" in said and "not completed" in said:
        raise ModelError(f"not all states were visited:\n{said}")
    return "assertion violated 0" in said


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    # The search program reports the result in words, whatever its status.
    if done.returncode and command[0] != "./pan":
        raise ModelError(f"{' '.join(command)} failed:\n{done.stdout}")
    return done.stdout


def _number(pattern: str, said: str) -> float:
    match = re.search(pattern, said)
    if match is None:
        raise ModelError(f"no {pattern!r} in what the search said:\n{said}")
    return float(match[1])


def _tell(replay: str) -> Story:
    """Return the violated invariant and the story of the run, from the output of `spin -t`."""
    story: list[str] = []
    for line in replay.splitlines():
        if line.startswith(("spin: trail ends", "#processes")):
            return SERVED, tuple(story)  # and begins anew with the cycle, without end
        if match := re.match(rf"spin: {re.escape(MODEL.name)}:(\d+), Error", line):
            return _name(int(match[1])), tuple(story)
        if line.strip() and not line.startswith(CHATTER):
            story.append(line)
    raise ModelError(f"the run could not be replayed:\n{replay}")


def _name(number: int) -> str:
    """Return the name of the invariant in the comment above a line of the model."""
    above = "\n".join(MODEL.read_text().splitlines()[:number])
    names: list[str] = INVARIANT.findall(above)
    return names[-1]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m devtools.model",
        description="Check the model of the handoff protocol.",
    )
    parser.add_argument("--larger", action="store_true", help="more clients and mishaps, too")
    parser.add_argument("--fault", choices=faults(), help="do one thing wrong, on purpose")
    parser.add_argument("--clients", type=int, choices=(2, 3, 4), help="by default 2")
    parser.add_argument("--mishaps", type=int, help="by default 1")
    parser.add_argument("--liveness", action="store_true", help="is everybody served?")
    parser.add_argument("--loss", action="store_true", help="the server may lose its data")
    parser.add_argument("--memory", type=int, help="MB; by default 2048, and 8192 with --larger")
    options = parser.parse_args()
    if absent := missing():
        print(f"Not installed: {', '.join(absent)}. Debian: apt-get install spin gcc")
        return 2

    memory = options.memory or (8192 if options.larger else 2048)
    setups = DEFAULT + LARGER * options.larger
    chosen = options.fault or options.clients or options.liveness or options.loss
    if chosen or options.mishaps is not None:
        mishaps = 1 if options.mishaps is None else options.mishaps
        fault, clients = options.fault or "", options.clients or 2
        setups = (Setup(clients, mishaps, options.liveness, fault, options.loss),)
    status = 0
    for setup in setups:
        try:
            outcome = check(setup, memory=memory)
        except ModelError as error:
            print(error)
            status = 2
            continue
        print(outcome, flush=True)
        if outcome.violated:
            print(*(f"    {line}" for line in outcome.story), sep="\n")
            print(f"  Here it is violated: {outcome.violated}.")
            status = status or 1
    return status


if __name__ == "__main__":
    sys.exit(main())

"""devtools/plant.py is up to date: the faults in its list can be planted, and are on the page."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from _pytest.mark.expression import Expression

from devtools import plant
from devtools.pages import part
from devtools.plant import FAULTS, PAGE, ROOT, Fault, find, sources
from tests.docs.test_pages import TEST

SOURCES = sources(ROOT)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_it_can_be_planted(fault: Fault) -> None:
    """Its text occurs once in the package, and its tests are there."""
    find(fault, SOURCES)
    assert fault.new != fault.old
    files = re.findall(r"tests/\S+\.py", fault.tests)
    assert files
    assert all((ROOT / file).is_file() for file in files)


def test_the_page_has_all_of_them() -> None:
    """Else: python -m devtools.plant --write."""
    assert part(PAGE.read_text(encoding="utf-8"), "faults") == plant.table()


TRIED = "a piece was taken out, and others held"
NO_FAULT = {
    "A cancelled task leaves nothing behind": TRIED,
    "A server that does not answer costs": TRIED,
    "No key of a lock stays": TRIED,
    "After a failover that lost the lease": "the replica forgets, and no piece of this code",
    "After the eviction or deletion of one lock": "it says what is not noticed",
    "Processes with an earlier version": "the fault would be a difference of two versions",
    "The server or the user has no `CLIENT": "it says what is not noticed",
}
"""Why a promise has none: by the beginning of its text."""


@pytest.mark.slow
def test_each_promise_has_one() -> None:
    """`make break` runs a test that the promise names, unless there is a reason why not."""
    page = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    page = page.replace(part(page, "recovery"), "")  # seconds, which no piece of code gives
    promises = {
        line.removeprefix("| "): TEST.findall(line)
        for line in page.splitlines()
        if line.startswith("| ") and TEST.search(line)
    }
    files = {file for named in promises.values() for file, _ in named}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *sorted(files)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ids = [line for line in said.splitlines() if "::" in line]
    shown = {one for fault in FAULTS for one in ids if _runs(fault, one)}
    tests = {tuple(re.split(r"::|\[", one)) for one in shown}
    bare = {
        promise
        for promise, named in promises.items()
        if not any(
            file == one[0] and (not function or function in one)
            for file, function in named
            for one in tests
        )
    }
    assert sorted(one for one in bare if not one.startswith(tuple(NO_FAULT))) == []
    assert [it for it in NO_FAULT if not any(one.startswith(it) for one in bare)] == []


def _runs(fault: Fault, id: str) -> bool:
    """Whether `make break` runs this test."""
    words = re.search(r"-k (?:'([^']*)'|(\S+))", fault.tests)
    if id.partition("::")[0] not in fault.tests:
        return False
    return not words or Expression.compile(words[1] or words[2]).evaluate(
        lambda word, **_: word.lower() in id.lower()
    )


SETTINGS = "settings: the settings beat the arguments"


@pytest.mark.slow
@pytest.mark.parametrize("harmless", [False, True])
def test_one_is_shown(
    harmless: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was taken out, which test fails and why, or that nothing went wrong."""
    [fault] = (one for one in FAULTS if one.name == SETTINGS)
    if harmless:
        fault = fault._replace(new=f"{fault.old}  # as before")
    monkeypatch.setattr(plant, "FAULTS", [fault])
    assert plant.main(["--show", "1"]) == harmless
    said = capsys.readouterr().out
    assert f"\n-{fault.old}" in said
    assert "\nE   " in said or harmless
    assert ("Nothing went wrong" if harmless else "It went wrong as expected.") in said

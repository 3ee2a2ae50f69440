"""devtools/plant.py is up to date: the faults in its list can be planted, and are on the page."""

from __future__ import annotations

import re

import pytest

from devtools import plant
from devtools.pages import part
from devtools.plant import FAULTS, PAGE, ROOT, Fault, find, sources

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

"""devtools/plant.py is up to date: the faults in its list can be planted."""

from __future__ import annotations

import re

import pytest

from devtools.plant import FAULTS, ROOT, Fault, find, sources

SOURCES = sources(ROOT)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_it_can_be_planted(fault: Fault) -> None:
    """Its text occurs once in the package, and its tests are there."""
    find(fault, SOURCES)
    assert fault.new != fault.old
    files = re.findall(r"tests/\S+\.py", fault.tests)
    assert files
    assert all((ROOT / file).is_file() for file in files)

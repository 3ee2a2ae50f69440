"""The drawings of docs/: they are what their stories say, and can be read by everybody."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from devtools.diagrams import IMAGES, drawings

SVG = "{http://www.w3.org/2000/svg}"
DRAWINGS = drawings()


@pytest.mark.parametrize("name", DRAWINGS)
def test_it_is_up_to_date(name: str) -> None:
    """Else: python -m devtools.diagrams."""
    assert (IMAGES / name).read_text(encoding="utf-8") == DRAWINGS[name]


@pytest.mark.parametrize("name", DRAWINGS)
def test_it_has_a_title_and_a_description(name: str) -> None:
    """For those who hear it, in the order in which they hear it."""
    root = ET.fromstring(DRAWINGS[name])
    title, description = root[0], root[1]
    assert (title.tag, description.tag) == (f"{SVG}title", f"{SVG}desc")
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert len(description.text or "") > 60
    assert "prefers-color-scheme: dark" in "".join(root.itertext())


@pytest.mark.parametrize("name", DRAWINGS)
def test_nothing_stands_outside(name: str) -> None:
    """No box is wider than the drawing, and no lower than its end."""
    root = ET.fromstring(DRAWINGS[name])
    width, height = (float(part) for part in (root.get("viewBox") or "").split()[2:])
    for box in root.iter(f"{SVG}rect"):
        x, y, w, h = (float(box.get(key, 0)) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height

"""Histories for other judges: each call and its end, in the order of their times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.torture.story import Story
from tests.proof.export import operations, write


@pytest.fixture
def story() -> Story:
    """A releases, B is refused, C is killed while it asks, D is killed while it holds."""
    story = Story()
    story.grant("A", 2, asked=1, ends=12)
    story.refuse("B", 4, asked=3)
    story.release("A", 5, until=6)
    story.ask("C", 7)
    story.event(8, "monkey", "kill", whom="C")
    story.grant("D", 10, asked=9, ends=20)
    story.event(11, "monkey", "kill", whom="D")
    return story


def test_the_operations(story: Story) -> None:
    """A lease that ended by itself is a release of which nobody knows when it took effect."""
    told = [
        (one["time"] // 10**9, one["process"], one["type"], one["f"])
        for one in operations(story.history())
    ]
    assert told == [
        (1, 0, "invoke", "acquire"),
        (2, 0, "ok", "acquire"),
        (3, 1, "invoke", "acquire"),
        (4, 1, "fail", "acquire"),
        (5, 0, "invoke", "release"),
        (6, 0, "ok", "release"),
        (7, 2, "invoke", "acquire"),
        (7, 2, "info", "acquire"),
        (9, 3, "invoke", "acquire"),
        (10, 3, "ok", "acquire"),
        (20, 3, "invoke", "release"),
        (20, 3, "info", "release"),
    ]


def test_a_process_has_another_number_after_an_info() -> None:
    """For Knossos it has crashed."""
    story = Story()
    for at in (1, 3):
        story.ask("A", at)
        story.event(at + 1, "A", "failed")
    assert [one["process"] for one in operations(story.history())] == [0, 0, 1, 1]


@pytest.mark.parametrize("suffix", [".json", ".edn"])
def test_a_file(story: Story, tmp_path: Path, suffix: str) -> None:
    path = (tmp_path / "history").with_suffix(suffix)
    write(story.history(), path)
    text = path.read_text(encoding="utf-8")
    if suffix == ".json":
        assert json.loads(text) == operations(story.history())
    else:
        assert text.splitlines()[0] == (
            "{:index 0, :time 1000000000, :process 0, :type :invoke, :f :acquire,"
            " :value {:places 1, :token 1}}"
        )

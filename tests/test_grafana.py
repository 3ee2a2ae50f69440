"""The dashboard and the alert rules in django_redislock/contrib/grafana."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import django_redislock
from tests.processes import ROOT
from tests.test_prometheus import ours
from tests.waiting import PATIENCE

HERE = Path(django_redislock.__file__).parent / "contrib" / "grafana"
ALERTS = HERE / "alerts.yml"
PROMTOOL = shutil.which("promtool")

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None and os.environ.get("REDISLOCK_REQUIRE_PROMTOOL") != "1",
    reason="needs promtool, of Debian's package prometheus",
)


def dashboard() -> Any:
    return json.loads((HERE / "dashboard.json").read_text(encoding="utf-8"))


def rules() -> list[Any]:
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


def questions() -> Iterator[str]:
    """All expressions."""
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for rule in rules())


@pytest.mark.parametrize("question", [*questions()])
def test_the_names(question: str) -> None:
    """Each metric and each label is one that is exported."""
    labels = {re.sub("_bucket$", "", name): its for name, its in ours()}
    metrics = re.findall(r"\bredislock_\w+", question)
    assert metrics
    for metric in metrics:
        assert metric in labels
    asked = re.findall(r"(\w+)(?:=~|=)\"", question)
    asked += [
        label for some in re.findall(r"by \(([^)]*)\)", question) for label in some.split(", ")
    ]
    assert set(asked) <= {label for metric in metrics for label in labels[metric]}


def test_the_states() -> None:
    """No expression asks for a state or an outcome that does not exist."""
    asked = {
        value for one in questions() for value in re.findall(r'(?:state|outcome)="(\w+)"', one)
    }
    assert asked == {"broken", "stale", "unknown", "overdue", "failing", "conflict"}


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        its = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not its & taken
        assert max(x for x, _ in its) < 24
        taken |= its


def promtool(*arguments: str) -> str:
    assert PROMTOOL is not None, "promtool is missing"
    done = subprocess.run(
        [PROMTOOL, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@needs_promtool
def test_the_rules_are_valid() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", str(ALERTS))


@needs_promtool
def test_what_the_rules_find() -> None:
    """tests/alerts.test.yml has a case in which each alert is raised, and one in which none is."""
    promtool("test", "rules", "tests/alerts.test.yml")


@needs_promtool
def test_the_questions_of_the_dashboard(tmp_path: Path) -> None:
    """Prometheus can read them."""
    records = [
        {"record": f"panel:{number}", "expr": question.replace("$using", ".*")}
        for number, question in enumerate(questions())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}))
    promtool("check", "rules", str(file))

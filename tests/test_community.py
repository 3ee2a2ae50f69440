"""The files for contributors and continuous integration say what is there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
FILES = sorted(GITHUB.rglob("*.yml"))
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def ids(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("path", WORKFLOWS, ids=ids)
def test_workflows(path: Path) -> None:
    """They may do no more than they need, end some time, and use actions of one commit each, since
    a tag can be moved."""
    workflow = read(path)
    granted = workflow["permissions"]
    assert granted in ({}, {"contents": "read"})
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 120
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_only_publishing_may_prove_who_it_is() -> None:
    """And it runs none of our code, which could ask for that proof as well."""
    for path in WORKFLOWS:
        for name, job in read(path)["jobs"].items():
            writes = [what for what, how in job.get("permissions", {}).items() if how == "write"]
            assert bool(writes) == (name == "publish")
            if writes:
                assert not [step for step in job["steps"] if "run" in step]


PINNED = GITHUB / "requirements" / "build.txt"


def pinned() -> dict[str, Version]:
    """The tools that build a release. Each has one version and its hashes."""
    text = re.sub(r" *#.*", "", PINNED.read_text(encoding="utf-8")).replace("\\\n", " ")
    found = {}
    for line in filter(str.strip, text.splitlines()):
        match = re.fullmatch(r"([\w-]+)==([\w.]+)((?: +--hash=sha256:[0-9a-f]{64})+) *", line)
        assert match, line
        found[match[1]] = Version(match[2])
    return found


def test_the_tools_that_build_have_hashes() -> None:
    """All of [build-system] is pinned, and what frontend and file of origin name besides."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    asked = project["build-system"]["requires"]
    origin = PINNED.with_suffix(".in").read_text(encoding="utf-8").splitlines()
    named = [line for line in origin if not line.startswith("#")]
    assert {*asked, "build>=1.2"} == set(named)
    there = pinned()
    for one in map(Requirement, named):
        assert there[one.name] in one.specifier
    watched = {entry["directory"] for entry in read(GITHUB / "dependabot.yml")["updates"]}
    assert f"/{PINNED.parent.relative_to(ROOT)}" in watched


def test_a_release_is_built_by_these_tools_alone() -> None:
    """The job that builds installs nothing else. Other jobs test and publish what it has built."""
    jobs = read(GITHUB / "workflows" / "release.yml")["jobs"]
    ran = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    assert ran[0] == "make dist"
    assert not [command for command in ran if re.search(r"\b(pip|nox|pipx|uv)\b", command)]
    assert set(jobs["publish"]["needs"]) == {"build", "test"}
    assert jobs["test"]["needs"] == "build"
    uploads = [
        name
        for name, job in jobs.items()
        for step in job["steps"]
        if step.get("uses", "").startswith("actions/upload-artifact@")
    ]
    assert uploads == ["build"]
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^\$\(VENV\)/\.dist:.*\n((?:\t.*\n)+)", rules, re.MULTILINE)
    assert "--require-hashes --only-binary :all: --requirement $<" in recipe
    assert "-m build --no-isolation" in rules


def sessions() -> set[str]:
    """The sessions of noxfile.py, as `nox --list` names them."""
    listed = subprocess.run(
        [sys.executable, "-m", "nox", "--list", "--noxfile", str(ROOT / "noxfile.py")],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(re.findall(r"^[*-] (.+?)(?: ->.*)?$", listed.stdout, re.MULTILINE))


def chosen() -> list[dict[str, str]]:
    """What the matrix of the tests comes to."""
    matrix = read(GITHUB / "workflows" / "ci.yml")["jobs"]["tests"]["strategy"]["matrix"]
    product = [
        {"python": python, "django": django, "redis": redis, "server": server}
        for python in matrix["python"]
        for django in matrix["django"]
        for redis in matrix["redis"]
        for server in matrix["server"]
    ]
    return product + matrix["include"]


def test_the_sessions_are_there() -> None:
    """Whatever continuous integration calls, nox knows."""
    there = sessions()
    jobs = read(GITHUB / "workflows" / "ci.yml")["jobs"]
    assert set(jobs["session"]["strategy"]["matrix"]["session"]) <= there
    named = {
        f"tests(python='{one['python']}', django='{one['django']}', redis='{one['redis']}')"
        for one in chosen()
    }
    assert named <= there


def test_the_matrix_is_complete() -> None:
    """All versions that the package says it works with are among those that are tested."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        classifiers = tomllib.load(file)["project"]["classifiers"]
    said = [one.split(" :: ") for one in classifiers]
    pythons = {one[2] for one in said if one[:2] == ["Programming Language", "Python"]}
    djangos = {one[2] for one in said if one[:2] == ["Framework", "Django"] and len(one) > 2}
    tested = chosen()
    assert {one["python"] for one in tested} == pythons - {"3"}
    assert {one["django"] for one in tested} == djangos
    assert {one["redis"][0] for one in tested} == {"5", "6", "7", "8"}
    servers = {one["server"] for one in tested}
    assert {"redis:6.2", "redis:8", "valkey/valkey:9"} <= servers
    assert {(one["python"], one["django"]) for one in tested} >= {("3.11", "5.2"), ("3.14", "6.1")}

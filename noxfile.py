"""The sessions that continuous integration runs, for whoever wants to run one of them.

    nox --list
    nox -s "tests(python='3.12', django='6.0', redis='8')"

What needs one environment only is in the Makefile, and called from here. All that must hold before
a change goes in is .ci/run, which needs no nox.
"""

from __future__ import annotations

import nox

GROUPS = nox.project.load_toml("pyproject.toml")


def install(session: nox.Session, *groups: str, more: list[str] | None = None) -> None:
    """Install this package, what these dependency groups name, and more. The groups are read here,
    since not every pip knows them."""
    named = nox.project.dependency_groups(GROUPS, *groups)
    session.install("--editable", ".", *named, *(more or []))


PAIRS = [
    (python, django)
    for python in ("3.11", "3.12", "3.13", "3.14")
    for django in ("5.2", "6.0", "6.1")
    if (python, django[0]) != ("3.11", "6")  # which needs Python 3.12
]
"""Python and Django."""
REDISES = {
    "5": "redis>=5.3,<6",
    "6": "redis>=6,<7",
    "7": "redis>=7,<8",
    "8": "redis>=8,<9",
    "8-hiredis": "redis[hiredis]>=8,<9",
}
"""redis-py; REDISLOCK_SERVER chooses the server."""

nox.options.sessions = ["lint"]
nox.options.default_venv_backend = "uv|virtualenv"


@nox.session(python=False)
def lint(session: nox.Session) -> None:
    """ruff and mypy."""
    session.run("make", "lint", external=True)


@nox.session(python=False)
def docs(session: nox.Session) -> None:
    """The site, without a warning."""
    session.run("make", "docs", external=True)


@nox.session
@nox.parametrize("redis", list(REDISES))
@nox.parametrize("python,django", PAIRS)
def tests(session: nox.Session, django: str, redis: str) -> None:
    """The quick tests, or the tests that are named: -- tests/contract."""
    oldest = ["django-redis<7"] if (django, redis) == ("5.2", "5") else []
    if redis == "5":
        oldest.append("kombu<5.7")  # Celery's brokers in Redis need redis-py 6.1 from then on
    install(session, "test", more=[f"django~={django}.0", REDISES[redis], *oldest])
    session.run("python", "-m", "pytest", "-n", "auto", *(session.posargs or ["-m", "not slow"]))


@nox.session(name="task-queues")
def task_queues(session: nox.Session) -> None:
    """The examples of docs/task-queues.md and tests/tasks, with the tasks that Django 6 has."""
    install(session, "test", more=["django>=6"])
    session.run("python", "-m", "pytest", "tests/docs/test_task_queues.py", "tests/tasks")


@nox.session
def package(session: nox.Session) -> None:
    """Build sdist and wheel into dist/, and test those; with -- dist, those that are there."""
    if not session.posargs:
        session.run("make", "dist", external=True)
    install(session, "test", more=["twine"])
    session.run("python", "-m", "twine", "check", "--strict", "dist/*")
    tests = ["tests/test_packaging.py", "tests/test_typing.py"]
    session.run("python", "-m", "pytest", *tests, env={"REDISLOCK_DIST": "dist"})


@nox.session(name="bench-smoke")
def bench_smoke(session: nox.Session) -> None:
    """Whether the benchmarks run; of so short a run the figures mean nothing."""
    install(session, "test", "peers", "bench")
    session.run("python", "-m", "benchmarks", "--smoke")

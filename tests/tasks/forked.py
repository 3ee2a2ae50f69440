"""Several workers of RQ or of django-tasks-db: `python -m tests.tasks.forked rq 4`.

Each of them runs one task at a time. Forked, they start as fast as one.
"""

from __future__ import annotations

import os
import sys

import django


def rq() -> None:
    """What `rq worker --with-scheduler` does, for jobs that are imported already."""
    from rq import Worker

    from tests.tasks.on_rq import connection, queue

    Worker([queue], connection=connection).work(with_scheduler=True, logging_level="WARNING")


def django_tasks() -> None:
    from django.core.management import call_command

    call_command("db_worker", "--interval", "0.05", "--no-startup-delay", "--no-reload")


def main(kind: str, number: str) -> None:
    django.setup()
    if kind == "rq":
        from tests.tasks import on_rq  # noqa: F401
    else:
        from tests.tasks import on_django  # noqa: F401
    children = []
    for _ in range(int(number)):
        if not (child := os.fork()):
            rq() if kind == "rq" else django_tasks()
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])

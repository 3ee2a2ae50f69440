"""The task queues: how each one starts a worker, is called, and what it still has to do."""

from __future__ import annotations

import importlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from itertools import count
from typing import Any

from tests.processes import ROOT
from tests.tasks.events import WORKER, broker, processes_of
from tests.waiting import PATIENCE, eventually

_numbers = count(1)


class TaskWorker:
    """A worker of a queue, with all of its processes."""

    def __init__(self, command: Sequence[str]) -> None:
        self.number = f"{os.getpid()}-{next(_numbers)}"
        self._said = ""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # kill() closes it
        # Has an end when the last of its processes is dead.
        self._lives, lives = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            cwd=ROOT,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.tasks.settings",
                "dramatiq_worker_timeout": "50",
                WORKER: self.number,
            },
            start_new_session=True,
            pass_fds=[lives],
        )
        os.close(lives)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def log(self) -> str:
        """What its processes have said, for a test that fails."""
        if not self._log.closed:
            size = os.fstat(self._log.fileno()).st_size
            self._said = os.pread(self._log.fileno(), size, 0).decode(errors="replace")
        return self._said

    def kill(self) -> None:
        """Kill all of it with SIGKILL, and wait until all is dead. RQ runs a job in a process
        group of its own, so the processes of tasks are killed one by one."""
        if self._log.closed:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        for pid in broker().smembers(processes_of(self.number)):
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        # Else a message would go to one that is about to die.
        ends = select.poll()  # select() itself knows no more than 1024 files
        ends.register(self._lives)
        dead = ends.poll(PATIENCE * 1000)
        assert dead, f"a process has survived: {self.log()}"
        os.close(self._lives)
        self.log()
        self._log.close()


class Queue(ABC):
    """A queue whose tasks are in a module of this folder."""

    name: str
    module: str
    databases: tuple[int, ...] = ()
    """Those of the broker's Redis that only this queue uses."""
    limits = True
    settles = True
    retries = True

    def __init__(self) -> None:
        self.workers: list[TaskWorker] = []

    @cached_property
    def tasks(self) -> Any:
        """The module with the tasks; a test writes `queue.tasks.plain`."""
        return importlib.import_module(f"tests.tasks.{self.module}")

    @abstractmethod
    def command(self, size: int) -> list[str]:
        """How a worker for so many tasks at a time is started, after `python -m`."""

    @abstractmethod
    def call(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        """Enqueue a task; returns what the queue returns."""

    @abstractmethod
    def id_of(self, handle: Any) -> str:
        """The id of what `call()` has returned."""

    @abstractmethod
    def waiting(self) -> int:
        """How many messages wait, those for later as well."""

    def purge(self) -> None:
        """Forget all messages. No worker may run."""
        for database in self.databases:
            broker(database).flushdb()

    def start(self, size: int = 4) -> TaskWorker:
        worker = TaskWorker(self.command(size))
        self.workers.append(worker)
        return worker

    def prepare(self, workers: int = 1) -> None:
        """Before each test: so many workers run, and nothing is left of any that was killed."""
        if [worker.alive for worker in self.workers] != [True] * workers:
            self.stop()
            self.purge()
            for _ in range(workers):
                self.start()

    def kill(self) -> None:
        """Kill all workers with SIGKILL."""
        for worker in self.workers:
            worker.kill()
        # Else the server gives the next message to one of the dead.
        eventually(lambda: broker().info("clients")["blocked_clients"] == 0)

    def stop(self) -> None:
        self.kill()
        self.workers.clear()

    def settle(self) -> None:
        """Wait until the queue is empty."""
        eventually(lambda: self.waiting() == 0)


class Celery(Queue):
    name, module, databases = "celery", "on_celery", (1, 2)
    pool = "threads"

    def prepare(self, workers: int = 1) -> None:
        super().prepare(workers)
        # Shared tasks are those of the current app, and another test may have made one.
        self.tasks.app.set_default()
        self.tasks.app.set_current()

    def command(self, size: int) -> list[str]:
        app = ["celery", "-A", "tests.tasks.on_celery", "worker", "-l", "WARNING"]
        quick = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        return [*app, "-P", self.pool, "-c", str(size), "-n", f"{next(_numbers)}@tests", *quick]

    def call(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        return task.delay(*args, **kwargs)

    def id_of(self, handle: Any) -> str:
        return str(handle.id)

    def waiting(self) -> int:
        return int(broker(1).llen("celery")) + int(broker(1).hlen("unacked"))


class CeleryPrefork(Celery):
    name, pool = "celery-prefork", "prefork"


class RQ(Queue):
    name, module, databases = "rq", "on_rq", (3,)

    def command(self, size: int) -> list[str]:
        return ["tests.tasks.forked", "rq", str(size)]

    def call(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        return task.enqueue(*args, **kwargs)

    def id_of(self, handle: Any) -> str:
        return str(handle.id)

    def kill(self) -> None:
        """A scheduler takes over from a killed one after a minute, which no test waits for."""
        super().kill()
        broker(3).delete("rq:scheduler-lock:default")

    def waiting(self) -> int:
        queue = self.tasks.queue
        return int(queue.count) + int(queue.scheduled_job_registry.count)


class Dramatiq(Queue):
    name, module, databases = "dramatiq", "on_dramatiq", (4,)

    def command(self, size: int) -> list[str]:
        module = "tests.tasks.on_dramatiq:broker"
        return ["dramatiq", module, "--processes", "1", "--threads", str(size)]

    def call(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        return task.send(*args, **kwargs)

    def id_of(self, handle: Any) -> str:
        return str(handle.message_id)

    def waiting(self) -> int:
        names = ("dramatiq:default", "dramatiq:default.DQ")
        return sum(int(broker(4).llen(name)) for name in names)


class DjangoTasks(Queue):
    name, module = "django-tasks-db", "on_django"
    retries = False

    def command(self, size: int) -> list[str]:
        return ["tests.tasks.forked", "django", str(size)]

    def call(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        return task.enqueue(*args, **kwargs)

    def id_of(self, handle: Any) -> str:
        return str(handle.id)

    def _rows(self) -> Any:
        from django_tasks_db.models import DBTaskResult

        return DBTaskResult.objects.all()

    def waiting(self) -> int:
        return int(self._rows().filter(status="READY").count())

    def purge(self) -> None:
        self._rows().delete()


QUEUES = {queue.name: queue for queue in (Celery, CeleryPrefork, RQ, Dramatiq, DjangoTasks)}

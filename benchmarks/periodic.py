"""The load of a fleet on Redis: 50 schedulers with 200 jobs, each every 30 seconds.

The schedulers are threads of this process: their number of commands is realistic, their processor
time is not. The jobs return at once.
"""

from __future__ import annotations

import threading
import time

from .harness import Meter, Row, add, django_project, private_server, url

SCHEDULERS, JOBS, EVERY = 50, 200, 30.0


def measure(*, seconds: float = 90.0, every: float = EVERY) -> list[Row]:
    with private_server() as server:
        django_project(default=url(server))
        from django_redislock.periodic import Ledger, RunOutcome, periodic
        from django_redislock.periodic.execution import JobRun, Workers, perform
        from django_redislock.periodic.job import Job, jobs
        from django_redislock.periodic.runner import runners

        def nothing() -> None: ...

        for number in range(JOBS):
            periodic(every=every, name=f"job{number}")(nothing)

        class Inline(Workers):
            """Performs each run at once, in the thread of its scheduler."""

            def free(self, job: Job) -> bool:
                del job
                return True

            def start(self, job_run: JobRun) -> None:
                perform(job_run, lambda *_: None)

        over = threading.Event()

        def schedule() -> None:
            [runner] = runners(jobs(), Inline(1, lambda: None), stays=True)
            while not over.wait(runner.step()):
                pass

        threads = [threading.Thread(target=schedule) for _ in range(SCHEDULERS)]
        for thread in threads:
            thread.start()
        time.sleep(every)
        meter = Meter(server)
        time.sleep(seconds)
        spent = meter.stop()
        over.set()
        for thread in threads:
            thread.join()
        ran = sum(run.outcome == RunOutcome.DONE for job in Ledger().jobs() for run in job.runs)
    rows: list[Row] = []
    case = {"schedulers": SCHEDULERS, "jobs": JOBS, "every": every}
    figures = {
        "runs": ran,
        "ticks_per_second": round(JOBS / every, 2),
        "requests_per_second": round(spent["round_trips"] / spent["seconds"], 2),
        "server_cpu_percent": round(100 * spent["server_cpu"] / spent["seconds"], 2),
    }
    add(rows, case, "runperiodic", figures)
    return rows

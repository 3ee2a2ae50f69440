"""What a fleet of schedulers asks of Redis: 50 of them, with 200 jobs.

    python -m benchmarks.periodic
    python -m benchmarks.periodic --schedulers 50 --jobs 200 --every 60 --seconds 60

The schedulers are threads of this process, so their number of commands is right, and what they
take of a processor is not. Nothing is really run: a job returns at once. The server is a private
one, and counts: commands per second, and the most in any second.
"""

from __future__ import annotations

import argparse
import os
import threading
import time

from devtools.redis_server import RedisServer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedulers", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--every", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=90.0)
    options = parser.parse_args()
    with RedisServer() as server:
        os.environ["REDISLOCK_TEST_URL"] = server.url
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
        import django

        django.setup()
        measure(server, options)


def measure(server: RedisServer, options: argparse.Namespace) -> None:
    from redis import Redis

    from django_redislock.periodic import Ledger, Outcome, periodic
    from django_redislock.periodic.execution import Assignment, perform
    from django_redislock.periodic.job import Job, jobs
    from django_redislock.periodic.runner import Runner

    def nothing() -> None: ...

    for number in range(options.jobs):
        periodic(every=options.every, name=f"job{number}")(nothing)

    class Crew:
        """Does it at once, and itself."""

        def free(self, job: Job) -> bool:
            del job
            return True

        def start(self, assignment: Assignment) -> None:
            perform(assignment, lambda *_: None)

    over = threading.Event()

    def schedule() -> None:
        runner = Runner(jobs(), Crew())
        while not over.wait(runner.step()):
            pass

    redis = Redis.from_url(server.url)

    def commands() -> int:
        # Each call is one EVALSHA; what scripts do inside is not counted by this figure.
        return int(redis.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))

    threads = [threading.Thread(target=schedule) for _ in range(options.schedulers)]
    for thread in threads:
        thread.start()
    time.sleep(options.every)
    begin, before = time.monotonic(), commands()
    cpu = server_cpu(redis)
    most, last = 0, before
    while time.monotonic() < begin + options.seconds:
        time.sleep(1)
        now = commands()
        most, last = max(most, now - last), now
    seconds, sent = time.monotonic() - begin, commands() - before
    cpu = server_cpu(redis) - cpu
    over.set()
    for thread in threads:
        thread.join()
    ran = sum(run.outcome == Outcome.DONE for job in Ledger().jobs() for run in job.runs)
    planned = options.jobs / options.every
    print(f"{options.schedulers} schedulers, {options.jobs} jobs, each every {options.every:g} s")
    print(f"{server.description}; {seconds:.0f} s; {ran} runs are in the ledger")
    print(f"ticks            {planned:>10.1f} per second")
    print(f"commands         {sent / seconds:>10.1f} per second")
    print(f"  most           {most:>10} in one second")
    print(f"  for each tick  {sent / seconds / planned:>10.1f}")
    print(f"Redis            {100 * cpu / seconds:>10.1f} % of a processor")
    every_second = options.schedulers * options.jobs
    print(f"asking for each job each second would be {every_second} per second")


def server_cpu(redis: object) -> float:
    """Seconds of a processor that the server has taken."""
    info = redis.info("cpu")  # type: ignore[attr-defined]
    return float(info["used_cpu_user"] + info["used_cpu_sys"])


if __name__ == "__main__":
    main()

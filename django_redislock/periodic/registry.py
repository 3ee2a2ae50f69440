"""The registry of periodic jobs, and `@periodic`, which fills it.

@periodic("*/5 * * * *")
def report(): ...

@periodic(every=30)
async def sync(): ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, Unpack

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules
from django.utils.timezone import get_default_timezone

from ..base import label
from ..base.callables import Parameters, kind_of, written
from ..primitives.keys import validate_name
from ..settings import conf
from ..settings.policy import JOB_VALIDATORS
from ..settings.validators import OF_A_JOB, refuse_unknown
from .job import LOCK_PREFIX, Job, JobOptions
from .schedule import Cron, Every, shortest

F = TypeVar("F", bound=Callable[..., Any])

_registry: dict[str, Job] = {}


def periodic(
    schedule: str | None = None, *, every: float | None = None, **options: Unpack[JobOptions]
) -> Callable[[F], F]:
    """Let `manage.py runperiodic` call the decorated function, once per tick.

    `schedule` is a cron expression; `every` is a number of seconds, counted from the epoch. The
    function takes no arguments, and is returned unchanged. A Django task is enqueued.

    Raises `TypeError`, `ValueError`, or `ImproperlyConfigured` if cronsim is missing. The message
    has the name of the job and its place in the code.
    """

    def decorate(function: F) -> F:
        call = _callable(function)
        if not callable(call):
            raise TypeError(f"a periodic job must be a function, not {function!r}")
        where = label.of_function(call)
        values: dict[str, Any] = {**options}
        name = values.pop("name", None)
        name = label.dotted_path(written(call)) if name is None else name
        given = {"schedule": schedule, "every": every}
        values |= {what: value for what, value in given.items() if value is not None}
        try:
            job = _job(name, call, where, values)
            known = _registry.get(name)
            if known is not None and (known.where != where or _made_twice(known, call)):
                raise ValueError(
                    f"another job at {known.where} has this name; write name=… for one of them"
                )
            _validate(function, call)
        except (TypeError, ValueError, ImproperlyConfigured) as error:
            raise type(error)(f"The periodic job {name!r} at {where}: {error}") from None
        _registry[name] = job
        return function

    if callable(schedule):
        raise TypeError(
            "@periodic needs a schedule: @periodic('*/5 * * * *') or @periodic(every=30)"
        )
    return decorate


def _made_twice(known: Job, call: Any) -> bool:
    """Whether a factory made both functions: they share their code object. A reloaded module has
    the same function at the same place, with a new code object."""
    code = getattr(written(call), "__code__", None)
    return code is not None and code is getattr(written(known.function), "__code__", None)


def _job(name: Any, call: Callable[[], Any], where: str, given: dict[str, Any]) -> Job:
    refuse_unknown((what for what in given if what not in JOB_VALIDATORS), "periodic", OF_A_JOB)
    values = {field: JOB_VALIDATORS[field](value, field) for field, value in given.items()}
    validate_name(f"{LOCK_PREFIX}{name}" if isinstance(name, str) else name)
    if ("schedule" in values) == ("every" in values):
        raise TypeError("write either a cron expression or every=, the seconds between two runs")
    job = Job(name=name, function=call, where=where, schedule=Every(1.0))
    return _configured(job, values)


def _configured(job: Job, values: Mapping[str, Any]) -> Job:
    """Return the job with these values, which are valid one by one. Raises `ValueError`."""
    rest = dict(values)
    expression, every = rest.pop("schedule", None), rest.pop("every", None)
    if expression is not None and every is not None:
        raise ValueError("write either a cron expression or every=, not both")
    job = replace(job, **rest)
    if expression is None and isinstance(job.schedule, Cron):
        expression = job.schedule.expression  # in another zone, perhaps
    if every is not None:
        job = replace(job, schedule=Every(every))
    elif expression is not None:
        job = replace(job, schedule=Cron(expression, job.tz or get_default_timezone()))
    if job.tz is not None and isinstance(job.schedule, Every):
        raise ValueError("tz is for cron expressions: every= counts seconds")
    if job.catch_up == "all" and job.overlap == "skip":
        raise ValueError(
            "catch_up='all' needs overlap='wait': all missed ticks but the first would be due "
            "while the first one runs, and would be skipped"
        )
    if job.jitter and job.jitter >= shortest(job.schedule):
        raise ValueError(
            f"jitter must be shorter than the time between two ticks, not {job.jitter:g} s"
        )
    return job


def discover() -> None:
    """Import the module `periodic` of each installed app."""
    autodiscover_modules("periodic")


def jobs() -> list[Job]:
    """Return the jobs of all imported modules with their settings, sorted by name.

    Raises `ImproperlyConfigured` for settings that do not fit a job.
    """
    return [_tuned(job) for _, job in sorted(_registry.items())]


def job_of_lock(name: str) -> Job | None:
    """Return the job whose lock has this name, or None. Modules are not imported for it.

    Raises `ImproperlyConfigured` for settings that do not fit the job.
    """
    if not name.startswith(LOCK_PREFIX):
        return None
    job = _registry.get(name.removeprefix(LOCK_PREFIX))
    return None if job is None else _tuned(job)


def _tuned(job: Job) -> Job:
    try:
        return _configured(job, conf.job(job.name))
    except ValueError as error:
        raise ImproperlyConfigured(
            f"REDISLOCK['JOBS'][{conf.job_entry(job.name)!r}], for {job.name!r}: {error}"
        ) from None


def _callable(function: Any) -> Callable[[], Any]:
    """Return what a scheduler calls. For a Django task, that is `enqueue()`."""
    enqueue = getattr(function, "enqueue", None)
    if enqueue is None or not hasattr(function, "module_path"):
        return function  # type: ignore[no-any-return]

    def call(*args: Any) -> Any:
        return enqueue(*args)

    work = function.func
    if getattr(function, "takes_context", False):
        work = partial(work, None)
    call.__wrapped__ = work  # type: ignore[attr-defined]
    return call


def _validate(function: Any, call: Callable[[], Any]) -> None:
    if isinstance(function, type):
        raise TypeError(f"a periodic job must be a function, not {function!r}")
    if isinstance(function, staticmethod | classmethod):
        raise TypeError("a periodic job must be a function of a module, not a method")
    if kind_of(written(call)).endswith("generator"):
        raise TypeError("a periodic job must not be a generator: nothing would consume its values")
    if needed := Parameters(call).needed():
        raise TypeError(
            f"a periodic job is called without arguments, and this function needs "
            f"{', '.join(needed)}; give them defaults, or decorate a function that calls it"
        )

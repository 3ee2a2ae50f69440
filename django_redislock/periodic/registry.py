"""Which periodic jobs there are.

@periodic("*/5 * * * *")
def report(): ...

@periodic(every=30)
async def sync(): ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, Unpack

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules
from django.utils.timezone import get_default_timezone

from ..base import label
from ..primitives.keys import validate_name
from ..settings import conf
from ..settings.policy import JOB_VALIDATORS
from ..settings.validators import refuse_unknown
from .job import Job, JobOptions
from .schedule import Cron, Every, shortest

F = TypeVar("F", bound=Callable[..., Any])

_registry: dict[str, Job] = {}


def periodic(
    schedule: str | None = None, *, every: float | None = None, **options: Unpack[JobOptions]
) -> Callable[[F], F]:
    """Run the decorated function periodically, by `manage.py runperiodic`, once per tick.

    `schedule` is a cron expression, `every` a number of seconds, counted from the epoch. The
    function takes no arguments; it is returned as it was. One of Django's tasks is enqueued.

    Raises `TypeError`, `ValueError`, or `ImproperlyConfigured` when cronsim is missing; each with
    the name of the job and its place.
    """

    def decorate(function: F) -> F:
        call = _callable(function)
        written = inspect.unwrap(call)  # what somebody has written, without decorators
        where = label.of_function(written)
        values: dict[str, Any] = {**options}
        name = values.pop("name", None)
        name = label.dotted_path(written) if name is None else name
        given = {"schedule": schedule, "every": every}
        values |= {what: value for what, value in given.items() if value is not None}
        try:
            job = _job(name, call, where, values)
            known = _registry.get(name)
            if known is not None and (known.where != where or _made_twice(known, written)):
                raise ValueError(
                    f"there is another job of that name at {known.where}; write name=… on one"
                )
            _validate(function, call)
        except (TypeError, ValueError, ImproperlyConfigured) as error:
            raise type(error)(f"The periodic job {name!r} at {where}: {error}") from None
        _registry[name] = job
        return function

    if callable(schedule):
        raise TypeError("write when: @periodic('*/5 * * * *') or @periodic(every=30)")
    return decorate


def _made_twice(known: Job, written: Any) -> bool:
    """By a factory. A module that is reloaded has the same function at the same place, too, but
    its code is made anew."""
    code = getattr(written, "__code__", None)
    return code is not None and code is getattr(inspect.unwrap(known.function), "__code__", None)


def _job(name: Any, call: Callable[[], Any], where: str, given: dict[str, Any]) -> Job:
    unknown = {what: value for what, value in given.items() if what not in JOB_VALIDATORS}
    refuse_unknown(unknown, "periodic")
    values = {field: JOB_VALIDATORS[field](value, field) for field, value in given.items()}
    validate_name(f"periodic:{name}" if isinstance(name, str) else name)
    if ("schedule" in values) == ("every" in values):
        raise TypeError("write either a cron expression or every=, the seconds between two runs")
    job = Job(name=name, function=call, where=where, schedule=Every(1.0))
    return _configured(job, values)


def _configured(job: Job, values: Mapping[str, Any]) -> Job:
    """The job with these values, which have been validated one by one. Raises `ValueError`."""
    rest = dict(values)
    expression, every = rest.pop("schedule", None), rest.pop("every", None)
    if expression is not None and every is not None:
        raise ValueError("either a cron expression or every=, not both")
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
            "catch_up='all' needs overlap='wait': all but the first of the ticks that were missed "
            "would come while that one runs, and be passed over"
        )
    if job.jitter and job.jitter >= shortest(job.schedule):
        raise ValueError(
            f"jitter must be shorter than the time between two ticks, not {job.jitter:g} s"
        )
    return job


def discover() -> None:
    """Import the module `periodic` of each installed app, where jobs are."""
    autodiscover_modules("periodic")


def jobs() -> list[Job]:
    """The jobs of the modules that were imported, as the settings have them, by their names.

    Raises `ImproperlyConfigured` for settings that don't go with a job.
    """
    return [_tuned(job) for _, job in sorted(_registry.items())]


def _tuned(job: Job) -> Job:
    try:
        return _configured(job, conf.job(job.name))
    except ValueError as error:
        raise ImproperlyConfigured(
            f"REDISLOCK['JOBS'][{conf.job_entry(job.name)!r}], for {job.name!r}: {error}"
        ) from None


def _callable(function: Any) -> Callable[[], Any]:
    """What a scheduler calls; Django's tasks are enqueued."""
    enqueue = getattr(function, "enqueue", None)
    if enqueue is None or not hasattr(function, "module_path"):
        return function  # type: ignore[no-any-return]

    def call() -> Any:
        return enqueue()

    call.__wrapped__ = function.func  # type: ignore[attr-defined]
    return call


def _validate(function: Any, call: Callable[[], Any]) -> None:
    if not callable(call) or isinstance(function, type):
        raise TypeError(f"it must be a function, not {function!r}")
    if isinstance(function, staticmethod | classmethod):
        raise TypeError("it must be a function of a module, not a method")
    written = inspect.unwrap(call)
    if inspect.isgeneratorfunction(written) or inspect.isasyncgenfunction(written):
        raise TypeError("it must not be a generator: nobody would take what it yields")
    parameters = list(inspect.signature(written).parameters.values())
    if getattr(function, "takes_context", False):
        del parameters[0]
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise TypeError(
            f"it is called without arguments, and needs {', '.join(needed)}; give them defaults, "
            f"or decorate a function that calls it"
        )

"""What a periodic job is, and which ones there are.

@periodic("*/5 * * * *")
def report(): ...

@periodic(every=30)
async def sync(): ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import tzinfo
from hashlib import sha256
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules
from django.utils.timezone import get_default_timezone

from .. import conf, label
from ..arguments import refuse_unknown
from ..keys import Keys, validate_name
from ..primitives.ledger import Wanted
from .schedule import SECOND, Cron, Every, Schedule, shortest

F = TypeVar("F", bound=Callable[..., Any])

ATTEMPTS = 3
"""So many runs of one tick with `on_crash="retry"`: a job that kills its process must not go on
to kill one after the other."""
ON_TIME = 10.0
"""Seconds after which a tick has been missed, when nothing is to be caught up with."""
A_DAY = 86400.0
"""Seconds back, when everything is to be caught up with."""


class JobOptions(TypedDict, total=False):
    """What `@periodic` takes besides the schedule. All times are seconds.

    All but the name can be set in `REDISLOCK["JOBS"]`, too, which beats what the code says.
    """

    name: str
    """By default the function's dotted path."""
    tz: tzinfo | str | None
    """The time zone of a cron expression; by default `TIME_ZONE`."""
    enabled: bool
    at_most_for: float | None
    """When the job's lease ends, counted from its start, however long it lives; None: never."""
    at_least_for: float
    """For how long its lock is held at least, counted from its start."""
    overlap: Literal["skip", "wait"]
    """A tick that comes due while the job runs is passed over, or waits for its end."""
    on_crash: Literal["lose", "retry"]
    """A run whose process dies is lost; or its tick is tried again, three times in all."""
    catch_up: Literal["latest", "none", "all"]
    """Of the ticks that were missed, while no scheduler ran or Redis was away, only the last one
    is run; or none; or each of them, one after the other."""
    grace: float | None
    """How late a tick may still be started. None: until the next one; with `catch_up="none"` for
    10 seconds, with "all" for a day."""
    jitter: float
    """Start up to so much later: by how much differs for each job and tick, and is the same for
    all schedulers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A function, when it runs, and how. All times are seconds."""

    name: str
    function: Callable[[], Any]
    where: str
    """Where in the code it is."""
    schedule: Schedule
    tz: tzinfo | None = None
    enabled: bool = True
    at_most_for: float | None = None
    at_least_for: float = 0.0
    overlap: Literal["skip", "wait"] = "skip"
    on_crash: Literal["lose", "retry"] = "lose"
    catch_up: Literal["latest", "none", "all"] = "latest"
    grace: float | None = None
    jitter: float = 0.0

    @property
    def asynchronous(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def lock(self) -> str:
        """The name of its lock."""
        return f"periodic:{self.name}"

    @property
    def keys(self) -> Keys:
        return Keys.of(conf.prefix(), self.lock)

    @property
    def policy(self) -> conf.Policy:
        """How its lock behaves. Raises `ImproperlyConfigured`."""
        bound = {} if self.at_most_for is None else {"max_hold": self.at_most_for}
        return conf.policy(self.lock, bound)

    # From here on times are microseconds, by the server's clock.

    def ready(self, tick: int) -> int:
        """When a tick may be started: all schedulers agree."""
        if not self.jitter:
            return tick
        digest = sha256(f"{self.name} {tick}".encode()).digest()
        share = int.from_bytes(digest[:8], "big") / 2**64
        return tick + round(share * self.jitter * SECOND)

    def grace_of(self) -> float | None:
        """How late a tick may be started; None: until the next one."""
        default = {"latest": None, "none": ON_TIME, "all": A_DAY}[self.catch_up]
        return default if self.grace is None else self.grace

    def deadline(self, tick: int) -> int | None:
        """Until when it may be started; None: until the next one."""
        grace = self.grace_of()
        return None if grace is None else self.ready(tick) + round(grace * SECOND)

    def due(self, known: int, now: int) -> int | None:
        """The tick to claim, of those later than `known`; None: there is none yet."""
        if self.catch_up == "all":
            deadline = round((self.grace_of() or 0.0) * SECOND)
            # Those that are too late are passed over at once, by the last of them.
            late = self.schedule.last(known, now - deadline - round(self.jitter * SECOND) - 1)
            tick = late or self.schedule.next(known)
            return tick if tick is not None and self.ready(tick) <= now else None
        upto = now
        while (tick := self.schedule.last(known, upto)) is not None and self.ready(tick) > now:
            upto = tick - 1
        return tick

    def wanted(self, tick: int) -> Wanted:
        return Wanted(
            tick=tick,
            ready=self.ready(tick),
            deadline=self.deadline(tick),
            overlap=self.overlap,
            attempts=ATTEMPTS if self.on_crash == "retry" else 1,
        )

    def words(self) -> str:
        """When and how it runs, for people."""
        said = [self.schedule.words]
        if not self.enabled:
            said.append("disabled")
        if self.jitter:
            said.append(f"up to {self.jitter:g} s later")
        if self.overlap == "wait":
            said.append("waits for its last run")
        if self.on_crash == "retry":
            said.append("retried after a crash")
        if self.catch_up != "latest":
            said.append(
                {"none": "nothing is caught up with", "all": "all is caught up with"}[
                    self.catch_up
                ]
            )
        if self.grace is not None:
            said.append(f"at most {self.grace:g} s late")
        if self.at_most_for is not None:
            said.append(f"for {self.at_most_for:g} s at most")
        if self.at_least_for:
            said.append(f"for {self.at_least_for:g} s at least")
        return "; ".join(said)


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
        where = label.of_function(_inner(function))
        name = options.get("name")
        named = name if isinstance(name, str) else _path(_inner(function))
        try:
            job = _job(call, where, schedule, every, dict(options))
            known = _registry.get(job.name)
            # The very same again is a module that was reloaded.
            if known is not None and known.where != where:
                raise ValueError(
                    f"there is another job of that name at {known.where}; write name=… on one"
                )
            _validate(function, call)
        except (TypeError, ValueError, ImproperlyConfigured) as error:
            raise type(error)(f"The periodic job {named!r} at {where}: {error}") from None
        _registry[job.name] = job
        return function

    if callable(schedule):
        raise TypeError("write when: @periodic('*/5 * * * *') or @periodic(every=30)")
    return decorate


def _job(
    call: Callable[[], Any],
    where: str,
    schedule: str | None,
    every: float | None,
    options: dict[str, Any],
) -> Job:
    name = options.pop("name", None)
    name = _path(_inner(call)) if name is None else name
    given = {"schedule": schedule, "every": every}
    values = {
        field: validate(options.pop(field))
        for field, validate in conf.JOB_VALIDATORS.items()
        if field in options
    }
    values |= {
        field: conf.JOB_VALIDATORS[field](value)
        for field, value in given.items()
        if value is not None
    }
    refuse_unknown(options, "periodic")
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
    if every is not None:
        job = replace(job, schedule=Every(every))
    elif isinstance(job.schedule, Cron) or expression is not None:
        if expression is None:
            assert isinstance(job.schedule, Cron)
            expression = job.schedule.expression
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


def _inner(function: Any) -> Any:
    """The function that somebody has written."""
    function = getattr(function, "func", function) if hasattr(function, "enqueue") else function
    return inspect.unwrap(function) if callable(function) else function


def _path(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}".replace("<locals>", "locals")


def _validate(function: Any, call: Callable[[], Any]) -> None:
    if not callable(call) or isinstance(function, type):
        raise TypeError(f"it must be a function, not {function!r}")
    if isinstance(function, staticmethod | classmethod):
        raise TypeError("it must be a function of a module, not a method")
    inner = _inner(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise TypeError("it must not be a generator: nobody would take what it yields")
    signature = inspect.signature(inner)
    if getattr(function, "takes_context", False):
        _, *parameters = signature.parameters.values()
    else:
        parameters = list(signature.parameters.values())
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

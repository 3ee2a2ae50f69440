"""A periodic job: its function, its schedule and its options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from functools import partial
from hashlib import sha256
from itertools import islice, pairwise
from types import ModuleType
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules
from django.utils.timezone import get_default_timezone

from ..base import people
from ..base.callables import Parameters, kind_of, of_function, written
from ..primitives.keys import Keys, validate_name
from ..primitives.ledger import REQUEST_GOOD_FOR, Overlap, RunRequest, Wanted
from ..settings import conf
from ..settings.policy import JOB_VALIDATORS, Policy
from ..settings.validators import OF_A_JOB, refuse_unknown

# Schedules of jobs. A tick is a time in microseconds since the epoch.
#
# All schedulers of a fleet compute the same ticks, whenever they were started.


SECOND = 1_000_000
_FIRST_SPAN = 60 * SECOND


@dataclass(frozen=True, slots=True)
class Every:
    """A schedule of every so many seconds, counted from 1970-01-01 00:00 UTC.

    `next` returns the first tick later than `after`, and `last` the last one that is not later
    than `upto` either. `words` are the schedule in English.
    """

    seconds: float

    @property
    def _period(self) -> int:
        return round(self.seconds * SECOND)

    def next(self, after: int) -> int | None:
        return (after // self._period + 1) * self._period

    def last(self, after: int, upto: int) -> int | None:
        tick = upto // self._period * self._period
        return tick if tick > after else None

    @property
    def words(self) -> str:
        for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
            if self.seconds % size == 0:
                number = round(self.seconds / size)
                return f"every {unit}" if number == 1 else f"every {number} {unit}s"
        return "every second" if self.seconds == 1 else f"every {self.seconds:g} seconds"


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression, in a time zone.

    cronsim computes the ticks. As in Debian's cron, a job at a fixed time of the day runs once on
    the days on which clocks are changed: at the next valid minute if the clock skips its time, and
    at the first time if the clock shows it twice.

    Raises `ValueError` for an expression that can't be parsed or never matches, and
    `ImproperlyConfigured` if cronsim is not installed.
    """

    expression: str
    zone: tzinfo = field(repr=False)

    def __post_init__(self) -> None:
        cronsim = _cronsim()
        try:
            cronsim.CronSim(self.expression, datetime.now(UTC))
        except cronsim.CronSimError as error:
            raise ValueError(
                f"{self.expression!r} is not a cron expression: {error}. Write five fields, "
                f"minute, hour, day of the month, month, day of the week: '*/5 * * * *'"
            ) from None
        if next(self._after(round(datetime.now(UTC).timestamp()) * SECOND), None) is None:
            raise ValueError(f"{self.expression!r} never matches")

    def next(self, after: int) -> int | None:
        return next(self._after(after), None)

    def last(self, after: int, upto: int) -> int | None:
        # Always forward, so that the ticks are the same as those of next(). The first span is
        # short, since there may be very many ticks since `after`.
        span = _FIRST_SPAN
        while True:
            begin = max(after, upto - span)
            found = None
            for tick in self._after(begin):
                if tick > upto:
                    break
                found = tick
            if found is not None or begin >= upto or begin == after:
                return found
            span *= 4

    @property
    def words(self) -> str:
        words = _cronsim().CronSim(self.expression, datetime.now(UTC)).explain()
        return f"{words[:1].lower()}{words[1:]}, {self.zone}"

    def _after(self, after: int) -> Iterator[int]:
        begin = datetime.fromtimestamp(after // SECOND, UTC).astimezone(self.zone)
        for time in _cronsim().CronSim(self.expression, begin):
            tick = round(time.timestamp()) * SECOND
            # cronsim returns the first of two equal hours, even if that one is over.
            if tick > after:
                yield tick


Schedule = Every | Cron


def shortest(schedule: Schedule) -> float:
    """Return the shortest time in seconds between two of the next ten ticks."""
    ticks = list(islice(_ticks(schedule, round(datetime.now(UTC).timestamp()) * SECOND), 10))
    gaps = [later - tick for tick, later in pairwise(ticks)]
    return min(gaps, default=0) / SECOND or float("inf")


def _ticks(schedule: Schedule, after: int) -> Iterator[int]:
    while (tick := schedule.next(after)) is not None:
        yield tick
        after = tick


def _cronsim() -> ModuleType:
    try:
        import cronsim
    except ImportError:
        raise ImproperlyConfigured(
            "Cron expressions need cronsim: python -m pip install 'django-redislock[periodic]'. "
            "every=30 does not need it."
        ) from None
    return cronsim


ATTEMPTS = 3
"""Runs of one tick with `on_crash="retry"`. The bound keeps a job that kills its process from
killing all schedulers."""
ON_TIME = 10.0
"""Seconds after which a tick is missed with `catch_up="none"`."""
A_DAY = 86400.0
"""Seconds for which missed ticks are caught up with `catch_up="all"`."""

LOCK_PREFIX = "periodic:"
"""The name of a job's lock is this and the name of the job."""


class JobOptions(TypedDict, total=False):
    """Options of `@periodic` besides the schedule. All times are seconds.

    All but the name can also be set in `REDISLOCK["JOBS"]`, which overrides the code.
    """

    name: str
    """The name of the job; by default the function's dotted path."""
    tz: tzinfo | str | None
    """The time zone of a cron expression; by default `TIME_ZONE`."""
    enabled: bool
    """Whether schedulers start the job."""
    at_most_for: float | None
    """The lease is not renewed beyond this time, counted from its start. None: no limit."""
    at_least_for: float
    """The lock is held for at least this time, counted from its start, unless the scheduler is
    stopped."""
    overlap: Overlap
    """Whether a tick that is due while the job runs is skipped, waits for the run's end, or takes
    the lock away from that run, which is told so as of any loss."""
    on_crash: Literal["lose", "retry"]
    """Whether a run whose process died is lost, or its tick is run again, up to three times in
    all."""
    catch_up: Literal["latest", "none", "all"]
    """Which of the ticks are run that were missed while no scheduler ran or Redis was unreachable:
    the last one, none, or all of them one after the other."""
    grace: float | None
    """How late a tick may be started. None: until the next tick; 10 seconds with
    `catch_up="none"`; a day with `catch_up="all"`."""
    jitter: float
    """Longest random delay of a start. The delay differs for each job and tick, and is the same
    in all schedulers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A function with its schedule and options. All times are seconds."""

    name: str
    function: Callable[[], Any]
    where: str
    """Where the function is: path, line and name."""
    schedule: Schedule
    tz: tzinfo | None = None
    enabled: bool = True
    at_most_for: float | None = None
    at_least_for: float = 0.0
    overlap: Overlap = "skip"
    on_crash: Literal["lose", "retry"] = "lose"
    catch_up: Literal["latest", "none", "all"] = "latest"
    grace: float | None = None
    jitter: float = 0.0

    @property
    def asynchronous(self) -> bool:
        return kind_of(self.function) == "coroutine"

    @property
    def retries(self) -> bool:
        """Whether a tick whose run was lost is run again."""
        return self.on_crash == "retry"

    @property
    def lock(self) -> str:
        """The name of the job's lock."""
        return f"{LOCK_PREFIX}{self.name}"

    @property
    def keys(self) -> Keys:
        return Keys.of(conf.prefix(), self.lock)

    @property
    def policy(self) -> Policy:
        """The policy of the job's lock. Raises `ImproperlyConfigured`."""
        bound = {} if self.at_most_for is None else {"max_hold": self.at_most_for}
        return conf.policy(self.lock, bound)

    # In the methods below, times are microseconds of the server's clock.

    def ready(self, tick: int) -> int:
        """Return when a tick may be started: the same time in all schedulers."""
        if not self.jitter:
            return tick
        digest = sha256(f"{self.name} {tick}".encode()).digest()
        share = int.from_bytes(digest[:8], "big") / 2**64
        return tick + round(share * self.jitter * SECOND)

    @property
    def _lateness(self) -> float | None:
        """Seconds by which a tick may be late. None: until the next tick."""
        default = {"latest": None, "none": ON_TIME, "all": A_DAY}[self.catch_up]
        return default if self.grace is None else self.grace

    def deadline(self, tick: int) -> int | None:
        """Return until when a tick may be started. None: until the next tick."""
        seconds = self._lateness
        return None if seconds is None else self.ready(tick) + round(seconds * SECOND)

    def due(self, known: int, now: int) -> int | None:
        """Return the tick to claim, of those later than `known`; None if none is ready."""
        if self.catch_up == "all":
            lateness = (self._lateness or 0.0) + self.jitter
            # Claiming the last tick that is too late skips all of them.
            late = self.schedule.last(known, now - round(lateness * SECOND) - 1)
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
            attempts=self._attempts,
        )

    def requested(self, request: RunRequest) -> Wanted:
        """Return the run that a request wants."""
        at = round(request.at.timestamp() * SECOND)
        return Wanted(
            tick=None,
            deadline=at + round(REQUEST_GOOD_FOR * SECOND),
            attempts=self._attempts,
            request=request.id,
        )

    @property
    def _attempts(self) -> int:
        return ATTEMPTS if self.retries else 1

    def words(self) -> str:
        """Return the schedule and the options in English."""
        said = {
            self.schedule.words: True,
            "disabled": not self.enabled,
            f"up to {self.jitter:g} s later": self.jitter,
            "waits for its last run": self.overlap == "wait",
            "replaces its last run": self.overlap == "replace",
            "retried after a crash": self.retries,
            f"runs {'all' if self.catch_up == 'all' else 'no'} missed ticks": (
                self.catch_up != "latest"
            ),
            f"at most {self.grace or 0:g} s late": self.grace is not None,
            f"for {self.at_most_for or 0:g} s at most": self.at_most_for is not None,
            f"for {self.at_least_for:g} s at least": self.at_least_for,
        }
        return "; ".join(text for text, holds in said.items() if holds)


# The registry of periodic jobs, and `@periodic`, which fills it.
#
# @periodic("*/5 * * * *") def report(): ...
#
# @periodic(every=30) async def sync(): ...


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
        where = of_function(call)
        values: dict[str, Any] = {**options}
        name = values.pop("name", None)
        name = people.dotted_path(written(call)) if name is None else name
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
    validate_name(f"{LOCK_PREFIX}{name}" if name and isinstance(name, str) else name)
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
    if job.catch_up == "all" and job.overlap != "wait":
        raise ValueError(
            "catch_up='all' needs overlap='wait': all missed ticks but the first would be due "
            "while the first one runs, and not all of them would be run"
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
        return _configured(job, conf.current().jobs.find(job.name))
    except ValueError as error:
        raise ImproperlyConfigured(
            f"REDISLOCK['JOBS'][{conf.current().jobs.key(job.name)!r}], for {job.name!r}: {error}"
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

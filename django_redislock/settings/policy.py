"""The settings of a lock and of a periodic job: each one with its default, its validator, and the
places where it can be written.

The arguments of locks, `REDISLOCK` and its `LOCKS` and `JOBS`, exported leases, the system checks
and `manage.py redislock config` all read these two tables. In the settings a name is in capitals.
"""

from collections.abc import Callable, Mapping
from enum import Flag, auto
from typing import Annotated, Any, Literal, NamedTuple, get_args

from ..base.servers import MEMORY
from ..primitives.contract import NO_TERMS, Terms
from ..primitives.keys import validate_key
from . import validators
from .validators import Function, Validator, one_of

Kind = Literal["mutex", "redlock", "semaphore", "read", "write", "timestamp"]


class Source(Flag):
    """Where a setting can be written."""

    ARGUMENT = auto()
    """As an argument of a lock."""
    PROJECT = auto()
    """In `REDISLOCK`, for all locks."""
    ENTRY = auto()
    """In an entry of `LOCKS`, for some locks."""
    EXPORT = auto()
    """In the text that `Lease.export()` returns."""


SETTINGS = Source.PROJECT | Source.ENTRY
ANY_LOCK = SETTINGS | Source.ARGUMENT
ANY_LEASE = ANY_LOCK | Source.EXPORT
KIND = Source.ENTRY | Source.EXPORT


class Rule(NamedTuple):
    """The validator of a setting, and the sources for which it holds."""

    validate: Validator
    sources: Source


class Policy(NamedTuple):
    """The settings of one lock. Times are seconds."""

    using: Annotated[
        str,
        Rule(validators.validate_using, ANY_LEASE & ~Source.ENTRY),
        Rule(validators.validate_servers, Source.ENTRY),
    ] = "default"
    """An alias of CACHES. For a Redlock, several of them (`base.servers.Servers`)."""
    ttl: Annotated[float, Rule(validators.validate_ttl, ANY_LEASE)] = 30.0
    """How long a lease lives without renewal."""
    wait: Annotated[float | None, Rule(validators.validate_wait, ANY_LOCK)] = 10.0
    """How long to wait for the lock. 0: try once. None: no limit."""
    renew: Annotated[bool, Rule(validators.validate_flag, ANY_LEASE)] = True
    """Extend the lease as long as its holder lives."""
    replicas: Annotated[int, Rule(validators.validate_replicas, ANY_LEASE)] = 0
    """How many replicas have to confirm a lease, and each renewal of it."""
    replicas_timeout: Annotated[float, Rule(validators.validate_replicas_timeout, ANY_LEASE)] = 1.0
    """How long replicas have to confirm."""
    after_loss: Annotated[str, Rule(one_of("go", "wait"), ANY_LEASE)] = "go"
    """What a server does that has lost its data: give the lock to whoever asks, or let them wait
    until its forgotten lease has ended or was reinstated."""
    max_hold: Annotated[float | None, Rule(validators.validate_period_or_none, ANY_LEASE)] = None
    """When renewal ends, counted from the acquire. None: never."""
    note_ttl: Annotated[float, Rule(validators.validate_period, ANY_LEASE)] = 604_800.0
    """How long a note is kept after it was written."""
    keep_note: Annotated[bool, Rule(validators.validate_flag, ANY_LEASE)] = False
    """The note stays after an ordinary end, too."""
    max_resumptions: Annotated[int | None, Rule(validators.validate_max_resumptions, ANY_LOCK)] = (
        None
    )
    """How often a note may be inherited in a row. None: no limit."""
    release: Annotated[str, Rule(validators.validate_release, ANY_LEASE)] = "exit"
    """When a block releases its lock."""
    on_conflict: Annotated[
        str | Callable[..., Any], Rule(validators.validate_on_conflict, ANY_LOCK)
    ] = "raise"
    """What a decorated function does without the lock."""
    unavailable: Annotated[str, Rule(one_of("raise", "run", "skip"), ANY_LOCK)] = "raise"
    """What happens if Redis could not be reached for all of `wait`."""
    view_wait: Annotated[float | None, Rule(validators.validate_wait, SETTINGS)] = 0.0
    """How long a view waits for its lock, instead of `wait`."""
    view_status: Annotated[int, Rule(validators.validate_status, SETTINGS)] = 409
    """The status of the response to a request that did not get its lock."""
    view_response: Annotated[Function | None, Rule(validators.validate_response, SETTINGS)] = None
    """A function of the request and the error that makes the response, or its dotted path."""
    lock_order: Annotated[str, Rule(one_of("off", "warn", "raise"), SETTINGS)] = "off"
    """What to do when locks are taken in two orders; `lease.order` finds them."""
    trace_names: Annotated[bool, Rule(validators.validate_flag, SETTINGS)] = True
    """Spans of OpenTelemetry have the names of locks."""
    scope: Annotated[
        Function | None,
        Rule(validators.validate_scope, SETTINGS),
        Rule(validators.validate_no_scope, Source.ARGUMENT),
    ] = None
    """A function that returns the text in front of each name, or its dotted path."""
    prefix: Annotated[str, Rule(validators.validate_prefix, Source.PROJECT)] = "redislock"
    """The beginning of all keys. It is the same for all locks."""
    view_problem_type: Annotated[str, Rule(validators.validate_problem_type, Source.PROJECT)] = (
        "about:blank"
    )
    """The `type` of the problem details of views. `{code}` stands for the code of the problem."""
    kind: Annotated[str, Rule(one_of(*get_args(Kind)), KIND)] = "mutex"
    """The primitive, one of `kinds.KINDS`."""
    limit: Annotated[int | None, Rule(validators.validate_limit, KIND)] = None
    """How many may hold a semaphore at a time."""
    timestamp_key: Annotated[str | None, Rule(validate_key, KIND)] = None
    """The key of a timestamp lock: its own one, or one that is taken together with a mutex."""
    fractions: Annotated[bool, Rule(validators.validate_flag, KIND)] = False
    """A timestamp lock writes fractions of a second."""

    def terms(self) -> Terms:
        """Return the terms of each command that acquires or extends a lease."""
        if not self.replicas or self.using == MEMORY:
            return NO_TERMS
        return Terms(replicas=self.replicas, replicas_timeout=self.replicas_timeout)


DEFAULTS: Mapping[str, Any] = Policy()._asdict()

_RULES = {field: hint.__metadata__ for field, hint in Policy.__annotations__.items()}


def rules_of(source: Source) -> dict[str, Validator]:
    """Return the validators of what a source can say, by the fields of `Policy`."""
    return {
        field: rule.validate
        for field, rules in _RULES.items()
        for rule in rules
        if source in rule.sources
    }


ARGUMENT_VALIDATORS = rules_of(Source.ARGUMENT)
EXPORT_VALIDATORS = rules_of(Source.EXPORT)


class JobSetting(NamedTuple):
    """A setting of a periodic job."""

    validate: Validator
    example: Any


JOB_SETTINGS: Mapping[str, JobSetting] = {
    "schedule": JobSetting(validators.validate_schedule, "*/5 * * * *"),
    "every": JobSetting(validators.validate_every, 300),
    "tz": JobSetting(validators.validate_zone, "Europe/Berlin"),
    "enabled": JobSetting(validators.validate_flag, True),
    "at_most_for": JobSetting(validators.validate_period_or_none, 60),
    "at_least_for": JobSetting(validators.validate_seconds, 0),
    "overlap": JobSetting(one_of("skip", "wait", "replace"), "skip"),
    "on_crash": JobSetting(one_of("lose", "retry"), "lose"),
    "catch_up": JobSetting(one_of("latest", "none", "all"), "latest"),
    "grace": JobSetting(validators.or_none(validators.validate_seconds), 60),
    "jitter": JobSetting(validators.validate_seconds, 0),
}
"""The settings that `@periodic` and `JOBS` have. `periodic.job.JobOptions` describes them."""
JOB_VALIDATORS: Mapping[str, Validator] = {
    field: setting.validate for field, setting in JOB_SETTINGS.items()
}

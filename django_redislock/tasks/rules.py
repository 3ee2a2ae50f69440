"""What holds for the tasks of one name: how many may wait, and how many may run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

from ..lease.plan import Plan, plan_of
from ..primitives.keys import Keys
from ..primitives.work import PREFIX
from ..settings import conf
from ..settings.naming import name_maker
from ..settings.policy import ARGUMENT_VALIDATORS
from ..settings.validators import (
    one_of,
    refuse_unknown,
    validate_flag,
    validate_limit,
    validate_seconds,
    validate_ttl,
    validate_whole,
)

QUEUED_FOR = 3600.0
"""Seconds that a message may wait in its queue, unless `unique` says it."""


class RuleOptions(TypedDict, total=False):
    """The options of both decorators. Times are seconds."""

    ttl: float
    """How long a permit stays taken after its worker was killed; by default 30."""
    using: str
    """An alias of CACHES that leads to a Redis."""


class UniqueOptions(RuleOptions, total=False):
    """The options of `unique`. Times are seconds."""

    until: Literal["start", "end"]
    """When the next call may be queued."""
    on_conflict: Literal["existing", "skip", "raise", "replace"]
    """What becomes of a call while another one has the name."""
    queued_for: float
    """How long a task keeps its name while it waits in the queue; by default an hour."""
    settle: float | None
    """The task begins when there was no call for so long, with the arguments of the last one."""
    at_most: float | None
    """It begins so long after the first call, even if there are more."""
    transaction: str
    """An alias of DATABASES. In a transaction there, the task is queued when it commits."""


class LimitedOptions(RuleOptions, total=False):
    """The options of `limited`."""

    weight: int
    """How many permits a task takes."""
    recover: bool
    """A task whose worker was killed is sent again."""


class Named(NamedTuple):
    """A rule, for the name that a call has by it."""

    rule: Rule
    name: str
    """Without its scope."""
    plan: Plan
    keys: Keys


class Rule:
    """A rule for the tasks of one name."""

    limit: int | None = None
    """How many run at a time; None: the settings say it."""
    weight = 1
    recover = False

    def __init__(self, name: str | Callable[..., str] | None, given: dict[str, Any]) -> None:
        self._template = name
        self._explicit: dict[str, Any] = {
            field: ARGUMENT_VALIDATORS[field](given.pop(field), field)
            for field in ("ttl", "using")
            if field in given
        }
        refuse_unknown(given, type(self).__name__)

    def bind(self, function: Callable[..., Any]) -> None:
        """Make names from the arguments of a function. Raises what a wrong name raises."""
        self._make_name = name_maker(self._template, function, prefix=PREFIX)

    @property
    def using(self) -> str:
        """The alias of CACHES, for all names."""
        return str(self._explicit.get("using") or conf.listed(PREFIX).using)

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Named:
        """Return the rule for the name of a call. Raises what the name, its scope and the settings
        raise."""
        name = self._make_name(*args, **kwargs)
        plan = self.plan(name)
        return Named(self, name, plan, plan.keys(name))

    def noted(self, name: str, scoped: str) -> Named:
        """Return the rule for a name that was noted when the task was queued."""
        plan = self.plan(name)
        keys = Keys.of(plan.policy.prefix, scoped)
        keys.unscoped = name
        return Named(self, name, plan, keys)

    def plan(self, name: str) -> Plan:
        """Return what the settings and the arguments decide."""
        said: dict[str, Any] = {"kind": "semaphore", "release": "exit", **self._explicit}
        return plan_of(name, said if self.limit is None else {**said, "limit": self.limit})


class Uniqueness(Rule):
    """The rule of `unique`."""

    limit = 1

    def __init__(
        self, name: str | Callable[..., str] | None = None, **options: Unpack[UniqueOptions]
    ) -> None:
        given: dict[str, Any] = dict(options)
        said = {"until": "start", "on_conflict": "existing", **given}
        self.alone = one_of("start", "end")(said["until"], "until") == "end"
        choices = one_of("existing", "skip", "raise", "replace")
        self.on_conflict = choices(said["on_conflict"], "on_conflict")
        self.queued_for = validate_ttl(given.pop("queued_for", QUEUED_FOR), "queued_for")
        self.database: str = given.pop("transaction", "default")
        settle, at_most = given.pop("settle", None), given.pop("at_most", None)
        if at_most is not None and settle is None:
            raise TypeError("at_most is for a task that settles: write settle= beside it")
        self.settle: tuple[float, float | None] | None = None
        if settle is not None:
            most = None if at_most is None else validate_seconds(at_most, "at_most")
            self.settle = validate_seconds(settle, "settle"), most
        given.pop("until", None)
        given.pop("on_conflict", None)
        super().__init__(name, given)


class Limit(Rule):
    """The rule of `limited`."""

    def plan(self, name: str) -> Plan:
        """As `Rule.plan`. Raises `ValueError` where nobody says the limit."""
        try:
            return super().plan(name)
        except ValueError as error:
            if self.limit is not None or conf.listed(name).limit is not None:
                raise
            raise ValueError(
                f"{name!r} has no limit: write @limited(…, 3), or {{'LIMIT': 3}} for that name "
                f"in REDISLOCK['LOCKS']"
            ) from error

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        limit: int | None = None,
        **options: Unpack[LimitedOptions],
    ) -> None:
        given: dict[str, Any] = dict(options)
        self.limit = None if limit is None else validate_limit(limit)
        self.weight = validate_whole(given.pop("weight", 1), "weight", "permits", 1, 1000, "2")
        self.recover = validate_flag(given.pop("recover", False), "recover")
        if self.limit is not None and self.weight > self.limit:
            raise ValueError(f"weight is {self.weight}, and there are {self.limit} permits")
        super().__init__(name, given)

"""What holds for the tasks of one name: how many may wait, and how many may run. And the events of
these tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

from django.dispatch import Signal

from .. import signals
from ..base.people import log_extra
from ..lease.plan import Plan, plan_of
from ..primitives import work
from ..primitives.contract import run
from ..primitives.keys import Keys, validate_name
from ..primitives.work import PREFIX, Work
from ..settings import conf
from ..settings.naming import name_maker
from ..settings.policy import ARGUMENT_VALIDATORS
from ..settings.validators import (
    one_of,
    refuse_unknown,
    validate_database,
    validate_flag,
    validate_limit,
    validate_period,
    validate_seconds,
    validate_whole,
)
from ..transport.ports import SyncPort

# Events: each is a signal and a line in the log.
#
# @receiver(task_event) def count(event: TaskEvent, **kwargs): ...


logger = logging.getLogger("django_redislock")

What = Literal["claimed", "coalesced", "replaced", "parked", "promoted", "healed"]

task_event = Signal()
"""Sent, in a thread of its own, when a task is claimed, coalesced with another call, replaced,
parked, promoted or healed; `event` is a `TaskEvent`."""

_MESSAGES: dict[What, str] = {
    "claimed": "The task %(id)s has claimed %(name)r.",
    "coalesced": "A call for %(name)r is one with the task %(id)s.",
    "replaced": "The task %(id)s that waited for %(name)r was replaced.",
    "parked": "The task %(id)s is parked: %(name)r has no permit.",
    "promoted": "The task %(id)s, parked for %(name)r, is sent again.",
    "healed": "Tasks of %(name)r that a killed process has left go on.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEvent:
    """An event of the tasks of one name."""

    what: What
    name: str
    using: str
    id: str
    """The id of the task at its queue; "" if several are meant."""


# Rules.


QUEUED_FOR = 3600.0
"""Seconds that a message may wait in its queue, unless `unique` says it."""


class RuleOptions(TypedDict, total=False):
    """The options of both decorators. Times are seconds."""

    ttl: float
    """How long a permit stays taken after its worker was killed; by default 30."""
    using: str
    """An alias of CACHES that leads to a Redis."""


class Named(NamedTuple):
    """A rule, for the name that a call has by it."""

    rule: Rule
    plan: Plan
    keys: Keys
    work: Work
    """What asks for it, and has what that has promoted."""

    @property
    def name(self) -> str:
        """Without its scope."""
        return self.keys.unscoped

    @property
    def port(self) -> SyncPort:
        return SyncPort(self.plan.server)

    def confirm(self, id: str, new_id: str, lives: float) -> bool:
        """Let the claim of a message live on, as `work.confirm`."""
        return run(work.confirm(self.port, self.keys, id, new_id, lives))

    def tell(self, what: What, id: str = "") -> None:
        """Log an event, and send its signal."""
        event = TaskEvent(what=what, name=self.name, using=self.plan.policy.using, id=id)
        level = logging.INFO if what in ("healed", "replaced") else logging.DEBUG
        if logger.isEnabledFor(level):
            fields = asdict(event)
            logger.log(level, _MESSAGES[what], fields, extra=log_extra("task", fields))
        signals.deliver_later(task_event, event, what, self.name)


class Rule:
    """A rule for the tasks of one name."""

    limit: int | None = None
    """How many run at a time; None: the settings say it."""
    weight = 1
    recover = False

    def __init__(self, name: str | Callable[..., str] | None, options: RuleOptions) -> None:
        self._template = name
        refuse_unknown(options.keys() - RuleOptions.__annotations__, type(self).__name__)
        self._explicit: dict[str, Any] = {
            field: ARGUMENT_VALIDATORS[field](value, field) for field, value in options.items()
        }

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
        return self.of(validate_name(self._make_name(*args, **kwargs)))

    def of(self, name: str, scoped: str = "") -> Named:
        """Return the rule for a name, whose scope may have been noted when the task was queued."""
        plan = self.plan(name)
        keys = Keys.of(plan.policy.prefix, scoped) if scoped else plan.keys(name)
        keys.unscoped = name
        its = Work(plan.policy.limit or 1, self.weight, recover=self.recover)
        return Named(self, plan, keys, its)

    def plan(self, name: str) -> Plan:
        """Return what the settings and the arguments decide."""
        said: dict[str, Any] = {"kind": "semaphore", "release": "exit", **self._explicit}
        return plan_of(name, said if self.limit is None else {**said, "limit": self.limit})


class Uniqueness(Rule):
    """The rule of `unique`."""

    limit = 1

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        *,
        until: Literal["start", "end"] = "start",
        on_conflict: Literal["existing", "skip", "raise", "replace"] = "existing",
        queued_for: float = QUEUED_FOR,
        settle: float | None = None,
        at_most: float | None = None,
        transaction: str = "default",
        **options: Unpack[RuleOptions],
    ) -> None:
        super().__init__(name, options)
        self.alone = one_of("start", "end")(until, "until") == "end"
        choices = one_of("existing", "skip", "raise", "replace")
        self.on_conflict = choices(on_conflict, "on_conflict")
        self.queued_for = validate_period(queued_for, "queued_for")
        self.database = validate_database(transaction, "transaction")
        if at_most is not None and settle is None:
            raise TypeError("at_most is for a task that settles: write settle= beside it")
        most = 0.0 if at_most is None else validate_seconds(at_most, "at_most")
        self.settle = None if settle is None else (validate_seconds(settle, "settle"), most)


class Limit(Rule):
    """The rule of `limited`."""

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        limit: int | None = None,
        *,
        weight: int = 1,
        recover: bool = False,
        **options: Unpack[RuleOptions],
    ) -> None:
        super().__init__(name, options)
        self.limit = None if limit is None else validate_limit(limit, "limit")
        self.weight = validate_whole(weight, "weight", "permits", 1, 1000, "2")
        self.recover = validate_flag(recover, "recover")
        if self.limit is not None and self.weight > self.limit:
            raise ValueError(f"weight is {self.weight}, and there are {self.limit} permits")

    def plan(self, name: str) -> Plan:
        """As `Rule.plan`. Raises `ValueError` where nobody says the limit."""
        if self.limit is None and conf.listed(name).limit is None:
            raise ValueError(
                f"{name!r} has no limit: write @limited(…, 3), or {{'LIMIT': 3}} for that name "
                f"in REDISLOCK['LOCKS']"
            )
        return super().plan(name)

"""Validators of arguments and settings.

Each one takes a value and the name it was given by, and returns the value as it is used from then
on. For a wrong value it raises `TypeError` or `ValueError` with a message that says what to write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import tzinfo
from functools import partial
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from ..base import people
from ..base.callables import kind_of
from ..base.servers import Servers

T = TypeVar("T")
Validator = Callable[[object, str], Any]
Function = Callable[..., Any] | str
"""A function that settings name, by itself or by its dotted path."""

MIN_TTL = 0.1
"""With a shorter ttl, a garbage collection or a busy network is enough to lose a lease."""
MAX_TTL = 31_536_000.0
"""A year."""
MAX_SIZE = 536_870_912
"""Bytes of the longest string that Redis stores."""


def or_none(validate: Callable[[object, str], T]) -> Callable[[object, str], T | None]:
    """Return a validator that takes None, too."""
    return lambda value, name: None if value is None else validate(value, name)


def _number(value: object, must: str, types: Any = int | float) -> Any:
    """Return a number, or raise a `TypeError`. bool is refused although Python counts it as int.

    NaN passes: no comparison holds for it, so the check of the bounds refuses it.
    """
    if isinstance(value, bool) or not isinstance(value, types):
        raise TypeError(f"{must}, not {value!r}")
    return value


def _whole(value: object, must: str) -> int:
    return int(_number(value, must, int))


def validate_seconds(
    value: object,
    name: str,
    least: float = 0.0,
    most: float = MAX_TTL,
    *,
    example: str = "30",
    else_: str = "",
    advice: str = "",
) -> float:
    """`else_` is what may be written besides a number; `advice` ends the message."""
    seconds = _number(value, f"{name} must be a number of seconds, such as {example}{else_}")
    if not least <= seconds <= most:
        bounds = f"{least:g} and {format(most, '.0f')}"
        raise ValueError(f"{name} must be between {bounds} seconds{else_}, not {value!r}{advice}")
    return float(seconds)


def validate_ttl(value: object, name: str = "ttl") -> float:
    advice = "; 30 is a good choice, since a lease is renewed as long as its holder lives"
    return validate_seconds(value, name, MIN_TTL, advice=advice)


validate_period = partial(validate_seconds, least=MIN_TTL, example="3600")
"""Validates a time that is not that of a lease."""
validate_period_or_none = or_none(validate_period)
validate_every = partial(validate_seconds, least=1.0, advice="; to run more often, write a loop")
validate_replicas_timeout = partial(validate_seconds, least=0.01, most=60.0, example="1")
"""The command WAIT counts milliseconds and takes 0 as "no limit"; and the connection is busy for
all of this time."""
validate_kept = or_none(partial(validate_period, else_=", or None (no limit)"))
"""Validates the seconds for which a result is kept; None keeps it without a limit."""


def validate_wait(value: object, name: str = "wait") -> float | None:
    """Validate a wait. More than a year becomes None: no limit."""
    if value is None:
        return None
    seconds = _number(
        value, f"{name} must be a number of seconds (0: try once) or None (wait without limit)"
    )
    if not seconds >= 0:
        raise ValueError(f"{name} must be 0 or more seconds, or None (no limit), not {value!r}")
    return None if seconds > MAX_TTL else float(seconds)


def validate_whole(
    value: object, name: str, what: str, least: int, most: int, example: str, unit: str = ""
) -> int:
    number = _whole(value, f"{name} must be a number of {what}, such as {example}")
    if not least <= number <= most:
        raise ValueError(f"{name} must be between {least} and {most}{unit}, not {value!r}")
    return number


_holders = partial(validate_whole, what="holders", most=1_000_000)
validate_limit = partial(_holders, least=1, example="3")
validate_max_resumptions = or_none(partial(_holders, least=0, example="20"))
validate_replicas = partial(validate_whole, what="replicas", least=0, most=100, example="1")
"""More than 100 replicas are a typing error."""


def validate_max_size(value: object, name: str = "max_size") -> int:
    return validate_whole(value, name, "bytes", 1, MAX_SIZE, "1_000_000", " bytes")


def validate_excluded(value: Any, name: str) -> frozenset[str]:
    """Validate names that are left out."""
    if isinstance(value, str) or not all(isinstance(one, str) for one in value):
        raise TypeError(f"{name} must be a list of names, such as ['token'], not {value!r}")
    return frozenset(value)


def validate_max_waiters(value: object, name: str = "max_waiters") -> int:
    number = _whole(value, f"{name} must be a number of requests, such as 2")
    if number < 0:
        raise ValueError(f"{name} must be 0 or more, not {value!r}")
    return number


def validate_status(value: object, name: str = "status") -> int:
    number = _whole(value, f"{name} must be an HTTP status, such as 409")
    if not 400 <= number <= 599:
        raise ValueError(f"{name} must be the HTTP status of an error (400–599), not {value!r}")
    return number


def validate_flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value


def one_of(*choices: str) -> Validator:
    """Return the validator of a choice."""

    def validate(value: object, name: str) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, not {value!r}")
        return str.__str__(value)

    return validate


def validate_zone(value: object, name: str) -> tzinfo | None:
    if value is None or isinstance(value, tzinfo):
        return value
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a time zone such as 'Europe/Berlin', not {value!r}")
    try:
        return ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{name} must be a known time zone, not {value!r}") from None


def validate_release(value: object, name: str = "release") -> str:
    if value not in ("exit", "commit", "warn"):
        raise ValueError(
            f"{name} must be 'exit' (when the block is left), 'warn' (as 'exit', with a warning "
            f"if a database transaction is open then) or 'commit' (when the database transaction "
            f"around it has ended), not {value!r}"
        )
    return str.__str__(value)


def validate_on_conflict(value: object, name: str = "on_conflict") -> str | Callable[..., Any]:
    if callable(value):
        return value
    if value not in ("raise", "skip"):
        raise ValueError(
            f"{name} must be 'raise', 'skip' or a function of the conflict, not {value!r}"
        )
    return str.__str__(value)


def _function(value: object, must: str, example: str) -> Function | None:
    if value is None or callable(value):
        return value
    if not isinstance(value, str) or "." not in value:
        raise TypeError(f"{must}, or the dotted path of one, such as {example!r}, not {value!r}")
    return value


def function_of(function: Function, what: str) -> Any:
    """Return the function. Raises `ImproperlyConfigured` if it can't be imported."""
    if not isinstance(function, str):
        return function
    try:
        return import_string(function)
    except ImportError as error:
        raise ImproperlyConfigured(f"{what}, {function!r}, can't be imported: {error}") from error


def validate_response(value: object, name: str = "response") -> Function | None:
    must = f"{name} must be a function of the request and the error"
    return _function(value, must, "shop.views.busy")


def validate_scope(value: object, name: str = "scope") -> Function | None:
    must = f"{name} must be a function without arguments that returns the scope"
    return _function(value, must, "shop.tenants.scope")


def validate_no_scope(value: object, name: str = "scope") -> None:
    if value is not None:
        raise TypeError(
            f"{name} must be None, for a name without a scope, not {value!r}. The function that "
            f"returns the scope is a setting: REDISLOCK['SCOPE']"
        )


def _text(what: str) -> Callable[[object, str], str]:
    """Return the validator of a text that is not empty."""

    def validate(value: object, name: str) -> str:
        if not isinstance(value, str) or not value:
            raise TypeError(f"{name} must be {what}, not {value!r}")
        return value

    return validate


validate_using = _text("an alias of CACHES, such as 'default'")
validate_database = _text("an alias of DATABASES, such as 'default'")
validate_schedule = _text("a cron expression such as '*/5 * * * *'")
"""The expression itself is checked when the job is made."""


def validate_servers(value: object, name: str) -> str:
    """Validate an alias, or a list of the aliases of a Redlock."""
    if isinstance(value, list | tuple):
        return Servers.of(value)
    return value if isinstance(value, Servers) else validate_using(value, name)


def validate_prefix(value: object, name: str) -> str:
    plain = isinstance(value, str) and people.is_harmless(value) and not set("{}|") & set(value)
    if not plain or not value:
        raise ValueError(f"{name} must be a non-empty str without braces and |, not {value!r}")
    return str.__str__(value)


def validate_problem_type(value: object, name: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[^\s{}]+(\{code\}[^\s{}]*)?", value):
        raise ValueError(
            f"{name} must be a URI, in which {{code}} may stand for the code of a problem, such "
            f"as 'https://shop.example/problems#{{code}}', not {value!r}"
        )
    return value


def validate_label(value: object, name: str = "label") -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str that says where the lock is taken, not {value!r}")
    return value


def validate_stacklevel(value: object, name: str = "stacklevel") -> int:
    return validate_whole(value, name, "frames", 1, 1000, "2")


def validate_operator(by: object, reason: object) -> tuple[str, str]:
    """Return who acts, and why, each as one printable line.

    Redis keeps both as `by|reason`, so `by` has no `|`.
    """
    for value, name in ((by, "by"), (reason, "reason")):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str for people to read, not {value!r}")
    return people.clean(str(by)).replace("|", "/"), people.clean(str(reason))


def validate_on_lost(value: object, name: str = "on_lost") -> Callable[..., object]:
    if not callable(value):
        raise TypeError(f"{name} must be a function of the lease, not {value!r}")
    if kind_of(value) == "coroutine":
        raise TypeError(
            f"{name} must be a plain function: it is called in a thread, where no event loop "
            f"runs. To stop a coroutine, write cancel_on_lost=True."
        )
    return value


WAIT = {"wait": "the seconds to wait for the lock (0: try once, None: no limit)"}
OF_A_LOCK = {
    "ttl": "the seconds that a lease lives without renewal",
    **WAIT,
    "renew": "",
    "label": "",
    "using": "",
}
OF_A_RESULT = {"ttl": "the seconds that a result is kept", "using": ""}
OF_A_JOB = {"at_most_for": "the seconds that a run may take"}
"""What functions take, and for times what they mean there."""

_TIMEOUTS = ("timeout", "expire", "blocking_timeout", "blocking")
_ELSEWHERE = {
    "auto_renewal": ("renew", "Write renew=; a lease is renewed by default."),
    "auto_release_time": ("ttl", "Write ttl= for {ttl}."),
    "lease_time": ("ttl", "Write ttl= for {ttl}."),
    "sleep": ("", "Leave it out: waiters are woken, and nobody asks again and again."),
    "retry_delay": ("", "Leave it out: waiters are woken, and nobody asks again and again."),
    "thread_local": ("", "Leave it out: acquire() returns a lease, which belongs to its holder."),
    "token": (
        "",
        "Leave it out; lease.export() and Lease.restore() hand a lease to another process.",
    ),
    "id": (
        "label",
        "Write label= for people; lease.export() and Lease.restore() hand a lease on.",
    ),
    "redis": ("using", "Write using=, an alias of CACHES, or a list of them for a Redlock."),
    "client": ("using", "Write using=, an alias of CACHES, or a list of them for a Redlock."),
    "unavailable": ("", "Leave it out: without Redis nobody knows what was done before."),
    "masters": ("", "Write Redlock(name, using=[…]) with aliases of CACHES."),
}
"""Arguments of other libraries' locks, the argument that is meant, and what to write here."""


def refuse_unknown(
    arguments: Iterable[str], function: str, takes: Mapping[str, str] = OF_A_LOCK
) -> None:
    """Raise `TypeError` for arguments that don't exist, and name those that were meant, as far as
    the function takes them."""
    for name in arguments:
        if name in _TIMEOUTS:
            meant = [f"{its}= for {meaning}" for its, meaning in takes.items() if meaning]
            raise TypeError(
                f"{name}= is refused, because it means different things in different "
                f"libraries. Write {', and '.join(meant)}."
            )
        meant_here, advice = _ELSEWHERE.get(name, ("", ""))
        if meant_here and meant_here not in takes:
            advice = "Leave it out."
        hint = f". {advice.format_map(takes)}" if advice else ""
        raise TypeError(f"{function}() has no argument {name!r}{hint}")

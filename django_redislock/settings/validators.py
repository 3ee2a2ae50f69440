"""What callers and settings may say. A wrong value gets an error that says what to write."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ..base import label
from ..base.servers import Servers

MIN_TTL = 0.1
"""Below that, a garbage collection or a busy network is enough to lose a lease."""
MAX_TTL = 31_536_000.0
"""A year."""

MIN_EVERY = 1.0
"""Seconds between two runs of a periodic job."""

MAX_REPLICAS = 100
"""More than that is a typing error."""
MIN_REPLICAS_TIMEOUT, MAX_REPLICAS_TIMEOUT = 0.01, 60.0
"""Redis counts in milliseconds, and takes 0 for ever; and all the while a connection is busy."""

MAX_SIZE = 536_870_912
"""Bytes of the longest string that Redis keeps."""

MAX_LIMIT = 1_000_000
"""Holders of a semaphore."""


def _number(value: object, must: str) -> float:
    """Raises a `TypeError` that says what it must be. That True is a number, nobody means."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{must}, not {value!r}")
    return value  # NaN, too, which no comparison holds for


def _whole(value: object, must: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{must}, not {value!r}")
    return value


def validate_ttl(value: object, name: str = "ttl") -> float:
    seconds = _number(value, f"{name} must be a number of seconds, such as 30")
    if not MIN_TTL <= seconds <= MAX_TTL:
        raise ValueError(
            f"{name} must be between {MIN_TTL:g} and {MAX_TTL:.0f} seconds, not {value!r}; "
            f"30 is a good choice, since a lease is renewed as long as its holder lives"
        )
    return float(seconds)


def validate_kept(value: object) -> float | None:
    """For how long something is remembered."""
    if value is None:
        return None
    seconds = _number(value, "ttl must be a number of seconds, such as 3600, or None (for good)")
    if not MIN_TTL <= seconds <= MAX_TTL:
        raise ValueError(
            f"ttl must be between {MIN_TTL:g} and {MAX_TTL:.0f} seconds, or None (for good), "
            f"not {value!r}"
        )
    return float(seconds)


def validate_wait(value: object, name: str = "wait") -> float | None:
    """More than a year is for ever."""
    if value is None:
        return None
    seconds = _number(
        value, f"{name} must be a number of seconds (0: try once) or None (wait for ever)"
    )
    if not seconds >= 0:
        raise ValueError(f"{name} must be 0 or more seconds, or None for ever, not {value!r}")
    return None if seconds > MAX_TTL else float(seconds)


def validate_max_waiters(value: object) -> int:
    number = _whole(value, "max_waiters must be a number of requests, such as 2")
    if number < 0:
        raise ValueError(f"max_waiters must be 0 or more, not {value!r}")
    return number


def validate_max_size(value: object) -> int:
    number = _whole(value, "max_size must be a number of bytes, such as 1_000_000")
    if not 1 <= number <= MAX_SIZE:
        raise ValueError(f"max_size must be between 1 and {MAX_SIZE} bytes, not {value!r}")
    return number


def validate_max_hold(value: object) -> float | None:
    return None if value is None else validate_ttl(value, "max_hold")


def validate_replicas(value: object) -> int:
    number = _whole(value, "replicas must be a number of replicas, such as 1")
    if not 0 <= number <= MAX_REPLICAS:
        raise ValueError(
            f"replicas must be between 0 (don't ask them) and {MAX_REPLICAS}, not {value!r}"
        )
    return number


def validate_limit(value: object) -> int:
    number = _whole(value, "limit must be a number of holders, such as 3")
    if not 1 <= number <= MAX_LIMIT:
        raise ValueError(f"limit must be between 1 and {MAX_LIMIT}, not {value!r}")
    return number


def validate_replicas_timeout(value: object) -> float:
    seconds = _number(value, "replicas_timeout must be a number of seconds, such as 1")
    if not MIN_REPLICAS_TIMEOUT <= seconds <= MAX_REPLICAS_TIMEOUT:
        raise ValueError(
            f"replicas_timeout must be between {MIN_REPLICAS_TIMEOUT:g} and "
            f"{MAX_REPLICAS_TIMEOUT:g} seconds, not {value!r}"
        )
    return float(seconds)


def validate_flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value


def validate_seconds(value: object, name: str) -> float:
    """0 or more, up to a year."""
    seconds = _number(value, f"{name} must be a number of seconds, such as 30")
    if not 0 <= seconds <= MAX_TTL:
        raise ValueError(f"{name} must be between 0 and {MAX_TTL:.0f} seconds, not {value!r}")
    return float(seconds)


def validate_every(value: object) -> float:
    seconds = validate_seconds(value, "every")
    if seconds < MIN_EVERY:
        raise ValueError(
            f"every must be {MIN_EVERY:g} second or more, not {value!r}: for less than that, "
            f"write a loop"
        )
    return seconds


def validate_choice(value: object, name: str, choices: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, not {value!r}")
    return str.__str__(value)


def validate_zone(value: object) -> tzinfo | None:
    if value is None or isinstance(value, tzinfo):
        return value
    if not isinstance(value, str):
        raise TypeError(f"tz must be a time zone such as 'Europe/Berlin', not {value!r}")
    try:
        return ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"tz must be a known time zone, not {value!r}") from None


def validate_schedule(value: object) -> str:
    """Whether it can be read is seen when it is."""
    if not isinstance(value, str):
        raise TypeError(f"schedule must be a cron expression such as '*/5 * * * *', not {value!r}")
    return value


def validate_release(value: object) -> str:
    if value not in ("exit", "commit", "warn"):
        raise ValueError(
            f"release must be 'exit' (when the block is left), 'warn' (as 'exit', with a warning "
            f"if a database transaction is open then) or 'commit' (when the database transaction "
            f"around it has ended), not {value!r}"
        )
    return str.__str__(value)


def validate_on_conflict(value: object) -> str | Callable[..., Any]:
    if callable(value):
        return value
    if value not in ("raise", "skip"):
        raise ValueError(
            f"on_conflict must be 'raise', 'skip' or a function of the conflict, not {value!r}"
        )
    return str.__str__(value)


def validate_status(value: object, name: str = "status") -> int:
    number = _whole(value, f"{name} must be an HTTP status, such as 409")
    if not 400 <= number <= 599:
        raise ValueError(f"{name} must be an HTTP status that tells of an error, not {value!r}")
    return number


def validate_response(value: object, name: str = "response") -> Callable[..., Any] | str | None:
    if value is None or callable(value):
        return value
    if not isinstance(value, str) or "." not in value:
        raise TypeError(
            f"{name} must be a function of the request and the error, or the dotted path of one, "
            f"such as 'shop.views.busy', not {value!r}"
        )
    return value


def validate_using(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"using must be an alias of CACHES, such as 'default', not {value!r}")
    return value


def validate_prefix(value: object) -> str:
    plain = isinstance(value, str) and value.isprintable() and not set("{}|") & set(value)
    if not plain or not value:
        raise ValueError(f"prefix must be a non-empty str without braces and |, not {value!r}")
    return str.__str__(value)


def validate_servers(value: object) -> str:
    """As `validate_using`, or several aliases in a list."""
    if isinstance(value, list | tuple):
        return Servers.of(value)
    return value if isinstance(value, Servers) else validate_using(value)


def validate_label(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"label must be a str that tells where the lock is taken, not {value!r}")
    return value


def validate_operator(by: object, reason: object) -> tuple[str, str]:
    """Return who acts, and why, each as one printable line.

    Redis keeps both as `by|reason`, so `by` has no `|`.
    """
    for value, name in ((by, "by"), (reason, "reason")):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str for people to read, not {value!r}")
    return label.clean(str(by)).replace("|", "/"), label.clean(str(reason))


def validate_on_lost(value: object) -> Callable[..., object]:
    if not callable(value):
        raise TypeError(f"on_lost must be a function of the lease, not {value!r}")
    if inspect.iscoroutinefunction(value):
        raise TypeError(
            "on_lost must be a plain function: it is called in a thread, where no event loop "
            "runs. To stop a coroutine, write cancel_on_lost=True."
        )
    return value


def refuse_unknown(arguments: dict[str, object], function: str) -> None:
    """`TypeError` for arguments that don't exist, with the ones that were meant."""
    for name in arguments:
        if name in ("timeout", "expire", "blocking_timeout", "blocking"):
            raise TypeError(
                f"{name}= is refused, because it means different things in different "
                f"libraries. Write ttl= for the seconds that a lease lives without renewal, "
                f"and wait= for the seconds to wait for the lock (0: try once, None: for ever)."
            )
        raise TypeError(f"{function}() has no argument {name!r}")

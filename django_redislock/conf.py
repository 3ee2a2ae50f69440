"""The settings: typed defaults, read when needed, so that `override_settings` works.

An explicit argument beats an entry in `LOCKS`, which beats the default. Of the entries that
match a name the exact one wins, then the longest pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from .arguments import (
    validate_flag,
    validate_max_hold,
    validate_on_conflict,
    validate_release,
    validate_ttl,
    validate_using,
    validate_wait,
)


class Policy(NamedTuple):
    """How one lock behaves. Times are seconds."""

    using: str = "default"
    """An alias of CACHES."""
    ttl: float = 30.0
    """How long a lease lives without renewal."""
    wait: float | None = 10.0
    """How long to wait for the lock; 0: try once, None: for ever."""
    renew: bool = True
    max_hold: float | None = None
    """When renewal ends, counted from the acquire; None: never."""
    release: str = "exit"
    on_conflict: str | Callable[..., Any] = "raise"


VALIDATORS: dict[str, Callable[[Any], Any]] = {
    "using": validate_using,
    "ttl": validate_ttl,
    "wait": validate_wait,
    "renew": lambda value: validate_flag(value, "renew"),
    "max_hold": validate_max_hold,
    "release": validate_release,
    "on_conflict": validate_on_conflict,
}

_Values = dict[str, Any]


class _Settings(NamedTuple):
    source: Any
    prefix: str
    defaults: _Values
    exact: dict[str, _Values]
    patterns: list[tuple[str, _Values]]


def _read(where: str, values: object, *others: str) -> _Values:
    if not isinstance(values, Mapping):
        raise ImproperlyConfigured(f"{where} must be a dict, not {values!r}")
    read = {}
    for key, value in values.items():
        field = str(key).lower()
        if key != field.upper() or field not in VALIDATORS:
            known = ", ".join([*map(str.upper, VALIDATORS), *others])
            raise ImproperlyConfigured(f"{where} has no key {key!r}; it has {known}")
        try:
            read[field] = VALIDATORS[field](value)
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(f"{where}[{key!r}]: {error}") from None
    return read


def _parse(source: Any) -> _Settings:
    if not isinstance(source, Mapping):
        raise ImproperlyConfigured(f"REDISLOCK must be a dict, not {source!r}")
    rest = dict(source)
    prefix = rest.pop("PREFIX", "redislock")
    plain = isinstance(prefix, str) and prefix.isprintable() and not set("{}|") & set(prefix)
    if not prefix or not plain:
        raise ImproperlyConfigured(
            f"REDISLOCK['PREFIX'] must be a non-empty str without braces and |, not {prefix!r}"
        )
    locks = rest.pop("LOCKS", {})
    if not isinstance(locks, Mapping):
        raise ImproperlyConfigured(f"REDISLOCK['LOCKS'] must be a dict, not {locks!r}")
    for name in locks:
        if not isinstance(name, str):
            raise ImproperlyConfigured(
                f"REDISLOCK['LOCKS'] has the key {name!r}; write a str, a name or a pattern"
            )
    entries = {name: _read(f"REDISLOCK['LOCKS'][{name!r}]", v) for name, v in locks.items()}
    return _Settings(
        source=_snapshot(source),
        prefix=prefix,
        defaults=Policy()._asdict() | _read("REDISLOCK", rest, "PREFIX", "LOCKS"),
        exact=entries,
        patterns=sorted(
            ((name, values) for name, values in entries.items() if set("*?[") & set(name)),
            key=lambda entry: -len(entry[0]),
        ),
    )


def _snapshot(value: Any) -> Any:
    """A copy of nested dicts, whose other values may be anything."""
    if isinstance(value, Mapping):
        return {key: _snapshot(inner) for key, inner in value.items()}
    return value


_parsed: _Settings | None = None


def _settings() -> _Settings:
    global _parsed
    source = getattr(settings, "REDISLOCK", {})
    # By value: tests change the dict in place, too.
    if _parsed is None or _parsed.source != source:
        _parsed = _parse(source)
    return _parsed


def prefix() -> str:
    """What all our keys begin with."""
    return _settings().prefix


def policy(name: str, explicit: Mapping[str, Any]) -> Policy:
    """How the lock `name` behaves. Raises `ImproperlyConfigured` for wrong settings."""
    current = _settings()
    entry = current.exact.get(name)
    if entry is None and current.patterns:
        entry = next((v for pattern, v in current.patterns if fnmatchcase(name, pattern)), None)
    return Policy(**{**current.defaults, **(entry or {}), **explicit})

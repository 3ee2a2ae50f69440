"""The settings: typed defaults, read when needed, so that `override_settings` works.

An explicit argument beats an entry in `LOCKS`, which beats the default. Of the entries that
match a name the exact one wins, then the longest pattern.

Of a periodic job it is the other way round: an entry in `JOBS` beats what the code says, since it
is there to tune a job in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from ..primitives.contract import NO_TERMS, Terms
from ..primitives.keys import validate_key
from . import kinds
from .validators import (
    validate_choice,
    validate_every,
    validate_flag,
    validate_limit,
    validate_max_hold,
    validate_on_conflict,
    validate_prefix,
    validate_release,
    validate_replicas,
    validate_replicas_timeout,
    validate_response,
    validate_schedule,
    validate_seconds,
    validate_servers,
    validate_status,
    validate_ttl,
    validate_using,
    validate_wait,
    validate_zone,
)


class Policy(NamedTuple):
    """How one lock behaves. Times are seconds."""

    using: str = "default"
    """An alias of CACHES; of a Redlock, several of them (servers.py)."""
    prefix: str = "redislock"
    """What all keys begin with, the same for all locks."""
    ttl: float = 30.0
    """How long a lease lives without renewal."""
    wait: float | None = 10.0
    """How long to wait for the lock; 0: try once, None: for ever."""
    renew: bool = True
    replicas: int = 0
    """So many replicas have to confirm a lease, and each renewal of it."""
    replicas_timeout: float = 1.0
    """How long replicas have to confirm."""
    max_hold: float | None = None
    """When renewal ends, counted from the acquire; None: never."""
    release: str = "exit"
    on_conflict: str | Callable[..., Any] = "raise"
    kind: str = "mutex"
    """Which primitive it is, of those in kinds.py."""
    limit: int | None = None
    """So many may hold it, where its kind has a limit."""
    timestamp_key: str | None = None
    """The key of a timestamp lock that is taken with it; of the kind "timestamp", its own key."""
    fractions: bool = False
    """Whether a timestamp lock writes fractions of a second."""
    lock_order: str = "off"
    """What becomes of locks that are taken in two orders: lock_order.py finds them."""
    view_wait: float | None = 0.0
    """How long a view waits for its lock, in place of `wait`."""
    view_status: int = 409
    """What a view answers that did not get its lock."""
    view_response: Callable[..., Any] | str | None = None
    """A function of the request and the error, or its dotted path, that makes the answer."""

    def terms(self) -> Terms:
        """What is asked of each command that acquires or extends a lease."""
        if not self.replicas:
            return NO_TERMS
        return Terms(replicas=self.replicas, replicas_timeout=self.replicas_timeout)


Validators = Mapping[str, Callable[[Any], Any]]

VALIDATORS: Validators = {
    "using": validate_using,
    "ttl": validate_ttl,
    "wait": validate_wait,
    "renew": lambda value: validate_flag(value, "renew"),
    "replicas": validate_replicas,
    "replicas_timeout": validate_replicas_timeout,
    "max_hold": validate_max_hold,
    "release": validate_release,
    "on_conflict": validate_on_conflict,
}
"""Of what a lock may be told by the code, too."""

SETTING_VALIDATORS: Validators = {
    **VALIDATORS,
    "view_wait": lambda value: validate_wait(value, "view_wait"),
    "view_status": lambda value: validate_status(value, "view_status"),
    "view_response": lambda value: validate_response(value, "view_response"),
    "lock_order": lambda value: validate_choice(value, "lock_order", ("off", "warn", "raise")),
}

PROJECT_VALIDATORS: Validators = {**SETTING_VALIDATORS, "prefix": validate_prefix}
"""With what is the same for all locks."""

ENTRY_VALIDATORS: Validators = {
    **SETTING_VALIDATORS,
    "kind": lambda value: validate_choice(value, "kind", tuple(kinds.KINDS)),
    "limit": validate_limit,
    "timestamp_key": lambda value: validate_key(value, "timestamp_key"),
    "fractions": lambda value: validate_flag(value, "fractions"),
    "using": validate_servers,
}
"""With what makes a lock of one kind or another: of single locks only."""

JOB_VALIDATORS: Validators = {
    "schedule": validate_schedule,
    "every": validate_every,
    "tz": validate_zone,
    "enabled": lambda value: validate_flag(value, "enabled"),
    "at_most_for": lambda value: None if value is None else validate_ttl(value, "at_most_for"),
    "at_least_for": lambda value: validate_seconds(value, "at_least_for"),
    "overlap": lambda value: validate_choice(value, "overlap", ("skip", "wait")),
    "on_crash": lambda value: validate_choice(value, "on_crash", ("lose", "retry")),
    "catch_up": lambda value: validate_choice(value, "catch_up", ("latest", "none", "all")),
    "grace": lambda value: None if value is None else validate_seconds(value, "grace"),
    "jitter": lambda value: validate_seconds(value, "jitter"),
}
"""Of what `@periodic` and `JOBS` say of a job."""

_Values = dict[str, Any]

DEFAULTS: _Values = Policy()._asdict()


class Setting(NamedTuple):
    """A setting of one lock, and where it comes from."""

    value: Any
    source: str
    """"default", "REDISLOCK" or "LOCKS"."""
    entry: str | None
    """Which entry of `LOCKS`."""


class _Entries(NamedTuple):
    """What the settings say of things by their names, or patterns of these."""

    exact: dict[str, _Values]
    patterns: list[str]
    """The longest first."""

    def key(self, name: str) -> str | None:
        """The entry that `name` follows, if any."""
        if name in self.exact:
            return name
        if not self.patterns:
            return None
        return next((pattern for pattern in self.patterns if fnmatchcase(name, pattern)), None)

    def find(self, name: str) -> _Values:
        """What that entry says."""
        key = self.key(name)
        return {} if key is None else self.exact[key]


class _Settings(NamedTuple):
    source: Any
    given: _Values
    locks: _Entries
    jobs: _Entries
    policies: dict[str | None, Policy]
    """What they make of a lock to which the code says nothing, by its entry of `locks`."""


def _read(where: str, values: object, validators: Validators, *others: str) -> _Values:
    if not isinstance(values, Mapping):
        raise ImproperlyConfigured(f"{where} must be a dict, not {values!r}")
    read = {}
    for key, value in values.items():
        field = str(key).lower()
        if key != field.upper() or field not in validators:
            known = ", ".join([*map(str.upper, validators), *others])
            raise ImproperlyConfigured(f"{where} has no key {key!r}; it has {known}")
        try:
            read[field] = validators[field](value)
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(f"{where}[{key!r}]: {error}") from None
    return read


def _parse(source: Any) -> _Settings:
    if not isinstance(source, Mapping):
        raise ImproperlyConfigured(f"REDISLOCK must be a dict, not {source!r}")
    rest = dict(source)
    locks = _read_entries("LOCKS", rest.pop("LOCKS", {}), ENTRY_VALIDATORS)
    for name, values in locks.exact.items():
        _refuse_half_a_kind(name, values)
    jobs = _read_entries("JOBS", rest.pop("JOBS", {}), JOB_VALIDATORS)
    given = _read("REDISLOCK", rest, PROJECT_VALIDATORS, "LOCKS", "JOBS")
    return _Settings(_snapshot(source), given, locks, jobs, {})


def _read_entries(key: str, entries: object, validators: Validators) -> _Entries:
    if not isinstance(entries, Mapping):
        raise ImproperlyConfigured(f"REDISLOCK[{key!r}] must be a dict, not {entries!r}")
    for name in entries:
        if not isinstance(name, str):
            raise ImproperlyConfigured(
                f"REDISLOCK[{key!r}] has the key {name!r}; write a str, a name or a pattern"
            )
    return _Entries(
        {
            name: _read(f"REDISLOCK[{key!r}][{name!r}]", values, validators)
            for name, values in entries.items()
        },
        sorted((name for name in entries if set("*?[") & set(name)), key=len, reverse=True),
    )


class Incomplete(ImproperlyConfigured):
    """An entry whose parts are right, and don't make a lock together."""


def _refuse_half_a_kind(name: str, values: _Values) -> None:
    policy = Policy(**values)
    try:
        kinds.primitive(policy)
    except ValueError as error:
        raise Incomplete(f"REDISLOCK['LOCKS'][{name!r}]: {error}") from None


def _snapshot(value: Any) -> Any:
    """A copy of nested dicts, whose other values may be anything."""
    if isinstance(value, Mapping):
        return {key: _snapshot(inner) for key, inner in value.items()}
    return value


_NOTHING: dict[str, Any] = {}
_without: object = None
"""The settings that had no `REDISLOCK` when they were asked: Django takes long to say so, as part
of each lock that is taken."""


def _source() -> Any:
    global _without
    inside = _inside()
    if inside is not None and inside is _without and "REDISLOCK" not in vars(inside):
        return _NOTHING
    source = getattr(settings, "REDISLOCK", _NOTHING)
    _without = _inside() if source is _NOTHING else None  # to ask may have loaded them
    return source


def _inside() -> object:
    """What override_settings() replaces, and where an assignment to `settings` puts it. None: a
    Django that has no such thing, which is asked each time."""
    return object.__getattribute__(settings, "__dict__").get("_wrapped")


_parsed: _Settings | None = None


def _settings() -> _Settings:
    global _parsed
    source = _source()
    # By value: tests change the dict in place, too.
    if _parsed is None or _parsed.source != source:
        _parsed = _parse(source)
    return _parsed


def prefix() -> str:
    """What all our keys begin with."""
    return str(_settings().given.get("prefix", DEFAULTS["prefix"]))


def entry(name: str) -> str | None:
    """The entry of `LOCKS` that the lock `name` follows, if any."""
    return _settings().locks.key(name)


def job_entry(name: str) -> str | None:
    """The entry of `JOBS` that the periodic job `name` follows, if any."""
    return _settings().jobs.key(name)


def job(name: str) -> Mapping[str, Any]:
    """What the settings say of the periodic job `name`, which beats what its code says.

    Raises `ImproperlyConfigured` for wrong settings.
    """
    return _settings().jobs.find(name)


def policy(name: str, explicit: Mapping[str, Any]) -> Policy:
    """How the lock `name` behaves. Raises `ImproperlyConfigured` for wrong settings."""
    current = _settings()
    entry = current.locks.key(name)
    found = current.policies.get(entry)
    if found is None:
        values: _Values = {}
        for _, layer in _layers(current, entry):
            values.update(layer)
        found = current.policies[entry] = Policy(**values)
    if not explicit:
        return found
    if explicit.get("kind", found.kind) != found.kind:
        found = found._replace(timestamp_key=None)  # of the kind that the entry speaks of
    return found._replace(**explicit)


def origins(name: str) -> dict[str, Setting]:
    """The settings of the lock `name`, and where each comes from; the code may say otherwise."""
    current = _settings()
    found = {}
    for (source, entry), layer in _layers(current, current.locks.key(name)):
        for key, value in layer.items():
            found[key] = Setting(value, source, entry)
    return found


def _layers(
    current: _Settings, entry: str | None
) -> tuple[tuple[tuple[str, str | None], _Values], ...]:
    """Where settings of a lock come from, and what they say: each beats those before it."""
    return (
        (("default", None), DEFAULTS),
        (("REDISLOCK", None), current.given),
        (("LOCKS", entry), {} if entry is None else current.locks.exact[entry]),
    )

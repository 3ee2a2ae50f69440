"""The settings: typed defaults, read when needed, so that `override_settings` works.

An explicit argument beats an entry in `LOCKS`, which beats `REDISLOCK`, which beats the default.
Of the entries that match a name, the exact one wins, then the longest pattern.

For a periodic job it is the other way round: an entry in `JOBS` beats the code, so that one place
is enough to tune a job.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from fnmatch import translate
from functools import lru_cache
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from ..base.servers import aliases_of
from . import kinds
from .policy import DEFAULTS, JOB_VALIDATORS, Policy, Source, rules_of
from .validators import Validator

PROJECT_VALIDATORS = rules_of(Source.PROJECT)
ENTRY_VALIDATORS = rules_of(Source.ENTRY)

_Values = Mapping[str, Any]


class Setting(NamedTuple):
    """The value of a setting of one lock, and its source."""

    value: Any
    source: str
    """"default", "REDISLOCK" or "LOCKS"."""
    entry: str | None
    """The entry of `LOCKS`."""


SEEN = 4096
"""Names whose entries are remembered."""


class _Entries:
    """The entries of `LOCKS` or `JOBS`. Their keys are names, or patterns of names."""

    def __init__(self, exact: dict[str, _Values]) -> None:
        self.exact = exact
        # The longest first.
        self._patterns = sorted((key for key in exact if set("*?[") & set(key)), key=len)[::-1]
        self._pattern = re.compile("|".join(f"({translate(key)})" for key in self._patterns))
        self._matching = lru_cache(maxsize=SEEN)(self._match)

    def key(self, name: str) -> str | None:
        """Return the key of the entry that `name` follows, if any."""
        if name in self.exact:
            return name
        return self._matching(name) if self._patterns else None

    def _match(self, name: str) -> str | None:
        found = self._pattern.match(name)
        return self._patterns[found.lastindex - 1] if found and found.lastindex else None

    def find(self, name: str) -> _Values:
        """Return the entry that `name` follows, or an empty one."""
        key = self.key(name)
        return {} if key is None else self.exact[key]


class _Settings(NamedTuple):
    source: Any
    given: _Values
    locks: _Entries
    jobs: _Entries
    """The entries of `JOBS`, which beat the arguments in the code of a periodic job."""
    policies: dict[str | None, Policy]
    """The policy of a lock without arguments, by the key of its entry in `locks`."""


def _read(where: str, values: object, known: Mapping[str, Validator], *others: str) -> _Values:
    if not isinstance(values, Mapping):
        raise ImproperlyConfigured(f"{where} must be a dict, not {values!r}")
    read = {}
    for key, value in values.items():
        field = str(key).lower()
        if key != field.upper() or field not in known:
            listed = ", ".join([*map(str.upper, known), *others])
            raise ImproperlyConfigured(f"{where} has no key {key!r}; it has {listed}")
        try:
            read[field] = known[field](value, field)
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(f"{where}[{key!r}]: {error}") from None
    return read


def parse(source: Any) -> _Settings:
    """Read `REDISLOCK`. Raises `ImproperlyConfigured` for the first thing that is wrong."""
    if not isinstance(source, Mapping):
        raise ImproperlyConfigured(f"REDISLOCK must be a dict, not {source!r}")
    rest = dict(source)
    locks = _read_entries("LOCKS", rest.pop("LOCKS", {}), ENTRY_VALIDATORS)
    for name, values in locks.exact.items():
        try:
            kinds.primitive(Policy(**values))
        except ValueError as error:
            raise Incomplete(f"REDISLOCK['LOCKS'][{name!r}]: {error}") from None
    jobs = _read_entries("JOBS", rest.pop("JOBS", {}), JOB_VALIDATORS)
    given = _read("REDISLOCK", rest, PROJECT_VALIDATORS, "LOCKS", "JOBS")
    return _Settings(_snapshot(source), given, locks, jobs, {})


def _read_entries(key: str, entries: object, known: Mapping[str, Validator]) -> _Entries:
    if not isinstance(entries, Mapping):
        raise ImproperlyConfigured(f"REDISLOCK[{key!r}] must be a dict, not {entries!r}")
    for name in entries:
        if not isinstance(name, str):
            raise ImproperlyConfigured(
                f"REDISLOCK[{key!r}] has the key {name!r}; write a str, a name or a pattern"
            )
    return _Entries(
        {
            name: _read(f"REDISLOCK[{key!r}][{name!r}]", values, known)
            for name, values in entries.items()
        }
    )


class Incomplete(ImproperlyConfigured):
    """Each setting of an entry is right, but together they make no lock."""


def _snapshot(value: Any) -> Any:
    """Copy nested dicts. Their other values are not copied: they may be anything."""
    if isinstance(value, Mapping):
        return {key: _snapshot(inner) for key, inner in value.items()}
    return value


_NOTHING: dict[str, Any] = {}
_without: object = None
"""The settings that had no `REDISLOCK` when it was last read. `getattr` on Django's settings is
slow for a missing name, and every acquire reads it."""


def _source() -> Any:
    global _without
    # What override_settings() replaces, and an assignment to `settings` changes. None: this Django
    # has no such object, so `getattr` is used each time.
    inside = cached("_wrapped")
    if inside is not None and inside is _without and "REDISLOCK" not in vars(inside):
        return _NOTHING
    source = getattr(settings, "REDISLOCK", _NOTHING)
    _without = cached("_wrapped") if source is _NOTHING else None  # getattr may have loaded them
    return source


cached: Callable[[str], Any] = object.__getattribute__(settings, "__dict__").get
"""Returns a setting that Django has at hand, without its slow `getattr`. None: ask Django."""


def for_developers() -> bool:
    """Whether a developer would see a warning: in DEBUG, or in tests (Django makes an outbox)."""
    if "outbox" in getattr(sys.modules.get("django.core.mail"), "__dict__", ()):
        return True
    debug = cached("DEBUG")
    return settings.configured and bool(settings.DEBUG) if debug is None else bool(debug)


_parsed: _Settings | None = None


def current() -> _Settings:
    """Return the settings, as an object that is another one when they have changed.

    Raises `ImproperlyConfigured` for wrong settings.
    """
    global _parsed
    source = _source()
    # Compared by value, since tests also change the dict in place.
    if _parsed is None or _parsed.source != source:
        _parsed = parse(source)
    return _parsed


def prefix() -> str:
    """Return the beginning of all keys."""
    return str(current().given.get("prefix", DEFAULTS["prefix"]))


def entry(name: str) -> str | None:
    """Return the key in `LOCKS` of the entry that the lock `name` follows, if any."""
    return current().locks.key(name)


def policy(name: str, explicit: Mapping[str, Any]) -> Policy:
    """Return the policy of the lock `name` with these `explicit` arguments.

    Raises `ImproperlyConfigured` for wrong settings.
    """
    now = current()
    entry = now.locks.key(name)
    found = now.policies.get(entry)
    if found is None:
        values = {field: setting.value for field, setting in origins(name).items()}
        found = now.policies[entry] = Policy(**values)
    if not explicit:
        return found
    if explicit.get("kind", found.kind) != found.kind:
        found = found._replace(timestamp_key=None)  # it belongs to the kind in the entry
    return found._replace(**explicit)


def written(name: str) -> str:
    """Return a name of a list as the code writes it: without its scope, if it has one."""
    _, _, rest = name.partition(kinds.SEPARATOR)
    return rest if rest and policy(rest, {}).scope is not None else name


def listed(name: str) -> Policy:
    """Return what the settings say of a lock, by its name in a list."""
    return policy(written(name), {})


def origins(name: str) -> dict[str, Setting]:
    """Return the settings of the lock `name` with their sources. Arguments in the code beat
    them."""
    now = current()
    entry = now.locks.key(name)
    found = {field: Setting(value, "default", None) for field, value in DEFAULTS.items()}
    for field, value in now.given.items():
        found[field] = Setting(value, "REDISLOCK", None)
    for field, value in now.locks.find(name).items():
        found[field] = Setting(value, "LOCKS", entry)
    return found


# The contents of all settings together. All functions but `source` and the entries expect settings
# without an error.


def source() -> Any:
    """Return `REDISLOCK` as it is written, right or wrong."""
    return getattr(settings, "REDISLOCK", {})


def entries(of: str = "LOCKS") -> list[str]:
    """Return the keys of `LOCKS`, or of `JOBS`: names and patterns."""
    return list(source().get(of, ()))


def policies() -> list[Policy]:
    """Return each policy that a lock without arguments can have."""
    # A pattern, taken as a name, follows its own entry. "" follows none, and comes first: it reads
    # the settings, which may be wrong.
    return [policy("", {}), *(policy(name, {}) for name in entries())]


def aliases() -> list[str]:
    """Return the aliases of CACHES that locks use."""
    names = (alias for policy in policies() for alias in aliases_of(policy.using))
    return list(dict.fromkeys(names))


def replicas(alias: str) -> int:
    """Return the largest `replicas` of a lock on an alias."""
    return max((policy.replicas for policy in policies() if policy.using == alias), default=0)


def after_loss(alias: str) -> str:
    """Return "wait" if a lock on an alias waits after lost data."""
    its = [policy.after_loss for policy in policies() if alias in aliases_of(policy.using)]
    return "wait" if "wait" in its else "go"


def replicas_timeout(alias: str) -> float | None:
    """Return the longest `replicas_timeout` of a lock on an alias. None: no lock asks replicas."""
    asking = (policy for policy in policies() if policy.using == alias and policy.replicas)
    return max((policy.replicas_timeout for policy in asking), default=None)

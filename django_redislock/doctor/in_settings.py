"""Findings about `REDISLOCK`, and the aliases that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import SequenceMatcher, get_close_matches
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from ..base import label
from ..base.callables import Parameters, kind_of
from ..primitives.keys import MAX_NAME
from ..settings import conf, kinds
from ..settings.configured import aliases, entries, policies, source
from ..settings.functions import function_of
from ..settings.policy import DEFAULTS, JOB_SETTINGS
from ..transport.server import clustered
from .finding import Finding
from .in_caches import alias_findings


class Problem(NamedTuple):
    """An error in the settings."""

    path: tuple[str, ...]
    """The keys that lead to it in `REDISLOCK`, from the outside in."""
    message: str
    incomplete: bool = False
    """Each setting of the entry is right, but together they make no lock."""


def problems() -> list[Problem]:
    """Return all errors. An acquire raises only the first one."""
    found: dict[str, Problem] = {}
    for path, part in _parts(source()):
        try:
            conf.parse(part)
        except ImproperlyConfigured as error:
            incomplete = isinstance(error, conf.Incomplete)
            single_field = len(path) == 3  # others of its entry may complete it
            if not (incomplete and single_field):
                problem = Problem(tuple(map(str, path)), str(error), incomplete)
                found.setdefault(str(error), problem)
    return list(found.values())


def _parts(source: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Return each setting as a `REDISLOCK` of its own, so that `conf.parse` can read it alone."""
    if not isinstance(source, Mapping):
        yield (), source
        return
    for key, value in source.items():
        if key not in ("LOCKS", "JOBS") or not isinstance(value, Mapping):
            yield (key,), {key: value}
            continue
        for name, entry in value.items():
            if not isinstance(entry, Mapping):
                yield (key, name), {key: {name: entry}}
                continue
            yield (key, name), {key: {name: {}}}
            for field, its in entry.items():
                yield (key, name, field), {key: {name: {field: its}}}
            yield (key, name), {key: {name: entry}}


_COMPLETE = 'For example: "LOCKS": {"exports": {"KIND": "semaphore", "LIMIT": 3}}'


def settings_findings() -> Iterator[Finding]:
    """Return errors in the settings, and settings without an effect."""
    yield from _misspelt()
    wrong = problems()
    for problem in wrong:
        hint = _COMPLETE if problem.incomplete else _remedy(problem.path)
        yield Finding(id="redislock.E001", message=problem.message, hint=hint)
    if wrong:
        return  # the other checks need settings without errors
    for alias in aliases():
        yield from [*alias_findings(alias)] or _key_prefix(alias)
    for name in ("", *entries()):
        yield from _after_loss(name)
    yield from [*_scopes()] or _tenants()
    for name in entries():
        if "{" in name or "}" in name:
            pattern = re.sub("{[^}]*}?", "*", name).replace("}", "")
            yield Finding(
                id="redislock.W001",
                message=f"REDISLOCK['LOCKS'][{name!r}] applies to no lock of redis_lock: "
                f"templates are filled in before names are looked up, so no name has braces.",
                hint=f'Write a pattern instead of the template: "{pattern}": {{…}}. If it '
                f"is the Redis key of a cache.lock(), silence this check.",
            )
        elif len(name) > MAX_NAME or not label.is_harmless(name):
            yield Finding(
                id="redislock.W001",
                message=f"REDISLOCK['LOCKS'][{name[:80]!r}] applies to no lock: names are "
                f"one line, and at most {MAX_NAME} characters long.",
                hint="Correct the name, or remove the entry.",
            )


_NAME = "REDISLOCK"


def _misspelt() -> Iterator[Finding]:
    """Return settings whose names look like a misspelt `REDISLOCK`."""
    for name in dir(settings):
        plain = name.replace("_", "").removeprefix("DJANGO")
        alike = SequenceMatcher(None, plain, _NAME).ratio() > 0.85
        if name != _NAME and alike and isinstance(getattr(settings, name, None), Mapping):
            yield Finding(
                id="redislock.W008",
                message=f"The settings have {name}, which django-redislock does not read.",
                hint=f"Rename it to {_NAME}. If it belongs to something else, silence this check.",
            )


def _key_prefix(alias: str) -> Iterator[Finding]:
    """Return the finding about a KEY_PREFIX: such a project shares its database with others."""
    key_prefix = settings.CACHES.get(alias, {}).get("KEY_PREFIX")
    if key_prefix and "PREFIX" not in source():
        plain = re.sub("[{}|]", "", str(key_prefix))
        yield Finding(
            id="redislock.W007",
            message=f"CACHES[{alias!r}] has a KEY_PREFIX, which locks don't use. Projects that "
            f"share its database share their locks, and the values of initialise() and "
            f"single_flight().",
            hint=f'REDISLOCK = {{"PREFIX": "{plain}:redislock"}}, or "redislock" if no other '
            f"project uses this database. Change it while no lock is held.",
            alias=alias,
        )


def _after_loss(name: str) -> Iterator[Finding]:
    """Return the finding about an `AFTER_LOSS` that can't be kept, for the locks of an entry."""
    with suppress(ImproperlyConfigured):  # the alias has a finding of its own
        try:
            kinds.guarded(conf.policy(name, {}), clustered)
        except ValueError as error:
            where = f"['LOCKS'][{name!r}]" if name else ""
            yield Finding(
                id="redislock.E004",
                message=f"REDISLOCK{where}: {error}.",
                hint=f'"LOCKS": {{"{name or "*"}": {{"AFTER_LOSS": "go"}}}}',
            )


_SCOPE = (
    '"SCOPE": "shop.tenants.scope", and in shop/tenants.py: def scope(): return the text that '
    "tells this tenant from others, or None"
)


def _scopes() -> Iterator[Finding]:
    """Return the findings about functions in `SCOPE` that can't be called."""
    for scope in dict.fromkeys(policy.scope for policy in policies()):
        if scope is None:
            continue
        what, wrong = "REDISLOCK['SCOPE']", ""
        try:
            function = function_of(scope, what)
            plain = callable(function) and kind_of(function) == "function"
            if not plain or Parameters(function).needed():
                wrong = f"{what}, {scope!r}, is no plain function without arguments."
        except Exception as error:  # a module may raise anything when it is imported
            wrong = str(error)
        if wrong:
            yield Finding(id="redislock.E005", message=wrong, hint=_SCOPE)


_TENANT_APPS = ("django_tenants", "tenant_schemas", "django_pgschemas")
"""Apps that give each tenant tables of its own, so that primary keys come again."""


def _tenants() -> Iterator[Finding]:
    """Return the finding about tenants that share their names."""
    if "SCOPE" in source() or any(policy.scope for policy in policies()):
        return
    apps = [app for app in settings.INSTALLED_APPS if app.partition(".")[0] in _TENANT_APPS]
    keyed = [alias for alias, its in settings.CACHES.items() if its.get("KEY_FUNCTION")]
    seen = [f"INSTALLED_APPS has {app!r}" for app in apps[:1]]
    seen += [f"CACHES[{alias!r}] has a KEY_FUNCTION, which locks don't use" for alias in keyed[:1]]
    if seen:
        yield Finding(
            id="redislock.W010",
            message=f"{' and '.join(seen)}. REDISLOCK has no SCOPE, so tenants share their locks, "
            f"what once() has done, and the stored responses of idempotent_view().",
            hint=f"{_SCOPE}. With django-tenants: return connection.schema_name. If there are no "
            f'tenants, or they are to share: "SCOPE": None.',
        )


_ENTRIES = {
    "LOCKS": '"LOCKS": {"report:*": {"TTL": 300}}',
    "JOBS": '"JOBS": {"shop.periodic.report": {"EVERY": 300}}',
}
_LOCK = {field.upper(): value for field, value in DEFAULTS.items()}
_JOB = {field.upper(): setting.example for field, setting in JOB_SETTINGS.items()}
_TIMEOUTS = ("TIMEOUT", "EXPIRE", "BLOCKING_TIMEOUT")
"""Names that other libraries use for the ttl or the wait."""


def _remedy(path: tuple[str, ...]) -> str:
    if not path:
        return 'REDISLOCK = {"USING": "default"}'
    key = path[-1]
    if key in _ENTRIES or (path[0] in _ENTRIES and len(path) == 2):
        return _ENTRIES[path[0]]
    if key.upper() in _TIMEOUTS and path[0] != "JOBS":
        return '"TTL": 30 for how long a lease lives; "WAIT": 10 for how long to wait'
    known = _JOB if path[0] == "JOBS" else _LOCK
    if key not in known:
        meant = [key.upper(), *get_close_matches(key.upper(), known, 1, 0.65)]
        key = next((name for name in meant if name in known), "")
    if not key:
        return "Remove it."
    return f'"{key}": {_as_written(known[key])}'


def _as_written(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return f'"{value}"' if isinstance(value, str) else repr(value)

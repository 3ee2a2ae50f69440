"""Findings about `REDISLOCK`, and the aliases that it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from difflib import SequenceMatcher, get_close_matches
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from ..base import people
from ..base.callables import Parameters, kind_of
from ..periodic.job import discover, jobs
from ..primitives.keys import MAX_NAME
from ..settings import conf, kinds, naming
from ..settings.conf import aliases, entries, policies, source
from ..settings.policy import DEFAULTS, JOB_SETTINGS
from ..settings.validators import function_of
from ..transport.server import clustered
from .caches import alias_findings
from .finding import Finding, into_redislock, joined, listed, redislock, renamed, written


class Problem(NamedTuple):
    """An error in the settings."""

    path: tuple[Any, ...]
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
            if not (incomplete and len(path) == 3):  # other fields of its entry may complete it
                found.setdefault(str(error), Problem(path, str(error), incomplete))
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


def settings_findings() -> Iterator[Finding]:
    """Return errors in the settings, and settings without an effect."""
    yield from _misspelt()
    wrong = problems()
    for problem in wrong:
        hint = (_completion if problem.incomplete else _remedy)(problem.path)
        yield Finding(id="redislock.E001", message=problem.message, hint=hint)
    if wrong:
        return  # the other checks need settings without errors
    for alias in aliases():
        yield from [*alias_findings(alias)] or _key_prefix(alias)
    for name in ("", *entries()):
        yield from [*_after_loss(name), *_unavailable(name)]
    yield from [*_scopes()] or _tenants()
    yield from _responses()
    for name in entries():
        if "{" in name or "}" in name:
            pattern = re.sub("{[^}]*}?", "*", name).replace("}", "")
            yield Finding(
                id="redislock.W001",
                message=f"REDISLOCK['LOCKS'][{name!r}] applies to no lock of redis_lock: "
                f"templates are filled in before names are looked up, so no name has braces.",
                hint=joined(
                    [renamed(redislock("LOCKS"), name, pattern)],
                    "if it is the Redis key of a cache.lock(), silence this check instead",
                ),
            )
        elif len(name) > MAX_NAME or not people.is_harmless(name):
            yield Finding(
                id="redislock.W001",
                message=f"REDISLOCK['LOCKS'][{name[:80]!r}] applies to no lock: names are "
                f"one line, and at most {MAX_NAME} characters long.",
                hint=f"del {redislock('LOCKS', name)}  # or correct the name",
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
                hint=joined(
                    [f"{_NAME} {'|=' if hasattr(settings, _NAME) else '='} {name}", f"del {name}"],
                    "if it belongs to something else, silence this check instead",
                ),
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
            hint=joined(
                [into_redislock(PREFIX=f"{plain}:redislock")],
                'while no lock is held; or "redislock", if no other project uses this database',
            ),
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
                hint=into_redislock(name or None, AFTER_LOSS="go"),
            )


_RECORDED = ("once:", "deduplicate:", "single_flight:", "idempotency:", "periodic:", "task:")
"""The beginnings of names that always need Redis."""


def _unavailable(name: str) -> Iterator[Finding]:
    """Return the finding about an `UNAVAILABLE` that not all locks of an entry follow."""
    entry, where = (source()["LOCKS"][name], ("LOCKS", name)) if name else (source(), ())
    said = entry.get("UNAVAILABLE", "raise")
    what = [f"names such as '{its}*'" for its in _RECORDED if overlap(name or "*", f"{its}*")]
    if entry.get("KIND") == "redlock":
        what = ["a Redlock"]
    if what and (said == "run" or (name and said == "skip")):
        yield Finding(
            id="redislock.W011",
            message=f"{redislock(*where)} has UNAVAILABLE = {said!r}, which does not hold "
            f"for {what[0]}: without Redis nobody knows what was done before.",
            hint=f"{into_redislock(name or None, UNAVAILABLE='raise')}  # or only for other names",
        )


_PATH = "shop.tenants.scope"
_FUNCTION = (
    "and in shop/tenants.py: def scope(): return the text that tells this tenant from others, or "
    "None"
)


def _scopes() -> Iterator[Finding]:
    """Return the findings about functions in `SCOPE` that can't be called."""

    def fits(function: Any) -> bool:
        plain = callable(function) and kind_of(function) == "function"
        return plain and not Parameters(function).needed()

    return _functions("SCOPE", fits, "plain function without arguments", _PATH, _FUNCTION)


def _responses() -> Iterator[Finding]:
    """Return the findings about functions in `VIEW_RESPONSE` that can't be called."""
    how = "and in shop/views.py: def busy(request, error): return the response"
    return _functions("VIEW_RESPONSE", callable, "function", "shop.views.busy", how)


def _functions(
    field: str, fits: Callable[[Any], bool], must: str, path: str, how: str
) -> Iterator[Finding]:
    given = (getattr(policy, field.lower()) for policy in policies())
    for function in dict.fromkeys(one for one in given if one is not None):
        what, wrong = f"REDISLOCK[{field!r}]", ""
        try:
            if not fits(function_of(function, what)):
                wrong = f"{what}, {function!r}, is no {must}."
        except Exception as error:  # a module may raise anything when it is imported
            wrong = str(error)
        if wrong:
            hint = f"Write a dotted path, such as {path!r}, {how}."
            yield Finding(id="redislock.E005", message=wrong, hint=hint)


_TENANT_APPS = ("django_tenants", "tenant_schemas", "django_pgschemas")
"""Apps that give each tenant tables of its own, so that primary keys come again."""


def _tenants() -> Iterator[Finding]:
    """Return the finding about tenants that share their names."""
    if "SCOPE" in source() or any(policy.scope for policy in policies()):
        return
    apps = [app for app in settings.INSTALLED_APPS if app.partition(".")[0] in _TENANT_APPS]
    keyed = [
        alias
        for alias, entry in settings.CACHES.items()
        if isinstance(entry, dict) and entry.get("KEY_FUNCTION")
    ]
    seen = [f"INSTALLED_APPS has {app!r}" for app in apps[:1]]
    seen += [f"CACHES[{alias!r}] has a KEY_FUNCTION, which locks don't use" for alias in keyed[:1]]
    if seen:
        yield Finding(
            id="redislock.W010",
            message=f"{' and '.join(seen)}. REDISLOCK has no SCOPE, so tenants share their locks, "
            f"what once() has done, and the stored responses of idempotent_view().",
            hint=joined(
                [into_redislock(SCOPE=_PATH)],
                f"{_FUNCTION}. With django-tenants: return connection.schema_name. If there are "
                f"no tenants, or they are to share: {into_redislock(SCOPE=None)}",
            ),
        )


_ENTRIES = {
    "LOCKS": {"report:*": {"TTL": 300}},
    "JOBS": {"shop.periodic.report": {"EVERY": 300}},
}
_KNOWN = {"LOCKS": conf.ENTRY_VALIDATORS, "JOBS": JOB_SETTINGS}
_EXAMPLES = {
    **{field.upper(): value for field, value in DEFAULTS.items()},
    **{field.upper(): setting.example for field, setting in JOB_SETTINGS.items()},
    "LIMIT": 3,
    "TIMESTAMP_KEY": "lock.{name}",
}
_TIMEOUTS = ("TIMEOUT", "EXPIRE", "BLOCKING_TIMEOUT")
"""Names that other libraries use for the ttl or the wait."""


def _remedy(path: tuple[Any, ...]) -> str:
    """Return the line that corrects what stands at this path."""
    if not path:
        return 'REDISLOCK = {"USING": "default"}'
    *outer, key = path
    place = redislock(*outer)
    if key in _ENTRIES and not outer:
        return f"{redislock(key)} = {written(_ENTRIES[key])}"
    if outer and outer[0] in _ENTRIES and len(path) == 2 and isinstance(key, str):
        [example] = _ENTRIES[outer[0]].values()
        return f"{redislock(*path)} = {written(example)}"
    known = [*map(str.upper, _KNOWN.get(path[0] if outer else "", conf.PROJECT_VALIDATORS))]
    if key in known:
        return f"{redislock(*path)} = {written(_EXAMPLES[key])}"
    name = str(key).upper()
    if name in _TIMEOUTS and path[0] != "JOBS":
        meant = renamed(place, key, "TTL")
        return f'{meant}  # or "WAIT", if it is for how long to wait for a lock'
    alike = [its for its in (name, *get_close_matches(name, known, 1, 0.65)) if its in known]
    return renamed(place, key, alike[0]) if alike else f"del {redislock(*path)}"


_COMPLETIONS: tuple[dict[str, Any], ...] = (
    {"LIMIT": 3},
    {"USING": ["redis-a", "redis-b", "redis-c"]},
    *({"KIND": kind} for kind in ("redlock", "timestamp", "mutex")),
)


def _completion(path: tuple[Any, ...]) -> str:
    """Return the line that makes a lock of an entry whose settings are right one by one."""
    key, name = path
    entry = source()[key][name]
    for values in _COMPLETIONS:
        with suppress(ImproperlyConfigured):
            conf.parse({key: {name: {**entry, **values}}})
            return f"{redislock(*path)} |= {written(values)}"
    return f"del {redislock(*path)}"


# Findings about periodic jobs.


def job_findings() -> Iterator[Finding]:
    """Return what keeps jobs from running. The module `periodic` of each app is imported."""
    if problems():
        return  # they have to be corrected first
    try:
        discover()
        names = [job.name for job in jobs()]
    except (TypeError, ValueError, ImproperlyConfigured) as error:
        if not str(error).startswith(("The periodic job ", "REDISLOCK")):
            raise  # an error of the module itself
        yield Finding(
            id="redislock.E003", message=str(error), hint="Correct it where the message says."
        )
        return
    for entry in entries("JOBS"):
        if not any(fnmatchcase(name, entry) for name in names):
            yield Finding(
                id="redislock.W006",
                message=f"REDISLOCK['JOBS'][{entry!r}] applies to no periodic job.",
                hint=joined(
                    [f"del {redislock('JOBS', entry)}"],
                    "or correct it: manage.py runperiodic --list shows the names",
                ),
            )


# Findings that compare the entries of `LOCKS` with the names that the code makes.
#
# Known names are the templates of decorators, locked views and commands, and the paths of
# decorated functions, in modules that are imported. A literal name, or one made by an f-string,
# is unknown before it is locked. So these findings are of the level INFO.


# A closing bracket may be the first character between brackets.
_TOKEN = re.compile(r"\[(.[^]]*)\]|(.)", re.DOTALL)


def usage_findings() -> Iterator[Finding]:
    """Return the findings, for settings without errors."""
    declared = entries()
    if not declared:
        return
    # This imports the views with most of what they use, as `manage.py check` does.
    with suppress(Exception):
        import_module(settings.ROOT_URLCONF)
    made = list(naming.patterns)
    unused = [
        entry
        for entry in declared
        if set("*?[") & set(entry) and not any(overlap(entry, pattern) for pattern in made)
    ]
    if unused:
        yield Finding(
            id="redislock.I103",
            message=f"No template in the code that is imported makes names for these entries of "
            f"REDISLOCK['LOCKS']: {listed(unused)}. Literal names, "
            f"and names made by an f-string, can't be seen.",
            hint=_meant(unused, made)
            or "manage.py redislock config NAME  # which entry a lock follows",
        )
    undeclared = [
        pattern for pattern in made if not any(overlap(pattern, entry) for entry in declared)
    ]
    if undeclared:
        yield Finding(
            id="redislock.I104",
            message=f"REDISLOCK['LOCKS'] has no entry for names that the code makes: "
            f"{listed(sorted(undeclared))}. They follow the "
            f"defaults.",
            hint=f"{redislock('LOCKS', sorted(undeclared)[0])} = {written({'TTL': 60})}"
            "  # for example",
        )


def _meant(unused: list[str], made: list[str]) -> str:
    for entry in unused:
        for pattern in get_close_matches(entry, made, 1, cutoff=0.75):
            return f"{renamed(redislock('LOCKS'), entry, pattern)}  # if that was meant"
    return ""


def overlap(one: str, other: str) -> bool:
    """Return whether a name can match both patterns. Brackets count as any character."""
    left, right = [*_tokens(one), ""], [*_tokens(other), ""]
    # Does any name match both what is left of the one and what is left of the other?
    todo, seen = [(0, 0)], set[tuple[int, int]]()
    while todo:
        at = i, j = todo.pop()
        here, there = left[i], right[j]
        if not here and not there:
            return True
        if at in seen:
            continue
        seen.add(at)
        # A star matches nothing, or also the token there.
        if here == "*" or (there == "*" and here):
            todo.append((i + 1, j))
        if there == "*" or (here == "*" and there):
            todo.append((i, j + 1))
        if here == there or (here and there and "?" in (here, there)):
            todo.append((i + 1, j + 1))
    return False


def _tokens(pattern: str) -> Iterator[str]:
    """Return `*`, `?`, and `=` before any other character."""
    for between_brackets, char in _TOKEN.findall(pattern):
        if len(between_brackets) > 1:
            yield "?"
        elif between_brackets:
            yield f"={between_brackets}"  # as glob.escape() writes it
        else:
            yield char if char in "*?" else f"={char}"

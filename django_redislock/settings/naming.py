"""Lock names made from the arguments of a call: `"invoice:{invoice.pk}"`."""

from __future__ import annotations

import glob
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from string import Formatter
from typing import Any

from ..base import people
from ..base.callables import Parameters
from ..primitives.keys import validate_name
from . import conf

_ARGUMENT = re.compile(r"[^.\[]*")

MAX_PATTERNS = 100
"""How many patterns are kept: enough for code written by hand, and a bound for generated code."""
patterns: tuple[str, ...] = ()
"""Patterns of the names made here, written as in `LOCKS`: `report:*`. The longest first."""


def _fields(template: str) -> Iterator[str]:
    """Return the fields of a template, including those in its format specifications."""
    for _, field, spec, _ in Formatter().parse(template):
        if field is not None:
            yield field
            yield from _fields(spec or "")


def _remember(pattern: str) -> None:
    global patterns
    if pattern not in patterns and len(patterns) < MAX_PATTERNS:
        patterns = tuple(sorted((*patterns, pattern), key=len, reverse=True))


def _pattern(template: str) -> str:
    return "".join(
        glob.escape(text) + ("" if field is None else "*")
        for text, field, _, _ in Formatter().parse(template)
    )


def name_maker(
    name: str | Callable[..., str] | None, function: Callable[..., Any], *, prefix: str = ""
) -> Callable[..., str]:
    """Return a function that makes a lock's name from the arguments of a call of `function`.

    `prefix` is plain text at the beginning of all these names.
    Raises `ValueError` if a template names an argument that the function does not have. If the
    function takes any keywords (`**kwargs`), the call without that argument raises it.
    """
    if name is None:
        name = f"{prefix}{people.dotted_path(function)}"
        _remember(glob.escape(name))
    elif callable(name):
        given = name
        return lambda *args, **kwargs: prefix + validate_name(given(*args, **kwargs))
    elif isinstance(name, str) and name:
        name = prefix + name
    else:
        validate_name(name)  # raises
    assert isinstance(name, str)
    return _from_template(name, function)


def _from_template(template: str, function: Callable[..., Any]) -> Callable[..., str]:
    try:
        fields = list(_fields(template))
    except ValueError as error:
        raise ValueError(
            f"The lock name {template!r} can't be read as a template: {error}"
        ) from None
    if not fields:
        plain = validate_name(template.format())
        return lambda *_args, **_kwargs: plain

    parameters = Parameters(function)
    of = getattr(function, "__qualname__", function)
    needed = {_ARGUMENT.match(field)[0] for field in fields}  # type: ignore[index]

    def require(arguments: Mapping[str, Any]) -> None:
        for argument in needed - arguments.keys():
            if argument in parameters.by_name:
                raise TypeError(f"missing a required argument: {argument!r}")
            what = f"the argument {argument!r}" if argument else "an argument without a name"
            raise ValueError(
                f"The lock name {template!r} needs {what}, which {of}{parameters} does not have. "
                f"It has: {', '.join(arguments) or 'none'}."
            )

    if parameters.any_keyword is None or "" in needed:
        require(parameters.by_name)
    # A template without arguments is not remembered: it may be a name made by an f-string.
    _remember(_pattern(template))

    def make(*args: Any, **kwargs: Any) -> str:
        try:
            arguments = parameters.bind(args, kwargs)
            if not needed <= arguments.keys():
                require(arguments)
            if conf.for_developers():
                return _for_developers(template, arguments, str(of))
            return template.format_map(arguments)
        except Exception as error:
            # A note, since the exception may be any: an argument has made it.
            error.add_note(f"This happened while the lock name {template!r} of {of} was made.")
            raise

    return make


class _Noticing(Formatter):
    """`str.format_map` that notices fields without a value: None, and objects without a primary
    key, such as an anonymous user. A conversion (`{day!s}`) says that this is meant."""

    def __init__(self) -> None:
        self.empty: list[str] = []

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        self._field = field_name
        return super().get_field(field_name, args, kwargs)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion is None and (value is None or getattr(value, "pk", value) is None):
            self.empty.append(self._field)
        return super().convert_field(value, conversion)


def _for_developers(template: str, arguments: dict[str, Any], of: str) -> str:
    """Fill in a template, and warn of fields without a value."""
    noticing = _Noticing()
    name = noticing.vformat(template, (), arguments)
    for field in noticing.empty:
        warnings.warn(
            f"The lock name {template!r} of {of} is {name!r} here, since {field} has no value (an "
            f"anonymous user, perhaps, or an object that was not saved): all such calls share one "
            f"lock. Let no such call in, as @login_required above it does, or use a value that "
            f"tells them apart. If one lock is meant for all of them, write {{{field}!s}}.",
            RuntimeWarning,
            stacklevel=5,
        )
    return name

"""Lock names made from the arguments of a call: `"invoice:{invoice.pk}"`."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterator, Mapping
from string import Formatter
from typing import Any

from ..base import label
from ..base.callables import Parameters
from ..primitives.keys import validate_name

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
        name = f"{prefix}{label.dotted_path(function)}"
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
    needed = {_ARGUMENT.match(field)[0] for field in fields}  # type: ignore[index]

    def require(arguments: Mapping[str, Any]) -> None:
        for argument in needed - arguments.keys():
            if argument in parameters.by_name:
                raise TypeError(f"missing a required argument: {argument!r}")
            what = f"the argument {argument!r}" if argument else "an argument without a name"
            raise ValueError(
                f"The lock name {template!r} needs {what}, which "
                f"{getattr(function, '__qualname__', function)}{parameters} does not have. "
                f"It has: {', '.join(arguments) or 'none'}."
            )

    if parameters.any_keyword is None or "" in needed:
        require(parameters.by_name)
    # A template without arguments is not remembered: it may be a name made by an f-string.
    _remember(_pattern(template))

    def make(*args: Any, **kwargs: Any) -> str:
        try:
            arguments = parameters.bind(args, kwargs)
            require(arguments)
            return template.format_map(arguments)
        except Exception as error:
            # A note, since the exception may be any: an argument has made it.
            of = getattr(function, "__qualname__", function)
            error.add_note(f"This happened while the lock name {template!r} of {of} was made.")
            raise

    return make

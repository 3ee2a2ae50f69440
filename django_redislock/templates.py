"""Lock names made from the arguments of a call: `"invoice:{invoice.pk}"`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from string import Formatter
from typing import Any

from .keys import validate_name

_ARGUMENT = re.compile(r"[^.\[]*")


def _fields(template: str) -> Iterator[str]:
    """What a template refers to, in its formats, too."""
    for _, field, spec, _ in Formatter().parse(template):
        if field is not None:
            yield field
            yield from _fields(spec or "")


def name_maker(
    name: str | Callable[..., str] | None, function: Callable[..., Any]
) -> Callable[..., str]:
    """What makes a lock's name from the arguments of a call of `function`.

    Raises `ValueError` when a template names an argument that the function does not have.
    """
    if name is None:
        path = getattr(function, "__qualname__", None)
        if path is None:
            raise TypeError(f"{function!r} has no dotted path to be named after: give it a name")
        name = f"{function.__module__}.{path}".replace("<locals>", "locals")
    if callable(name):
        return name
    if not isinstance(name, str):
        validate_name(name)  # says what is wrong with it
    try:
        fields = list(_fields(name))
    except ValueError as error:
        raise ValueError(f"The lock name {name!r} can't be read as a template: {error}") from None
    if not fields:
        plain = validate_name(name.format())
        return lambda *_args, **_kwargs: plain

    signature = inspect.signature(function)
    arguments = list(signature.parameters)
    for field in fields:
        argument = _ARGUMENT.match(field)[0]  # type: ignore[index]
        if argument not in arguments:
            what = f"the argument {argument!r}" if argument else "an argument without a name"
            raise ValueError(
                f"The lock name {name!r} needs {what}, which {function.__qualname__}"
                f"{signature} does not have. It has: {', '.join(arguments) or 'none'}."
            )

    def make(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return name.format_map(bound.arguments)

    return make

"""Lock names made from the arguments of a call: `"invoice:{invoice.pk}"`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from string import Formatter
from typing import Any

from .keys import validate_name

_ARGUMENT = re.compile(r"[^.\[]*")


def name_maker(
    name: str | Callable[..., str] | None, function: Callable[..., Any]
) -> Callable[..., str]:
    """What makes a lock's name from the arguments of a call of `function`.

    Raises `ValueError` when a template names an argument that the function does not have.
    """
    if name is None:
        name = f"{function.__module__}.{function.__qualname__}".replace("<locals>", "locals")
    if callable(name):
        return name
    fields = [field for _, field, _, _ in Formatter().parse(name) if field is not None]
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

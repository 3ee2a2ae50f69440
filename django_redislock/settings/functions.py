"""Functions that settings name, by themselves or by their dotted paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from ..primitives.keys import validate_name

SEPARATOR = "/"
"""Stands between a scope and the name behind it."""

Function = Callable[..., Any] | str


def function_of(function: Function, what: str) -> Any:
    """Return the function. Raises `ImproperlyConfigured` if it can't be imported."""
    if not isinstance(function, str):
        return function
    try:
        return import_string(function)
    except ImportError as error:
        raise ImproperlyConfigured(f"{what}, {function!r}, can't be imported: {error}") from error


def in_scope(scope: Function, name: str) -> str:
    """Return a name with the present scope in front of it.

    Raises `ImproperlyConfigured`; and `TypeError` or `ValueError` if that makes no name.
    """
    function = function_of(scope, "REDISLOCK['SCOPE']")
    try:
        text = function()
    except Exception as error:
        error.add_note(f"This happened while REDISLOCK['SCOPE'] was asked for {name!r}.")
        raise
    if text is None:
        return name
    if not isinstance(text, str):
        raise TypeError(f"REDISLOCK['SCOPE'] must return a str, or None (no scope), not {text!r}")
    if not text or SEPARATOR in text:
        raise ValueError(
            f"REDISLOCK['SCOPE'] must return a text without {SEPARATOR!r}, or None (no scope), "
            f"not {text!r}"
        )
    return validate_name(f"{text}{SEPARATOR}{name}")

"""What all tools for tests have in common: a condition of a block or of a test function, the names
that it is about, and the wait for what other threads do.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any, Generic, TypeVar

from ..base import background, people
from ..base.callables import kind_of
from ..settings import conf

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

SETTLE_WITHIN = 2.0
"""Seconds that other threads have to act after a test has moved the clock."""


def validate_pattern(name: object) -> str:
    """Return `name`, or raise a `TypeError` that says what to write."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, such as 'invoice:42' or 'invoice:*', not {name!r}")
    return name


def matches(name: str, pattern: str) -> bool:
    """Whether `pattern` is this name or matches it, with its scope or without it; a name may look
    like a pattern."""
    return any(its == pattern or fnmatchcase(its, pattern) for its in (name, conf.written(name)))


class Condition(AbstractContextManager[T], Generic[T]):
    """Apply in a `with` block, or to a decorated test function, `async def` included.

    It can be entered again, also before it is left. One that is neither, such as an assertion that
    is called like a function, would do nothing: it warns.
    """

    _used = False

    def __init__(self, make: Callable[[], AbstractContextManager[T]]) -> None:
        self._make = make
        self._entered: list[AbstractContextManager[T]] = []
        name = sys._getframe(1).f_code.co_name
        people.warn_if_unused(
            self,
            f"{name}() was never used, so it has done nothing. Write `with {name}(…):` around the "
            f"code, or decorate a test with it.",
        )

    def __enter__(self) -> T:
        self._used = True
        condition = self._make()
        value = condition.__enter__()
        self._entered.append(condition)
        return value

    def __exit__(self, *error: Any) -> bool | None:
        return self._entered.pop().__exit__(*error)

    def __call__(self, test: F) -> F:
        self._used = True
        if isinstance(test, type):
            raise TypeError(
                f"a test function can be decorated with this, but not the class {test.__name__}: "
                f"write self.enterContext(…) in its setUp()"
            )
        kind = kind_of(test)
        if kind.endswith("generator"):
            raise TypeError(
                f"a test function can be decorated with this, but not the {kind} {test.__name__}, "
                f"which runs later: write `with …:` inside it, around its yield"
            )
        if kind == "coroutine":

            @wraps(test)
            async def atest(*args: Any, **kwargs: Any) -> Any:
                with self._make():
                    return await test(*args, **kwargs)

            return atest  # type: ignore[return-value]

        @wraps(test)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            with self._make():
                return test(*args, **kwargs)

        return decorated  # type: ignore[return-value]


def await_receivers() -> None:
    """Wait until `on_lost` and all receivers of signals were called."""
    for thread in threading.enumerate():
        if thread.name == "redislock-lost" and thread is not threading.current_thread():
            thread.join(SETTLE_WITHIN)
    background.settle()

"""How a test uses what this package has for it: around a block, or as a decorator of the test."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Condition(AbstractContextManager[T], Generic[T]):
    """Holds in a `with` block, or for a test function that it decorates, `async def` included.

    May be entered again, also before it was left.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[T]]) -> None:
        self._make = make
        self._entered: list[AbstractContextManager[T]] = []

    def __enter__(self) -> T:
        condition = self._make()
        value = condition.__enter__()
        self._entered.append(condition)
        return value

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._entered.pop().__exit__(exc_type, error, traceback)

    def __call__(self, test: F) -> F:
        if isinstance(test, type):
            raise TypeError(
                f"a test function can be decorated so, not the class {test.__name__}: write "
                f"self.enterContext(…) in its setUp()"
            )
        if inspect.iscoroutinefunction(test):

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

"""The world in which an example of the docs runs.

An example takes names for granted, such as `charge(invoice)`. A name that neither this package nor
Django has is a stand-in here. Whenever a stand-in is called, and wherever an example has `...`, it
is noted which locks are held. Functions that an example defines are called as well.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db import models, transaction
from django.http import HttpResponse, JsonResponse
from django.test import RequestFactory
from redis import Redis

import django_redislock

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def examples(page: str) -> list[str]:
    """The Python examples of a page, in their order; those in lists, too."""
    return [textwrap.dedent(match[2]) for match in PYTHON.finditer(text_of(page))]


def request() -> Any:
    """A request of the user 3."""
    request = RequestFactory().post("/")
    request.user = SimpleNamespace(pk=3, is_authenticated=True)
    return request


class StandIn:
    """Anything that an example needs: its attributes and results are stand-ins, too."""

    pk = id = product_id = 7

    def __init__(self, name: str, called: Callable[[], object]) -> None:
        self._name, self._called = name, called

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self._name}.{name}", self._called)

    def __getitem__(self, key: object) -> int:
        return 7

    def __call__(self, *_: object, **__: object) -> StandIn:
        self._called()
        return self

    def __await__(self) -> Iterator[Any]:
        yield from ()
        return self

    def __iter__(self) -> Iterator[StandIn]:
        return iter([self])

    def __str__(self) -> str:
        return self._name


class _Marked(ast.NodeTransformer):
    """Calls `_noted` wherever the example has `...` for a statement."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant) and node.value.value is ...:
            call = ast.Call(ast.Name("_noted", ast.Load()), [], [])
            return ast.copy_location(ast.Return(call), node) if self._alone else ast.Expr(call)
        return node

    def visit_FunctionDef(self, node: Any) -> ast.AST:
        self._alone = len(node.body) == 1
        self.generic_visit(node)
        self._alone = False
        return node  # type: ignore[no-any-return]

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815  # the name that ast calls
    _alone = False


class World(dict[str, Any]):
    """The names that an example finds, and the locks that it was seen to hold."""

    def __init__(self, redis: Redis, **names: Any) -> None:
        ours = {name: getattr(django_redislock, name) for name in django_redislock.__all__}
        of_django = {"models": models, "transaction": transaction, "JsonResponse": JsonResponse}
        of_django["login_required"] = login_required
        super().__init__(ours | of_django | {"__name__": "shop.docs"} | names)
        self["_noted"] = self._noted
        self.held: set[str] = set()
        """The names of the locks that were held when something was called."""
        self._redis = redis
        self._text = ""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) or name.startswith("__"):
            raise KeyError(name)
        return StandIn(name, self._noted)

    def _noted(self) -> Any:
        self.held |= self.locked()
        return HttpResponse(b"done") if "lock_view" in self._text else "done"

    def locked(self) -> set[str]:
        """The names that are locked now."""
        keys = (key.decode() for key in self._redis.scan_iter(match="redislock:{*}"))
        return {key.partition("{")[2].removesuffix("}") for key in keys}

    def run(self, text: str) -> World:
        """Run an example statement by statement, each as far as it needs on an event loop."""
        self._text, tree = text, ast.parse(text)
        for node in tree.body:
            step = ast.fix_missing_locations(ast.Module([_Marked().visit(node)], []))
            code = compile(step, "docs", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & inspect.CO_COROUTINE:
                asyncio.run(eval(code, self))
            else:
                exec(code, self)
        return self

    def call(self, name: str) -> Any:
        """Call a function that the example has defined, with stand-ins."""
        given = {
            each: request() if each == "request" else StandIn(each, self._noted)
            for each, parameter in inspect.signature(self[name]).parameters.items()
            if parameter.kind is not parameter.VAR_KEYWORD
        }
        result = self[name](**given)
        return asyncio.run(result) if inspect.iscoroutine(result) else result


def functions(text: str) -> list[str]:
    """The names of the functions that an example defines."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [node.name for node in ast.parse(text).body if isinstance(node, kinds)]

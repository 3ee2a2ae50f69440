"""The size of the package: `python -m devtools.size` prints code lines by product, beside budgets.

A code line is a line with a token of Python that is no comment and no docstring. A budget is met
by design: `tests/test_size.py` fails when a product is larger than its budget and the slack.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parent.parent / "django_redislock"
LUA = "primitives/lua"
SLACK = 1.03
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


class Product(NamedTuple):
    """Some rooms of the package, and how many code lines they may have together."""

    name: str
    rooms: tuple[str, ...]
    budget: int


PRODUCTS = (
    Product(
        "lock",
        (
            *("__init__", "base", "primitives", "transport", "settings", "signals"),
            *("lease", "locks", "cluster"),
        ),
        10_240,
    ),
    Product(
        "edges to Django",
        ("views", "commands", "fencing", "client", "cache", "testing"),
        2_254,
    ),
    Product(
        "operations",
        (*("inspection", "admin", "management", "doctor", "contrib", "apps", "models"),),
        7_251,
    ),
    Product("periodic", ("periodic", "primitives/ledger"), 1_273),
    Product("notes", ("lease/notes", "primitives/note"), 224),
    Product("leader", ("leader",), 210),
    Product(
        "tasks",
        ("tasks", "primitives/work", "inspection/tasks", "management/subcommands/tasks"),
        1_280,
    ),
    Product(
        "once in the transaction",
        ("locks/in_transaction", "contrib/once", "management/subcommands/records"),
        404,
    ),
)


def code_lines(source: str) -> int:
    """Return the number of code lines of a Python file."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {
        line
        for token in tokens
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code.difference(_docstrings(ast.parse(source))))


def _docstrings(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of docstrings: of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def lua_lines(source: str) -> int:
    """Return the number of lines of a Lua file that are neither blank nor comments."""
    return sum(
        bool(line.strip()) and not line.strip().startswith("--") for line in source.splitlines()
    )


def sizes() -> dict[str, int]:
    """Return the code lines of each Python file, by its path in the package without suffix."""
    return {
        path.relative_to(PACKAGE).with_suffix("").as_posix(): code_lines(
            path.read_text(encoding="utf-8")
        )
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def product_of(file: str) -> Product:
    """Return the product that a file belongs to. The longest room decides."""
    found = {
        room: product
        for product in PRODUCTS
        for room in product.rooms
        if file == room or file.startswith(f"{room}/")
    }
    return found[max(found, key=len)]


def totals() -> dict[str, int]:
    """Return the code lines of each product."""
    found = dict.fromkeys((product.name for product in PRODUCTS), 0)
    for file, lines in sizes().items():
        found[product_of(file).name] += lines
    return found


def lua_total() -> int:
    """Return the code lines of all Lua."""
    return sum(
        lua_lines(path.read_text(encoding="utf-8")) for path in (PACKAGE / LUA).glob("*.lua")
    )


def main() -> None:
    """Print the table."""
    found = totals()
    for product in PRODUCTS:
        print(f"{product.name:23} {found[product.name]:7,} of {product.budget:7,}")
    print(f"{'all Python':23} {sum(found.values()):7,} of {sum(p.budget for p in PRODUCTS):7,}")
    print(f"{'Lua':23} {lua_total():7,}")
    files = {file: lines for file, lines in sizes().items() if lines}
    print(f"{len(files)} files with code, {sum(files.values()) / len(files):.0f} lines each")
    for file in sorted(files, key=lambda file: -files[file])[: int((sys.argv[1:] or ["5"])[0])]:
        print(f"  {files[file]:5} {file}")


if __name__ == "__main__":
    main()

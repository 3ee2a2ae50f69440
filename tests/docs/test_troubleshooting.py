"""The messages that docs/troubleshooting.md explains are those of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import django_redislock
from tests.docs.world import text_of

OF_OTHERS = {
    "Connection refused",
    "WRONGPASS",
    "NOAUTH",
    "NoPermissionError",
    "You can't write against a read only replica",
    "command not allowed when used memory > 'maxmemory'",
    "MOVED",
    "CROSSSLOT",
    "bad lua script for redis cluster",
    "'NoneType' object does not support the context manager protocol",
}
"""What Redis, redis-py and Python say."""


def said() -> str:
    """All text of the package."""
    return "\n".join(
        node.value
        for path in Path(django_redislock.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def test_the_messages() -> None:
    """Each fragment of a quoted message, between what differs, is in the code."""
    text, quoted = said(), 0
    for row in re.findall(r"^\| (`.*?) \|", text_of("docs/troubleshooting.md"), re.MULTILINE):
        for message in re.findall(r"`([^`]+)`", row):
            for fragment in re.split(r"[….:;,]\s*", message.replace("timeout=", "=")):
                if " " in fragment.strip() and fragment not in OF_OTHERS:
                    quoted += 1
                    assert fragment.strip() in text, fragment
    assert quoted > 20

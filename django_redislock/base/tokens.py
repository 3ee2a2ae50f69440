"""Tokens: the unguessable proof of ownership.

A token has 32 hexadecimal characters. The first eight are the number of its process, by which an
operator can see whether that process still lives. The rest is random, or made by client.py.
"""

from __future__ import annotations

import itertools
import os
import secrets

from .people import Secret
from .process import in_child

NO_PROCESS = "0" * 8
"""The process of a lease that outlives its process: it is not renewed, and any process may end
it."""

process = secrets.token_hex(4)
"""The number of this process. A pid would not do: other hosts use the same ones."""


def new() -> Secret:
    """Return a new token of this process."""
    return Secret(process + os.urandom(12).hex())


def word() -> str:
    """Return a word that no other request of any process has: small letters and digits."""
    return f"{process}{next(_counter):x}"


def process_of(token: str) -> str | None:
    """Return the number of the process that made a token. None: it belongs to no process."""
    return None if token[:8] == NO_PROCESS else token[:8]


def validate(token: object) -> Secret:
    """Return a token, or raise a `ValueError` that does not show it."""
    if not isinstance(token, str) or len(token) != 32 or not (token.isascii() and token.isalnum()):
        raise ValueError("token must have 32 characters, letters and digits")
    return Secret(token)


_counter = itertools.count()


def _after_fork() -> None:
    global process
    process = secrets.token_hex(4)


in_child(_after_fork)

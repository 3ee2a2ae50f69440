"""Tokens: the unguessable proof of ownership, which also tells the process that it belongs to.

A token has 32 hexadecimal characters. The first eight are the number of its process, by which an
operator can see whether that one still lives; the rest is random, or what client.py makes it.
"""

from __future__ import annotations

import os
import secrets

from . import fork

NO_PROCESS = "0" * 8
"""Of a lease that needs no living process: nobody renews it, and anybody may end it."""

process = secrets.token_hex(4)
"""The number of this process. Not its pid, which another one may have, on this host or another."""


class Secret(str):
    """A text with a token in it. Its `repr`, and so the report of a crash, tells nothing of it:
    whoever has the token can end the lease."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'"


def new() -> Secret:
    """A token of this process."""
    return Secret(process + os.urandom(12).hex())


def process_of(token: str) -> str | None:
    """The number of the process that made a token; None: it belongs to none."""
    return None if token[:8] == NO_PROCESS else token[:8]


def validate(token: object) -> Secret:
    """Return a token, or raise a `ValueError` that does not show it."""
    if not isinstance(token, str) or len(token) != 32 or not (token.isascii() and token.isalnum()):
        raise ValueError("token must have 32 characters, letters and digits")
    return Secret(token)


def _after_fork() -> None:
    global process
    process = secrets.token_hex(4)


fork.in_child(_after_fork)

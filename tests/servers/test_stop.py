"""Servers that are stopped while a view holds its lock: it is finished, or free within its ttl."""

from __future__ import annotations

import os
import re
import time
from http.client import HTTPException

import pytest

from tests.servers.conftest import Open
from tests.servers.server import KINDS, Server
from tests.servers.test_shop import FOR_LONG
from tests.servers.visitor import Visitor
from tests.waiting import PATIENCE, eventually

TTL = 2.0
"""Seconds; the shop's setting for its stock."""
SLACK = 5.0
"""For a machine that is busy; the end of a lease itself is precise."""


def is_gone(server: Server) -> bool:
    """No process of it is left, no worker either."""
    try:
        os.killpg(server.process.pid, 0)
    except ProcessLookupError:
        return True
    return False


def free_within_ttl(shop: Visitor, name: str) -> bool:
    """Whether the lock of a process that has just ended becomes free in time."""
    ended = time.monotonic()
    eventually(lambda: not shop.is_held(name))
    return time.monotonic() - ended < TTL + SLACK


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "runserver"])
def test_sigterm_waits_for_a_view(open_shop: Open, kind: str) -> None:
    """The sale is finished and answered, and the lock released, before the server ends."""
    shop = open_shop(kind)
    lamp = shop.product(stock=1)
    buy = shop.ask_meanwhile("POST", f"/products/{lamp}/buy/", FOR_LONG)
    eventually(lambda: shop.is_held(f"stock:{lamp}"))
    shop.server.terminate()
    eventually(lambda: re.search("Handling signal: term|Shutting down", shop.server.log))
    shop.happens(f"paid-{lamp}")
    assert buy.result(PATIENCE).status == 201
    assert not shop.is_held(f"stock:{lamp}")
    shop.server.ends()
    eventually(lambda: is_gone(shop.server))
    assert (shop.stock(lamp), shop.orders(lamp)) == (0, 1)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("runserver", []),
        ("gunicorn sync", ["--graceful-timeout=1"]),
        ("gunicorn gthread", ["--graceful-timeout=1"]),
        ("uvicorn", ["--timeout-graceful-shutdown=1"]),
    ],
    ids=KINDS,
)
def test_sigterm_ends_a_view(open_shop: Open, kind: str, options: list[str]) -> None:
    """Of a server that has no patience, or no more: nothing is sold, and the lock is free within
    its ttl."""
    shop = open_shop(kind, *options)
    lamp = shop.product(stock=1)
    buy = shop.ask_meanwhile("POST", f"/products/{lamp}/buy/", FOR_LONG)
    eventually(lambda: shop.is_held(f"stock:{lamp}"))
    shop.server.terminate()
    shop.server.ends()
    eventually(lambda: is_gone(shop.server))
    assert free_within_ttl(shop, f"stock:{lamp}")
    with pytest.raises((OSError, HTTPException)):
        buy.result(PATIENCE)
    assert (shop.stock(lamp), shop.orders(lamp)) == (1, 0)


def test_no_server_outlives_the_tests(open_shop: Open) -> None:
    """Not even when they are killed: the kernel closes their end of a pipe."""
    server = open_shop("gunicorn sync").server
    assert server.guard.stdin is not None
    server.guard.stdin.close()
    server.ends()
    eventually(lambda: is_gone(server))

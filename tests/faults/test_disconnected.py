"""Another thread disconnects the pool, as DJANGO_REDIS_CLOSE_CONNECTION does."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest
from django.test import override_settings
from redis import Redis

from django_redislock import LockUnavailable, redis_lock
from django_redislock.transport.server import server_of
from tests.faults.caches import caches
from tests.faults.proxy import Fault, Proxy, script
from tests.waiting import PATIENCE, eventually


@pytest.mark.parametrize("within", [None, PATIENCE], ids=["for ever", "in time"])
@pytest.mark.parametrize("name", ["mutex_acquire", "mutex_extend", "mutex_release"])
def test_while_an_answer_is_awaited(
    proxy: Proxy, redis: Redis, name: str, within: float | None
) -> None:
    """The request is asked again, and no error of redis-py's inside leaves the block."""
    with redis_lock("other"):
        pass  # so that an idle connection is there
    rule = proxy.on(script(name), Fault.HOLD_REPLY)

    def disconnect() -> None:
        rule.happened()
        server_of("default").shared_pool().disconnect()

    thread = threading.Thread(target=disconnect)
    thread.start()
    with redis_lock("job", wait=within) as lease:
        if name == "mutex_extend":
            with suppress(LockUnavailable):  # it is not asked twice
                lease.extend()
        assert redis.exists("redislock:{job}")
    thread.join()
    rule.let_go()
    eventually(lambda: not redis.exists("redislock:{job}"))
    assert not server_of("default").shared_pool()._in_use_connections


@pytest.mark.parametrize("kind", ["TypeError", "AttributeError", "ValueError"])
def test_what_redis_py_stumbles_over(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """While it connects: from its own code that is trouble with the connection, from elsewhere a
    mistake."""
    for module, error in (("redis.connection", LockUnavailable), ("shop", eval(kind))):
        scope: dict[str, Any] = {"__name__": module}
        exec(f"def connect(self): raise {kind}('None')", scope)
        with (
            override_settings(CACHES=caches(f"redis://localhost:1?client_name={module}{kind}")),
            monkeypatch.context() as patch,
        ):
            patch.setattr("redis.connection.Connection.connect", scope["connect"])
            with pytest.raises(error):
                redis_lock("job").acquire(wait=0)

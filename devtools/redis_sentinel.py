"""Private Redis Sentinels for tests: they watch a primary, and promote its replica.

with RedisSentinels(primary) as sentinels:
    sentinels.addresses, sentinels.service
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from redis import Redis
from redis.exceptions import RedisError

from .redis_server import (
    START_SECONDS,
    STOP_SECONDS,
    SUPERVISOR,
    RedisServer,
    free_port,
)

DOWN_AFTER = 0.5
"""Seconds without an answer after which a sentinel takes a server for dead."""


class RedisSentinels:
    """Sentinels that decide by majority. `service` is their name for the primary, and unique."""

    def __init__(self, primary: RedisServer, number: int = 3, *, replicas: int = 1) -> None:
        assert primary.tcp_port
        self.addresses = [("127.0.0.1", free_port()) for _ in range(number)]
        self.service = f"shop{self.addresses[0][1]}"
        self._primary = primary
        self._replicas = replicas
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as started:
            for _, port in self.addresses:
                process = self._start(port)
                started.callback(self._stop, process)
            self._await(self._together)
            self._exit = started.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._exit.close()

    def ask(self, *command: Any, at: int = 0) -> Any:
        """Send a command to one sentinel."""
        host, port = self.addresses[at]
        with Redis(host=host, port=port, decode_responses=True) as client:
            return client.execute_command(*command)

    def agree_on(self, primary: RedisServer) -> bool:
        """Whether all sentinels say that this server is the primary."""
        question = "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service
        answers = {int(self.ask(*question, at=at)[1]) for at in range(len(self.addresses))}
        return answers == {primary.tcp_port}

    def _together(self) -> bool:
        """Whether all sentinels know each other and the replicas."""
        for at in range(len(self.addresses)):
            host, port = self.addresses[at]
            with Redis(host=host, port=port, decode_responses=True) as client:
                # Not by redis-py's method: redis-py 6 can't read the answer.
                primary = client.execute_command("SENTINEL MASTER", self.service)
                replicas = client.sentinel_slaves(self.service)
            if primary["num-other-sentinels"] != len(self.addresses) - 1:
                return False
            if sum(replica["flags"] == "slave" for replica in replicas) < self._replicas:
                return False
        return True

    def _await(self, done: Any) -> None:
        give_up = time.monotonic() + 3 * START_SECONDS
        while True:
            try:
                if done():
                    return
            except RedisError:
                pass
            if time.monotonic() > give_up:  # they ask a server for its replicas every ten seconds
                raise TimeoutError("the sentinels don't find each other, or no replica")
            time.sleep(0.02)

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        binary = self._primary.found.binary
        assert binary is not None
        folder = tempfile.mkdtemp(prefix="redislock-sentinel-")
        configuration = Path(folder) / "sentinel.conf"
        quorum = len(self.addresses) // 2 + 1
        configuration.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor {self.service} 127.0.0.1 {self._primary.tcp_port} {quorum}\n"
            f"sentinel down-after-milliseconds {self.service} {round(DOWN_AFTER * 1000)}\n"
            f"sentinel failover-timeout {self.service} 5000\n"
        )
        # It ends with its parent and removes its folder, as a server does.
        return subprocess.Popen(
            [
                *("/bin/sh", "-c", SUPERVISOR, "sentinel-supervisor", folder),
                *(binary, str(configuration), "--sentinel"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @staticmethod
    def _stop(process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(b"stop\n")
        process.wait(STOP_SECONDS)

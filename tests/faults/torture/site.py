"""The servers of a run, and what is done to them: each method of a site is an outage."""

from __future__ import annotations

import random
import shutil
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from redis import Redis
from redis.exceptions import RedisError

from devtools.redis_cluster import RedisCluster
from devtools.redis_sentinel import RedisSentinels
from devtools.redis_server import RedisServer
from tests.faults.proxy import Proxy
from tests.waiting import eventually

LONG = "long"
"""As long as there is such a file, all sections are long."""
JUMP = 0.5
"""Seconds by which a clock is set, at most."""
LATE = 0.12, 0.4
"""Seconds by which an answer comes later. A Redlock with a ttl of 1 s waits for 0.1 s."""
LIBFAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


def faked(offset: Path) -> dict[str, str]:
    """Return the environment of a process whose clock is ahead by what a file says."""
    assert LIBFAKETIME is not None
    return {
        # The C library first, so that its malloc() is used: jemalloc's asks for the time before
        # libfaketime is ready to tell it.
        "LD_PRELOAD": f"{LIBFAKETIME}:libc.so.6",
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


class Site:
    """Some servers that know nothing of each other."""

    url: str
    """Where peers connect to."""
    primaries: list[RedisServer]
    once = False
    """Whether the outage can come once only."""

    def __init__(self, directory: Path, servers: int, seed: int, outage: str) -> None:
        self._directory = directory
        self._number = servers
        self._outage = outage
        self._dice = random.Random(seed)
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as started:
            self.start(started)
            self._exit = started.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._exit.close()

    def start(self, started: ExitStack) -> None:
        self.primaries = [
            started.enter_context(RedisServer(tcp_port=0, args=self._persistence(str(number))))
            for number in range(self._number)
        ]
        self.url = " ".join(_url(server) for server in self.primaries)

    def _long_sections(self) -> Path:
        """From now on sections are long, so that a lease of now is held when a replica takes over.
        Until the file is removed."""
        file = self._directory / LONG
        file.touch()
        return file

    def look(self) -> list[RedisServer]:
        """Return the servers that may have keys at the end."""
        return self.primaries

    def _persistence(self, name: str) -> list[str]:
        """A server that is restarted remembers all that it has answered, if it keeps the data."""
        fsync = {"restart": "always", "old_file": "everysec"}.get(self._outage)
        (self._directory / name).mkdir()
        if fsync is None:
            return []
        data = str(self._directory / name)
        return ["--dir", data, "--appendonly", "yes", "--appendfsync", fsync]

    def restart(self, enough: threading.Event) -> None:
        """Kill a server, and start it again: with its data, if it was told to write them down."""
        server = self._dice.choice(self.primaries)
        server.stop()
        enough.wait(self._dice.uniform(0.0, 0.2))
        server.start()

    empty = restart

    def old_file(self, enough: threading.Event) -> None:
        """The same, with its file as it was up to half a second before."""
        number = self._dice.randrange(self._number)
        data = self._directory / str(number)
        old = data.with_suffix(".old")
        shutil.copytree(data, old)
        enough.wait(self._dice.uniform(0.0, 0.5))
        self.primaries[number].stop()
        shutil.rmtree(data)
        old.rename(data)
        self.primaries[number].start()

    def pause(self, enough: threading.Event) -> None:
        """Stop a server for up to half a second."""
        with self._dice.choice(self.primaries).paused():
            enough.wait(self._dice.uniform(0.05, 0.5))


class Shifted(Site):
    """A server whose clock is set, by libfaketime."""

    def start(self, started: ExitStack) -> None:
        self._offset = self._directory / "offset"
        self._set(0.0)
        server = RedisServer(tcp_port=0, env=faked(self._offset))
        self.primaries = [started.enter_context(server)]
        self.url = _url(self.primaries[0])

    def clock_forward(self, enough: threading.Event) -> None:
        """Set the clock forward."""
        self._set(self._ahead + self._dice.uniform(0.05, JUMP))

    def clock_back(self, enough: threading.Event) -> None:
        """Set it back."""
        self._set(self._ahead - self._dice.uniform(0.05, JUMP))

    def _set(self, ahead: float) -> None:
        self._ahead = ahead
        new = self._offset.with_suffix(".new")
        new.write_text(f"{ahead:+f}\n")
        new.replace(self._offset)


class Delayed(Site):
    """Servers whose answers can come late."""

    def start(self, started: ExitStack) -> None:
        super().start(started)
        self._proxies = [started.enter_context(Proxy(server)) for server in self.primaries]
        self.url = " ".join(proxy.url for proxy in self._proxies)

    def slow(self, enough: threading.Event, members: int = 1) -> None:
        """Let a server answer late for a while."""
        late = self._dice.sample(self._proxies, members)
        for proxy in late:
            proxy.slow = self._dice.uniform(*LATE)
        enough.wait(self._dice.uniform(0.3, 0.8))
        for proxy in late:
            proxy.slow = 0.0

    def slow_majority(self, enough: threading.Event) -> None:
        """Let two of three servers answer late."""
        self.slow(enough, 2)


class Watched(Site):
    """A primary and its replica, watched by a sentinel."""

    once = True

    def start(self, started: ExitStack) -> None:
        self._started = started
        primary = started.enter_context(RedisServer(tcp_port=0, args=_AT_ONCE))
        self._cable = started.enter_context(Proxy(primary))
        self._replica = self._following(self._cable.port)
        sentinels = self._sentinels = started.enter_context(RedisSentinels(primary, number=1))
        self.primaries = [primary]
        [(host, port)] = sentinels.addresses
        self.url = f"sentinel://{host}:{port}/{sentinels.service}"

    def _following(self, port: int) -> RedisServer:
        follow = ["--replicaof", "127.0.0.1", str(port), "--replica-announce-ip", "127.0.0.1"]
        replica = RedisServer(tcp_port=0, args=[*_AT_ONCE, *follow])
        return self._started.enter_context(replica)

    def failover(self, enough: threading.Event) -> None:
        """Cut the replica off, kill the primary a moment later, and give its successor a
        replica."""
        long = self._long_sections()
        self._cable.cut()
        enough.wait(self._dice.uniform(0.2, 0.5))
        self.primaries[0].stop()
        with suppress(RedisError):  # it may have begun by itself
            self._sentinels.ask("SENTINEL", "FAILOVER", self._sentinels.service)
        successor = self._replica
        eventually(lambda: self._sentinels.agree_on(successor) and role(successor) == "master")
        long.unlink()
        self.primaries = [successor]
        assert successor.tcp_port
        self._replica = self._following(successor.tcp_port)


class Sharded(Site):
    """A Redis Cluster of three primaries; for a failover, with a replica each."""

    def start(self, started: ExitStack) -> None:
        self.once = self._outage == "promotion"
        self._cluster = started.enter_context(RedisCluster(replicas=3 if self.once else 0))
        self._names = ["redislock:{torture}", "redislock:{torture-2}"]
        self.url = "cluster://" + ",".join(url.split("//")[1] for url in self._cluster.urls)

    def look(self) -> list[RedisServer]:
        return [node for node in self._cluster.nodes if role(node) == "master"]

    def move(self, enough: threading.Event) -> None:
        """Move the slot of a name to another node, with all that is in it."""
        name = self._dice.choice(self._names)
        owner = self._cluster.owner(name)
        others = [node for node in self._cluster.nodes if node is not owner]
        self._cluster.move(name, self._dice.choice(others))

    def promotion(self, enough: threading.Event) -> None:
        """Kill a primary, and let its replica take over."""
        primary = self._cluster.owner(self._names[0])
        replica = self._cluster.nodes[3 + self._cluster.nodes.index(primary)]
        long = self._long_sections()
        enough.wait(self._dice.uniform(0.2, 0.5))
        primary.stop()
        self._cluster.call(replica, "CLUSTER", "FAILOVER", "TAKEOVER")
        eventually(lambda: role(replica) == "master")
        long.unlink()


SITES = {
    **dict.fromkeys(("clock_forward", "clock_back"), Shifted),
    **dict.fromkeys(("slow", "slow_majority"), Delayed),
    "failover": Watched,
    **dict.fromkeys(("move", "promotion"), Sharded),
}
"""Where outages come that not every site knows."""


def possible(outage: str) -> bool:
    """Whether this machine has what the outage needs."""
    return LIBFAKETIME is not None or SITES.get(outage) is not Shifted


_AT_ONCE = ("--repl-diskless-sync-delay", "0")


def _url(server: RedisServer) -> str:
    return f"redis://127.0.0.1:{server.tcp_port}/0"


def role(server: RedisServer) -> str:
    """Return what it is; "" while it does not answer."""
    try:
        with Redis.from_url(server.url, decode_responses=True) as redis:
            return str(redis.role()[0])
    except (RedisError, OSError):
        return ""

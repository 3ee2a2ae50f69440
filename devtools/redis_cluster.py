"""A private Redis Cluster for tests: started, formed, harmed, and gone with its parent.

    with RedisCluster() as cluster:
        cluster.urls
        cluster.owner("{invoice:42}").pause()

Each node is a `RedisServer` with `cluster-enabled`. They are told of each other and of their slots
by hand, as `redis-cli --cluster create` does, so that nothing but the server is needed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from typing import Any, Self

from redis import Redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import RedisError

from .redis_server import START_SECONDS, RedisServer

NODE_TIMEOUT = 15.0
"""Seconds without an answer after which the others take a node for dead: no busy machine takes so
long to answer. A test that kills one wants it shorter."""

BUS = 10_000
"""Distance between a node's port for clients and its port for other nodes."""


class RedisCluster:
    """Three primaries, by default without replicas. `args` are further options of each node."""

    def __init__(
        self,
        primaries: int = 3,
        replicas: int = 0,
        *,
        node_timeout: float = NODE_TIMEOUT,
        args: Sequence[str] = (),
    ) -> None:
        self._number = primaries
        self._replicas = replicas
        self._node_timeout = node_timeout
        self._args = args
        self._exit = ExitStack()
        self.nodes: list[RedisServer] = []
        """The primaries, and then the replicas in the order of their primaries."""

    @property
    def urls(self) -> list[str]:
        """URLs of the nodes."""
        return [f"redis://127.0.0.1:{node.tcp_port}" for node in self.nodes]

    def __enter__(self) -> Self:
        with ExitStack() as started:
            for _ in range(self._number + self._replicas):
                self.nodes.append(started.enter_context(_node(self._node_timeout, self._args)))
            self._form()
            self._exit = started.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._exit.close()

    @contextmanager
    def ask(self, node: RedisServer) -> Iterator[Redis]:
        """Return a plain client of one node."""
        with Redis.from_url(node.url, decode_responses=True) as client:
            yield client

    def call(self, node: RedisServer, *command: Any) -> Any:
        """Send one command to one node."""
        with self.ask(node) as client:
            return client.execute_command(*command)

    def owner(self, key: str) -> RedisServer:
        """Return the primary that has a key."""
        slot = key_slot(key.encode())
        for first, last, (_, port, *_), *_ in self.call(self._alive(), "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.tcp_port == port)
        raise LookupError(f"nobody has the slot of {key!r}")

    def id(self, node: RedisServer) -> str:
        """Return the id of a node."""
        return str(self.call(node, "CLUSTER", "MYID"))

    def migrating(self, key: str, target: RedisServer) -> None:
        """Begin to move the slot of a key from its node to another one."""
        source, slot = self.owner(key), key_slot(key.encode())
        self.call(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id(source))
        self.call(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id(target))

    def migrate_keys(self, key: str, source: RedisServer, target: RedisServer) -> int:
        """Move the keys that the slot has now. Returns their number."""
        slot, moved = key_slot(key.encode()), 0
        while keys := self.call(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
            address = "127.0.0.1", target.tcp_port
            self.call(source, "MIGRATE", *address, "", 0, 5000, "KEYS", *keys)
            moved += len(keys)
        return moved

    def migrated(self, key: str, target: RedisServer) -> None:
        """Let the slot of a key belong to another node, and tell all nodes."""
        slot, its_id = key_slot(key.encode()), self.id(target)
        for node in [target, *(node for node in self.nodes if node is not target)]:
            with self.ask(node) as client:
                if client.role()[0] == "master":
                    client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", its_id)

    def move(self, key: str, target: RedisServer) -> None:
        """Move the slot of a key, with all that is in it, to another node."""
        source = self.owner(key)
        self.migrating(key, target)
        self.migrate_keys(key, source, target)
        self.migrated(key, target)

    def move_at_once(self, key: str, target: RedisServer) -> None:
        """Move the slot of a key as a whole, as Valkey does from version 9 on, and return when its
        node and the target know that it is done. Raises `ResponseError` on other servers."""
        source, slot = self.owner(key), key_slot(key.encode())
        to = ("SLOTSRANGE", slot, slot, "NODE", self.id(target))
        self.call(source, "CLUSTER", "MIGRATESLOTS", *to)
        self._wait(lambda: self._has(target, slot) and not self._has(source, slot))

    def settle(self) -> None:
        """Wait until all nodes know that all slots are served."""
        self._wait(lambda: all(self._ok(node) for node in self.nodes if node.running))

    def _alive(self) -> RedisServer:
        return next(node for node in self.nodes if node.running)

    def _form(self) -> None:
        primaries, replicas = self.nodes[: self._number], self.nodes[self._number :]
        bounds = [REDIS_CLUSTER_HASH_SLOTS * i // self._number for i in range(self._number + 1)]
        for epoch, node in enumerate(primaries):
            first, end = bounds[epoch : epoch + 2]
            self.call(node, "CLUSTER", "SET-CONFIG-EPOCH", epoch + 1)
            # ADDSLOTSRANGE would take two numbers, but needs Redis 7.0.
            self.call(node, "CLUSTER", "ADDSLOTS", *range(first, end))
        for node in self.nodes[1:]:
            self.call(node, "CLUSTER", "MEET", "127.0.0.1", self.nodes[0].tcp_port)
        self._wait(lambda: all(self._knows(node) for node in self.nodes))
        for replica, primary in zip(replicas, cycle(primaries), strict=False):
            self.call(replica, "CLUSTER", "REPLICATE", self.id(primary))
        self._wait(lambda: all(self._follows(replica) for replica in replicas))
        self.settle()

    def _knows(self, node: RedisServer) -> bool:
        with self.ask(node) as client:
            nodes = client.cluster("nodes")
        return len(nodes) == len(self.nodes) and not any(
            {"handshake", "noaddr"} & set(its["flags"].split(",")) for its in nodes.values()
        )

    def _has(self, node: RedisServer, slot: int) -> bool:
        """Return whether a node takes a slot for its own."""
        return any(
            first <= slot <= last and port == node.tcp_port
            for first, last, (_, port, *_), *_ in self.call(node, "CLUSTER", "SLOTS")
        )

    def _ok(self, node: RedisServer) -> bool:
        with self.ask(node) as client:
            return str(client.cluster("info")["cluster_state"]) == "ok"

    def _follows(self, node: RedisServer) -> bool:
        with self.ask(node) as client:
            return client.info("replication").get("master_link_status") == "up"

    @staticmethod
    def _wait(done: Callable[[], bool]) -> None:
        give_up = time.monotonic() + START_SECONDS
        while True:
            try:
                if done():
                    return
            except RedisError:
                pass
            if time.monotonic() > give_up:
                raise TimeoutError("the nodes don't come together to a cluster")
            time.sleep(0.02)


def _node(timeout: float, args: Sequence[str]) -> RedisServer:
    options = [
        *("--cluster-enabled", "yes"),
        *("--cluster-node-timeout", str(round(timeout * 1000))),
        *("--cluster-replica-validity-factor", "0"),
        *("--repl-diskless-sync-delay", "0"),
        *args,
    ]
    return RedisServer(tcp_port=_free_ports(), args=options)


def _free_ports() -> int:
    """Return a free port whose matching port for nodes is free, too."""
    while True:
        with socket.socket() as probe, socket.socket() as bus:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            with suppress(OSError, OverflowError):
                bus.bind(("127.0.0.1", port + BUS))
                return port

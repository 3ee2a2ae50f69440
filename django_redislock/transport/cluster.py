"""Redis Cluster: the map of slots and nodes, and a pool for each node.

1.  A key's *slot* is a checksum of its hash tag. All keys of a name share theirs, so a script
    touches one slot, and with it one node.
2.  A node that does not have the slot (any more) names the node that has it: MOVED. The command
    was not carried out, and is sent there. While a slot is being moved, ASK sends a command to its
    next node, behind ASKING on the same connection.
3.  Nothing else is sent again from here. A lost answer is `LockUnavailable`, as with a single
    server, and the caller decides whether to repeat the request.
4.  After a node did not answer, another one is asked for the map, since a replica may have taken
    its place.

redis-py's `RedisCluster` does all that, too, but it repeats commands silently, and WAIT has to use
the connection that has written. So we only need the map.

Source: the Redis Cluster specification.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, ReadOnlyError, ResponseError

from ..base.clock import now
from ..base.exceptions import LockUnavailable
from ..primitives.contract import NO_TERMS, Terms
from ..primitives.keys import name_of
from ..primitives.waiting import NEVER, chance
from .protocol import ASKING, Command, pack

Node = tuple[str, int]
"""Its host and port."""

Pool = TypeVar("Pool")
Send = Callable[..., Awaitable[Any]]
"""Sends a command to the node of a pool, as `command.carry_out`."""

SLOTS = Command(pack(("CLUSTER", "SLOTS")))
HOPS = 5
"""How often one command is redirected, while the nodes don't agree which of them has the slot."""


def slot_of(key: str) -> int:
    """Return the slot of a key."""
    return key_slot(key.encode(errors="surrogateescape"))


class Cluster(Generic[Pool]):
    """The pools of a cluster: one for each node. `make` makes it when it is first needed."""

    def __init__(self, seeds: Sequence[Node], make: Callable[[Node], Pool]) -> None:
        self.seeds = tuple(seeds)
        self._make = make
        self._pools: dict[Node, Pool] = {}
        self._slots: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._stale = True
        self.failed: set[Node] = set()
        """The nodes that did not answer when they were last asked."""

    def pool(self, node: Node) -> Pool:
        """Return the pool of a node."""
        found = self._pools.get(node)
        if found is None:
            found = self._pools.setdefault(node, self._make(node))
        return found

    def pools(self) -> list[Pool]:
        """Return all pools that were made so far."""
        return list(self._pools.values())

    def node_of(self, key: str) -> Node | None:
        """Return the node that has a key, if that is known without a question."""
        return self._slots[slot_of(key)]

    async def primaries(self, send: Send) -> list[Pool]:
        """Return the pools of the nodes that have slots. Raises `LockUnavailable`."""
        await self._read_map(send, NEVER)
        return [self.pool(node) for node in sorted({node for node in self._slots if node})]

    async def execute(
        self, command: Command, send: Send, terms: Terms = NO_TERMS, until: float = NEVER
    ) -> Any:
        """Send a script to the node that has its first key. Raises `LockUnavailable`."""
        key = command.key
        slot = slot_of(key)
        if self._stale or self._slots[slot] is None:
            await self._read_map(send, until, key)
        node, asking = self._slots[slot], False
        if node is None:
            self._stale = True
            raise unavailable(key, f"no node of the cluster serves its slot {slot}")
        for _ in range(HOPS):
            try:
                its = command.behind(ASKING) if asking else command
                answer = await send(self.pool(node), its, terms, until)
            except LockUnavailable as error:
                cause = error.__cause__
                if isinstance(cause, AskError):  # MOVED is one, too
                    asking = not isinstance(cause, MovedError)
                    node = cause.host or node[0], cause.port
                    if not asking:
                        self._slots[slot] = node
                    continue
                if not isinstance(cause, ResponseError):
                    self.failed.add(node)
                    self._stale = True
                elif isinstance(cause, ClusterDownError | ReadOnlyError):
                    self._stale = True
                raise
            self.failed.discard(node)
            return answer
        self._stale = True
        raise unavailable(
            key,
            f"the nodes of the cluster don't agree which of them has the key: they redirected "
            f"the request {HOPS} times",
        )

    async def _drop_pools(self) -> None:
        """Drop the pools of nodes that have left. Otherwise nodes that come back with new
        addresses would make more and more pools."""
        for node in set(self._pools).difference(self._slots, self.seeds):
            self.failed.discard(node)
            pool: Any = self._pools.pop(node, None)
            # Connections that are in use are closed by their users, or the garbage collector.
            if pool is not None:
                pool.disconnect(inuse_connections=False)

    async def _read_map(self, send: Send, until: float, key: str = "") -> None:
        """Ask any node for the map of slots and nodes."""
        self._stale = False  # other threads use the old map meanwhile
        nodes = list({node for node in self._slots if node} | set(self.seeds))
        chance.shuffle(nodes)
        nodes.sort(key=self.failed.__contains__)
        error: LockUnavailable | None = None
        passing, away = False, True
        for node in nodes:
            try:
                # Half of the time at most, so that another node can be asked.
                half = until if until == NEVER else (now() + until) / 2
                ranges = await send(self.pool(node), SLOTS, NO_TERMS, half)
                slots = _map(ranges, node)
            except LockUnavailable as its:
                self.failed.add(node)
                error = its
                passing |= its.passing
                away &= its.away
                if not its.passing and not isinstance(its, _NoMap):
                    passing = False
                    break  # wrong password, or no cluster at all
            except BaseException:
                self._stale = True
                raise
            else:
                self.failed.discard(node)
                self._slots = slots
                await self._drop_pools()
                return
        assert error is not None
        self._stale = True
        unknown = unavailable(
            key,
            f"no node of the cluster could say which one has the key: {error.why or error}",
            passing=passing,
            silent=error.silent,
        )
        unknown.away = away
        raise unknown from error.__cause__


class _NoMap(LockUnavailable):
    """A node's answer is no map. Another node may do better; this one would most likely give the
    same answer again."""


def unavailable(
    key: str, why: str, *, doubtful: bool = False, passing: bool = True, silent: bool = False
) -> LockUnavailable:
    """Return the error for a request about a key, and why there is no answer that says more."""
    return LockUnavailable(
        f"Redis could not be reached: {why}",
        name_of(key),
        why=why,
        doubtful=doubtful,
        passing=passing,
        silent=silent,
    )


def _map(ranges: Any, asked: Node) -> list[Node | None]:
    """Read the answer to CLUSTER SLOTS. Raises `LockUnavailable` if it is no map."""
    slots: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    try:
        for first, last, (host, port, *_), *_ in ranges:
            if host == b"?":
                continue  # this node does not know its own address yet
            # Without a host it is the node that was asked.
            node = (host.decode() if host else asked[0], int(port))
            for slot in range(first, min(last + 1, REDIS_CLUSTER_HASH_SLOTS)):
                slots[slot] = node
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise _NoMap(
            f"{asked[0]}:{asked[1]} has given an answer to CLUSTER SLOTS that can't be read",
            passing=False,
        ) from error
    return slots

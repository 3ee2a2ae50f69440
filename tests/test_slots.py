"""The map of a cluster: what is asked where, when nodes disagree, or don't answer."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MovedError,
    OutOfMemoryError,
)

from django_redislock import LockUnavailable
from django_redislock.primitives.contract import run
from django_redislock.transport.cluster import HOPS, SLOTS, Cluster, _map, slot_of
from django_redislock.transport.entries import url_of
from django_redislock.transport.protocol import ASKING, Command, script

A, B, C = ("a", 1), ("b", 2), ("c", 3)
KEY = "redislock:{job}"
COMMAND = script("0" * 40, [KEY], ["take"])
Asked = tuple[tuple[str, int], str, bool]


def word_of(command: Command) -> str:
    return "CLUSTER" if command is SLOTS else "EVALSHA"


class Pool:
    """That of one node."""

    def __init__(self, node: tuple[str, int]) -> None:
        self.node = node
        self.connection_kwargs: dict[str, Any] = {}
        self.closed = False

    def disconnect(self, *, inuse_connections: bool) -> None:
        assert not inuse_connections
        self.closed = True


class Nodes:
    """They answer as a test says: what, or with which error."""

    def __init__(self, ranges: list[Any], *seeds: tuple[str, int]) -> None:
        self.ranges: Any = ranges
        self.answers: dict[tuple[str, int], list[Any]] = {}
        self.away: set[tuple[str, int]] = set()
        self.confused: set[tuple[str, int]] = set()
        self.asked: list[Asked] = []
        self.cluster: Cluster[Pool] = Cluster(seeds or (A,), Pool)

    async def send(self, pool: Pool, command: Command, *_: Any) -> Any:
        asking = command.packed.startswith(ASKING)
        assert command.before == asking
        self.asked.append((pool.node, word_of(command), asking))
        answer: Any = "done"
        if pool.node in self.away:
            answer = redis.ConnectionError("refused")
        elif command is SLOTS:
            answer = 7 if pool.node in self.confused else self.ranges
        elif self.answers.get(pool.node):
            answer = self.answers[pool.node].pop(0)
        if isinstance(answer, Exception):
            raise LockUnavailable(str(answer), passing=True) from answer
        return answer

    def ask(self) -> Any:
        self.asked.clear()
        return run(self.cluster.execute(COMMAND, self.send))

    def scripts(self) -> list[tuple[str, int]]:
        return [node for node, word, _ in self.asked if word == "EVALSHA"]

    def maps(self) -> int:
        return sum(word == "CLUSTER" for _, word, _ in self.asked)


def everything(host: bytes | None, port: int) -> list[Any]:
    """One node has all slots; it has a replica, which is not asked."""
    return [[0, 16383, [host, port, b"id", []], [b"r", 9, b"id", []]]]


def test_the_map_is_read_once() -> None:
    """From a seed; and then each script goes to its node."""
    nodes = Nodes(everything(b"b", 2))
    assert nodes.ask() == "done"
    assert nodes.asked == [(A, "CLUSTER", False), (B, "EVALSHA", False)]
    nodes.ask()
    assert nodes.asked == [(B, "EVALSHA", False)]
    assert nodes.cluster.node_of(KEY) == B


def test_moved() -> None:
    """It is followed, and remembered for that slot."""
    nodes = Nodes(everything(b"b", 2))
    nodes.answers[B] = [MovedError("1 c:3")]
    assert nodes.ask() == "done"
    assert nodes.scripts() == [B, C]
    nodes.ask()
    assert nodes.scripts() == [C]
    other = "redislock:{another}"
    assert slot_of(other) != slot_of(KEY)
    assert nodes.cluster.node_of(other) == B


def test_moved_to_where_it_came_from() -> None:
    """A node that does not know its own address says a port only."""
    nodes = Nodes(everything(b"b", 2))
    nodes.answers[B] = [MovedError("1 :7")]
    nodes.ask()
    assert nodes.scripts() == [B, ("b", 7)]


def test_ask() -> None:
    """It is followed behind ASKING, once: the slot has not moved yet."""
    nodes = Nodes(everything(b"b", 2))
    nodes.answers[B] = [AskError("1 c:3")]
    nodes.ask()
    assert nodes.asked[1:] == [(B, "EVALSHA", False), (C, "EVALSHA", True)]
    nodes.ask()
    assert nodes.asked == [(B, "EVALSHA", False)]


def test_nodes_that_do_not_agree() -> None:
    """It ends, and may be tried again."""
    nodes = Nodes(everything(b"b", 2))
    nodes.answers = {B: [MovedError("1 c:3")] * 9, C: [MovedError("1 b:2")] * 9}
    with pytest.raises(LockUnavailable, match="don't agree") as caught:
        nodes.ask()
    assert len(nodes.scripts()) == HOPS
    assert caught.value.passing
    assert not caught.value.doubtful


def test_a_node_that_is_away() -> None:
    """The command is not repeated; the next one begins with a new map, from another node."""
    nodes = Nodes(everything(b"b", 2), A, B)
    nodes.ask()
    nodes.away = {B}
    with pytest.raises(LockUnavailable):
        nodes.ask()
    assert nodes.asked == [(B, "EVALSHA", False)]
    nodes.ranges = everything(b"c", 3)
    for _ in range(5):
        nodes.cluster._stale = True
        assert nodes.ask() == "done"
        assert nodes.asked[0][0] in (A, C)  # the one that did not answer comes last
        assert nodes.scripts() == [C]


@pytest.mark.parametrize(
    ("error", "again"), [(ClusterDownError("down"), 1), (OutOfMemoryError("OOM"), 0)]
)
def test_which_answers_make_the_map_doubtful(error: Exception, again: int) -> None:
    """Those that tell of a change."""
    nodes = Nodes(everything(b"b", 2))
    nodes.ask()
    nodes.answers[B] = [error]
    with pytest.raises(LockUnavailable):
        nodes.ask()
    nodes.ask()
    assert nodes.maps() == again


def test_nobody_can_be_asked() -> None:
    """All are tried, and the error names the lock."""
    nodes = Nodes(everything(b"b", 2), A, C)
    nodes.away = {A, C}
    with pytest.raises(LockUnavailable, match="no node of the cluster could say") as caught:
        nodes.ask()
    assert nodes.maps() == 2
    assert caught.value.name == "job"
    assert not caught.value.doubtful
    nodes.away = set()
    assert nodes.ask() == "done"


def test_a_refusal_is_final() -> None:
    """Another node would say the same."""
    nodes = Nodes([], A, C)

    async def send(pool: Pool, command: Command, *_: Any) -> Any:
        nodes.asked.append((pool.node, word_of(command), False))
        raise LockUnavailable("wrong password", passing=False) from AuthenticationError("no")

    with pytest.raises(LockUnavailable, match="no") as caught:
        run(nodes.cluster.execute(COMMAND, send))
    assert nodes.maps() == 1
    assert not caught.value.passing


def test_a_slot_without_a_node() -> None:
    """A cluster that is not complete may become so."""
    slot = slot_of(KEY)
    ranges = [[0, slot - 1, [b"b", 2, b"id"]], [slot + 1, 16383, [b"b", 2, b"id"]]]
    nodes = Nodes(ranges)
    for _ in range(2):
        with pytest.raises(LockUnavailable, match=f"serves its slot {slot}") as caught:
            nodes.ask()
        assert nodes.maps() == 1
        assert caught.value.passing


@pytest.mark.parametrize("host", [None, b""])
def test_a_node_that_does_not_say_where_it_is(host: bytes | None) -> None:
    """It is where it was asked; one whose address is unknown is left out."""
    nodes = Nodes([[0, 100, [b"?", 5, b"id"]], [101, 16383, [host, 2, b"id"]]])
    nodes.ask()
    assert nodes.scripts() == [("a", 2)]
    assert len(run(nodes.cluster.primaries(nodes.send))) == 1


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://old:6379", "redis://new:7000"),
        (
            "rediss://me:secret@old/0?ssl_cert_reqs=none",
            "rediss://me:secret@new:7000/0?ssl_cert_reqs=none",
        ),
    ],
)
def test_the_url_of_another_node(url: str, expected: str) -> None:
    """All but host and port stays."""
    assert url_of(url, ("new", 7000)) == expected
    assert url_of("redis://old", ("::1", 7000)) == "redis://[::1]:7000"


def test_pools_of_nodes_that_have_left() -> None:
    """They are closed when a map without them is read; a seed is kept."""
    nodes = Nodes(everything(b"b", 2))
    nodes.ask()
    gone = nodes.cluster.pool(B)
    nodes.ranges = everything(b"c", 3)
    run(nodes.cluster.primaries(nodes.send))
    nodes.ask()
    assert gone.closed
    assert {pool.node for pool in nodes.cluster.pools()} == {A, C}
    assert not any(pool.closed for pool in nodes.cluster.pools())


@pytest.mark.parametrize(
    "answer",
    [None, 7, b"text", [7], [None], [[0, 5]], [[0, 5, []]], [[0, 5, [b"a", b"x"]]],
     [[b"0", 5, [b"a", 1]]], [[0, None, [b"a", 1]]], [[-99999, 5, [b"a", 1]]],
     [[0, 10**30, [7, 1]]]],
    ids=str,
)  # fmt: skip
def test_an_answer_that_is_no_map(answer: Any) -> None:
    """It is trouble with that node, whatever it is."""
    with pytest.raises(LockUnavailable):
        _map(answer, A)


def test_a_node_that_gives_no_map() -> None:
    """Another one is asked; it may be better next time only if one of them did not answer."""
    nodes = Nodes(everything(b"b", 2), A, B, C)
    nodes.confused = {A, B}
    assert nodes.ask() == "done"
    nodes = Nodes(everything(b"b", 2), A, B, C)
    nodes.confused = {A, B, C}
    with pytest.raises(LockUnavailable, match="can't be read") as caught:
        nodes.ask()
    assert not caught.value.passing
    assert nodes.maps() == 3
    nodes.confused, nodes.away = {A, B}, {C}
    with pytest.raises(LockUnavailable) as caught:
        nodes.ask()
    assert caught.value.passing

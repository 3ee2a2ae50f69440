"""The waiters of one process, by the queue in which they stand.

Only the first waiter of each queue asks for the lock from time to time. The others rest until they
are woken, and one request of the process shows that all of them live. So a wait costs requests of
each process, and not of each waiter.
"""

from __future__ import annotations

from ..base import tokens as words
from ..base.exceptions import LockError
from ..base.rlocks import rlock
from ..primitives import scripts
from ..primitives.contract import Terms, Word, run
from ..primitives.keys import Keys
from ..primitives.shapes import SHAPES
from .command import SyncExchange
from .server import Server

AT_ONCE = 500
"""Waiters in one request, which keeps Redis busy for a millisecond or two."""

SCRIPT = "queue_present"
WITHIN = 2.0
"""Seconds for an answer."""

Queue = tuple[str, str]
"""The keys of a queue, and of what its waiters say of themselves."""


class Crowds:
    """The waiters at one server that stand in one queue each."""

    def __init__(self) -> None:
        self._tokens: dict[Queue, dict[str, None]] = {}
        """The tokens of the waiters in each queue, in the order in which they came."""
        self._queues: dict[str, Queue] = {}
        """The queue of each token."""
        self._resting: set[str] = set()
        # A signal's handler that waits for a lock may interrupt its own thread in here.
        self._changing = rlock()

    def join(self, token: str, keys: Keys) -> None:
        queue = keys.queue, keys.waiters
        with self._changing:
            self._queues[token] = queue
            self._tokens.setdefault(queue, {})[token] = None

    def leave(self, token: str) -> None:
        """Forget a waiter. May be repeated."""
        with self._changing:
            self._resting.discard(token)
            queue = self._queues.get(token)
            if queue is not None:
                tokens = self._tokens.get(queue, {})
                tokens.pop(token, None)
                if not tokens:
                    self._tokens.pop(queue, None)
                self._queues.pop(token, None)

    def rests(self, token: str) -> bool:
        """Return whether this waiter does not ask by itself from now on, since another one stands
        before it."""
        with self._changing:
            queue = self._queues.get(token)
            rests = queue is not None and next(iter(self._tokens[queue])) != token
            (self._resting.add if rests else self._resting.discard)(token)
            return rests

    @property
    def any_rests(self) -> bool:
        return bool(self._resting)

    def next_ones(self) -> list[str]:
        """Return the waiters that rest, though they are the first of their queues by now."""
        with self._changing:
            if not self._resting:
                return []
            firsts = [next(iter(tokens)) for tokens in self._tokens.values()]
            return [token for token in firsts if token in self._resting]

    def standing(self, keys: Keys) -> list[str]:
        """Return the waiters in the queue of a lock."""
        with self._changing:
            return [*self._tokens.get((keys.queue, keys.waiters), ())]

    def resting(self) -> list[tuple[Queue, list[str]]]:
        """Return the waiters that rest, in parts for one request each."""
        parts: list[tuple[Queue, list[str]]] = []
        with self._changing:
            for queue, tokens in self._tokens.items():
                resting = [token for token in tokens if token in self._resting]
                parts += [
                    (queue, resting[first : first + AT_ONCE])
                    for first in range(0, len(resting), AT_ONCE)
                ]
        return parts


def present(server: Server, queue: Queue, tokens: list[str]) -> list[str]:
    """Show that these waiters live. Return those that stand in the queue no more: they were handed
    the lock, or passed over. Without an answer nothing is known, and nobody is returned."""
    # As EVAL: it is rare, and the server may have forgotten a script.
    source = scripts.load(SCRIPT).source
    command: tuple[Word, ...] = ("EVAL", source, len(queue), *queue, words.word(), *tokens)
    try:
        pool = server.shared_pool()
        answer = run(server.execute(SyncExchange, pool, command, Terms(WITHIN)))
    except LockError:
        return []
    gone = answer if SHAPES[SCRIPT](answer, len(queue)) else []
    return [tokens[position - 1] for position in gone if 0 < position <= len(tokens)]

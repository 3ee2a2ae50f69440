"""The contract of all primitives: what they take, what they answer, and the port that they
await."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from ..base.exceptions import LeaseLost, LeaseRevoked, LockNotAcquired, LockUnavailable
from ..base.holder import Holder
from ..base.label import read

if TYPE_CHECKING:
    from .keys import Keys

T = TypeVar("T")

Word = str | int | bytes
"""A part of a command."""


class Terms(NamedTuple):
    """Conditions of a command beyond its answer."""

    within: float | None = None
    """Seconds for the answer, and for connecting if that is needed. The time-outs of the CACHES
    entry may be shorter. None: only these time-outs count."""
    replicas: int = 0
    """The number of replicas that must have the writes of the command."""
    replicas_timeout: float = 1.0
    """Seconds that the replicas have to confirm it."""


NO_TERMS = Terms()


Learned = Literal["", "process", "message", "look"]
"""How a wait ended: by another thread or task of the process, by a message, or by itself. "":
there was none."""


class Port(Protocol):
    """Everything that a primitive may await. Times are seconds."""

    learned: Learned
    """How the last wait ended."""

    def now(self) -> float:
        """Return the time of a clock that nobody sets."""

    def uniform(self, low: float, high: float) -> float:
        """Return a random number, so that not all waiters ask at once."""

    async def script(self, name: str, keys: Sequence[str], args: Sequence[Word]) -> Any:
        """Run lua/<name>.lua in one round trip. Raises `LockUnavailable`, `LockError`.

        The answer is known by the first of `args`: the token of a claim, or `tokens.word()`. All
        keys must be in one slot, except those that are `Shared`.
        """

    def limit(self, left: float) -> None:
        """Limit the time of all requests from now on to this number of seconds together, or to
        `LEAST` if that is more. Infinity: each request may take as long as the CACHES entry
        says."""

    def slot(self, key: str) -> int:
        """Return the slot of a key: one script may have keys of the same slot only. On one
        primary, all keys have the same. That a server has slots may turn out only when it refuses
        a script: then their keys have other slots from then on."""

    async def ask_all(
        self,
        servers: Sequence[str],
        name: str,
        keys: Sequence[str],
        args: Sequence[Word],
        *,
        within: float,
        enough: Callable[[Sequence[Any]], bool],
    ) -> Sequence[Any]:
        """Run lua/<name>.lua on several servers at the same time.

        Returns the answer of each server, in order, or a `LockError` if it gave none within
        `within` seconds. As soon as the answers are `enough`, the other servers get only as much
        time again; they still get the request.
        """

    async def sleep(self, seconds: float) -> None: ...

    async def listen(self, token: str, *, within: float, keys: Sequence[Keys]) -> str:
        """Return the inbox for the message that `token` has the lock. `keys` are those of the
        locks for which it may wait.

        Only a process that has to wait begins to listen; this waits up to `within` seconds for
        that. Returns `DEAF` if it does not listen yet, or if its connection is lost.
        """

    async def wait(self, seconds: float, left: float, *, rest: float = 0.0) -> Grant | None:
        """Wait for the message, for `seconds` at most; this may also end for no reason.

        A token that stands in the queue, and will get messages, waits for up to `rest` seconds if
        its process keeps its place.

        Without a message the token then stands in line until `left` seconds are over, so that
        the waiters of one process don't all send their next script at the same time. Returns
        the grant if this process handed the lock over to the token.
        """

    def own_inbox(self, keys: Keys) -> str:
        """Return the inbox of this process for a lock; "": none of its threads and tasks waits."""

    def wake_neighbours(self, keys: Keys) -> None:
        """Let the waiters of this process for a lock ask who has it, since nobody knows what came
        of a release that names `own_inbox`."""

    async def hand_over(self, grants: Sequence[tuple[str, Grant]]) -> None:
        """Wake the waiters of this process that have these tokens: they hold the lock now, by
        these grants."""

    def unlisten(self) -> None:
        """Stop waiting for the token."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Finish a coroutine that awaits nothing but a `SyncPort`, whose methods never suspend."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("a primitive awaited something other than its port")


@dataclass(slots=True)
class Claim:
    """One attempt to hold a name, and the state of its requests."""

    keys: Keys
    token: str
    ttl: float
    owner: str
    label: str
    primitive: Primitive
    """The algorithm by which it is held."""
    sent: bool = False
    """A request may have reached the server."""
    doubtful: bool = False
    """An answer was lost, so a request may still be on its way."""
    given_back: bool = False
    """A release was sent whose answer was lost."""
    released: tuple[str, ...] = ()
    """The keys of its locks that were released. A release that is repeated, or that another one
    overtakes, does not find them."""
    guarded: bool = False
    """After lost data the lock is not given to it for a ttl, and its lease is put back."""
    granted: Grant | None = None
    """What the server has granted."""
    owed: bool = False
    """The release writes a record that has to be written, even if the lease ends before Redis
    answers."""
    parts: tuple[Keys, ...] = ()
    """The keys of each name, if the claim is on several names. `keys` are then not in Redis."""
    fencing_tokens: dict[str, int] = field(default_factory=dict)
    """The fencing token of each of these names."""

    @property
    def says(self) -> str:
        """What the claim says of itself in Redis: owner|label. The owner has no "|"."""
        return f"{self.owner}|{self.label}"

    @property
    def watched_keys(self) -> tuple[Keys, ...]:
        """Keys of all locks that this claim holds, and the keys of the claim itself: the watchdog
        finds the lease by each of them."""
        if not self.parts and not self.keys.timestamp_key:
            return (self.keys,)
        return (self.keys, *self.parts, *self._timestamp_keys)

    @property
    def renewed_keys(self) -> tuple[Keys, ...]:
        """Keys of the locks that a renewal extends."""
        return (*(self.parts or (self.keys,)), *self._timestamp_keys)

    @property
    def _timestamp_keys(self) -> tuple[Keys, ...]:
        return (self.keys.of_timestamp(),) if self.keys.timestamp_key else ()


class Grant(NamedTuple):
    """A lease that the server has given."""

    fencing_token: int | None
    """None: this primitive has none; `unfenced` says why."""
    acquired_us: int
    sent: float
    """When the request that got the lock was sent, by the clock of this process."""
    untold: bool = False
    """A release has handed the lock over, and the waiter found out by asking, although it
    listened: no message came."""


class Refusal(NamedTuple):
    """The reason why we do not hold a lease, as far as the server knows it."""

    holder: bytes | None
    gone: bytes | None
    name: str | None = None
    """The name, if the claim is on several names."""

    def __repr__(self) -> str:
        return f"<Refusal: {self.error('…').why}>"  # the holder's token is not to be shown

    @property
    def forgotten(self) -> bool:
        """Whether the server knows nothing of the lease, nor of another one."""
        return self.holder is None and self.gone is None

    @property
    def revoked(self) -> bool:
        return (self.gone or b"").startswith(b"cleared|")

    def error(self, name: str) -> LeaseLost:
        name = self.name or name
        kind, by, reason = [*(self.gone or b"").split(b"|", 2), b"", b""][:3]
        if kind == b"cleared":  # as lua/mutex_clear.lua wrote it
            return LeaseRevoked(name, read(by), read(reason))
        if kind == b"withdrawn":
            return LeaseLost(name, "it was withdrawn earlier")
        if self.holder is None:
            return LeaseLost(name, "its ttl passed unrenewed, or its key was deleted")
        owner = Holder.parse(self.holder, -1, 0).owner
        return LeaseLost(name, f"{owner or 'another program'} holds the lock now")


class Sight(NamedTuple):
    """A holder as an operator saw it. The token binds the next action to what was seen."""

    token: bytes
    """The token; or the whole of a foreign value."""
    holder: Holder

    def __repr__(self) -> str:
        return f"<Sight: {self.holder}>"  # without the token

    @classmethod
    def of(cls, value: bytes, holder: Holder) -> Sight:
        return cls(value if holder.owner is None else value[:32], holder)


class Primitive(Protocol):
    """One algorithm: a module, or an object if it has parameters. Each method raises
    `LockUnavailable` if nothing is known of what it did."""

    @property
    def kind(self) -> str:
        """The name of the algorithm, for settings, exports and people."""

    @property
    def unfenced(self) -> str:
        """The reason why its leases have no fencing token; "": they have one."""

    async def acquire(
        self, port: Port, claim: Claim, wait: float | None
    ) -> Grant | LockNotAcquired:
        """Hold `claim`, waiting for up to `wait` seconds (0: try once, None: without end).

        After any exception the caller owes a `release`."""

    async def release(self, port: Port, claim: Claim) -> Refusal | None:
        """Release the lease, or leave the queue. None: released, now or before. It may be
        repeated."""

    async def extend(
        self, port: Port, claims: Sequence[Claim], ttls: Sequence[float]
    ) -> Sequence[Refusal | LockUnavailable | None]:
        """Let leases of this kind live for these times from now. Returns for each lease None if it
        was extended, a refusal, or an error if nothing is known of it."""

    async def write_down(self, port: Port, claims: Sequence[Claim]) -> None:
        """Write down leases of this kind that have been held for a while: in the index, for lists,
        and in the history."""

    async def adopt(self, port: Port, token: str, claim: Claim) -> Grant | Refusal:
        """Hold, as `claim`, the lease that `token` has held until now."""

    async def holders(self, port: Port, keys: Keys) -> list[Sight]:
        """Return the present holders. The one whose lease ends first comes first."""

    async def clear(
        self, port: Port, keys: Keys, seen: Sequence[bytes], by: str, reason: str
    ) -> list[bool]:
        """Take the lock away from the holders that an operator saw. False: that holder no longer
        holds it."""

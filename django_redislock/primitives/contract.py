"""What every primitive is asked for, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from ..base.exceptions import LeaseLost, LeaseRevoked, LockNotAcquired, LockUnavailable
from ..base.holder import Holder
from ..base.label import read

if TYPE_CHECKING:
    from .keys import Keys

T = TypeVar("T")

Word = str | int | bytes
"""A part of a command."""


class Terms(NamedTuple):
    """What is asked of a command beyond its answer."""

    within: float | None = None
    """Seconds to connect, if need be, and to have the answer: the time-outs of the CACHES entry
    may make it less. None: they alone count."""
    replicas: int = 0
    """So many replicas have to have what the command wrote."""
    replicas_timeout: float = 1.0
    """Seconds that they have to confirm it."""


NO_TERMS = Terms()


class Port(Protocol):
    """What a primitive awaits. Times are seconds."""

    def now(self) -> float:
        """The time on a clock that nobody sets."""

    def uniform(self, low: float, high: float) -> float:
        """A random number, so that not everybody asks at once."""

    async def script(self, name: str, keys: Sequence[str], args: Sequence[Word]) -> Any:
        """Run lua/<name>.lua in one round trip. Raises `LockUnavailable`, `LockError`.

        All keys have to be of one slot, but for an `Index`: on a cluster, the first key stands in
        its place, and by that the scripts know that there is none.
        """

    def limit(self, left: float) -> None:
        """All requests from now on together may take so many seconds, or `LEAST` if that is more;
        infinity: each of them as long as the CACHES entry says."""

    def slot(self, key: str) -> int:
        """Keys of the same slot may be given to one script. Without a cluster, all of them."""

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

        Returns what each of them answered within so many seconds, in order, or a `LockError` in
        its place. When that is `enough`, the others get only as much time again; they are
        asked all the same.
        """

    async def sleep(self, seconds: float) -> None: ...

    async def listen(self, token: str, *, within: float) -> str:
        """Where `token` will be told that it has the lock: the name of a channel.

        Only a process that has to wait begins to listen, and waits up to `within` seconds
        until it does. The answer is `DEAF` when it has not begun yet, or its connection is away.
        """

    async def wait(self, seconds: float, left: float) -> Grant | None:
        """Wait until the token is told, or the time is up; either may happen wrongly.

        Who was not told then stands in line, for as long as `left` seconds are not over: so
        many waiters of a process don't ask with their next script all at a time. Returns what
        was bequeathed to it.
        """

    def home(self, prefix: str) -> str:
        """Where waiters of this process are told that they have the lock; "": nobody waits."""

    async def bequeath(self, grants: Sequence[tuple[str, Grant]]) -> None:
        """Tell those of them who have it now: token and grant."""

    def unlisten(self) -> None:
        """Nobody waits for the token any more."""


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
    """One attempt to hold a name, and what its requests went through."""

    keys: Keys
    token: str
    ttl: float
    owner: str
    label: str
    primitive: Primitive
    """The algorithm by which it is held."""
    sent: bool = False
    """Something may have reached the server."""
    doubtful: bool = False
    """An answer was lost, so a command may still be on its way."""
    given_back: bool = False
    """A release was sent whose answer was lost."""
    parts: tuple[Keys, ...] = ()
    """Of a claim on several names: the keys of each. `keys` are then no keys of the server."""
    fencing_tokens: dict[str, int] = field(default_factory=dict)
    """And what each of them got, by name."""

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
    fencing_token: int | None
    """None: this primitive has none, and says so in `unfenced`."""
    acquired_us: int
    sent: float
    """When the request was sent that got the lock, by our clock."""


class Refusal(NamedTuple):
    """Why a lease is not ours: what the server knows of it."""

    holder: bytes | None
    gone: bytes | None
    name: str | None = None
    """Which one it is, of a claim on several names."""

    def __repr__(self) -> str:
        return f"<Refusal: {self.error('…').why}>"  # the holder's token is not to be shown

    @property
    def revoked(self) -> bool:
        return (self.gone or b"").startswith(b"cleared|")

    def error(self, name: str) -> LeaseLost:
        name = self.name or name
        kind, by, reason = [*(self.gone or b"").split(b"|", 2), b"", b""][:3]
        if kind == b"cleared":  # as lua/mutex_clear.lua wrote it
            return LeaseRevoked(name, read(by), read(reason))
        if kind == b"withdrawn":
            return LeaseLost(name, "it was given up before")
        if self.holder is None:
            return LeaseLost(name, "its ttl passed unrenewed, or its key was deleted")
        owner = Holder.parse(self.holder, -1, 0).owner
        return LeaseLost(name, f"{owner or 'a stranger'} holds the lock now")


class Sight(NamedTuple):
    """A holder as an operator saw it; the token binds what is done next to what was seen."""

    token: bytes
    """Or the whole of a stranger's value, whatever that is."""
    holder: Holder

    def __repr__(self) -> str:
        return f"<Sight: {self.holder}>"  # without the token

    @classmethod
    def of(cls, value: bytes, holder: Holder) -> Sight:
        return cls(value if holder.owner is None else value[:32], holder)


class Primitive(Protocol):
    """One algorithm: a module, or an object where it has parameters. Each method raises
    `LockUnavailable` when nothing is known of what it did."""

    @property
    def kind(self) -> str:
        """Its name, for settings, exports and people."""

    @property
    def unfenced(self) -> str:
        """Why its leases have no fencing token; "": they have one."""

    async def acquire(
        self, port: Port, claim: Claim, wait: float | None
    ) -> Grant | LockNotAcquired:
        """Hold `claim`, waiting for up to `wait` seconds (0: try once, None: for ever).

        After any exception the caller owes a `release`."""

    async def release(self, port: Port, claim: Claim) -> Refusal | None:
        """Give back the lease, or the place in the queue. None: released, now or before. It may
        be repeated."""

    async def extend(
        self, port: Port, claims: Sequence[Claim], ttls: Sequence[float]
    ) -> Sequence[Refusal | LockUnavailable | None]:
        """Let leases of this kind live for so long from now. None: extended; an error in its
        place: nothing is known of this one."""

    async def adopt(self, port: Port, token: str, claim: Claim) -> Grant | Refusal:
        """Hold, as `claim`, the lease that `token` has held until now."""

    async def holders(self, port: Port, keys: Keys) -> list[Sight]:
        """Who holds it now, the one whose lease ends first comes first."""

    async def clear(
        self, port: Port, keys: Keys, seen: Sequence[bytes], by: str, reason: str
    ) -> list[bool]:
        """Take it away, for an operator, from the holders that were seen. False: that one holds
        it no more."""

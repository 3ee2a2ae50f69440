"""What every primitive is asked for, and what it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..base.exceptions import Holder, LeaseLost, LeaseRevoked, LockNotAcquired, LockUnavailable
from ..base.label import read

if TYPE_CHECKING:
    from ..transport.ports import IO
    from .keys import Keys


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
    def every(self) -> tuple[Keys, ...]:
        """By which this process finds what it holds."""
        if not self.parts and not self.keys.also:
            return (self.keys,)
        return (self.keys, *self.parts, *self._beside)

    @property
    def asked(self) -> tuple[Keys, ...]:
        """What is there at the server, and is renewed."""
        return (*(self.parts or (self.keys,)), *self._beside)

    @property
    def _beside(self) -> tuple[Keys, ...]:
        return (self.keys.beside(),) if self.keys.also else ()


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


def verdicts(reply: Sequence[Any], number: int) -> list[Refusal | None]:
    """What a script that extends leases, so many, has said of each. None: extended. It names the
    others only, since an answer for each of ten thousand is much to read."""
    found: list[Refusal | None] = [None] * number
    for position, *refusal in reply[1:]:
        found[position - 1] = Refusal(*refusal)
    return found


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

    async def acquire(self, io: IO, claim: Claim, wait: float | None) -> Grant | LockNotAcquired:
        """Hold `claim`, waiting for up to `wait` seconds (0: try once, None: for ever).

        After any exception the caller owes a `release`."""

    async def release(self, io: IO, claim: Claim) -> Refusal | None:
        """Give back the lease, or the place in the queue. None: released, now or before. It may
        be repeated."""

    async def extend(
        self, io: IO, claims: Sequence[Claim], ttls: Sequence[float]
    ) -> Sequence[Refusal | LockUnavailable | None]:
        """Let leases of this kind live for so long from now. None: extended; an error in its
        place: nothing is known of this one."""

    async def adopt(self, io: IO, token: str, claim: Claim) -> Grant | Refusal:
        """Hold, as `claim`, the lease that `token` has held until now."""

    async def look(self, io: IO, keys: Keys) -> list[Sight]:
        """Who holds it now, the one whose lease ends first comes first."""

    async def clear(
        self, io: IO, keys: Keys, seen: Sequence[bytes], by: str, reason: str
    ) -> list[bool]:
        """Take it away, for an operator, from the holders that were seen. False: that one holds
        it no more."""


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def batches(io: IO, keys: Sequence[str], most: int) -> Iterator[list[int]]:
    """The positions of keys that can be given to one script, up to `most` at a time."""
    slots: dict[int, list[int]] = {}
    for position, key in enumerate(keys):
        slots.setdefault(io.slot(key), []).append(position)
    for positions in slots.values():
        for start in range(0, len(positions), most):
            yield positions[start : start + most]

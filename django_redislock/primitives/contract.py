"""The contract of all primitives: what they take, what they answer, the port that they await, and
how they ask it: once more after a lost connection, and in batches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from ..base.clock import deadline
from ..base.exceptions import LeaseLost, LeaseRevoked, LockError, LockNotAcquired, LockUnavailable
from ..base.people import Holder, read
from .keys import Keys, Word

T = TypeVar("T")


class Terms(NamedTuple):
    """Conditions of a command beyond its answer."""

    within: float | None = None
    """Seconds for the answer, and for connecting if that is needed. The time-outs of the CACHES
    entry may be shorter. None: only these time-outs count."""
    replicas: int = 0
    """The number of replicas that must have the writes of the command."""
    replicas_timeout: float = 1.0
    """Seconds that the replicas have to confirm it."""
    alone: bool = False
    """Whether it has a connection to itself, in an event loop: if it is held up, those that are
    sent later overtake it."""


NO_TERMS = Terms()


Wakeup = Literal["", "process", "message", "poll"]
"""How a wait ended: by another thread or task of the process, by a message, or by itself. "":
there was none."""


class Scripts(Protocol):
    """The part of a port that runs scripts."""

    async def script(self, name: str, keys: Sequence[str], args: Sequence[Word]) -> Any:
        """Run lua/<name>.lua in one round trip. Raises `LockUnavailable`, `LockError`.

        The answer is known by the first of `args`: the token of a claim, or `tokens.word()`. All
        keys must be in one slot, except those that are `Shared`. Where a server has slots, a
        script of `scripts.AT_ONCE` is not run, and the answer is None: nothing was done.
        """

    def nonsense(self, script: str, keys: Sequence[str]) -> LockUnavailable:
        """Return the error for an answer that this script can't have given."""


class Port(Scripts, Protocol):
    """Everything that a primitive may await. Times are seconds."""

    wakeup: Wakeup
    """How the last wait ended."""
    ready: Any
    """The first script, if it was `packed` before; else None."""

    def plain(self, keys: Keys) -> bool:
        """Return whether the scripts of `scripts.AT_ONCE` may be used, and may be of use: there is
        one primary, no slots are known of, no replica has to confirm anything, and nobody of this
        process waits for the lock, which was not `busy` lately."""

    def busy(self, keys: Keys) -> None:
        """Note that the lock was not free."""

    def packed(self, request: Request) -> Packed:
        """Pack a request that is sent later."""

    def now(self) -> float:
        """Return the time of a clock that nobody sets."""

    def uniform(self, low: float, high: float) -> float:
        """Return a random number, so that not all waiters ask at once."""

    def limit(self, left: float) -> None:
        """Limit the time of all requests from now on to this number of seconds together, or to
        `LEAST` if that is more. Infinity: each request may take as long as the CACHES entry
        says."""

    def slots(self, keys: Sequence[str]) -> Sequence[int]:
        """Return the slot of each key: one script may have keys of the same slot only. On one
        primary, all keys have the same. That a server has slots may turn out only when it refuses
        a script: then their keys have other slots from then on."""

    async def ask_all(self, question: Question) -> Sequence[Any]:
        """Send a request to several servers at the same time. Return what was read of the answer
        of each server, in order, or a `LockError` if it gave none in time."""

    async def sleep(self, seconds: float) -> None: ...

    async def listen(self, token: str, *, within: float, keys: Sequence[Keys]) -> str:
        """Return the inbox for the message that `token` has the lock. `keys` are those of the
        locks for which it may wait.

        Only a process that has to wait begins to listen; this waits up to `within` seconds for
        that. Returns `DEAF` if it does not listen yet, or if its connection is lost.
        """

    async def wait(
        self, seconds: float, left: float, *, rest: float = 0.0, away: bool = False
    ) -> Grant | Handed | None:
        """Wait for the message, for `seconds` at most; this may also end for no reason.

        A token that stands in the queue, and will get messages, waits for up to `rest` seconds if
        its process keeps its place. With `away`, Redis could not be reached: it waits for longer
        if its process looks when it is back, and wakes all.

        Without a message a thread then stands in line until `left` seconds are over, so that the
        waiting threads of a process don't all send their next script at the same time. Returns
        the grant if this process handed the lock over to the token, or what a message says of
        that.
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


class Claim:
    """One attempt to hold a name, or several, and the state of its requests. What most claims have
    alike is kept in the class."""

    sent = False
    """A request may have reached the server."""
    doubtful = False
    """An answer was lost, so a request may still be on its way."""
    heard = False
    """The server has said something of the lock."""
    release_lost = False
    """A release was sent whose answer was lost."""
    released: tuple[str, ...] = ()
    """The keys of its locks that were released. A release that is repeated, or that another one
    overtakes, does not find them."""
    began: float | None = None
    """When it was first asked for, by the clock of this process. None: it was not yet."""
    failed: LockUnavailable | None = None
    """How the short request ended that came before. The primitive takes it for the answer to its
    own first request."""
    short = False
    """It was taken by the short request. Else others want the lock, too."""
    packed_release: Packed | None = None
    """Its release, if it was packed while the claim waited: when it is sent, others wait for it.
    It is only for a claim of which nothing is in doubt."""
    renewed = False
    """Its lease is renewed from the beginning, so it may be short at first."""
    granted: Grant | None = None
    """What the server has granted."""
    owed = False
    """The release writes a record that has to be written, even if the lease ends before Redis
    answers."""
    fencing_tokens: Mapping[str, int] = MappingProxyType({})
    """The fencing token of each name, if there are several."""
    found: bytes | None = None
    """The note that it has taken over, as in lua/note.lua."""
    forgets = False
    """The release removes the note."""

    def __init__(
        self,
        keys: Keys,
        token: str,
        ttl: float,
        owner: str,
        label: str,
        primitive: Primitive,
        *,
        guarded: bool = False,
    ) -> None:
        self.keys = keys
        """The keys of its name. If it has several, these are not in Redis."""
        self.names = keys.parts or (keys,)
        """The keys of each name."""
        self.token, self.ttl, self.owner, self.label = token, ttl, owner, label
        self.primitive = primitive
        """The algorithm by which it is held."""
        self.guarded = guarded
        """After lost data the lock is not given to it for a ttl, and its lease is reinstated."""

    def raise_failed(self) -> None:
        """Raise what the short request has raised, once."""
        failed, self.failed = self.failed, None
        if failed is not None:
            raise failed

    @property
    def says(self) -> str:
        """What the claim says of itself in Redis: owner|label. The owner has no "|"."""
        return f"{self.owner}|{self.label}"

    @property
    def watched_keys(self) -> tuple[Keys, ...]:
        """Keys of all locks that this claim holds, and the keys of the claim itself: the watchdog
        finds the lease by each of them."""
        return (self.keys, *self.renewed_keys) if self.keys.parts else self.renewed_keys

    @property
    def renewed_keys(self) -> tuple[Keys, ...]:
        """Keys of the locks that a renewal extends."""
        if not self.keys.timestamp_key:
            return self.names
        return (*self.names, self.keys.of_timestamp())


class Grant(NamedTuple):
    """A lease that the server has given."""

    fencing_token: int | None
    """None: this primitive has none; `unfenced` says why."""
    acquired_us: int
    sent: float
    """When the request that got the lock was sent, by the clock of this process; or some time
    before that."""
    missed_wakeup: bool = False
    """A release has handed the lock over, and the waiter found out by asking, although it
    listened: no message came."""
    lives: float | None = None
    """Seconds that the lease lives, unless it is renewed. None: the ttl of its claim."""

    def term(self, ttl: float) -> float:
        """Return the seconds that a lease of this ttl lives, unless it is renewed."""
        return ttl if self.lives is None else self.lives

    def deadline(self, ttl: float) -> float:
        """Return until when a lease of this ttl counts as held."""
        return deadline(self.sent, ttl if self.lives is None else self.lives)


class Handed(NamedTuple):
    """What a message says of a lock that was handed over by a release."""

    fencing_token: int
    us: int
    """When that was, in µs, by the server's clock."""
    lives: float
    """Seconds that the lease lives since then."""
    since: float
    """Since when the connection listens, by the clock of this process."""


class Done(LockError):
    """A record answers the caller, so there is no work to do. Nothing is held.

    An exception, since a signal's exception may come while a return value is tested: it would
    come between a lease and its block.
    """

    def __init__(self, value: Any, *, due: bool = False) -> None:
        super().__init__()
        self.value = value
        self.due = due
        """The record is to be renewed, and nobody does it."""


class Request(NamedTuple):
    """A request to a script."""

    script: str
    keys: Sequence[str]
    args: Sequence[Word]


Packed = tuple[Request, Any]
"""A request, and the same as it is sent."""


class Question(NamedTuple):
    """A request to several servers at the same time."""

    servers: Sequence[str]
    request: Request
    read: Callable[[Any], Any]
    """Makes of an answer what the caller needs."""
    enough: Callable[[Sequence[Any]], bool]
    """Says whether the answers that have come are enough. Then the other servers get only as much
    time again; they still get the request."""
    within: float
    """Seconds that all servers have."""


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
            return LeaseLost(name, "it expired before it was renewed, or its key was deleted")
        owner = Holder.parse(self.holder, -1, 0).owner
        return LeaseLost(name, f"{owner or 'another program'} holds the lock now")


Outcome = Grant | LockNotAcquired
"""The result of an acquire."""
Refusals = list[Refusal | None]
"""For each of some claims, why it was refused. None: it was not."""
Renewals = Sequence[Refusal | LockUnavailable | None]
"""The same of leases that were to be extended; or an error, if nothing is known of one."""


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

    def taking(self, claim: Claim) -> Request | None:
        """Return the request that takes a free lock, and does nothing if it is not free. None:
        this primitive has no such request."""

    def dropping(self, claim: Claim) -> Request | None:
        """Return the request that releases a lease of which nobody has taken notice, and does
        nothing if somebody has."""

    async def acquire(self, port: Port, claim: Claim, wait: float | None) -> Outcome:
        """Hold `claim`, waiting for up to `wait` seconds (0: try once, None: without end).

        After any exception the caller owes a `release`."""

    async def release(self, port: Port, claim: Claim) -> Refusal | None:
        """Release the lease, or leave the queue. None: released, now or before. It may be
        repeated."""

    async def extend(self, port: Port, claims: Sequence[Claim], ttls: Sequence[float]) -> Renewals:
        """Let leases of this kind live for these times from now."""

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


def no_short_request(claim: Claim) -> None:
    """The `taking` and the `dropping` of a primitive that has no such requests."""


async def twice(
    ask: Callable[[], Awaitable[T]], claim: Claim | None = None, *, releases: bool = False
) -> T:
    """Return what `ask` answers; ask once more if the connection is lost. An idle connection that
    the server had closed fails so.

    `claim` remembers a doubtful failure, and if `ask` releases it. Raises `LockUnavailable`.
    """
    asked = False
    while True:
        try:
            if claim is not None:
                claim.raise_failed()
            return await ask()
        except LockUnavailable as error:
            if claim is not None:
                claim.doubtful |= error.doubtful
                # A request that was never sent releases nothing.
                claim.release_lost |= releases and error.doubtful
            if asked or not error.passing or error.silent:
                raise
            asked = True


def too_late(claim: Claim, *, doubtful: bool = False) -> LockUnavailable:
    """The error for a grant that arrived after its lease had ended."""
    name = claim.keys.name
    return LockUnavailable(
        f"Redis took longer to answer than the lease on {name!r} lives", name, doubtful=doubtful
    )


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


MOST_AT_ONCE = 250
"""Leases in one request, which keeps Redis busy for as long as a few hundred plain commands."""


def batches(port: Port, keys: Sequence[str], most: int) -> Iterator[list[int]]:
    """Positions of keys that may be given to one script, up to `most` at a time."""
    slots: dict[int, list[int]] = {}
    for position, slot in enumerate(port.slots(keys)):
        slots.setdefault(slot, []).append(position)
    for positions in slots.values():
        for start in range(0, len(positions), most):
            yield positions[start : start + most]


async def in_batches(
    port: Port, keys: Sequence[str], most: int, ask: Callable[[list[int]], Awaitable[None]]
) -> None:
    """Ask for the positions of each of the `batches`. It may turn out by the first one that the
    server has slots; then it has carried out nothing of it, and is asked again by slot."""
    for batch in batches(port, keys, most):
        try:
            await ask(batch)
        except LockUnavailable:
            parts = [*batches(port, [keys[position] for position in batch], most)]
            if len(parts) == 1:
                raise
            for part in parts:
                await ask([batch[position] for position in part])


async def of_all_names(
    port: Port,
    claims: Sequence[Claim],
    ask: Callable[[list[tuple[int, Keys]]], Awaitable[Refusals]],
) -> Refusals:
    """Ask for all names of these claims, some at a time, each with the number of its claim.
    Returns for each claim None, or the refusal of one of its names."""
    found: Refusals = [None] * len(claims)
    names = [(number, its) for number, claim in enumerate(claims) for its in claim.names]
    for positions in batches(port, [its.lock for _, its in names], MOST_AT_ONCE):
        batch = [names[position] for position in positions]
        for (number, its), refusal in zip(batch, await ask(batch), strict=True):
            if refusal is not None:
                found[number] = found[number] or refusal._replace(name=its.name)
    return found

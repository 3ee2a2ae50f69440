"""Redis keys made from a name. All keys of a name share its hash tag, so one cluster slot."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import ClassVar, Self

from ..base import people
from ..base.people import Secret

MAX_NAME = 512
Word = str | int | bytes
"""A part of a command, such as a key."""


class Shared(str):
    """A key that belongs to all locks, so on a cluster it may be in another slot than the other
    keys of a script."""

    __slots__ = ("alone",)

    alone: str
    """The key that is sent to a cluster instead; "": the script's first key, by which the script
    knows that there is no such key."""

    @classmethod
    def of(cls, key: str, alone: str = "") -> Shared:
        self = cls(key)
        self.alone = alone
        return self


class Index(Shared):
    """The key of an index, and what its locks have in common."""

    __slots__ = ("clock", "prefix")

    prefix: str
    """The beginning of all keys of a project."""
    clock: str
    """The key of the last fencing token."""

    @classmethod
    @cache
    def at(cls, prefix: str, key: str = "index") -> Index:
        self = cls(f"{prefix}:{key}")
        self.alone, self.prefix, self.clock = "", prefix, f"{prefix}:clock"
        return self


class _Beside:
    """A key beside the lock, which ends with the name of this attribute."""

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, keys: Keys, _: type) -> str:
        return f"{keys.beside or keys.lock}:{self._name}"


@dataclass(
    slots=True, unsafe_hash=True
)  # never changed; a frozen dataclass takes three times as long to make
class Keys:
    """Keys of one lock. `name` is what the user locks; all locks share `index`."""

    name: str
    lock: str
    index: Index
    beside: str = ""
    """The beginning of the keys beside the lock; "": the key of the lock."""
    timestamp_key: str = ""
    """The key of a timestamp lock that is taken together with this lock, as long as there are old
    clients."""
    unscoped: str = field(default="", compare=False)
    """The name without its scope, as the code writes it; "": it has no scope."""
    parts: ClassVar[tuple[Keys, ...]] = ()
    """The keys of each of several names."""

    # Keys beside the lock.

    queue = _Beside()
    """The waiting tokens, in order."""
    waiters = _Beside()
    """The waiters' owners, labels and inboxes."""
    history = _Beside()
    """The past holders, for people."""
    timestamp = _Beside()
    """What we know of the holder of a timestamp lock, whose key only has a time."""
    holders = _Beside()
    """The owners and labels of the present holders of permits."""
    record = _Beside()
    """The result of the work under the lock."""
    note = _Beside()
    """What a holder has noted for its successor."""
    ledger = _Beside()
    """The runs of a periodic job. The lock is the lock of the job."""

    @classmethod
    def of(cls, prefix: str, name: str) -> Self:
        return cls(name, f"{prefix}:{{{name}}}", Index.at(prefix))

    @classmethod
    def verbatim(cls, prefix: str, key: bytes) -> Keys:
        """Keys of a lock whose key other programs have named.

        The keys beside it begin with our prefix. So they can't collide with keys of these
        programs, nor with the keys of a lock whose name is this key.
        """
        lock = key.decode(errors="surrogateescape")  # any bytes, as a str
        # If the key has a hash tag, this comes first here, too; else the whole key becomes one.
        beside = f"{prefix}:tagged:{lock}" if _hash_tag(lock) else f"{prefix}:key:{{{lock}}}"
        index = Index.at(prefix, "key:index")
        return cls(key.decode(errors="backslashreplace"), lock, index, beside)

    def of_timestamp(self) -> Keys:
        """Return the keys of the timestamp lock that is taken together with this lock."""
        return Keys.verbatim(self.prefix, self.timestamp_key.encode())

    @property
    def named_by_others(self) -> bool:
        """Whether old clients know the lock by this very key."""
        return bool(self.beside)

    @property
    def _beside(self) -> str:
        return self.beside or self.lock

    @property
    def prefix(self) -> str:
        """The beginning of all keys of a project."""
        return self.index.prefix

    @property
    def clock(self) -> Shared:
        """The last fencing token that was given; on a cluster, given for this lock."""
        return Shared.of(self.index.clock, f"{self._beside}:clock")

    @property
    def guard(self) -> str:
        """The time since which the server has forgotten no lock. Not on a cluster, where it would
        be in another slot."""
        return f"{self.prefix}:guard"

    @property
    def tasks(self) -> Shared:
        """The names of tasks that wait, are parked or run; on a cluster there is no list."""
        return Shared.of(f"{self.prefix}:tasks", self.lock)

    @property
    def looked_at(self) -> list[str]:
        """Its keys in which something may be wrong, in the order of lua/broken.lua."""
        beside = [self.queue, self.waiters, self.holders, self.record, self.timestamp]
        return [self.lock, *beside, self.ledger, self.note]

    def inbox(self, process: str) -> str:
        """The channel of a process for this lock alone, in the slot of the lock."""
        return f"{self._beside}:inbox:{process}"

    def gone(self, token: str) -> str:
        """The note that `token` was withdrawn or cleared."""
        return Secret(f"{self.beside or self.lock}:gone:{token}")

    def at_once(self, token: str) -> list[str]:
        """Return the keys of this name that say whether it is free."""
        beside = self.beside or self.lock
        return [self.lock, f"{beside}:queue", Secret(f"{beside}:gone:{token}")]

    def of_token(self, token: str) -> list[str]:
        """Return the keys of this name in the scripts of a mutex (lua/locks.lua)."""
        return [self.lock, self.queue, self.waiters, self.history, self.gone(token), self.note]

    def mutex(self, token: str) -> list[str]:
        """Return KEYS for the scripts of a mutex on one name."""
        return [*self.of_token(token), self.index, self.clock]

    def timestamps(self, token: str) -> list[str]:
        """Return KEYS for the scripts of the timestamp lock, in the order of
        lua/timestamp_keys.lua."""
        return [self.lock, self.timestamp, self.history, self.index, self.gone(token)]

    def permits(self, token: str) -> list[str]:
        """Return KEYS for the scripts of semaphores and read-write locks (lua/lock.lua)."""
        *names, _note = self.of_token(token)
        return [*names, self.index, self.clock, self.holders]


@dataclass(slots=True, unsafe_hash=True)
class KeysTogether(Keys):
    """The names of one lock with several names: no key of Redis, but their names in one text."""

    parts: tuple[Keys, ...] = ()  # type: ignore[misc]


def _hash_tag(key: str) -> str:
    """Return the text between the first brace and the next closing brace: if there is any, a
    cluster computes the slot from it, and not from the whole key."""
    inside, closing, _ = key.partition("{")[2].partition("}")
    return inside if closing else ""


def refuse_untagged(keys: Keys) -> None:
    """Raise `ValueError` for a key of other programs if no key of ours can be in its slot."""
    if keys.named_by_others and not _hash_tag(keys.lock) and "}" in keys.lock:
        raise ValueError(
            f"{keys.name!r} can't be locked on a Redis Cluster: it has a closing brace and no "
            f"hash tag, so no other key can be in its slot. Let the old clients use another key"
        )


def presence(index: str, process: str) -> str:
    """Return the key by which a process shows that it lives, for the locks of an index."""
    return f"{index.removesuffix(':index')}:process:{process}"


COUNTED = ("clearings", "missed_wakeups", "unreadable_clocks")
"""Ends of the keys that count: locks that operators have cleared; handovers that no message
announced to a waiter that listened; and fencing tokens that could not be read."""


def counter(index: str, what: str) -> str:
    """Return the key that counts `what`, one of `COUNTED`, for the locks of an index."""
    return f"{index.removesuffix(':index')}:{what}"


def name_of(key: str) -> str | None:
    """Return the name in a key of ours; None if the key belongs to no name."""
    _, brace, rest = key.partition("{")
    return rest.rpartition("}")[0] if brace else None


def validate_key(key: object, what: str = "key") -> str:
    """Return a key that other programs have named. Raises `TypeError`, `ValueError`."""
    if not isinstance(key, str):
        raise TypeError(f"{what} must be a str, the key in Redis as it is, not {key!r}")
    if not key:
        raise ValueError(f"{what} is empty; write the key in Redis as it is, such as 'lock.foo'")
    return str.__str__(key)


def validate_name(name: object) -> str:
    """Return `name`, or raise a `TypeError` or `ValueError` that says what to write."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a str such as 'invoice:42', not {name!r}")
    # The value of an enum, not its name.
    return _validated(name if type(name) is str else str.__str__(name))


@lru_cache(maxsize=1024)
def _validated(name: str) -> str:
    if not name:
        raise ValueError("name is empty; write what is to be locked, such as 'invoice:42'")
    if len(name) > MAX_NAME:
        raise ValueError(
            f"name has {len(name)} characters, and {MAX_NAME} are allowed; "
            f"lock a digest of it instead: {name[:40]!r}…"
        )
    if not people.is_harmless(name):
        raise ValueError(
            f"name contains characters that can't be printed, such as a line feed, or marks that "
            f"turn text round: {name[:80]!r}"
        )
    if "{" in name or "}" in name:
        # The braces are the hash tag of our keys. Refusing them also catches the
        # forgotten f, which would lock one literal name for all invoices.
        raise ValueError(
            f"name contains a brace: {name!r}. Braces mark the name in its Redis keys, so no "
            f"value in it may have one. Templates are for decorators; in a with statement, write "
            f"an f-string"
        )
    if " at 0x" in name:
        # The text of an object that has none of its own, as in "import:{self}".
        raise ValueError(
            f"name contains the address of an object: {name[:80]!r}. Each object has its own, so "
            f"the lock would exclude nobody. Write an attribute, such as {{self.pk}}"
        )
    return name

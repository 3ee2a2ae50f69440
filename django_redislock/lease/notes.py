"""What the holder of a lease notes, and what it inherits: the rules of `Lease.note`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Never

from asgiref.sync import sync_to_async

from ..base.exceptions import LockError, LockUnavailable, TooManyResumptions
from ..primitives import mutex, note
from ..primitives.contract import Claim, Port, Refusal, run
from ..primitives.note import Note
from ..primitives.timestamp import TOGETHER
from ..settings.policy import Policy
from ..transport.ports import SyncPort
from ..transport.server import Server
from . import transactions
from .lifetime import Lifetime

logger = logging.getLogger("django_redislock")

EXPORTED = b"|"
"""The beginning of a note that has come with an exported lease: it names no token."""

testing: Callable[[str, dict[str, Any]], object] | None = None
"""Told of each note in tests, with the name of its lock."""

MOST = 64 * 1024
"""Bytes of a note."""


class Notes:
    """The notes of one lease."""

    def __init__(self, claim: Claim, policy: Policy) -> None:
        its: Any = claim.primitive
        alone = its is mutex or its is TOGETHER or (its.kind == "task" and its.limit == 1)
        if not alone or len(claim.names) > 1:
            raise TypeError(
                f"the lease on {claim.keys.name!r} has no notes: they are for redis_lock(…), for "
                f"a LockedCommand, for periodic jobs and for tasks of which one runs at a time"
            )
        claim.short = False  # its release has more to do
        self._claim, self._policy = claim, policy
        found = Note.read(claim.found)
        self.inherited = None if found is None else found.content
        self.resumptions = 0 if found is None else found.resumptions
        self._first = note.number(found and found.done) or "0"
        self._turns = count(1)
        self._last = (0, "")
        """The last note, and its turn."""
        self._written = 0
        """The turn of the note that is in Redis."""
        self.ended = False
        """Whether the block has come to an ordinary end."""
        self.failed = False
        """Whether the work has failed, although the block ends."""
        if (claim.found or b"").startswith(EXPORTED):
            self.add(self.present)  # it may not be in Redis

    def add(self, text: str) -> None:
        """Let this be the note from now on."""
        self._last = (next(self._turns), text)

    @property
    def present(self) -> str:
        """The note as it is now; "": there is none."""
        if self._last[1] or not self.inherited:
            return self._last[1]
        return note.text_of(self.inherited, self._first)

    @property
    def exported(self) -> str:
        """Return the note for the process that continues the lease; "": there is none."""
        return f"{self.resumptions}|{self.present}" if self.present else ""

    def text(self, unnamed: tuple[object, ...], content: dict[str, Any], *, renewed: bool) -> str:
        """Return the text of a note, which is `renewed` if a renewal writes it.

        Raises `TypeError` for what JSON does not give back equal, or if nothing renews the lease,
        and `ValueError` for what is too long.
        """
        if unnamed or not content:
            raise TypeError("say by keywords what is to be noted, such as note(cursor=row.pk)")
        if renewed and not self._policy.renew:
            raise TypeError(
                f"nothing renews the lease on {self._claim.keys.name!r} (renew=False), so nothing "
                f"would write its note: call lease.checkpoint(…)"
            )
        for field, value in content.items():
            if not _survives_json(value):
                raise TypeError(
                    f"{field} can't be noted, since JSON does not give it back equal: "
                    f"{value!r:.80}. Note numbers, texts, None, and lists or dicts of them, whose "
                    f"keys are texts"
                )
        text = note.text_of(content, self._first)
        if len(text) > MOST:
            raise ValueError(
                f"the note has {len(text)} bytes, and {MOST} are allowed: note where the work "
                f"stands, not the work"
            )
        if testing is not None:
            testing(self._claim.keys.name, content)
        return text

    async def write(self, port: Port) -> Refusal | None:
        """Write the last note, if it is not in Redis yet. Raises `LockUnavailable`."""
        turn, text = self._last
        if turn <= self._written:
            return None
        ttl = self._policy.note_ttl
        refusal = await note.write(port, self._claim, self.resumptions, turn, text, ttl)
        if refusal is None:
            self._written = max(turn, self._written)
        return refusal

    async def end(self, port: Port) -> None:
        """Write what the lease leaves behind, or let its release remove the note."""
        done = self.ended and not self.failed
        self._claim.forgets = done and not self._policy.keep_note
        if done and self.resumptions and not self._claim.forgets:
            self.resumptions = 0  # the next holder does not go on with this work
            self.add(self.present)
        if not self._claim.forgets:
            try:
                await self.write(port)  # if it is refused, so is the release
            except LockUnavailable:
                raise
            except LockError:  # a key of a wrong type
                logger.exception("The note of %r was not written", self._claim.keys.name)


def _survives_json(value: object) -> bool:
    """Return whether JSON gives it back equal."""
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def refuse_poisoned(claim: Claim, policy: Policy) -> None:
    """Raise `TooManyResumptions` if too many holders have taken the note over."""
    found = Note.read(claim.found, whole=False)
    most = policy.max_resumptions
    if found is not None and most is not None and found.resumptions > most:
        raise TooManyResumptions(claim.keys.name, found.resumptions, most)


class Noting:
    """What a lease has for its notes."""

    __slots__ = ()

    if TYPE_CHECKING:
        _claim: Claim
        _policy: Policy
        _server: Server
        _lifetime: Lifetime

        def check(self) -> None: ...
        def extend(self) -> None: ...

    @property
    def inherited(self) -> dict[str, Any] | None:
        """What a holder before it had noted that did not end: it was killed, it raised an
        exception, or its lease was lost. None: there is nothing."""
        notes = self._lifetime.notes
        return None if notes is None else notes.inherited

    @property
    def resumptions(self) -> int:
        """How many holders in a row, this one included, have inherited a note."""
        notes = self._lifetime.notes
        return 0 if notes is None else notes.resumptions

    def note(self, /, *unnamed: Never, **content: Any) -> None:
        """Note how far the work is, for the next holder if this one does not end. It replaces the
        note before as a whole. The next renewal writes it, a third of the ttl away at most; in a
        database transaction, the next one after the commit. Costs nothing: no request is sent.

        With `done` and `total`, lists show the progress. The end of the block removes the note
        (unless `keep_note`), and so does `release`; if an exception ends the block, or is being
        handled at `release`, the note stays. Raises `LeaseLost`; `TypeError` for a lease that has
        no notes, and for what JSON does not give back equal; `ValueError` above 64 KB.
        """
        self.check()
        notes = self._noting()
        text = notes.text(unnamed, content, renewed=True)
        transactions.after_commit(partial(notes.add, text))

    def checkpoint(self, /, *unnamed: Never, **content: Any) -> None:
        """`note`, and write it now. In a database transaction it is written after the commit.
        Raises `LeaseLost` if the lease is no longer held, and `LockUnavailable`."""
        self.check()
        text = self._noting().text(unnamed, content, renewed=False)
        if not transactions.after_commit(partial(self._checkpoint, text)):
            self.extend()

    async def acheckpoint(self, /, *unnamed: Never, **content: Any) -> None:
        """`checkpoint` for coroutines."""
        await sync_to_async(self.checkpoint)(*unnamed, **content)

    def _checkpoint(self, text: str) -> None:
        self._noting().add(text)
        self._lifetime.told(run(self._noting().write(SyncPort(self._server))))
        self.check()

    def _noting(self) -> Notes:
        notes: Notes | None = self._lifetime.notes
        if notes is None:  # several threads may begin at the same moment
            new = Notes(self._claim, self._policy)
            notes = vars(self._lifetime).setdefault("notes", new)
        return notes

    def _ends(self, error: object) -> None:
        """Note whether the work has come to an ordinary end."""
        if (notes := self._lifetime.notes) is not None:
            notes.ended = error is None

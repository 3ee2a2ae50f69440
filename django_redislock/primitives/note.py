"""A note: what the holder of a mutex writes down for its successor.

1.  A write compares the token, so a holder that has lost its lease writes nothing.
2.  The writes of one token are numbered. One that comes late does not overwrite a later one, and
    one that was sent twice changes nothing.
3.  The release of an ordinary end removes the note, in the step that releases the lock. So a
    write that is still on its way then finds another holder, or none.
4.  Who takes a lock that has a note takes the note over in the same step, and is counted. The
    short request of a free lock does nothing where there is one, and no message hands the lock
    over; so everybody who may inherit a note asks in the way that answers with it.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, NamedTuple

from ..base import tokens
from ..base.exceptions import LockError, LockNotAcquired
from .contract import Claim, Port, Refusal, milliseconds, twice
from .keys import Keys, Word
from .scripts import ask, flag, maybe, refused

_NOTE = re.compile(
    rb"(?:\w*)\|(\d{1,9})\|\d+\|(\d{1,16})\|([^|]{0,24})\|([^|]{0,24})\|([^|]{0,24})\|(.*)",
    re.DOTALL,
)


class Note(NamedTuple):
    """A note, as lua/note.lua has it."""

    resumptions: int
    """How many holders have taken it over."""
    written_us: int
    done: float | None
    total: float | None
    first: float | None
    """What was done when its writer began."""
    content: dict[str, Any] | None
    """None: only the beginning of the note was read."""

    @classmethod
    def read(cls, text: bytes | None, *, whole: bool = True) -> Note | None:
        """None: there is none, or another program has written it. With `whole`, the text is the
        whole note."""
        found = _NOTE.match(text or b"")
        try:
            if found is None:
                return None
            times, written, *numbers, rest = found.groups()
            done, total, first = (float(number) if number else None for number in numbers)
            content = json.loads(rest) if whole else None
            return cls(int(times), int(written), done, total, first, content)
        except ValueError:
            return None

    def left(self, began: datetime | None, now_us: int) -> float | None:
        """Return the seconds that the work may still take, at the pace of the holder that began
        then. None: not known."""
        if self.done is None or self.total is None or self.first is None or began is None:
            return None
        took, did = self.written_us / 1e6 - began.timestamp(), self.done - self.first
        if took <= 0 or did <= 0:
            return None
        return max(0.0, (self.total - self.done) * took / did - (now_us - self.written_us) / 1e6)


async def tell(port: Port, keys: Keys, error: LockNotAcquired) -> None:
    """Let the error of a waiter say how far the holder was when it noted that last. If Redis does
    not answer, it does not say so."""
    try:
        note = await look(port, keys)
    except LockError:
        return
    if note is None or note.done is None:
        return
    error.progress = f"{note.done:,.12g}"
    if note.total:
        error.progress += f" of {note.total:,.12g}, {100 * note.done / note.total:.0f} %"
        if (left := note.left(error.holder.acquired_at, note.written_us)) is not None:
            about = f"{left:.0f} s" if left < 120 else f"{left / 60:.0f} min"
            error.progress += f", about {about} to go"
    error.message = f"{error.message} It has noted: {error.progress}."


def number(value: object) -> str:
    """Return the text of an amount of work; "": it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    return f"{value:.12g}" if abs(value) < 1e12 else ""


def text_of(content: dict[str, Any], first: str) -> str:
    """Return the text of a note, whose writer began with `first`."""
    done, total = (number(content.get(field)) for field in ("done", "total"))
    return f"{done}|{total}|{first}|{json.dumps(content)}"


async def write(
    port: Port, claim: Claim, resumptions: int, turn: int, text: str, ttl: float
) -> Refusal | None:
    """Write the note of a holder, as its `turn`-th one, and keep it for `ttl` seconds. None:
    written. Raises `LockUnavailable`; it may be repeated."""
    keys = claim.names[0]
    its_keys = [keys.lock, keys.gone(claim.token), keys.note]
    args: list[Word] = [claim.token, resumptions, turn, text, milliseconds(ttl)]
    return await twice(lambda: ask(port, refused, "mutex_note", its_keys, args), claim)


async def look(port: Port, keys: Keys) -> Note | None:
    """Return the note. Raises `LockUnavailable`."""
    args = [tokens.word()]
    return Note.read(await twice(lambda: ask(port, maybe, "record_get", [keys.note], args)))


async def forget(port: Port, keys: Keys) -> bool:
    """Remove the note. Return whether there was one. Raises `LockUnavailable`."""
    return await twice(lambda: ask(port, flag, "record_delete", [keys.note], [tokens.word()]))

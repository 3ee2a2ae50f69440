"""Tasks of one name, above a task queue: one that waits in the queue, those that are parked, those
that run.

1.  The name has permits, and each running task holds one (or `weight` of them), with a lease of
    its own, as a holder of a semaphore does. So a killed worker frees its permit when its lease
    ends, whatever the queue believes.
2.  A message that finds no permit is parked: its text waits in Redis, and its worker goes on to
    other messages. The script that releases a permit chooses the next one, in order of arrival,
    and keeps its permit for it (it is promoted). Whoever ended sends it to the queue again.
3.  A promoted message that its sender confirms keeps its permit for as long as the queue may take.
    One that nobody confirms within ten seconds is promoted again: its sender was killed.
4.  The claim belongs to the name, and is made before the message is sent, for a short time. It is
    confirmed, for long, with the id that the queue has given; only if it is still that claim,
    since a fast worker may have begun and even ended the task meanwhile. Until the queue has given
    an id, a ticket stands for it. A caller may be killed in between, so a call that meets a claim
    without confirmation waits for that. A claim that is not confirmed soon is over.
5.  The start of a task takes its permit and frees its claim in one step, so one more call may be
    queued from then on, and none is lost: what it wants done was written before the task began. In
    a transaction it is written by the COMMIT, so the name is claimed after that.
6.  A claim that settles has a time at which it is due, by the server's clock, and the arguments of
    the last call, with which its task begins.

Everything is healed by whoever begins or ends a task of that name, or by a sweep.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from ..base import tokens
from ..base.exceptions import LockError, LockNotAcquired
from ..base.people import Holder, server_time
from ..base.people import read as readable
from . import queued
from .contract import Claim, Grant, Port, Refusal, Scripts, milliseconds, no_short_request, twice
from .keys import Keys, Word
from .permits import Permits
from .scripts import ask, flag, instant, maybe, text, whole

PREFIX = "task:"
"""The beginning of the names of tasks, so that they exclude no other locks."""
TICKET = "?"
"""Begins an id that stands for one that the queue has not given yet."""
SHORT = 30.0
"""Seconds that a claim lives until it is confirmed."""
SENT_WITHIN = 1.0
"""Seconds after its claim within which a call is known to have sent its message, or counts as one
that was killed."""


Why = Literal["parked", "duplicate", "replaced", "early"]
"""Why a message does not begin: no permit was free, so it is sent again when there is one; another
delivery of it runs; another message has taken its place; or it settles."""


_WHY: dict[int, Why] = {2: "parked", 3: "duplicate", 4: "replaced", 5: "early"}
"""By the code that the script returns."""


class NotBegun(LockError):
    """The function of a message does not run, and nothing is held."""

    def __init__(self, name: str, why: Why, seconds: float = 0.0) -> None:
        super().__init__(f"A task of {name!r} does not begin: {why}.", name)
        self.args = (name, why, seconds)
        self.why: Why = why
        self.seconds = seconds
        """If it is early, until it is due."""


class TaskConflict(LockNotAcquired):
    """A task of this name waits in the queue already, or runs."""

    def __init__(
        self,
        name: str,
        holder: Holder | list[Any],
        id: str,
        runs: bool = False,
        sent: bool = True,
    ) -> None:
        super().__init__(name, holder, 0.0)
        self.args = (name, self.holder._plain(), id, runs, sent)
        self.id, self.runs, self.sent = id, runs, sent
        by, at = self.holder, self.holder.acquired_at
        its = f"the task {id} {'runs' if runs else 'waits in the queue'}"
        its = its if sent else "a task that is being queued"
        since = "" if at is None else f" since {at:%H:%M:%S} UTC"
        self.message = f"{name!r}: {its}{since}, by {by.owner} ({by.label})"


def keys_of(keys: Keys, token: str) -> list[str]:
    """Return KEYS in the order of lua/work.lua."""
    beside = ("claim", "parked", "sent", "messages", "runs", "begun")
    more = [f"{keys.lock}:{what}" for what in beside]
    return [*keys.permits(token), *more, keys.tasks, keys.note]


class Work(Permits):
    """The algorithm for the run of one message. Its lease is renewed and looked at as that of a
    semaphore is."""

    taking = dropping = staticmethod(no_short_request)

    id = ""
    """That of the message."""
    message = b""
    """What is parked of it; empty: it can't be parked."""
    renamed = False
    """It gets a new id when it is sent again."""
    latest: bytes | None = None
    """The arguments of the last call, if there were several."""
    healed = 0

    def __init__(self, limit: int, weight: int = 1, *, recover: bool = False) -> None:
        super().__init__("task", limit)
        self.weight, self.recover = weight, recover
        """`recover`: the message is kept until the end of the run."""
        self.promoted: list[tuple[str, bytes]] = []
        """The ids and texts of messages that have to be sent, since this run has begun or
        ended."""

    async def acquire(self, port: Port, claim: Claim, wait: float | None) -> Grant:  # noqa: ARG002
        """Begin the task, or park its message: then it raises `NotBegun`. Raises
        `LockUnavailable`; then the caller owes a `release`, as after any other exception."""
        its = claim.keys
        args: list[Word] = [
            *(claim.token, milliseconds(claim.ttl), claim.says, self.id, self.limit, self.weight),
            *(TICKET if self.renamed else "|", self.message, int(self.recover), its.name),
        ]
        keys = [*keys_of(its, claim.token), its.gone(self.id)]
        claim.sent = True

        def read(sent: float, answer: Any) -> Grant:
            match self._rest(answer):
                case [-2, kind]:
                    raise queued.another_kind(its.name, claim, text(kind).decode())
                case [1, acquired_us, fence, latest, note]:
                    self.latest, claim.found = maybe(latest), maybe(note)
                    return Grant(whole(fence), instant(acquired_us), sent)
                case [code, ms]:
                    begun = NotBegun(its.name, _WHY[code], whole(ms) / 1000)
                    claim.sent = False  # so there is nothing to undo
                    raise begun
            raise ValueError(answer)

        return await twice(
            lambda: ask(port, partial(read, port.now()), "work_begin", keys, args), claim
        )

    async def claim(
        self,
        port: Scripts,
        keys: Keys,
        id: str,
        says: str,
        *,
        lives: float,
        alone: bool,
        settle: tuple[float, float] | None = None,
        message: bytes = b"",
        over: str = "",
        sent: bool = False,
    ) -> TaskConflict | None:
        """Claim the name for the message `id`, for `lives` seconds; 0: only look. None: claimed.

        `alone`: a running task is a conflict, too. `settle`: it is due after so many seconds, and
        at most so many after the first call; 0: without such a limit. `over` is the waiting
        message that is replaced. `sent`: the message is in the queue already. A claim that is
        older than `SENT_WITHIN`, and not known to be sent, is over. Asks twice when the
        connection is lost. Raises `LockUnavailable`.
        """
        due = "" if settle is None else "|".join(str(milliseconds(one)) for one in settle)
        args: list[Word] = [
            *(tokens.word(), id, says, milliseconds(lives), int(alone), message, due, over),
            *(keys.name, self.limit, int(sent), milliseconds(SENT_WITHIN)),
        ]
        name = keys.unscoped or keys.name

        def read(answer: Any) -> TaskConflict | None:
            match self._rest(answer):
                case [1]:
                    return None
                case [0, id, says, at, sent]:
                    owner, _, label = readable(text(says)).partition("|")
                    by = Holder(owner, label, None, server_time(instant(at)), 0.0, 0.0)
                    return TaskConflict(name, by, text(id).decode(), sent=flag(sent))
                case [2, id, record, now_us]:
                    by = Holder.parse(maybe(record) or b"", 0, instant(now_us))
                    return TaskConflict(name, by, text(id).decode(), True)
            raise ValueError(answer)

        its = [*keys_of(keys, ""), keys.gone(over)]
        return await twice(lambda: ask(port, read, "work_claim", its, args))

    async def sweep(self, port: Scripts, keys: Keys) -> int:
        """Heal and promote. Returns how many are still parked. Raises `LockUnavailable`."""
        return (await twice(lambda: self._end(port, keys, tokens.word(), "")))[1]

    async def release(self, port: Port, claim: Claim) -> Refusal | None:
        """Give back the permit. None: released, now or before."""
        return await queued.release(port, claim, self._release)

    async def _release(self, port: Port, claim: Claim) -> Refusal | None:
        held, _ = await self._end(port, claim.keys, claim.token, self.id, int(claim.forgets))
        return None if held else Refusal(None, None)

    async def _end(
        self, port: Scripts, keys: Keys, word: str, id: str, forgets: int = 0
    ) -> tuple[bool, int]:
        def read(answer: Any) -> tuple[bool, int]:
            held, left = self._rest(answer)
            return flag(held), whole(left)

        args: list[Word] = [word, id, self.limit, keys.name, forgets]
        return await ask(port, read, "work_end", keys_of(keys, word), args)

    def _rest(self, answer: Any) -> list[Any]:
        """Note what a script has promoted and healed. Return the rest of its answer."""
        rest: list[Any]
        *rest, promoted, healed = answer
        its = [(text(id).decode(), text(message)) for id, message in promoted]
        self.healed += whole(healed)
        self.promoted += its
        return rest


async def confirm(port: Scripts, keys: Keys, id: str, new_id: str, lives: float) -> bool:
    """Let the claim of a message live for `lives` seconds, or the permit of one that was promoted,
    under the id that the queue has given; with the id "", undo the claim. False: there is no such
    claim any more. Raises `LockUnavailable`."""
    beside = ("claim", "sent", "messages", "begun")
    its = [keys.lock, *(f"{keys.lock}:{what}" for what in beside), keys.tasks]
    args: list[Word] = [tokens.word(), id, new_id, milliseconds(lives), keys.name]
    return await twice(lambda: ask(port, flag, "work_confirm", its, args))

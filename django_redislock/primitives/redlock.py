"""Redlock: a lease on the majority of several independent primaries.

1.  On each server the lock is an ordinary mutex, which is asked for with one token and without a
    place in the queue. All servers are asked at the same time, each for a small part of the ttl,
    so a server that hangs does not delay the others.
2.  We hold the lease if a *majority* has granted it and there is time left: its *validity* is
    the ttl less the time that asking took, less a margin for the *drift* of the clocks. That is
    the deadline of every lease here (clock.py).
3.  Else the try is *undone* at the servers that granted it, or gave no answer; a server that
    refused has nothing of it. If one gave no answer, each server keeps a tombstone, so that a
    request which arrives after its undo gets nothing. (Redlock as it is published deletes the key
    if it is there, and a late request then locks for a whole ttl.) The next try therefore has
    another token, but only when a majority has nothing of the last one: no token is left where it
    can do harm.
4.  Two claims that try at the same time may each get a part of the servers, and neither a
    majority. Both undo and wait for a *random* time, which grows from try to try.
5.  *Renewal* counts if a majority has extended the key that it has. A server that has lost the key
    does not get it back: another holder may have asked that server since. Without a majority the
    lease is unknown, until the next try or its own deadline.
6.  *Release* goes to all servers.

There is no fencing token: each server has a clock and a counter of its own, and two majorities may
share only one server, whose number the others don't know. There is no queue either.

Sources: "Distributed Locks with Redis", the Redis documentation, by Salvatore Sanfilippo; Martin
Kleppmann, "How to do distributed locking" (2016), and Sanfilippo's answer "Is Redlock safe?".
docs/redlock.md explains where they disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from ..base import tokens
from ..base.clock import deadline
from ..base.exceptions import LockError, LockNotAcquired, LockUnavailable
from ..base.servers import Servers
from . import mutex, queued
from .contract import (
    MOST_AT_ONCE,
    Claim,
    Grant,
    Outcome,
    Port,
    Question,
    Refusal,
    Renewals,
    Request,
    Sight,
    milliseconds,
    no_short_request,
)
from .keys import Keys
from .scripts import AT_ONCE, flag, verdicts, whole
from .waiting import no_longer

Answers = Sequence[Any]
"""The answer of each server's script, in order, or the error instead."""
Enough = Callable[[Answers], bool]
"""Says of the answers that have come whether no others are needed."""

PAUSE = 0.02, 0.2, 0.8
"""Seconds between two tries: at least, at most, and at most after some tries. The pause is random,
or claims that collided once would collide again."""


WITHIN = 0.5
"""Seconds to wait for a server at most, including the time to connect."""


def within(ttl: float) -> float:
    """Return the seconds to wait for a server: a small part of the ttl, since waiting costs
    validity."""
    return min(ttl / 10, WITHIN)


@dataclass(frozen=True, slots=True)
class Redlock:
    """The algorithm, for these servers."""

    servers: Servers
    kind: ClassVar[str] = "redlock"
    unfenced: ClassVar[str] = (
        "A Redlock has no fencing token, since its servers share no counter. To refuse a late "
        "writer, lock on one server, or let each write compare the row with what was read."
    )

    async def acquire(self, port: Port, claim: Claim, wait: float | None) -> Outcome:
        name = claim.keys.name
        attempts = queued.Attempts(port, claim, wait)
        tries = 0
        free = True
        while True:
            attempts.ask()
            answers = await self._ask(port, claim, free=free, last=attempts.last)
            granting = [number for number, answer in enumerate(answers) if _says(answer, 1)]
            in_time = port.now() < deadline(attempts.sent, claim.ttl)
            if len(granting) >= self.servers.quorum and in_time:
                claim.doubtful = any(isinstance(answer, LockError) for answer in answers)
                acquired_us = min(answers[number][1] for number in granting)
                return Grant(None, acquired_us, attempts.sent)
            owing = await self._undo(port, claim, _left(answers), granting)
            if free and None in answers:  # it is not free somewhere: ask who has it
                free, claim.token, claim.sent = False, tokens.new(), False
                continue
            error: LockNotAcquired | LockUnavailable
            if any(_says(answer, 0) for answer in answers) and self._most(answers):
                error = self._taken(name, answers, attempts.waited)
                if attempts.last:
                    return error
                attempts.log.busy(name, error.holder, error.waited)
            else:
                error = self._unavailable(name, answers, in_time)
                error.after(attempts.waited)
                # As in queued.py: killed waiters for an ordinary mutex of this name stood before
                # us.
                again = any(_says(answer, 2) for answer in answers)
                if (attempts.last and not again) or not error.passing:
                    raise error
                attempts.log.unavailable(error, error.waited)
            while True:
                tries += 1
                left = attempts.left
                await port.wait(_pause(port, tries, error, left), left)
                if len(owing) >= self.servers.quorum:
                    owing = await self._undo(port, claim, owing)
                if len(owing) < self.servers.quorum:
                    break
                if attempts.over:
                    raise error
            claim.token, claim.sent = tokens.new(), False

    async def _ask(self, port: Port, claim: Claim, *, free: bool, last: bool) -> Answers:
        """Ask all servers for the lock; as long as it seems to be `free`, by the short request of
        a mutex, which does nothing if it is not."""
        request = mutex.taking(claim) if free else mutex.asking(claim, claim.names)
        read = AT_ONCE.get(request.script, queued.acquired)

        def enough(answers: Answers) -> bool:
            return (free and None in answers) or self._decided(answers, last=last)

        return await self._ask_all(port, read, request, enough, within(claim.ttl))

    async def _undo(
        self, port: Port, claim: Claim, at: Sequence[int], granting: Collection[int] = ()
    ) -> list[int]:
        """Undo a try at some of the servers. Returns the servers that have not confirmed it, and
        may still have something of the try. Waits for the servers that granted it, and for a
        majority."""

        def owing(answers: Answers) -> list[int]:
            answered = zip(at, answers, strict=True)
            return [number for number, answer in answered if isinstance(answer, LockError)]

        def enough(answers: Answers) -> bool:
            left = owing(answers)
            return len(left) < self.servers.quorum and not set(left) & set(granting)

        if not at:
            claim.sent = False
            return []
        withdraw = len(granting) < len(at)
        answers = await self._release_at(port, claim, withdraw, enough, at)
        left = owing(answers)
        claim.sent = bool(left)
        return left

    async def release(self, port: Port, claim: Claim) -> Refusal | None:
        """Release the lock at all servers. None: a majority has released it, now or before."""
        done: list[Any] = []
        at: Sequence[int] = range(len(self.servers.aliases))
        if not claim.doubtful:
            request = mutex.dropping(claim)
            dropped = await self._ask_all(
                port,
                AT_ONCE[request.script],
                request,
                lambda answers: self._settled(answers, bool),
                within(claim.ttl),
            )
            done = [answer for answer in dropped if _says(answer, 1)]
            at = [number for number in at if not _says(dropped[number], 1)]
            lost = [answer for answer in dropped if isinstance(answer, LockError)]
            claim.release_lost |= any(map(_arrived, lost))

        def settled(answers: Answers) -> bool:
            return self._settled([*done, *answers], _refused)

        answers = done
        if at:
            answers = [*done, *await self._release_at(port, claim, claim.doubtful, settled, at)]
        refused = _refusals(answers)
        if len(refused) >= self.servers.quorum:
            refusal = _telling(refused)
            # As far as the answers show, the earlier request released it, and others have held it
            # since.
            return None if claim.release_lost and not refusal.revoked else refusal
        if not self._most(answers):
            claim.doubtful = True
            claim.release_lost |= any(map(_arrived, answers))
            raise self._unavailable(claim.keys.name, answers)
        return None

    async def extend(self, port: Port, claims: Sequence[Claim], ttls: Sequence[float]) -> Renewals:
        """As `Primitive.extend`. None: a majority has extended it. An error: no majority has given
        the same answer."""
        held = [(claim.keys, claim.token, ttl) for claim, ttl in zip(claims, ttls, strict=True)]
        request = mutex.extension(held, store=mutex.another_ttl(claims, ttls), why=True)

        def of_each(answers: Answers) -> list[Answers]:
            """Return for each claim what each server says: None, a refusal, or an error."""
            number = len(claims)
            said = ([one] * number if isinstance(one, LockError) else one for one in answers)
            return list(zip(*said, strict=True))

        def settled(answers: Answers) -> bool:
            return all(self._settled(of_one, _refused) for of_one in of_each(answers))

        read, seconds = verdicts(len(claims)), within(min(ttls))
        heard = await self._ask_all(port, read, request, settled, seconds)
        results: list[Refusal | LockUnavailable | None] = []
        for claim, answers in zip(claims, of_each(heard), strict=True):
            refused = _refusals(answers)
            if answers.count(None) >= self.servers.quorum:
                results.append(None)
            elif len(refused) >= self.servers.quorum:
                results.append(_telling(refused))
            else:
                results.append(self._unavailable(claim.keys.name, answers))
        return results

    taking = dropping = staticmethod(no_short_request)  # it is sent to several servers

    async def write_down(self, port: Port, claims: Sequence[Claim]) -> None:
        """As `mutex.write_down`, at every server."""
        for start in range(0, len(claims), MOST_AT_ONCE):
            some = claims[start : start + MOST_AT_ONCE]
            request = mutex.record_of([(claim.keys, claim.token) for claim in some])
            await self._ask_all(port, whole, request, self._most, WITHIN)

    async def adopt(self, port: Port, token: str, claim: Claim) -> Grant | Refusal:  # noqa: ARG002
        """Raise `LockError`: such a lease stays in its process."""
        raise LockError("A lease of the kind 'redlock' can't be restored.", claim.keys.name)

    async def holders(self, port: Port, keys: Keys) -> list[Sight]:
        """Return the holder at a majority of the servers."""
        request = Request("mutex_holder", [keys.lock], [tokens.word()])
        answers = await self._ask_all(
            port, mutex.sights, request, lambda answers: self._settled(answers, _tokens), WITHIN
        )
        if not self._most(answers):
            raise self._unavailable(keys.name, answers)
        seen: dict[bytes, list[Sight]] = {}
        for answer in answers:
            for sight in () if isinstance(answer, LockError) else answer:
                seen.setdefault(sight.token, []).append(sight)
        return [sights[0] for sights in seen.values() if len(sights) >= self.servers.quorum]

    async def clear(
        self, port: Port, keys: Keys, seen: Sequence[bytes], by: str, reason: str
    ) -> list[bool]:
        """Take the lock away at every server, for an operator. False: it changed hands."""
        request = mutex.clearing(keys, seen, by, reason)
        # No server may be left out.
        answers = await self._ask_all(port, flag, request, lambda _: False, WITHIN)
        if not self._most(answers):
            raise self._unavailable(keys.name, answers)
        return [any(answer is True for answer in answers)]

    async def show_life(self, port: Port, key: str, ttl: float, patience: float) -> None:
        """Show that this process lives, at every server."""
        request = Request("record_set", [key], [tokens.word(), b"", milliseconds(ttl)])
        await self._ask_all(port, bool, request, self._most, patience)

    async def _release_at(
        self, port: Port, claim: Claim, withdraw: bool, enough: Enough, at: Sequence[int]
    ) -> Answers:
        """Release the lock at some of the servers."""
        request = mutex.releasing(claim, claim.names, withdraw=withdraw)
        read = partial(queued.released, claim.names)
        return await self._ask_all(port, read, request, enough, within(claim.ttl), at)

    async def _ask_all(
        self,
        port: Port,
        read: Callable[[Any], Any],
        request: Request,
        enough: Enough,
        seconds: float,
        at: Sequence[int] | None = None,
    ) -> Answers:
        """Ask all servers, or some of them, as `Port.ask_all`."""
        aliases = self.servers.aliases
        servers = aliases if at is None else [aliases[number] for number in at]
        return await port.ask_all(Question(servers, request, read, enough, seconds))

    def _decided(self, answers: Answers, last: bool = False) -> bool:
        """Return whether a majority has granted the lock. Or a majority has answered, and either
        the other servers can't change the result, or somebody else tries at this moment: our
        grants are then released at once, and not kept while slow servers are waited for. The
        last try waits for them, since there is no further one."""
        granted = sum(_says(answer, 1) for answer in answers)
        if granted >= self.servers.quorum:
            return True
        lost = granted + _silent(answers) < self.servers.quorum
        return self._most(answers) and (lost or (not last and any(map(_collides, answers))))

    def _settled(self, answers: Answers, what: Callable[[Any], Hashable]) -> bool:
        """Return whether a majority says the same, or can't any more. Until then, slow servers are
        waited for: of two fast ones, one may have lost its data."""
        said = [what(answer) for answer in answers if not isinstance(answer, LockError)]
        alike = max(map(said.count, said), default=0)
        quorum = self.servers.quorum
        return alike >= quorum or alike + _silent(answers) < quorum

    def _most(self, answers: Answers) -> bool:
        """Return whether a majority has answered."""
        return sum(not isinstance(one, LockError) for one in answers) >= self.servers.quorum

    def _taken(self, name: str, answers: Answers, waited: float) -> LockNotAcquired:
        """The error that names the holder at most of the servers."""
        refusals = [answer for answer in answers if _says(answer, 0)]
        of_token = Counter(sight.token for _, sight, *_ in refusals)
        [(token, _)] = of_token.most_common(1)
        holder = next(sight.holder for _, sight, *_ in refusals if sight.token == token)
        return LockNotAcquired(name, holder, waited)

    def _unavailable(self, name: str, answers: Answers, in_time: bool = True) -> LockUnavailable:
        errors = [answer for answer in answers if isinstance(answer, LockError)]
        unavailable = [error for error in errors if isinstance(error, LockUnavailable)]
        if not in_time:
            why = "they took longer than the lease lives"
        else:
            why = "; ".join(map(str, errors)) or "they don't agree"
        error = LockUnavailable(
            f"No majority of the servers {self.servers} could be asked for {name!r}: {why}",
            name,
            doubtful=True,
            passing=not errors or any(error.passing for error in unavailable),
            silent=any(error.silent for error in unavailable),
        )
        error.__cause__ = errors[0] if errors else None
        return error


def _says(answer: Any, code: int) -> bool:
    return isinstance(answer, list | tuple) and answer[0] == code


def _collides(answer: Any) -> bool:
    """Return whether a server has granted the lock to somebody else so lately that this may be a
    try, like ours. A try is over after `WITHIN` seconds; an older holder gives nothing back
    now."""
    if not _says(answer, 0):
        return False
    held = answer[1].holder.held
    return held is not None and held < 2 * WITHIN


def _refused(answer: Any) -> bool:
    return isinstance(answer, Refusal)


def _refusals(answers: Answers) -> list[Refusal]:
    return [answer for answer in answers if isinstance(answer, Refusal)]


def _tokens(answer: Sequence[Sight]) -> Hashable:
    """Return the token of the holder at a server, if somebody holds the lock there."""
    return tuple(sight.token for sight in answer)


def _silent(answers: Answers) -> int:
    """Return how many servers have not answered yet."""
    return sum(isinstance(one, LockUnavailable) and one.silent for one in answers)


def _arrived(answer: Any) -> bool:
    """Return whether a server has run the script, or may have."""
    if isinstance(answer, LockError):
        return isinstance(answer, LockUnavailable) and answer.doubtful
    return answer is not None


def _left(answers: Answers) -> list[int]:
    """Return the servers that may have something of an acquire, now or soon: it was not refused
    there, and it may have been sent."""
    return [
        number
        for number, answer in enumerate(answers)
        if _arrived(answer) and not _says(answer, 0)
    ]


def _pause(port: Port, tries: int, error: LockError, left: float) -> float:
    """Return the seconds until the next try: not much more than the holder's lease still lives."""
    least, first, longest = PAUSE
    seconds = port.uniform(least, min(first * 2.0 ** (tries - 1), longest))
    remaining = error.holder.remaining if isinstance(error, LockNotAcquired) else None
    return no_longer(seconds, remaining, port.uniform(least, first), left)


def _telling(refused: Sequence[Refusal]) -> Refusal:
    """Return the refusal that says most: about an operator, or about another holder."""
    return max(refused, key=lambda refusal: (refusal.revoked, refusal.holder is not None))

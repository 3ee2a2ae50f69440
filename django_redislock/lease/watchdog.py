"""The watchdog: one thread per process and server that renews all leases there. The servers of a
Redlock together have one watchdog of their own.

Every lease is renewed at a third of its ttl, up to 250 in one request. A failed renewal
makes a lease unknown and is tried again soon; when the lease's own deadline has passed, it
is lost. The watchdog has only a weak reference to a lease: when the `Lease` object is gone,
nobody can release it any more, so it is left to expire, with a warning.

A look costs what is due, however many leases there are: they are in a heap by the time at which
they are due. Leases that one request has renewed stay together there, as a cohort, and the next
request renews all that have not been released or extended by then. So a renewal costs each of them
a few steps only.

Those that are due are renewed in the order of their deadlines, and a look ends after a moment even
if some are left, so that a lease that lives for a second does not wait for thousands that live for
a minute. All leases are looked through only as often as this process shows that it lives.

A lease is lost at its own deadline, and a request that gets no answer must not delay the callbacks
for that. So a second thread minds the deadlines while the first one waits for answers. It is
started when a lease may end so: it is short, or not renewed, or its last renewal failed.

Each server has its own thread, so that a server that does not answer costs no lease at another
one. A cluster is one server here: a node that did not answer is passed over until the next round,
and comes last in that round. A request to a cluster has the leases of one slot, which mostly is
one lease. A lease in several slots is renewed by itself, after the leases in one slot.

On a server that is sharded behind one address, nobody knows which slots are on one node. A request
that got no answer ends the look, and its leases come last in the next one.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from operator import itemgetter
from typing import Any

from redis import ConnectionPool
from redis.exceptions import RedisError, ResponseError

from ..base import process
from ..base.background import Background
from ..base.clock import now
from ..base.exceptions import LeaseLost, LockError, LockUnavailable
from ..base.people import Holding
from ..primitives.contract import MOST_AT_ONCE, NO_TERMS, Claim, Port, Terms, run
from ..transport import connections, maintenance, subscription
from ..transport.cluster import Node
from ..transport.inbox import Inbox
from ..transport.ports import SyncPort
from ..transport.server import Server, every
from .holds import Held
from .lifetime import A_SECOND, NEVER, LeaseState, Lifetime, Times, renew
from .register import PRESENCE, PRESENCE_EVERY, register, show_life
from .schedule import EARLY, Cohort, Schedule

logger = logging.getLogger("django_redislock")

MOMENT = 0.1
"""Seconds after which a look ends. The next look sees what has become more urgent."""
USUAL = 0.02
"""Seconds that a look usually takes, at most."""
SHORT = 6 * connections.BACKGROUND_TIMEOUT
"""The ttl, in seconds, below which a lease may end in a look that began before its renewal was
due: two thirds of its ttl are left then, and a look may wait for four answers that don't come."""
TRACKED_FROM = 3.0
"""The ttl, in seconds, above which a lease is tracked. That of another one is renewed within a
second, which tells of a loss as well."""
MOST_TRACKED = 2000
"""Leases that a process tracks at one server, which has to remember each of them anew after each
renewal: the oldest ones."""
PATIENCE = 1 / 6
"""A renewal that got no answer for this part of the ttl is sent again, over a new connection:
so two may be lost, and the third is in time."""
LAST_WORDS = 2.0
"""Seconds that the end of the process waits for outstanding releases."""
MOST_OWED = 1000
"""Outstanding releases that are kept while no thread can be started to do them: the latest."""


Release = Callable[[Port], Coroutine[Any, Any, None]]
"""Releases a lease for the watchdog. It tries until Redis answers."""

READY = -1.0
"""The `Times.at` of leases that are due, until they are renewed."""


class Watchdog:
    """Renews the leases at one server, and releases leases there in the background."""

    def __init__(self, server: Server) -> None:
        self.server = server
        # The port of a Redlock has pools for its servers.
        self._pool = None if server.each else server.background_pool()
        self.register = register(server)
        self._unwatched: dict[str, tuple[float, Claim]] = {}
        """By token: claims without a lease, and when each is written down."""
        self._news: dict[str, Lifetime] = {}
        """By token: leases whose due time the thread does not know yet. A lease that is released
        before the thread looks leaves nothing behind."""
        self._untracked: dict[str, Lifetime] = {}
        """By token: leases that are to be tracked in the next look, or when the inbox is ready for
        that."""
        # Only the thread uses these two.
        self._due = Schedule(lambda: self.register.lifetimes)
        self._ready: dict[tuple[Hashable, ...], list[Cohort]] = {}
        """The leases that are due, the most urgent one last. One list has the leases that one
        request can renew."""
        self._next = NEVER
        """When the thread looks next. A lease that is due earlier has to wake it."""
        self._show_at = 0.0
        """When this process has to show again that it lives."""
        self._behind: set[tuple[Hashable, ...]] = set()
        """On a sharded server: the requests that got no answer the last time."""
        self._shortest = NEVER
        """The smallest ttl of the leases that are renewed here. On a cluster, no request may take
        so long that it costs such a lease at another node."""
        # A list, and SimpleQueue and no Condition: the garbage collector may add to them in
        # the middle of anything, as transactions.py does.
        self._to_release: list[tuple[str, Release]] = []
        self._woken: queue.SimpleQueue[float] = queue.SimpleQueue()
        """The due times of the leases that woke the thread."""
        self._background = Background(self._run, "redislock-watchdog")
        self._deadlines = Background(self._mind_deadlines, "redislock-deadlines")
        self._looks: queue.SimpleQueue[threading.Event] = queue.SimpleQueue()
        """For that thread: an event for each look, set at its end."""
        self._settled = threading.Event()

    def watch(self, lease: Lifetime, me: Holding | None) -> None:
        """Renew a lease that `me` holds from now on, and notice when it is lost."""
        self.register.add(lease, me)
        self._remember(lease)

    def look_by(self, time: float) -> None:
        """Let the thread look at this time, if it would look later."""
        if self._background.start() and time < self._next:
            self.wake(time)

    def reconsider(self, lease: Lifetime) -> None:
        """Look at the due time of a lease, which may be earlier than before."""
        if lease.claim.token in self.register.lifetimes:
            self._remember(lease)

    def _remember(self, lease: Lifetime) -> None:
        self._news[lease.claim.token] = lease
        self.look_by(min(lease.due, lease.write_at))

    def suspect(self, keys: Sequence[str] | None) -> None:
        """Renew the leases on these keys now, since somebody else has changed them. None: all."""
        for lease in self.register.lifetimes_on(keys):
            if lease.tracked and lease.renew:
                # The holder may be extending it, and set its due time after this.
                self._untracked[lease.claim.token] = lease
                lease.due = now()
                self.reconsider(lease)

    def hurry(self) -> None:
        """Renew all leases now, except those that were renewed within a second."""
        for lease in self.register.lifetimes.copy().values():
            if lease.renew and lease.due - now() < lease.times.term / 3 - A_SECOND:
                lease.due = now()
                self.reconsider(lease)

    def wake(self, due: float = NEVER) -> None:
        """Let the thread look now, and again at the time `due`."""
        self._woken.put(due)

    def forget(self, claim: Claim) -> None:
        """Stop watching: this process no longer holds the lease."""
        token = claim.token
        self.register.remove(claim)
        self._news.pop(token, None)
        if self._untracked or self._unwatched:
            self._untracked.pop(token, None)
            self._unwatched.pop(token, None)

    def write_down_later(self, claim: Claim) -> None:
        """Write down a claim in a second, if it is not forgotten before. It is not renewed."""
        if not self._background.start():
            return
        at = now() + A_SECOND
        self._unwatched[claim.token] = (at, claim)
        self.look_by(at)

    def write_down(self) -> None:
        """Write down all young leases, and claims without a lease."""
        soon = now() + PRESENCE / 2
        young = [one for one in self.register.lifetimes.copy().values() if one.write_at < soon]
        for lease in young:
            lease.write_at = now() + PRESENCE
        self._write_down([*(lease.claim for lease in young), *self._written_by(NEVER)])

    def release_later(self, name: str, release: Release) -> None:
        """Release it in the background. A finalizer may call this."""
        self._to_release.append((name, release))
        if self._background.start():
            self.wake()
        else:
            del self._to_release[:-MOST_OWED]

    def owes(self, name: str) -> bool:
        """Return whether something on this name is still to be released in the background."""
        return any(name == its for its, _ in self._to_release.copy())

    def settle(self, seconds: float) -> None:
        """Wait until everything from `release_later` is released, for this number of seconds at
        most."""
        if not self._to_release:
            return
        if self._background.start():
            self._settled.clear()
            self.wake()
            self._settled.wait(seconds)
        else:
            self._release_pending(now() + seconds)

    def _run(self) -> None:
        announced = NEVER
        while True:
            try:
                due = self._look()
            except Exception:
                # Never die: all leases of the process would be lost.
                logger.exception("The watchdog failed; it goes on in a second.")
                time.sleep(1.0)
                self._ready.clear()
                self._due.clear()
                for lease in self.register.lifetimes.copy().values():
                    lease.times.at = NEVER
                    self._news[lease.claim.token] = lease
                due = now()
            if not self._to_release:
                self._settled.set()
            # This holds even if the lease that woke the thread is released by now: then leases
            # that come and go until that time do not wake it again.
            announced = self._sleep(min(due, announced) if announced > now() else due)

    def _sleep(self, until: float) -> float:
        """Sleep until then, or until woken. Return when the leases that woke it are due."""
        self._next = until
        # The leases that came before that line did not wake the thread.
        self._next = until = min(until, self._admit())
        timeout = None if until == NEVER else max(0.0, until - now())
        announced = NEVER
        with contextlib.suppress(queue.Empty):
            announced = self._woken.get(timeout=timeout)
            while True:  # one look is enough for all of them
                announced = min(announced, self._woken.get_nowait())
        self._next = -NEVER  # awake: the thread looks at all that comes before it sleeps again
        return announced

    # When a lease is due.

    def _admit(self) -> float:
        """Enter the new leases. Return when the next lease or claim is due."""
        self.register.complete_all()
        news: list[Lifetime] = []
        while self._news:
            with contextlib.suppress(KeyError):  # the lease was released just now
                news.append(self._news.popitem()[1])
        self._schedule(news)
        return min([self._due.next(), *(at for at, _ in tuple(self._unwatched.values()))])

    def _schedule(self, leases: Iterable[Lifetime]) -> None:
        """Look at leases when they are due, and forget those that are over."""
        cohorts: dict[Times, list[Lifetime]] = {}
        for lease in leases:
            cohorts.setdefault(lease.times, []).append(lease)
        for times, its in cohorts.items():
            if times.at != NEVER:
                # Nothing is changed by now, or it is lost. The others of its cohort are not here.
                for lease in its:
                    self._living(lease)
                continue
            if not its[0].renew or times.in_doubt or times.term < SHORT:
                self._deadlines.start()
            if its[0].renew:
                self._shortest = min(self._shortest, times.term)
            self._due.add(times, its)

    def _living(self, lifetime: Lifetime) -> Held | None:
        """Return the lease if somebody has it and it is not over. Otherwise forget it."""
        lease = lifetime.lease()
        if lease is not None and lifetime.kept(now()):
            return lease
        claim = lifetime.claim
        if claim.token not in self.register.lifetimes:  # it is being released, or was
            return None
        if lease is None:
            self.forget(claim)
            logger.warning(
                "The lease on %r, taken at %s, was dropped without being released. It is not "
                "renewed any more and ends with its ttl. Keep it, or write a with block.",
                claim.keys.name,
                claim.label,
            )
        elif lifetime.over or lifetime.expire() is not None:
            self.forget(claim)
            return None
        elif (orphan := lease._holds.orphan) is not None and not lifetime.closing:
            logger.warning(
                "The event loop of a task that holds %r, taken at %s, was closed: the lease "
                "is released.",
                claim.keys.name,
                claim.label,
            )
            lease._abandon(orphan)
        return lease

    def _gather(self, until: float) -> list[Lifetime]:
        """Make ready what is due to be renewed. Return what is due to be written down."""
        later: list[Lifetime] = []
        old: list[Lifetime] = []
        for cohort in self._due.due(until):
            times, leases = cohort.times, cohort.leases
            times.at = READY
            for lease in leases:
                if lease.write_at <= until and self._living(lease) is not None:
                    lease.write_at = until + PRESENCE
                    old.append(lease)
            if leases[0].renew and times.due - until <= EARLY * times.term / 3:
                # On a cluster, it may turn out late that they are in several slots.
                for some in [[its] for its in leases] if self.server.clustered else [leases]:
                    ready = self._ready.setdefault(self._together(some[0]), [])
                    ready.append(cohort._replace(time=times.deadline, leases=some))
            else:  # they were to be written down, or are not renewed
                times.at = NEVER
                later += (its for its in leases if self._living(its) is not None)
        for ready in self._ready.values():
            ready.sort(key=itemgetter(0, 1), reverse=True)
        self._schedule(later)
        return old

    def _batch(self, together: tuple[Hashable, ...]) -> list[Lifetime]:
        """Return the most urgent leases that are ready and can be renewed in one request."""
        ready, time = self._ready[together], now()
        leases: list[Lifetime] = []
        while ready and (room := MOST_AT_ONCE - len(leases)) > 0:
            cohort = ready.pop()
            some, rest = cohort.leases[:room], cohort.leases[room:]
            if rest:
                ready.append(cohort._replace(leases=rest))
            leases += (its for its in some if its.kept(time) or self._living(its) is not None)
        if not ready:
            del self._ready[together]
        return leases

    def _look(self) -> float:
        """Renew and release the leases that are due. Return when to look next."""
        began = now()
        self._admit()
        over = threading.Event()
        if self._deadlines.started:
            self._looks.put(over)
        try:
            return self._ask(began)
        finally:
            over.set()

    def _mind_deadlines(self) -> None:
        """Tell of leases that end while a look waits for answers."""
        while True:
            over, pause = self._looks.get(), USUAL
            while not over.wait(pause):
                time, pause = now(), MOMENT  # others may come meanwhile
                every_lease = self.register.lifetimes.copy().values()
                soon = [its for its in every_lease if its.times.deadline <= time + MOMENT]
                for lease in soon:
                    if lease.deadline > time:
                        pause = min(pause, lease.deadline - time)
                        continue
                    try:
                        lease.expire()
                    except Exception:
                        logger.exception("The loss of %r could not be told", lease.claim.keys.name)

    def _ask(self, began: float) -> float:
        """Send the requests of a look."""
        old = self._gather(began)
        asked, silent = False, set[Node | None]()
        for together in sorted(self._ready, key=self._urgency):
            nodes = self._nodes_of(together)
            # Leases that are left after a moment wait, since others may have become more urgent.
            # But the leases at a node that did not answer are all done with: it is not asked again
            # in this look.
            while together in self._ready and (
                not asked or nodes & silent or now() <= began + MOMENT
            ):
                leases = self._batch(together)
                asked |= bool(leases)
                if leases and not self._renew(leases, ask=not nodes & silent):
                    if self.server.clustered and not nodes & silent:
                        self._behind.add(together)
                    silent |= self._failed(nodes)
                else:
                    self._behind.discard(together)
                self._schedule(leases)
        if self._untracked:
            waiting, self._untracked = self._untracked, {}
            there = self.register.lifetimes
            self._track_more([lease for token, lease in waiting.items() if token in there])
        unwatched = self._written_by(began)
        if not silent and self._write_down([*(lease.claim for lease in old), *unwatched]):
            self._track_more(old)
        else:
            for lease in old:
                lease.write_at = began  # with its next renewal
            for claim in unwatched:
                self._unwatched[claim.token] = (began + PRESENCE_EVERY, claim)
        next_look = now() if self._ready else self._admit()
        if not silent or self.server.clustered:
            self._release_pending()
            early = EARLY * PRESENCE_EVERY if asked else 0.0  # so it needs no look of its own
            if self.register.lifetimes and began >= self._show_at - early:
                self._show_at = began + PRESENCE_EVERY
                self._survey()
            next_look = min(next_look, self._show_at if self.register.lifetimes else NEVER)
        return min(next_look, now() + 1.0) if self._to_release else next_look

    def _written_by(self, time: float) -> list[Claim]:
        """Return the claims without a lease that are due to be written down."""
        found = [claim for at, claim in tuple(self._unwatched.values()) if at <= time]
        for claim in found:
            self._unwatched.pop(claim.token, None)
        return found

    def _write_down(self, claims: Iterable[Claim]) -> bool:
        """Write down what has been held for a while, for people. Return whether that is done."""
        done = True
        for _, some in itertools.groupby(sorted(claims, key=_kind), key=_kind):
            batch = list(some)
            port = self._port(PATIENCE * self._shortest)  # more time could cost a lease
            try:
                run(batch[0].primitive.write_down(port, batch))
            except LockError as error:
                logger.debug("%s could not be written down: %s", _text(batch), error)
                done = False
                if isinstance(error, LockUnavailable) and error.silent:
                    break  # the others would take as long again
        return done

    def _track_more(self, leases: Sequence[Lifetime]) -> None:
        """Track these leases, too, as far as there is room.

        Only locks with one holder: those of several holders change with each of the others.
        """
        tracked = [its for its in leases if its.tracked]
        new = [
            its
            for its in leases
            if not its.tracked and its.renew and its.times.term > TRACKED_FROM
            if its.claim.primitive.kind == "mutex"
        ]
        room = MOST_TRACKED - sum(its.tracked for its in self.register.lifetimes.copy().values())
        self._track([*tracked, *new[: max(0, room)]])

    def _track(self, leases: Sequence[Lifetime]) -> None:
        """Let the server say at once if somebody else changes a lock of these leases. Not on a
        cluster, nor on the servers of a Redlock."""
        pool = self._pool
        if not leases or self.server.clustered or not isinstance(pool, ConnectionPool):
            return
        box = self.server.kept(Inbox, leases[0].claim.keys.prefix)
        box.follow(self)
        if (redirect := box.redirect) is None:
            if box.may_follow:
                self._untracked.update((lease.claim.token, lease) for lease in leases)
            return
        within = min(PATIENCE * self._shortest, connections.BACKGROUND_TIMEOUT)
        for start in range(0, len(leases), MOST_AT_ONCE):
            some = leases[start : start + MOST_AT_ONCE]
            for lease in some:
                lease.tracked = True  # before: a message may come at once
                if self._untracked:
                    self._untracked.pop(lease.claim.token, None)
            keys = [its.lock for lease in some for its in lease.claim.renewed_keys]
            try:
                there = subscription.track(pool, redirect, keys, within)
            except (RedisError, OSError) as error:
                logger.debug("Changes of locks can't be told at once: %s", error)
                box.unfollow()
                return
            if not there:
                self.suspect(keys)

    def _survey(self) -> None:
        """Look through all leases, and show that their process lives."""
        every_lease = self.register.lifetimes.copy().values()
        living = [lease for lease in every_lease if self._living(lease) is not None]
        self._shortest = min((its.times.term for its in living if its.renew), default=NEVER)
        if len(self._behind) > MOST_AT_ONCE:
            self._behind.clear()  # most are of leases that are gone
        # More time could cost a lease.
        least = min((its.times.term for its in living), default=NEVER)
        within = min(PATIENCE * least, connections.BACKGROUND_TIMEOUT)
        for index in {its.claim.keys.index for its in living}:
            show_life(self._port(within), self.server, index, within)

    def _together(self, lease: Lifetime) -> tuple[Hashable, ...]:
        """Return a key that is equal for leases that one request can renew."""
        claim = lease.claim
        index = claim.names[0].index
        slot, alone = 0, ""
        if self.server.clustered:
            slots = {*self.server.slots([keys.lock for keys in claim.renewed_keys])}
            slot, alone = min(slots), claim.token if len(slots) > 1 else ""
        return claim.primitive.kind, index, slot, alone, lease.terms

    def _urgency(self, together: tuple[Hashable, ...]) -> tuple[bool, bool, float]:
        """Return the order of requests: first those that delay no others, then those of leases
        that end soon."""
        nodes = self._nodes_of(together)
        behind = together in self._behind or bool(self._failed(nodes) - {None})
        return behind, len(nodes) > 1, self._ready[together][-1].time

    def _nodes_of(self, together: tuple[Hashable, ...]) -> set[Node | None]:
        """Return the nodes of a cluster that a request goes to. Without a cluster: {None}."""
        claim = self._ready[together][0].leases[0].claim
        return {connections.node_of(self._pool, keys.lock) for keys in claim.renewed_keys}

    def _failed(self, nodes: set[Node | None]) -> set[Node | None]:
        """Return the nodes that did not answer the last request. None counts as one of them."""
        return nodes & (connections.failed(self._pool) | {None})

    def _renew(self, leases: list[Lifetime], *, ask: bool) -> bool:
        """Renew the leases. Return False if the server did not answer, or was not asked."""
        news = any(lease.state != LeaseState.UNKNOWN for lease in leases)
        try:
            if ask:
                within = PATIENCE * min(lease.times.term for lease in leases)
                run(renew(self._port(within, leases[0].terms), leases))
                self._track([lease for lease in leases if lease.tracked and not lease.closing])
                return True
        except LockUnavailable as error:
            level = logging.WARNING if news else logging.DEBUG
            some = _text([lease.claim for lease in leases])
            logger.log(level, "%s could not be renewed: %s", some, error)
            # Another part of a sharded server may have an error of its own.
            return self.server.clustered and isinstance(error.__cause__, ResponseError)
        except Exception:
            logger.exception("%s could not be renewed", _text([its.claim for its in leases]))
        for lease in leases:
            lease.unknown()
        return ask

    def _release_pending(self, until: float = NEVER) -> None:
        """Do the outstanding releases, and begin none after `until`."""
        for owed in self._to_release.copy():
            if (left := until - now()) <= 0:
                return
            name, release = owed
            try:
                run(release(self._port(left)))
            except LeaseLost:
                pass  # has been logged
            except LockError as error:
                if isinstance(error, LockUnavailable) and error.passing:
                    if not self.server.clustered:
                        return  # the rest has to wait, too
                    # The rest may be at other nodes, so this one comes last.
                    self._to_release.remove(owed)
                    self._to_release.append(owed)
                    if error.silent:
                        return  # one is enough in a round, or leases would have to wait
                    continue
                logger.warning("%r could not be released: %s", name, error)
            except Exception:
                # It is not tried again: otherwise nothing after it would ever be released.
                logger.exception("%r could not be released", name)
            self._to_release.remove(owed)

    def _port(self, within: float, terms: Terms = NO_TERMS) -> SyncPort:
        within = min(within, connections.BACKGROUND_TIMEOUT)
        if self.server.clustered:
            within = min(within, PATIENCE * self._shortest)
        return SyncPort(self.server, pool=self._pool, terms=terms._replace(within=within))


def _kind(claim: Claim) -> tuple[str, str]:
    """Return what the claims of one request to write them down have in common."""
    return claim.primitive.kind, claim.names[0].index


def _text(claims: Sequence[Claim]) -> str:
    """Return the subject of a sentence about the leases of these claims."""
    name = claims[0].keys.name
    if len(claims) == 1:
        return f"The lease on {name!r}"
    return f"{len(claims)} leases, that on {name!r} among them,"


def watchdog(server: Server) -> Watchdog:
    """Return the watchdog of this process for a server."""
    return server.kept(Watchdog)


def write_down(server: Server) -> None:
    """Write down all leases that this process holds at a server, for a reader of the index."""
    for one in every(Watchdog):
        if any(its.where == server.where for its in one.server.each or (one.server,)):
            one.write_down()


def _hurry() -> None:
    for one in every(Watchdog):
        one.hurry()


maintenance.renewals.append(_hurry)


def _at_exit() -> None:
    """Do the outstanding releases before the threads of the process end."""
    process.notice_fork()
    give_up = now() + LAST_WORDS
    for one in every(Watchdog):
        one.settle(max(0.0, give_up - now()))


atexit.register(_at_exit)

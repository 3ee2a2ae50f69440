"""Loans: the connections that threads borrow from a pool, and keep for a while as lines.

1.  A connection is borrowed and released by the two public methods of its pool, `get_connection`
    and `release`. So the pool decides on addresses, TLS, passwords, Sentinel and limits.
2.  A *lender* does that, a thread of its own. No exception of a signal's handler comes there, in
    the middle of redis-py's work; and its caller waits no longer than there is time, whatever the
    time-outs of the pool. If no thread can be started, the caller does it. The lender also carries
    out the first request.
3.  Then the line may be *kept*: threads take it, one at a time, without asking the pool. It goes
    back after `LENT` seconds, so that the pool can close it, look at its health or authenticate
    anew. A line that is not kept goes back after its first request.
4.  A thread may lose a line to an exception between two steps. The `Loan` of the line stays, and a
    lender ends it: when the line is gone; or, since a traceback may keep it, when it is neither
    idle nor in use at two looks.
"""

from __future__ import annotations

import _thread
import logging
import queue
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import redis

from ..base import process
from ..base.clock import now
from ..primitives.contract import Terms, run
from ..primitives.waiting import LEAST, NEVER
from .line import DISCONNECTED, Line, LineByMethods
from .maintenance import hand_on
from .protocol import FULL, NOTHING, STUMBLES, NotSent, Sendable

logger = logging.getLogger("django_redislock")

T = TypeVar("T")

# Seconds that a lender gets at least, however little time there is: it is another thread.
LEAST_LENT = 0.1
# Seconds after which a line goes back to its pool.
LENT = 5.0
# Lines that are kept of a pool.
MOST_KEPT = 8
# The `max_connections` of a pool without a limit.
UNLIMITED = 2**31
# Connections that lenders still wait for when their callers have gone. Each takes a thread, and a
# part of what the pool allows. With so many, there is one more attempt in a second.
HANGING = 4
# Seconds after which a connection that is not there yet is asked for once more.
NEXT_ATTEMPT = 1.0
LATE = "no connection in time"
# Seconds between two looks at a pool that is full, or of which too many connections hang.
FULL_PAUSE = 0.01
# Whether a socket counts its readers, and keeps its number after `close()` until there are none.
# If another thread closes a connection, a thread that waits for its data is woken at once. But one
# that is about to wait would wait for the data of the next socket of this process, if that had got
# the number.
_KEEPS_NUMBER = hasattr(socket.socket, "_io_refs")


class Loan:
    """A connection that is not released yet."""

    def __init__(self, lines: Lines, line: Line) -> None:
        self.lines, self.connection, self._sock = lines, line.connection, line.sock
        self.line = weakref.ref(line)
        self._unused = False  # nobody had the line when it was looked at
        if self._sock is not None and _KEEPS_NUMBER:
            self._sock._io_refs += 1

    def look(self, time: float) -> None:
        """End it if the line was lost, or if it is idle and should have gone back at this time. A
        line in use goes back when its request has ended."""
        line = self.line()
        if line is not None and line.until > time:
            return
        if line is not None:
            line.kept = False
        if line is None or self.lines.withdraw(line):
            self.end()
        elif line.user is None and self._unused:
            line.busy = True  # a thread that has taken it after all finds it closed
            self.end()
        else:
            self._unused = line.user is None

    def end(self, line: Line | None = None) -> None:
        """Release the connection to its pool; closed, if an answer may still come. May be
        repeated. `line` keeps the line alive until then."""
        try:
            _lenders().loans.remove(self)
        except KeyError:
            return
        line = line or self.line()
        try:
            try:
                pushes = [] if line is None else line.overhear()
                if line is not None and not line.busy:
                    line.restore()
                for push in pushes:  # after that, since redis-py may change the time-outs
                    hand_on(self.connection, push)
                if line is None or line.busy:
                    self.connection.disconnect()
                self._let_close()
            finally:
                if (pool := self.lines.pool()) is not None:
                    pool.release(self.connection)
        except Exception:
            logger.debug("A connection could not be released", exc_info=True)

    def _let_close(self) -> None:
        if self._sock is None:
            return
        if _KEEPS_NUMBER:
            self._sock._io_refs -= 1
        if self.connection._sock is not self._sock:
            self._sock.close()


class _Lenders:
    """The lenders of this process, and its loans."""

    def __init__(self) -> None:
        self.loans: set[Loan] = set()
        self._jobs: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._free: list[None] = []  # an entry for each thread that waits for a job
        self._look_at = 0.0

    def start(self, job: Callable[[], object]) -> None:
        """Let a thread do this; or do it here, if none can be started."""
        if self._reserve():
            self._jobs.put(job)
        else:
            self._look()
            job()

    def _reserve(self) -> bool:
        if sys.is_finalizing():  # other threads stand still
            return False
        if _takes(self._free):
            return True
        try:
            # Not threading.Thread, whose start() an exception of a signal's handler confuses.
            _thread.start_new_thread(self._work, ())
        except RuntimeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is None:
                return False
            raise  # it comes from a signal's handler
        return True

    def _work(self) -> None:
        while True:
            try:
                self._jobs.get(timeout=LENT / 2)()
            except queue.Empty:
                if self._may_end():
                    return
            else:
                self._free.append(None)
            self._look()

    def _may_end(self) -> bool:
        if not _takes(self._free):
            return False  # a job is on its way to this thread
        if self.loans and not self._free:
            self._free.append(None)  # the last one looks after the loans
            return False
        return True

    def _look(self) -> None:
        if (time := now()) >= self._look_at:
            self._look_at = time + LENT / 2
            for loan in self.loans.copy():
                loan.look(time)


class Lines:
    """The lines that this process has borrowed from one pool."""

    def __init__(self, pool: Any) -> None:
        self.pool = weakref.ref(pool)
        self._idle: deque[Line] = deque()
        self._crowded = False  # the pool has made more than half of its connections
        self._hanging: list[queue.SimpleQueue[Any]] = []
        self._tried_at = 0.0

    @property
    def by_path(self) -> bool:
        """Whether the server has a Unix socket."""
        return "path" in getattr(self.pool(), "connection_kwargs", {})

    def left_behind(self) -> None:
        """Forget the lines, in a forked child: they are the parent's."""
        self._idle, self._hanging = deque(), []

    def ready(self, user: object) -> Line | None:
        """Return an idle line that is silent for this user, who owes `put`; the one that was used
        last comes first. `None`: there is none."""
        while self._idle:
            try:
                line = self._idle.pop()
            except IndexError:  # another thread has taken it
                break
            line.user = user
            try:
                if not line.heard(0):
                    return line
            except BaseException:  # a traceback may be kept for long, and the line with it
                self.drop(line)
                raise
            self.drop(line)
        return None

    def put(self, line: Line) -> None:
        """Take back a line whose request has ended; drop it if an answer may still come."""
        if line.kept and not line.busy:
            line.user = None  # there is no call between these two lines: see `leave`
            self._idle.append(line)
        else:
            _lenders().start(partial(line.loan.end, line))

    def leave(self, line: Line, user: object) -> None:
        """Do what `put` does, unless that was done: it may have been interrupted by an exception
        whose traceback keeps the line."""
        if line.user is user:
            self.put(line)

    def drop(self, line: Line) -> None:
        """Close a line, and release its connection."""
        line.busy = True
        self.put(line)

    def withdraw(self, line: Line) -> bool:
        """Take a line out of the idle ones. Return False if somebody uses it."""
        try:
            self._idle.remove(line)
        except ValueError:
            return False
        return True

    def at_once(self, steps: Callable[..., T], *args: Any) -> T | Any:
        """Do `steps(line, *args)` with an idle line. `NOTHING`: there is none."""
        try:
            line = self._idle.pop()
        except IndexError:
            return NOTHING
        line.user = args  # a tuple of this call alone
        try:
            if line.heard(0):
                self.drop(line)
                return self.at_once(steps, *args)
            try:
                return steps(line, *args)
            finally:
                if line.kept and not line.busy:  # as in `put`
                    line.user = None
                    self._idle.append(line)
                else:
                    self.put(line)
        except BaseException:
            if line.user is args:  # it came from outside, before the line was returned
                self.drop(line)
            raise

    async def exchange(self, its: Sendable, _: Terms, until: float) -> Any:
        """Send this over a line, as `do`, and return the answer."""
        return self.do(lambda line, until: run(its.over(line, until)), until)

    def do(self, steps: Callable[[Line, float], Any], until: float) -> Any:
        """Do `steps(line, until)`: here if there is an idle line, or else in the thread of a
        lender, once more for as long as the pool is full, within reason. The caller waits until
        then. Raises `NotSent` if there is no connection."""
        answer = self.at_once(steps, until)
        if answer is not NOTHING:
            return answer
        give_up = min(until, now() + LEAST)
        while True:
            try:
                return self._lend(steps, until)
            except NotSent as error:
                if str(error) != FULL or now() >= give_up:
                    raise
            time.sleep(FULL_PAUSE)

    def _lend(self, steps: Callable[[Line, float], T], until: float) -> T:
        """Carry out the steps over a borrowed connection.

        If another thread disconnects the pool while a lender connects, the lender may wait for the
        data of another socket, which has got the number of its own, until the pool's time-out. So
        after a second there is one more attempt, and the first connection is used.
        """
        last = until if until == NEVER else max(until, now() + LEAST_LENT)
        result: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        turn = [None]  # taken by the attempt that goes on, or by the caller who gives up
        ends: list[queue.SimpleQueue[None]] = []

        def carry_out(end: queue.SimpleQueue[None]) -> None:
            answer, error, mine = None, None, False
            try:
                try:
                    line = self._borrow()
                finally:
                    mine = _takes(turn)
                line.user = turn  # it is in use, as in `at_once`
                try:
                    answer = steps(line, until) if mine else None
                finally:
                    if line.kept and line.clean and not line.busy:
                        line.user = None
                        self._idle.append(line)
                    else:
                        line.loan.end()
            except BaseException as its_error:
                error = its_error
            for _ in range(2):  # an exception may take one away, and the other tells of the end
                end.put(None)
                if mine:
                    result.put((answer, error))

        try:
            while True:
                if turn and len(ends) < HANGING and self._may_try():
                    end: queue.SimpleQueue[None] = queue.SimpleQueue()
                    _lenders().start(partial(carry_out, end))
                    ends.append(end)
                rest, pause = max(last - now(), 0.0), NEXT_ATTEMPT if ends else FULL_PAUSE
                try:
                    answer, error = result.get(timeout=min(rest, pause))
                    break
                except queue.Empty:
                    if rest > pause:
                        continue
                if _takes(turn):
                    # A pool that lets its callers wait says nothing when it has no connection.
                    empty = getattr(getattr(self.pool(), "pool", None), "empty", bool)
                    raise NotSent(LATE) from redis.TimeoutError(FULL if empty() else LATE)
                raise redis.TimeoutError("no answer in time")
        finally:
            turn.clear()
            self._hanging += [end for end in ends if end.empty()]
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame
        return answer  # type: ignore[no-any-return]

    def _may_try(self) -> bool:
        """Return whether not too many attempts hang, or the last one was begun a second ago."""
        self._hanging = [one for one in self._hanging if one.empty()]
        if len(self._hanging) >= HANGING and now() < self._tried_at + NEXT_ATTEMPT:
            return False
        self._tried_at = now()
        return True

    def _borrow(self) -> Line:
        """Borrow a connection, in the thread of a lender."""
        try:
            pool: Any = self.pool()
            if pool is None:
                raise redis.ConnectionError("the pool of the connection is gone")
            loans = _lenders().loans
            most = self._most(pool)
            mine = [loan for loan in loans.copy() if loan.lines is self]
            for loan in mine:
                loan.look(now() if most > 0 else NEVER)
            kept = sum(line.kept for loan in mine if (line := loan.line()) is not None)
            connection = _connected(pool)
            try:
                line = _line_over(connection)
                line.kept &= kept < most
                line.until = now() + LENT
                line.loan = Loan(self, line)
                loans.add(line.loan)
            except BaseException:
                pool.release(connection)
                raise
        except Exception as error:
            raise NotSent(str(error)) from error
        self._hanging = []  # if any still hang, it is not the server that keeps them
        return line

    def _most(self, pool: Any) -> int:
        """Return how many lines may be kept now.

        A line that is kept is missing elsewhere if the pool has a limit. So all threads of the
        process have to find a connection beside them, and the pool must not have been more than
        half used. A redis-py that does not say how many connections there are keeps none.
        """
        limit = getattr(pool, "max_connections", 0)
        if limit >= UNLIMITED:
            return MOST_KEPT
        if not hasattr(pool, "get_connection_count"):
            return 0
        self._crowded |= sum(number for number, _ in pool.get_connection_count()) > limit / 2
        if self._crowded:
            return 0
        return min(MOST_KEPT, limit // 10, limit - threading.active_count())


def _takes(entries: list[None]) -> bool:
    """Take an entry out of a list, which others may do at the same time. False: it is empty."""
    try:
        entries.pop()
    except IndexError:
        return False
    return True


def _connected(pool: Any) -> Any:
    """Borrow a connection. Raises `DataError` if redis-py does not take its options."""
    try:
        return pool.get_connection()
    except STUMBLES:
        try:
            pool.connection_class(**pool.connection_kwargs)
        except STUMBLES as error:
            raise redis.DataError(str(error)) from error
        raise


def _line_over(connection: Any) -> Line:
    """Return a line over a connection that its pool has handed out."""
    interval = getattr(connection, "health_check_interval", 0)
    idles_too_long = interval and time.monotonic() > getattr(connection, "next_health_check", 0)
    if not isinstance(_socket_of(connection), socket.socket):
        return LineByMethods(connection, None)
    # One that is idle for too long may be cut, and a new one takes no longer than an answer to a
    # PING. What redis-py's parser has read already would be missing here.
    if idles_too_long or connection.can_read():
        connection.disconnect()
        connection.connect()
    line = Line(connection, _socket_of(connection))
    line.kept = not 0 < interval < 2 * LENT
    return line


def _socket_of(connection: Any) -> Any:
    sock = getattr(connection, "_sock", False)
    if sock is None:
        raise redis.ConnectionError(DISCONNECTED)
    return sock


_of_this_process: dict[str, _Lenders] = {}
_lines: weakref.WeakKeyDictionary[Any, Lines] = weakref.WeakKeyDictionary()


def _lenders() -> _Lenders:
    # Made when they are needed, since gevent may replace the classes that they use before that.
    found = _of_this_process.get("")
    return found or _of_this_process.setdefault("", _Lenders())


def apart(job: Callable[[], object]) -> None:
    """Do this in a thread of its own; or here, if no thread can be started."""
    _lenders().start(job)


def lines_of(pool: Any) -> Lines:
    """Return the lines that this process has borrowed from a pool."""
    found = _lines.get(pool)
    return found or _lines.setdefault(pool, Lines(pool))


def _forget() -> None:
    _of_this_process.clear()
    for lines in list(_lines.values()):
        lines.left_behind()


process.in_child(_forget)

"""`once_in_transaction`: work and its record are committed by one COMMIT.

`once` writes its record to Redis after the COMMIT. A process that dies in between has done the
work, and nobody knows. Here the record is a row in the database of the work:

1.  The transaction begins with an INSERT of the record that does nothing if the record is there
    (`ON CONFLICT DO NOTHING`). If another transaction has inserted it and is still open, the
    database lets the INSERT wait for its end.
2.  The record is read. Each attempt has a token, so the record says who has inserted it. If it was
    another attempt, the work is done: this transaction ends.
3.  The work is done, the record completed, and both are committed. An exception, a rollback or a
    crash undoes both.
4.  The lock at Redis is taken around all that, if Redis is there. A second caller then waits, or
    hears at once that somebody else is at work, without a database connection that waits. If
    Redis is away or the lease is lost, the database alone decides.
5.  If the isolation level does not let the INSERT see the other record (REPEATABLE READ and
    SERIALIZABLE), the database refuses it. The transaction is rolled back, and the record is read
    in a new one. In the transaction of a request, somebody else has to begin the new one.
6.  `step` is for an effect outside of the database: the transaction is committed before it and
    begun anew after it, so the record says how far the work came. An attempt that died is taken
    over after `ABANDONED`. If it is alive, its next statement finds another token, and it fails.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypedDict, Unpack

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, router, transaction
from django.db.transaction import TransactionManagementError
from django.utils import timezone

from ..base import tokens
from ..base.callables import call
from ..base.clock import now
from ..base.exceptions import LeaseLost, LockError, LockNotAcquired, LockUnavailable
from ..base.people import Holder
from ..lease.lock import Lock, refuse_event_loop
from ..lease.transactions import blocks_of_the_project
from ..primitives.contract import Done
from ..settings.validators import WAIT, refuse_unknown, validate_database, validate_wait
from .decorate import AnyFunction, FunctionDecorator, LockFor, acquire
from .redis_lock import redis_lock

logger = logging.getLogger("django_redislock")

APP = "django_redislock.contrib.once"

TRIES = 3
"""Transactions that are begun if the database refuses an INSERT because of another one."""
ABANDONED = timedelta(seconds=60)
"""The time after a step after which its attempt counts as dead."""

_SERIALIZATION = {"40001", "40P01", 1213}
"""What a new transaction helps against: SQLSTATEs of PostgreSQL, and a number of MySQL."""
_TIMEOUT = {"55P03", 1205, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
"""The INSERT has waited for as long as the database lets it."""


def records() -> Any:
    """Return the model of the records. Raises `ImproperlyConfigured` without the app."""
    if not apps.is_installed(APP):
        raise ImproperlyConfigured(
            f"Records in the database need a table. Write INSTALLED_APPS += [{APP!r}], and run "
            f"manage.py migrate."
        )
    return apps.get_model("redislock_once", "Record")


def database(using: str | None) -> str:
    """Return the alias of the database for records. Raises `ImproperlyConfigured`."""
    written = router.db_for_write(records())
    if using is None and written != DEFAULT_DB_ALIAS:
        raise ImproperlyConfigured(
            f"A router writes records to {written!r}. The record has to be in the database of the "
            f"work: write using={written!r}, or the alias of that database."
        )
    using = DEFAULT_DB_ALIAS if using is None else using
    if using not in connections:
        raise ImproperlyConfigured(f"using={using!r} is no alias of DATABASES: {[*connections]}")
    return using


class RecordBusy(LockNotAcquired):
    """Another transaction does the work, and has not ended."""

    def __init__(self, name: str, using: str, waited: float, *, passing: bool = False) -> None:
        another = Holder("another transaction", using, None, None, None, 0.0)
        super().__init__(name, another, waited)
        self.args = (name, using, waited)
        self.passing = passing
        """A new transaction may find that it has ended."""
        self.message = (
            f"{name!r} is being worked on by another transaction on {using!r}. "
            f"Waited {waited:.1f} s."
        )


@dataclass
class Step:
    """An effect outside of the database."""

    begun: bool
    """An earlier attempt has begun it: it may have happened."""
    done: bool
    """An earlier attempt has ended it."""
    result: Any = None
    """What JSON can write: set it in the block, and later attempts find it."""


class Attempt:
    """One attempt at work under `lock`, whose record is in a database. `first` stands in the
    record until the work is done: attempts with another one are at other work."""

    def __init__(self, lock: Lock, using: str | None, first: bytes = b"") -> None:
        self.using = database(using)
        self._lock, self._first, self._token = lock, first, str(tokens.new())
        self._name = lock._keys().name
        self.pk = hashlib.sha256(self._name.encode()).hexdigest()
        self._rows = records().objects.using(self.using).filter(pk=self.pk)
        self._block: AbstractContextManager[Any] = nullcontext()
        self._steps: dict[str, list[Any]] = {}
        self._recorded = False

    def begin(self) -> AbstractContextManager[Any]:
        """Return the block of the work, in its transaction.

        Raises `Done` with the record, `LockNotAcquired`, and `TransactionManagementError` in a
        transaction that somebody else ends.
        """
        refuse_event_loop()
        self._surrounded = self._is_surrounded()
        with ExitStack() as stack:
            stack.enter_context(_if_reachable(self._lock))
            self._claim_in_transaction()
            stack.enter_context(self._transaction())
            return stack.pop_all()

    def record(self, value: bytes | None) -> None:
        """Complete the record at the end of the work. None: undo the work."""
        if value is None:
            transaction.set_rollback(True, using=self.using)
        else:
            self._write(done=True, value=value)
            self._recorded = True

    def recorded(self) -> bytes | None:
        """Return the record of work that is done."""
        found = self._rows.filter(done=True).first()
        return None if found is None else bytes(found.value)

    def _is_surrounded(self) -> bool:
        """Return whether this is in the transaction of a request."""
        connection = connections[self.using]
        blocks = blocks_of_the_project(connection)
        if not blocks and (connection.in_atomic_block or connection.get_autocommit()):
            return False
        if len(blocks) == 1 and connection.settings_dict["ATOMIC_REQUESTS"]:
            return True
        raise TransactionManagementError(
            f"{self._name!r} can't be recorded in a transaction that is open on {self.using!r} "
            f"already: it is done when that one is committed, and not when the call returns. Call "
            f"it outside of transaction.atomic()."
        )

    def _claim_in_transaction(self) -> None:
        for left in range(TRIES, 0, -1):
            self._enter()
            try:
                self._claim()
                return
            except BaseException as error:
                if isinstance(error, RecordBusy) and self._surrounded:
                    transaction.set_rollback(True, using=self.using)
                self._leave(error)
                again = isinstance(error, RecordBusy) and error.passing and left > 1
                if self._surrounded or not again:
                    raise

    def _claim(self) -> None:
        """Make it the record of this attempt. Raises `Done`, `RecordBusy`."""
        began = now()
        values = {"name": self._name, "label": self._lock._label, "value": self._first}
        mine = records()(pk=self.pk, token=self._token, at=timezone.now(), **values)
        try:
            records().objects.using(self.using).bulk_create([mine], ignore_conflicts=True)
        except DatabaseError as error:
            code = _code(error)
            if code not in _SERIALIZATION | _TIMEOUT:
                raise
            waited = now() - began
            passing = code in _SERIALIZATION
            raise RecordBusy(self._name, self.using, waited, passing=passing) from error
        found = self._rows.first()
        if found is None:  # not in this transaction's snapshot, or deleted meanwhile
            raise RecordBusy(self._name, self.using, now() - began, passing=True)
        if found.token == self._token:
            return
        if found.done or bytes(found.value) != self._first:
            raise Done(bytes(found.value))
        abandoned = not found.token or found.at < timezone.now() - ABANDONED
        its = self._rows.filter(token=found.token, done=False)  # it may come to its end just now
        if not (abandoned and its.update(token=self._token)):
            raise RecordBusy(self._name, self.using, now() - began)
        self._steps = found.steps

    # The transaction, which a step commits and begins anew.

    def _enter(self) -> None:
        if not self._surrounded:
            block = transaction.atomic(self.using)
            block.__enter__()
            self._block = block

    def _leave(self, error: BaseException | None = None) -> None:
        block, self._block = self._block, nullcontext()
        if error is None:
            block.__exit__(None, None, None)
        else:
            block.__exit__(type(error), error, error.__traceback__)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        before = _current.set(self)
        try:
            yield
        except BaseException as error:
            self._leave(error)
            raise
        else:
            self._leave()
        finally:
            _current.reset(before)
            if self._steps and not self._recorded:
                with suppress(DatabaseError):  # then it is taken over later
                    self._rows.filter(token=self._token).update(token="")

    def _write(self, **values: Any) -> None:
        mine = self._rows.filter(token=self._token, done=False)
        if not mine.update(at=timezone.now(), **values):
            raise LockError(
                f"The record of {self._name!r} was deleted, or another attempt has taken it over: "
                f"this one took longer than {ABANDONED.seconds} s between two steps.",
                self._name,
            )

    def step(self, name: str) -> Iterator[Step]:
        """The body of `step`."""
        known = self._steps.get(name)
        point = Step(known is not None, bool(known), known[0] if known else None)
        if point.done:
            yield point
            return
        blocks = connections[self.using].atomic_blocks
        if not blocks:
            raise RuntimeError(f"step({name!r}) is inside of another step: write it behind that")
        if self._surrounded or blocks[-1] is not self._block:
            raise TransactionManagementError(
                f"step({name!r}) commits what was done before it, and a transaction is open "
                f"around it. Call it outside of transaction.atomic(), and decorate a view with "
                f"@transaction.non_atomic_requests."
            )
        self._note(name, [])
        self._leave()
        try:
            yield point
        finally:
            self._enter()
        self._note(name, [point.result])
        self._leave()
        self._enter()

    def _note(self, name: str, result: list[Any]) -> None:
        self._steps[name] = result
        self._write(steps=self._steps)


_current: ContextVar[Attempt | None] = ContextVar("redislock_attempt", default=None)


@contextmanager
def step(name: str) -> Iterator[Step]:
    """A recovery point around an effect outside of the database, in a function of
    `once_in_transaction` or a view with `store="db"`: `with step("charged") as charged:`.

    What was done before is committed, then the block runs without a transaction, then its end is
    committed. If the process dies, the next attempt finds in `charged.done` and `charged.begun`
    how far this one came, and in `charged.result` what the block has put there. Raises
    `TransactionManagementError` if a transaction is open around the work.
    """
    attempt = _current.get()
    if attempt is None:
        raise RuntimeError(
            f"step({name!r}) is for functions of @once_in_transaction and views of "
            f"@idempotent_view(store='db'), and this is called outside of them"
        )
    yield from attempt.step(name)


@contextmanager
def _if_reachable(lock: Lock) -> Iterator[None]:
    """Hold the lock, unless Redis is away. Its loss does not matter: the database decides.

    Raises `LockNotAcquired`.
    """
    held: AbstractContextManager[Any] = nullcontext()
    try:
        held = acquire(lock)
    except LockUnavailable as error:
        logger.warning("%r is done without its lock; the database decides: %s", lock.name, error)
    ended = False
    try:
        with held:
            yield
            ended = True
    except LeaseLost:
        if not ended:
            raise


def _code(error: BaseException) -> Any:
    """Return the number that the database gives to an error, or the SQLSTATE."""
    cause: Any = error.__cause__
    sqlite = getattr(cause, "sqlite_errorcode", None)
    if sqlite is not None:
        return sqlite & 0xFF  # without its extension
    number = cause.args[0] if cause is not None and cause.args else None
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or number


class InTransactionOptions(TypedDict, total=False):
    """The options of `once_in_transaction`, besides the name."""

    using: str | None
    """An alias of DATABASES: that of the work. It is needed if a router sends records elsewhere
    than to the default database."""
    wait: float
    """Seconds to wait for the lock while another caller does the work, or for Redis; 0 (the
    default): don't wait."""
    scope: None
    """None: the name has no scope, whatever the setting `SCOPE` says."""


class once_in_transaction(FunctionDecorator[Literal["skip"]]):
    """Call a function once for each name, and record that in the transaction of its work.

    `@once_in_transaction("order-paid:{event.id}")`: an inbox for webhooks and messages. The
    decorator opens the transaction. What the function writes to the database is committed together
    with the record, so no crash comes between them. A caller that finds the record gets None.

    The record stays until `manage.py redislock records` deletes it. It needs
    "django_redislock.contrib.once" in INSTALLED_APPS, and works without Redis, too.

    Raises `LockNotAcquired` while another caller does the work: try again later. Raises
    `TransactionManagementError` inside `transaction.atomic()`; the transaction of a request
    (`ATOMIC_REQUESTS`) is taken for its own.
    """

    _prefix = "once_in_transaction:"

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        **options: Unpack[InTransactionOptions],
    ) -> None:
        given: dict[str, Any] = dict(options)
        self._template = name
        using = given.pop("using", None)
        self._using = None if using is None else validate_database(using, "using")
        wait = validate_wait(given.pop("wait", 0))
        if wait is None:
            raise ValueError("wait must have an end: Redis may be away, and the work goes on then")
        of_lock = {"scope": given.pop("scope")} if "scope" in given else {}
        refuse_unknown(given, type(self).__name__, WAIT)
        self._lock = redis_lock(wait=wait, release="exit", **of_lock)._recording()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._template!r}>"

    def _wrap(self, kind: str, function: AnyFunction, lock_for: LockFor) -> AnyFunction:
        if kind != "function":
            raise TypeError(
                f"{type(self).__name__} can't decorate the {kind} {function!r}, since Django's "
                f"transactions are synchronous. Write a function, and in a coroutine "
                f"await sync_to_async({getattr(function, '__name__', 'function')})(…)."
            )
        if apps.ready:
            records()

        def decorated(*args: Any, **kwargs: Any) -> Any:
            attempt = Attempt(lock_for(args, kwargs), self._using)
            try:
                work = attempt.begin()
            except Done:
                return None
            with work:
                result = call(function, args, kwargs)
                attempt.record(b"")
                return result

        return decorated

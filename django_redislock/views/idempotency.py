"""`idempotent_view`: a request that is sent again is not carried out again.

As in "The Idempotency-Key HTTP Header Field", a draft of the IETF's HTTPAPI group: the client
makes a key for each operation, and sends it with every request for that operation.

1.  The first request with a key takes a lock that is named after the key and its scope
    (idempotency_key.py), so only one request is carried out at a time.
2.  Its response is recorded beside the lock when the transactions around the view have been
    committed, and before the lock is released. So no other request finds neither of them.
3.  Every request reads the record before it asks for the lock. If a response is recorded, it is
    the answer, or 422 if the payload differs. So repeated requests don't wait for each other.
4.  If the lock is busy, a request waits for `KEY_WAIT`, since the response may be about to be
    recorded, and reads the record again. Then it gets 409.
5.  A failure is not recorded: an exception, a rollback, a server error, a response that asks the
    client to try again, or one that refuses this client. The next request is carried out, as it
    is after a crash.
6.  If a response can't be kept, the record says only that the request was carried out. Later
    requests get 409 with that answer; nothing is carried out again.
7.  A record that can't be read means the same: records are written after the view has run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http.response import HttpResponseBase
from django.template.response import SimpleTemplateResponse

from ..base.exceptions import LockError, LockNotAcquired, LockUnavailable
from ..lease.lease import Lease
from ..lease.lock import UNSET, Lock, refuse_event_loop
from ..locks.completion import Completion, Done, acquire_unless_recorded
from ..locks.redis_lock import redis_lock
from ..primitives import record
from ..primitives.contract import run
from ..settings.validators import validate_max_size, validate_ttl
from ..transport.ports import AsyncPort, SyncPort
from ..transport.server import server_of
from .decorator import (
    Call,
    ViewDecorator,
    in_thread_if_needed,
    is_of_rest_framework,
    validate_methods,
)
from .idempotency_key import HEADER, lock_name, parse, scope_of, shortened
from .problems import (
    ANSWER_NOT_KEPT,
    ANSWER_UNREADABLE,
    FORM_UNPARSED,
    KEY_IN_USE,
    KEY_MALFORMED,
    KEY_MISSING,
    KEY_OF_NOBODY,
    PAYLOAD_MISMATCH,
    Problem,
)
from .replay import NotKept, fingerprint, is_unparsed_form, pack, pack_done, unpack
from .responses import NoLock, problem, without_lock

logger = logging.getLogger("django_redislock")

KEY_WAIT = 0.1
"""Seconds for which a request waits for another one with its key: enough for the steps between a
view and the release of its lock, and short for a worker."""

ADVICE = (
    "Write @idempotent_view(scope=...), a function of the request that returns whose keys these "
    "are, such as lambda request: request.headers.get('X-Api-Key'); or lambda request: '' where "
    "all clients may get each other's answers."
)
"""For developers."""

INSIDE = "send the inner request with another Idempotency-Key"

UNREADABLE = b""
"""Stands for a record that `unpack` can't read."""

_REFUSALS = frozenset((401, 403, 407, 408, 425, 429))
"""Statuses that are not kept: they refuse this client, or ask it to try again."""


class idempotent_view(ViewDecorator):
    """Carry out requests with the same `Idempotency-Key` once, and answer the others as the first.

    The first response is kept for `ttl` seconds (a day). A response of more than `max_size` bytes
    (a million) is not kept, and later requests get 409. `methods` are the HTTP methods for which
    keys count. A request without a key is carried out as usual, or refused with 400 if a key is
    `required`.

    A key belongs to the user of the request, or to its `Authorization` header and session. A
    request that has none of these is refused with 403, unless `scope` is given: a function of the
    request that returns whose key it is, or None to refuse the request. With the setting `SCOPE`,
    a key belongs to a tenant as well, unless `scope` is None.
    """

    def __init__(
        self,
        ttl: float = 86_400,
        *,
        required: bool = False,
        methods: Iterable[str] = ("POST", "PATCH"),
        scope: Callable[[Any], str | None] | None = UNSET,
        max_size: int = 1_000_000,
    ) -> None:
        if callable(ttl):
            raise TypeError("idempotent_view needs its parentheses: @idempotent_view()")
        if scope is not UNSET and scope is not None and not callable(scope):
            raise TypeError(f"scope must be a function of the request, not {scope!r}")
        if not isinstance(required, bool):
            raise TypeError(f"required must be True or False, not {required!r}")
        self._ttl = validate_ttl(ttl)
        self._required = required
        self._methods = validate_methods(methods)
        self._scope = scope if callable(scope) else scope_of
        options: Any = {"scope": None} if scope is None else {}
        lock = redis_lock(wait=KEY_WAIT, release="commit", **options)._of_kind("mutex")
        self._lock = lock._advising(INSIDE)
        self._max_size = validate_max_size(max_size)

    def __repr__(self) -> str:
        return f"idempotent_view({self._ttl:g})"

    def _serve(self, call: Call) -> HttpResponseBase:
        try:
            request = self._keyed(call)
        except _Refused as refused:
            return problem(call.request, refused.why)
        if request is None or call.has(request.lock):
            return call.run()
        refuse_event_loop()
        try:
            lease = run(request.acquire(SyncPort))
        except (LockNotAcquired, LockUnavailable, Done) as reason:
            return request.answer(reason)
        with lease:
            completion = Completion(lease, self._ttl)
            completion.watch_transactions()
            return request.keep(completion, call.run(lease))

    async def _aserve(self, call: Call) -> HttpResponseBase:
        # The request is carried out to its end even if the client has gone: the client is about
        # to send it again.
        task = asyncio.ensure_future(self._carry_out(call))
        _under_way.add(task)  # an event loop keeps only weak references to its tasks
        task.add_done_callback(_under_way.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_failure)
            raise

    async def _carry_out(self, call: Call) -> HttpResponseBase:
        # Pages, with their context processors, and scopes may query the database: in a thread.
        try:
            request = await in_thread_if_needed(lambda: self._keyed(call))
        except _Refused as refused:
            return await sync_to_async(problem)(call.request, refused.why)
        if request is None or call.has(request.lock):
            return await call.arun()
        try:
            lease = await request.acquire(AsyncPort)
        except (LockNotAcquired, LockUnavailable, Done) as reason:
            return await sync_to_async(request.answer)(reason)
        async with lease:
            response = await call.arun(lease)
            # In the thread that has the transactions; it may also wait for Redis.
            return await sync_to_async(request.keep)(Completion(lease, self._ttl), response)

    def _keyed(self, call: Call) -> _KeyedRequest | None:
        """Return the request with its key, or None if it has no key and needs none."""
        header = call.request.headers.get(HEADER)
        if header is None:
            if self._required:
                raise _Refused(KEY_MISSING)
            return None
        key = parse(header)
        if key is None:
            raise _Refused(KEY_MALFORMED)
        if is_unparsed_form(call.request):
            raise _Refused(FORM_UNPARSED)
        scope = self._scope(call.request)
        if scope is None:
            logger.warning(
                "%s was not run: nothing says whose Idempotency-Key it is. %s", call.label, ADVICE
            )
            in_full = KEY_OF_NOBODY._replace(detail=f"{KEY_OF_NOBODY.detail} {ADVICE}")
            raise _Refused(in_full if settings.DEBUG else KEY_OF_NOBODY)
        where = f"{HEADER} {shortened(key)}, {call.label}"
        lock = self._lock._renamed(lock_name(scope, key), where)
        return _KeyedRequest(call, lock, self._max_size)


_under_way: set[asyncio.Task[Any]] = set()


def _log_failure(task: asyncio.Task[Any]) -> None:
    """Log the exception of a request whose client has gone."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("A request failed after its client had gone away", exc_info=error)


class _Refused(Exception):
    """The request has no key that can be used."""

    def __init__(self, why: Problem) -> None:
        self.why = why


def _is_written(value: bytes | None, lease: Lease | None) -> bool:  # noqa: ARG001
    return value is not None


class _KeyedRequest:
    """A request with an Idempotency-Key, and its answer."""

    def __init__(self, call: Call, lock: Lock, max_size: int) -> None:
        self._call = call
        self._max_size = max_size
        self._fingerprint = fingerprint(call.request)
        self.lock = lock

    async def acquire(self, port_type: type[SyncPort | AsyncPort]) -> Lease:
        """Return the lease under which to carry the request out.

        Raises `Done` if it was carried out; `LockNotAcquired` if another request with this key
        is being carried out; `LockUnavailable`.
        """
        try:
            return await acquire_unless_recorded(port_type, self.lock, _is_written, pattern=".")
        except LockUnavailable:
            raise
        except LockError:  # another request holds the lock, or a key can't be read
            known = await self._record(port_type)
            if known is None:
                raise
        raise Done(known)

    async def _record(self, port_type: type[SyncPort | AsyncPort]) -> bytes | None:
        port = port_type(server_of(self.lock._policy().using))
        try:
            return await record.read(port, self.lock._keys())
        except LockUnavailable:
            raise
        except LockError:  # it has another type
            return UNREADABLE

    def answer(self, reason: NoLock | Done) -> HttpResponseBase:
        """Return the response of a request that is not carried out."""
        if not isinstance(reason, Done):
            return without_lock(self._call, reason, KEY_IN_USE)
        known = unpack(reason.value)
        if known is None:
            logger.error(
                "The answer of %s at the key %r can't be read, so the request that sends its "
                "Idempotency-Key again gets %s. If the view may run again, delete the key.",
                self._call.label,
                self.lock._keys().record,
                ANSWER_UNREADABLE.status,
            )
            return problem(self._call.request, ANSWER_UNREADABLE)
        if known.fingerprint != self._fingerprint:
            return problem(self._call.request, PAYLOAD_MISMATCH)
        if known.response is None:
            detail = ANSWER_NOT_KEPT.detail % {"status": known.status}
            return problem(self._call.request, ANSWER_NOT_KEPT._replace(detail=detail))
        return known.response

    def keep(self, completion: Completion, response: HttpResponseBase) -> HttpResponseBase:
        """Record the response as soon as it is certain."""
        if not _may_change(response):
            response = self._rendered(response)
            completion.when_committed(self._packed(response))
        return response

    def _packed(self, response: HttpResponseBase) -> bytes:
        try:
            return pack(response, self._fingerprint, self._max_size)
        except NotKept as why:
            logger.error(
                "%s was carried out, and its response can't be kept: %s. A request that sends the "
                "same Idempotency-Key again gets %s.",
                self._call.label,
                why,
                ANSWER_NOT_KEPT.status,
                exc_info=why.__cause__,
            )
            return pack_done(response, self._fingerprint)

    def _rendered(self, response: HttpResponseBase) -> HttpResponseBase:
        """Render a template response now. Django would do so later, and not at all if the client
        has gone by then."""
        if not isinstance(response, SimpleTemplateResponse):
            return response
        request = self._call.request
        if is_of_rest_framework(request):
            # The framework sets a response's renderer at the end of dispatch(); twice is harmless.
            view = request.parser_context["view"]
            response = view.finalize_response(request, response)
        return response.render()  # type: ignore[no-any-return,attr-defined]


def _may_change(response: HttpResponseBase) -> bool:
    """Whether another try may get another answer, so that this one is not kept."""
    status = response.status_code
    return status >= 500 or status in _REFUSALS or response.has_header("Retry-After")

"""`idempotent_view`: a request that is sent again is not carried out again.

As in "The Idempotency-Key HTTP Header Field", a draft of the IETF's HTTPAPI group: the client
makes a key for what it wants done, and sends it along whenever it asks for that.

1.  A key belongs to somebody (scope.py). The first request with a key takes a lock of that name,
    so that it alone is carried out.
2.  Its response is written down beside the lock when the transactions around the view have been
    committed, and before the lock is released: so nobody finds neither.
3.  Every request looks for that response before it asks for the lock. If the response is there, it
    is the answer; or 422 when the payload is another one. So requests that come at the same time
    afterwards don't get in each other's way.
4.  If the lock is busy, a request waits for a moment, since the response may be about to be
    written, and looks again. Then it gets 409.
5.  What failed is not written down: an exception, a rollback, a server error, an answer that says
    to come again, or that this client may not ask. The next request is carried out. So it is after
    a crash.
6.  A response that can't be kept is sent, and what is written down is that the request was carried
    out. A request that comes later is told so; nothing is carried out again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable, Iterable
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http.response import HttpResponseBase
from django.template.response import SimpleTemplateResponse
from django.utils.translation import gettext_lazy as _

from ..base.exceptions import LockNotAcquired, LockUnavailable
from ..lease.lease import Lease
from ..lease.lock import refuse_event_loop
from ..locks.completion import Completion, give_back
from ..locks.redis_lock import redis_lock
from ..primitives import record
from ..settings.validators import validate_max_size, validate_ttl
from ..transport.ports import AsyncPort, SyncPort, run
from ..transport.server import server_of
from .decorator import Call, ViewDecorator, beside_orm, is_of_rest_framework, validate_methods
from .replay import NotKept, fingerprint, pack, pack_done, unpack
from .responses import NoLock, Problem, problem, without_lock
from .scope import scope_of

logger = logging.getLogger("django_redislock")

HEADER = "Idempotency-Key"
MAX_KEY = 255

MOMENT = 0.1
"""Seconds for which a request waits for the one that is carried out. Enough for what comes between
a view and the release of its lock, and little for a worker."""

MISSING = Problem("key_missing", 400, _("This request needs an Idempotency-Key header."))
MALFORMED = Problem(
    "key_malformed",
    400,
    _("The Idempotency-Key header must be one text of up to 255 characters."),
)
NOBODYS = Problem(
    "key_of_nobody",
    403,
    _(
        "An Idempotency-Key belongs to whoever sends it, and this request does not say who that "
        "is: it has no user, no session and no Authorization header."
    ),
)
RUNNING = Problem(
    "key_in_use", 409, _("A request with this Idempotency-Key is being worked on already.")
)
NOT_KEPT = Problem(
    "answer_not_kept",
    409,
    _(
        "The request with this Idempotency-Key was carried out, and answered with the status "
        "%(status)s. That answer was not kept. The request is not carried out again."
    ),
)
ANOTHER = Problem("payload_mismatch", 422, _("This Idempotency-Key was used for another request."))

ADVICE = (
    "Write @idempotent_view(scope=...), a function of the request that returns whose keys these "
    "are, such as lambda request: request.headers.get('X-Api-Key'); or lambda request: '' where "
    "all clients may get each other's answers."
)
"""For developers."""

_NO_ANSWER = frozenset((401, 403, 407, 408, 425, 429))
"""Statuses that are not kept: they say who may ask, or that the client shall come again."""

# A string of structured fields (RFC 8941) and parameters, which mean nothing here; many clients
# leave the quotes out.
_STRING = r'"((?:[ !#-\[\]-~]|\\["\\])*)"'
_VALUE = (
    rf"{_STRING}|:[A-Za-z0-9+/=]*:|\?[01]|-?[0-9]{{1,15}}(?:\.[0-9]{{1,3}})?"
    r"|[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*"
)
_KEY = re.compile(
    rf"{_STRING}(?:;[ ]*[a-z*][a-z0-9_.*-]*(?:=(?:{_VALUE}))?)*|(?P<bare>[!#-+\--~]+)"
)


class idempotent_view(ViewDecorator):
    """Carry out requests with the same `Idempotency-Key` once, and answer the others as the first.

    The first response is kept for `ttl` seconds (a day). One that takes more than `max_size` bytes
    (a million) is not kept, and the others are answered with 409. `methods` are those of HTTP that
    it is for. Without a key a request is carried out as ever, or refused with 400 if it is
    `required`.

    Keys belong to a user, or to whoever sends this `Authorization` and has this session. A request
    that has none of these is refused with 403, unless `scope` is given: a function of the request
    that returns whose key it is, or None to refuse it.
    """

    def __init__(
        self,
        ttl: float = 86_400,
        *,
        required: bool = False,
        methods: Iterable[str] = ("POST", "PATCH"),
        scope: Callable[[Any], str | None] | None = None,
        max_size: int = 1_000_000,
    ) -> None:
        if callable(ttl):
            raise TypeError("idempotent_view needs its parentheses: @idempotent_view()")
        if scope is not None and not callable(scope):
            raise TypeError(f"scope must be a function of the request, not {scope!r}")
        if not isinstance(required, bool):
            raise TypeError(f"required must be True or False, not {required!r}")
        self._ttl = validate_ttl(ttl)
        self._required = required
        self.methods = validate_methods(methods)
        self._scope = scope or scope_of
        self._max_size = validate_max_size(max_size)

    def __repr__(self) -> str:
        return f"idempotent_view({self._ttl:g})"

    def serve(self, call: Call) -> HttpResponseBase:
        try:
            keyed = self._keyed(call)
        except _Refused as refused:
            return problem(call.request, refused.why)
        if keyed is None:
            return call.run()
        refuse_event_loop()
        try:
            lease = run(keyed.begin(SyncPort))
        except (LockNotAcquired, LockUnavailable) as error:
            return keyed.refuse(error)
        except _Answered as answered:
            return keyed.replay(answered.packed)
        with lease:
            completion = Completion(lease, self._ttl)
            completion.watch_transactions()
            return keyed.keep(completion, call.run())

    async def aserve(self, call: Call) -> HttpResponseBase:
        # To its end, also when the client has gone away: it is about to ask again.
        task = asyncio.ensure_future(self._aserve(call))
        _under_way.add(task)  # the loop keeps only weak references to its tasks
        task.add_done_callback(_under_way.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_told)
            raise

    async def _aserve(self, call: Call) -> HttpResponseBase:
        # What asks the database, a page's context processors included, does so in a thread.
        try:
            keyed = await beside_orm(lambda: self._keyed(call))
        except _Refused as refused:
            return await sync_to_async(problem)(call.request, refused.why)
        if keyed is None:
            return await call.arun()
        try:
            lease = await keyed.begin(AsyncPort)
        except (LockNotAcquired, LockUnavailable) as error:
            return await sync_to_async(keyed.refuse)(error)
        except _Answered as answered:
            return await sync_to_async(keyed.replay)(answered.packed)
        async with lease:
            response = await call.arun()
            # In that thread, since it has the transactions; and may talk to Redis there.
            return await sync_to_async(keyed.keep)(Completion(lease, self._ttl), response)

    def _keyed(self, call: Call) -> KeyedRequest | None:
        """What is asked for; None: something without a key."""
        given = call.request.headers.get(HEADER)
        if given is None:
            if self._required:
                raise _Refused(MISSING)
            return None
        match = _KEY.fullmatch(given.strip())
        key = match and (match["bare"] or re.sub(r"\\(.)", r"\1", match[1]))
        if not key or len(key) > MAX_KEY:
            raise _Refused(MALFORMED)
        scope = self._scope(call.request)
        if scope is None:
            logger.warning(
                "%s was not run: nothing says whose Idempotency-Key it is. %s", call.label, ADVICE
            )
            in_full = NOBODYS._replace(detail=f"{NOBODYS.detail} {ADVICE}")
            raise _Refused(in_full if settings.DEBUG else NOBODYS)
        # A digest, since a user's name, and most of all a key, is not for everybody who lists
        # locks, and a name has a greatest length.
        whole = f"{scope}\0{key}".encode(errors="surrogatepass")
        name = f"idempotency:{hashlib.sha256(whole).hexdigest()[:40]}"
        return KeyedRequest(call, name, self._max_size)


_under_way: set[asyncio.Task[Any]] = set()


def _told(task: asyncio.Task[Any]) -> None:
    """A request whose client has gone away has ended."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("A request that nobody waited for any more failed", exc_info=error)


class _Refused(Exception):
    """The request has no key that can be used."""

    def __init__(self, why: Problem) -> None:
        self.why = why


class _Answered(Exception):
    """The request was carried out. Raised, so that between a lease and its block there is nothing
    to interrupt."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed


class KeyedRequest:
    """A request with a key, and what becomes of it."""

    def __init__(self, call: Call, name: str, max_size: int) -> None:
        self._call = call
        self._max_size = max_size
        self._fingerprint = fingerprint(call.request)
        lock = redis_lock(wait=MOMENT, release="commit")._of_kind("mutex")
        self._lock = lock._renamed(name, call.label)

    async def begin(self, port_type: type[SyncPort | AsyncPort]) -> Lease:
        """The lease under which the request is to be carried out.

        Raises `_Answered` if it was; `LockNotAcquired` while another one is carried out;
        `LockUnavailable`.
        """
        server = server_of(self._lock.policy().using)
        port, keys = port_type(server), self._lock._keys()
        known = await record.read(port, keys)
        if known is not None:
            raise _Answered(known)
        got = await self._lock._attempt(port_type)
        try:
            known = await record.read(port, keys)
            if isinstance(got, LockNotAcquired):
                raise got if known is None else _Answered(known)
            if known is None:
                return got
            await give_back(port, got)
            raise _Answered(known)
        except _Answered:
            raise
        except BaseException:
            if isinstance(got, Lease):
                got.abandon()
            raise

    def refuse(self, error: NoLock) -> HttpResponseBase:
        return without_lock(self._call, error, RUNNING)

    def replay(self, packed: bytes) -> HttpResponseBase:
        known = unpack(packed)
        if known.fingerprint != self._fingerprint:
            return problem(self._call.request, ANOTHER)
        if known.response is None:
            detail = NOT_KEPT.detail % {"status": known.status}
            return problem(self._call.request, NOT_KEPT._replace(detail=detail))
        return known.response

    def keep(self, completion: Completion, response: HttpResponseBase) -> HttpResponseBase:
        """Write the response down as soon as it is certain."""
        if not asks_again(response):
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
                NOT_KEPT.status,
                exc_info=why.__cause__,
            )
            return pack_done(response, self._fingerprint)

    def _rendered(self, response: HttpResponseBase) -> HttpResponseBase:
        """Now, and not when Django comes to it: by then the client may have gone away, and nobody
        would render it any more."""
        if not isinstance(response, SimpleTemplateResponse):
            return response
        request = self._call.request
        if is_of_rest_framework(request):
            # Which gives its responses a renderer at the end of dispatch(), and does so again.
            view = request.parser_context["view"]
            response = view.finalize_response(request, response)
        return response.render()  # type: ignore[no-any-return,attr-defined]


def asks_again(response: HttpResponseBase) -> bool:
    """Whether it is no answer to keep, since another try may come to another one."""
    status = response.status_code
    return status >= 500 or status in _NO_ANSWER or response.has_header("Retry-After")

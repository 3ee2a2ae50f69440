"""`idempotent_view`: a request that is sent again is not carried out again.

As in "The Idempotency-Key HTTP Header Field", a draft of the IETF's HTTPAPI group: the client
makes a key for what it wants done, and sends it along whenever it asks for that.

1.  The first request with a key takes a lock of that name, so that it alone is carried out; who
    asks meanwhile gets 409.
2.  Its response is written down beside the lock when the transactions around the view have been
    committed, and before the lock is released: so nobody finds neither.
3.  From then on that response is the answer, or 422 when the payload is another one.
4.  What failed is not written down: an exception, a rollback, a server error, an answer that says
    to come again. The next request is carried out. So it is after a crash.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable, Iterable
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.http.response import HttpResponseBase, StreamingHttpResponse
from django.template.response import SimpleTemplateResponse
from django.utils.translation import gettext_lazy as _

from ..arguments import validate_ttl
from ..completion import Completion
from ..decorators import aacquire, acquire, redis_lock
from ..exceptions import LockNotAcquired, LockUnavailable
from ..io import AsyncIO, SyncIO, run
from ..locks import Lock
from ..primitives import record
from .decorator import Call, ViewDecorator, beside_orm, is_of_rest_framework, validate_methods
from .replay import fingerprint, pack, unpack
from .responses import NoLock, problem, without_lock
from .sending import hold_until_sent

logger = logging.getLogger("django_redislock")

HEADER = "Idempotency-Key"

MISSING = _("This request needs an Idempotency-Key header.")
MALFORMED = _("The Idempotency-Key header must be one text of up to 255 characters.")
RUNNING = _("A request with this Idempotency-Key is being worked on already.")
ANOTHER = _("This Idempotency-Key was used for another request.")

_AGAIN = frozenset((408, 425, 429))
"""Statuses that ask the client to come again, and so are no answer to keep."""

# A string of structured fields (RFC 8941); many clients leave the quotes out.
_KEY = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"|([!#-+\--~]+)')


class idempotent_view(ViewDecorator):
    """Carry out requests with the same `Idempotency-Key` once, and answer the others as the first.

    Its response is kept for `ttl` seconds (a day). `methods` are those of HTTP that it is for.
    Without a key a request is carried out as ever, or refused with 400 if it is `required`.
    Keys are those of a user; `scope`, a function of the request, tells whose else they are.
    """

    def __init__(
        self,
        ttl: float = 86_400,
        *,
        required: bool = False,
        methods: Iterable[str] = ("POST", "PATCH"),
        scope: Callable[[Any], str] | None = None,
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
        self._scope = scope or user_of

    def __repr__(self) -> str:
        return f"idempotent_view({self._ttl:g})"

    def serve(self, call: Call) -> HttpResponseBase:
        try:
            keyed = self._keyed(call)
        except _NoKey as error:
            return problem(call.request, 400, error.args[0])
        if keyed is None:
            return call.run()
        try:
            lease = acquire(keyed.lock)
        except (LockNotAcquired, LockUnavailable) as error:
            return keyed.refuse(error)
        with lease:
            try:
                known = run(record.read(SyncIO(lease.using), lease.claim.keys))
            except LockUnavailable as error:
                return keyed.refuse(error)
            if known is not None:
                return keyed.replay(known)
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
        refusal = sync_to_async(KeyedRequest.refuse)
        try:
            keyed = await beside_orm(lambda: self._keyed(call))
        except _NoKey as error:
            return await sync_to_async(problem)(call.request, 400, error.args[0])
        if keyed is None:
            return await call.arun()
        try:
            lease = await aacquire(keyed.lock)
        except (LockNotAcquired, LockUnavailable) as error:
            return await refusal(keyed, error)
        async with lease:
            try:
                known = await record.read(AsyncIO(lease.using), lease.claim.keys)
            except LockUnavailable as error:
                return await refusal(keyed, error)
            if known is not None:
                return await sync_to_async(keyed.replay)(known)
            response = await call.arun()
            # In that thread, since it has the transactions; and may talk to Redis there.
            return await sync_to_async(keyed.keep)(Completion(lease, self._ttl), response)

    def _keyed(self, call: Call) -> KeyedRequest | None:
        """What is asked for; None: something without a key."""
        given = call.request.headers.get(HEADER)
        if given is None:
            if self._required:
                raise _NoKey(MISSING)
            return None
        match = _KEY.fullmatch(given.strip())
        if match is None or not match[0].strip('"') or len(given) > 255:
            raise _NoKey(MALFORMED)
        key = match[2] or re.sub(r"\\(.)", r"\1", match[1])
        # A digest, since a user's name, and most of all a key, is not for everybody who lists
        # locks, and a name has a greatest length.
        whole = f"{self._scope(call.request)}\0{key}".encode()
        name = f"idempotency:{hashlib.sha256(whole).hexdigest()[:40]}"
        return KeyedRequest(call, name)


_under_way: set[asyncio.Task[Any]] = set()


def _told(task: asyncio.Task[Any]) -> None:
    """A request whose client has gone away has ended."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("A request that nobody waited for any more failed", exc_info=error)


def user_of(request: Any) -> str:
    """The user of a request at its host, or the session, if there is one."""
    user, host = getattr(request, "user", None), request.get_host()
    if user is None or not user.is_authenticated:
        session = getattr(request, "session", None)
        return f"{host} session {getattr(session, 'session_key', None)}"
    if user.pk is None:
        raise ImproperlyConfigured(
            f"{user!r} is authenticated and has no pk, so all such users would share their "
            f"Idempotency-Keys. Write idempotent_view(scope=...), a function of the request."
        )
    return f"{host} user {user.pk}"


class _NoKey(Exception):
    """The key is missing or malformed; what to tell the client."""


class KeyedRequest:
    """A request with a key, and what becomes of it."""

    def __init__(self, call: Call, name: str) -> None:
        self._call = call
        self.fingerprint = fingerprint(call.request)
        self.lock: Lock = (
            redis_lock(wait=0, release="commit")._of_kind("mutex")._renamed(name, call.label)
        )

    def refuse(self, error: NoLock) -> HttpResponseBase:
        return without_lock(self._call, error, status=409, detail=RUNNING)

    def replay(self, known: bytes) -> HttpResponseBase:
        response = unpack(known, self.fingerprint)
        return problem(self._call.request, 422, ANOTHER) if response is None else response

    def keep(self, completion: Completion, response: HttpResponseBase) -> HttpResponseBase:
        """Write the response down as soon as it is certain."""
        if isinstance(response, StreamingHttpResponse):
            logger.error(
                "%s streams its response, which can't be kept: another request with the same "
                "Idempotency-Key will be carried out again.",
                self._call.label,
            )
            hold_until_sent(completion.lease, response)
        elif not asks_again(response):
            response = self._rendered(response)
            completion.when_committed(pack(response, self.fingerprint))
        return response

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
    return status >= 500 or status in _AGAIN or response.has_header("Retry-After")

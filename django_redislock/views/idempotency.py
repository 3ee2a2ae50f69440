"""`idempotent_view`: a request that is sent again is not carried out again.

As in "The Idempotency-Key HTTP Header Field", a draft of the IETF's HTTPAPI group: the client
makes a key for each operation, and sends it with every request for that operation.

1.  The first request with a key takes a lock that is named after the key and its scope
    (`lock_name`), so only one request is carried out at a time.
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

With `store="db"` the record is a row, written in the transaction of the view as
`locks/in_transaction.py` says. A response that is not kept then undoes the view's work, too.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable
from http.cookies import CookieError
from typing import Any, Literal, NamedTuple

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.http import HttpResponse
from django.http.request import RawPostDataException, split_domain_port
from django.http.response import HttpResponseBase
from django.template.response import SimpleTemplateResponse
from django.utils.functional import Promise

from ..base import people
from ..base.callables import kind_of, of_function
from ..base.exceptions import LockError, LockNotAcquired, LockUnavailable
from ..lease.lease import Lease
from ..lease.lock import UNSET, Lock, refuse_event_loop
from ..locks.in_transaction import Attempt, RecordBusy, records
from ..locks.once import Completion, acquire_unless_recorded
from ..locks.redis_lock import redis_lock
from ..primitives import record
from ..primitives.contract import Done, run
from ..settings.validators import (
    one_of,
    validate_database,
    validate_excluded,
    validate_max_size,
    validate_period,
)
from ..transport.ports import AsyncPort, PortType, SyncPort, keep
from . import responses
from .decorator import (
    Call,
    ViewDecorator,
    in_thread_if_needed,
    is_of_rest_framework,
    plain_request,
    validate_methods,
)
from .responses import NoLock, Problem, problem, without_lock

# Requests as fingerprints, to recognise them, and responses as bytes, to send them again.


REPLAYED = "Idempotent-Replayed"
"""The header that distinguishes a replay from the first answer."""

FORM = "multipart/form-data"

_MARKS = ("xframe_options_exempt", "_csp_config", "_csp_ro_config")
"""Attributes that Django's decorators set on a response for its middlewares."""


class NotKept(Exception):
    """The response can't be kept. The message says why."""


def fingerprint(request: Any) -> str:
    """Return a digest of a request: its method, address and payload."""
    digest = hashlib.sha256(f"{request.method} {request.get_full_path()}\n".encode())
    plain = plain_request(request)
    if plain.content_type == FORM:
        _add_form(digest, request)
        return digest.hexdigest()
    # Django REST framework's request has what Django's has, and parses each method.
    parsed = None if request is plain else request
    try:
        digest.update(plain.body)
    except RawPostDataException:
        if parsed is None:
            raise
        # The body was read before, perhaps by a permission class: take the parsed data.
        digest.update(json.dumps(parsed.data, sort_keys=True, default=str).encode())
        _add_files(digest, parsed.FILES)
    return digest.hexdigest()


def is_unparsed_form(request: Any) -> bool:
    """Whether the payload is a form with boundaries that nobody parses: Django parses those that
    are sent by POST. Two sendings can't be compared, since the client makes the boundary."""
    plain = plain_request(request)
    return bool(request is plain and plain.content_type == FORM and request.method != "POST")


def _add_form(digest: Any, request: Any) -> None:
    """Add a form by its fields: the boundary between them changes with every sending."""
    for name, values in sorted(request.POST.lists()):
        digest.update(json.dumps([name, [str(value) for value in values]]).encode())
    _add_files(digest, request.FILES)


def _add_files(digest: Any, files: Any) -> None:
    for name in sorted(files):
        # Some parsers return a plain dictionary.
        for upload in files.getlist(name) if hasattr(files, "getlist") else [files[name]]:
            digest.update(json.dumps([name, upload.name, upload.size]).encode())
            for chunk in upload.chunks():
                digest.update(chunk)
            upload.seek(0)


class Kept(NamedTuple):
    """What is kept of responses."""

    max_size: int
    without_fields: frozenset[str] = frozenset()
    """Fields of JSON that are left out, at any depth."""
    without_headers: frozenset[str] = frozenset()
    """Headers that are left out, in lower case."""


def pack(response: HttpResponseBase, fingerprint: str, kept: Kept) -> bytes:
    """Return the record of a response, for `unpack`. Raises `NotKept`."""
    if not isinstance(response, HttpResponse):
        raise NotKept("it is a streaming response")
    without, content = kept.without_headers, response.content
    if kept.without_fields and content:
        if "json" not in response.get("Content-Type", ""):
            raise NotKept("exclude names fields, and it is not JSON")
        without |= {"content-length", "etag"}  # those of the whole content
    cookies = [] if "set-cookie" in without else response.cookies.values()
    head = {
        "fingerprint": fingerprint,
        "status": response.status_code,
        "reason": response.reason_phrase,
        "headers": [one for one in response.items() if one[0].lower() not in without],
        "marks": {mark: vars(response)[mark] for mark in _MARKS if mark in vars(response)},
        "cookies": [cookie.OutputString() for cookie in cookies],
    }
    try:
        if kept.without_fields and content:
            content = json.dumps(_without(json.loads(content), kept.without_fields)).encode()
        packed = json.dumps(head, default=_plain).encode() + b"\n" + content
    except (TypeError, ValueError, RecursionError) as error:  # not a time limit's exception
        raise NotKept(f"JSON can't write a part of it: {error}") from error
    if len(packed) > kept.max_size:
        raise NotKept(f"it takes {len(packed)} bytes, and max_size is {kept.max_size}")
    return packed


def _without(value: Any, fields: frozenset[str]) -> Any:
    """Return a value of JSON without the fields of these names."""
    if isinstance(value, dict):
        return {key: _without(its, fields) for key, its in value.items() if key not in fields}
    return [_without(one, fields) for one in value] if isinstance(value, list) else value


def pack_done(status: int, fingerprint: str) -> bytes:
    """Return the record of a request whose response can't be kept, or is not there yet."""
    return json.dumps({"fingerprint": fingerprint, "status": status}).encode()


def _plain(value: Any) -> Any:
    """Return a list or a text for what Django takes instead of one, such as a set in a CSP."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    if not isinstance(value, Promise):
        raise TypeError(f"{value!r}")
    try:
        return str(value)
    except Exception as error:  # a lazy text of the project may raise anything
        raise TypeError(f"a lazy text failed: {error}") from error


class Known(NamedTuple):
    """The record of a request that was carried out."""

    fingerprint: str
    status: int
    response: HttpResponse | None
    """None: the response was not kept."""


def unpack(packed: bytes) -> Known | None:
    """Read what `pack` or `pack_done` has written. None: it can't be read."""
    line, _, content = packed.partition(b"\n")
    try:
        head = json.loads(line)
        response = _response(head, content) if "headers" in head else None
        return Known(head["fingerprint"], head["status"], response)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, CookieError):
        return None


def _response(head: dict[str, Any], content: bytes) -> HttpResponse:
    response = HttpResponse(content, status=head["status"], reason=head["reason"])
    del response["Content-Type"]  # set by Django; the first answer may have had none
    for name, value in [*head["headers"], (REPLAYED, "true")]:
        response[name] = value
    if response.has_header("Location"):  # tests and middlewares read the url of a redirect
        head["marks"]["url"] = response["Location"]
    vars(response).update(head["marks"])
    for cookie in head["cookies"]:
        response.cookies.load(cookie)
    return response


# The `Idempotency-Key` of a request, and its scope: two clients may send the same key.
#
# A key belongs to the user of the request at its host. Without a user it belongs to the
# request's `Authorization` header and session. A request with none of these is refused: its key
# would belong to everybody, and the next client would get this client's answer. That includes
# requests whose only credentials are a header that Django doesn't know, such as X-Api-Key: there
# the project gives its own `scope`.


HEADER = "Idempotency-Key"
MAX_KEY = 255

_DEFAULT_PORTS = ("", "80", "443")
"""The default ports of both schemes, since a proxy may end TLS without Django knowing."""

# A string of structured fields (RFC 8941) with parameters, which mean nothing here. Many clients
# leave the quotes out.
_STRING = r'"((?:[ !#-\[\]-~]|\\["\\])*)"'
_VALUE = (
    rf"{_STRING}|:[A-Za-z0-9+/=]*:|\?[01]|-?[0-9]{{1,15}}(?:\.[0-9]{{1,3}})?"
    r"|[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*"
)
_KEY = re.compile(
    rf"{_STRING}(?:;[ ]*[a-z*][a-z0-9_.*-]*(?:=(?:{_VALUE}))?)*|(?P<bare>[!#-+\--~]+)"
)


def parse(header: str) -> str | None:
    """Return the key in a header, or None if it is malformed."""
    match = _KEY.fullmatch(header.strip())
    key = match and (match["bare"] or re.sub(r"\\(.)", r"\1", match[1]))
    return key if key and len(key) <= MAX_KEY else None


def lock_name(scope: str, key: str) -> str:
    """Return the name of the lock for a key.

    A digest: lists of locks must not show users' names and keys, and a name's length is limited.
    """
    whole = f"{scope}\0{key}".encode(errors="surrogatepass")
    return f"idempotency:{hashlib.sha256(whole).hexdigest()[:40]}"


def shortened(key: str) -> str:
    """Return the beginning of a key, by which people find its lock: up to 8 characters, and at
    most half of it. The whole key may be a secret."""
    return f"{key[: min(8, len(key) // 2)]}…"


def scope_of(request: Any) -> str | None:
    """Return whom the key belongs to, with all secrets in plain text, or None for nobody.

    Raises `ImproperlyConfigured` for a user without a primary key.
    """
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        authorization = request.headers.get("Authorization")
        session = getattr(getattr(request, "session", None), "session_key", None)
        if not (authorization or session):
            return None
        return json.dumps([_host(request), "anonymous", authorization, session])
    pk = getattr(user, "pk", None)
    if pk is None:
        raise ImproperlyConfigured(
            f"{user!r} is authenticated and has no pk, so all such users would share their "
            f"Idempotency-Keys. Write idempotent_view(scope=...), a function of the request."
        )
    return json.dumps([_host(request), "user", _model(user), str(pk)])


def _model(user: Any) -> str:
    # A proxy model has the same rows. The user of a token may have no model.
    meta = getattr(user, "_meta", None)
    cls = user.__class__ if meta is None else meta.concrete_model
    return people.dotted_path(cls)


def _host(request: Any) -> str:
    """Return one spelling of each host."""
    domain, port = split_domain_port(request.get_host())
    return domain if port in _DEFAULT_PORTS else f"{domain}:{port}"


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

    `exclude` are fields of JSON responses that are not kept, at any depth, and `exclude_headers`
    are headers.

    With `store="db"` the response is kept in the database `using`, in the transaction of the view,
    which this decorator opens: no crash comes between the view's work and its record. It stays
    until `manage.py redislock records` deletes it. For synchronous views, with
    "django_redislock.contrib.once" in INSTALLED_APPS.
    """

    def __init__(
        self,
        ttl: float = UNSET,
        *,
        required: bool = False,
        methods: Iterable[str] = ("POST", "PATCH"),
        scope: Callable[[Any], str | None] | None = UNSET,
        max_size: int = 1_000_000,
        store: Literal["redis", "db"] = "redis",
        using: str | None = None,
        exclude: Iterable[str] = (),
        exclude_headers: Iterable[str] = (),
    ) -> None:
        if callable(ttl):
            raise TypeError("idempotent_view needs its parentheses: @idempotent_view()")
        if scope is not UNSET and scope is not None and not callable(scope):
            raise TypeError(f"scope must be a function of the request, not {scope!r}")
        if not isinstance(required, bool):
            raise TypeError(f"required must be True or False, not {required!r}")
        self._in_database = one_of("redis", "db")(store, "store") == "db"
        if self._in_database and ttl is not UNSET:
            raise TypeError(
                "ttl is for store='redis'. Rows stay until they are deleted, by "
                "manage.py redislock records --older-than 30d --delete"
            )
        if using is not None and not self._in_database:
            raise TypeError("using is the database of store='db': write that, or leave it out")
        self._using = None if using is None else validate_database(using, "using")
        self._ttl = validate_period(86_400 if ttl is UNSET else ttl, "ttl")
        self._required = required
        self._methods = validate_methods(methods)
        self._scope = scope if callable(scope) else scope_of
        options: Any = {"scope": None} if scope is None else {}
        # Until the COMMIT, the row holds others off.
        release: Any = "exit" if self._in_database else "commit"
        self._lock = redis_lock(wait=KEY_WAIT, release=release, **options)._recording(INSIDE)
        self._kept = Kept(
            validate_max_size(max_size),
            validate_excluded(exclude, "exclude"),
            frozenset(map(str.lower, validate_excluded(exclude_headers, "exclude_headers"))),
        )

    def __repr__(self) -> str:
        return f"idempotent_view({'store=db' if self._in_database else f'{self._ttl:g}'})"

    def _prepare(self, view: Callable[..., Any]) -> None:
        if self._in_database:
            if kind_of(view) == "coroutine":
                raise _asynchronous(of_function(view))
            if apps.ready:
                records()

    def _serve(self, call: Call) -> HttpResponseBase:
        request = self._keyed(call)
        if isinstance(request, Problem):
            return problem(call.request, request)
        if request is None or call.has(request.lock):
            return call.run()
        if self._in_database:
            return request.carry_out(self._using)
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
        if self._in_database:
            raise _asynchronous(call.label)
        # The request is carried out to its end even if the client has gone: the client is about
        # to send it again.
        task = keep(asyncio.ensure_future(self._carry_out(call)))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_failure)
            raise

    async def _carry_out(self, call: Call) -> HttpResponseBase:
        # Pages, with their context processors, and scopes may query the database: in a thread.
        request = await in_thread_if_needed(lambda: self._keyed(call))
        if isinstance(request, Problem):
            return await sync_to_async(problem)(call.request, request)
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

    def _keyed(self, call: Call) -> _KeyedRequest | Problem | None:
        """Return the request with its key, or why it has none that can be used; None: it has no
        key and needs none."""
        header = call.request.headers.get(HEADER)
        if header is None:
            return responses.KEY_MISSING if self._required else None
        key = parse(header)
        if key is None:
            return responses.KEY_MALFORMED
        if is_unparsed_form(call.request):
            return responses.FORM_UNPARSED
        scope = self._scope(call.request)
        if scope is None:
            logger.warning(
                "%s was not run: nothing says whose Idempotency-Key it is. %s", call.label, ADVICE
            )
            why = responses.KEY_OF_NOBODY
            in_full = why._replace(detail=f"{why.detail} {ADVICE}")
            return in_full if settings.DEBUG else why
        where = f"{HEADER} {shortened(key)}, {call.label}"
        lock = self._lock._renamed(lock_name(scope, key), where)
        return _KeyedRequest(call, lock, self._kept)


def _asynchronous(view: str) -> TypeError:
    return TypeError(
        f"store='db' is for synchronous views, since Django's transactions are, and {view} is "
        f"asynchronous. Write it with def: Django then runs it in a thread."
    )


def _log_failure(task: asyncio.Future[Any]) -> None:
    """Log the exception of a request whose client has gone."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("A request failed after its client had gone away", exc_info=error)


class _KeyedRequest:
    """A request with an Idempotency-Key, and its answer."""

    def __init__(self, call: Call, lock: Lock, kept: Kept) -> None:
        self._call = call
        self._kept = kept
        self._fingerprint = fingerprint(call.request)
        self._row = ""
        self.lock = lock

    def carry_out(self, using: str | None) -> HttpResponseBase:
        """Answer the request, with its record in a database."""
        attempt = Attempt(self.lock, using, pack_done(0, self._fingerprint))
        self._row = f"the row {attempt.pk} of {records()._meta.db_table}"
        begun = vars(plain_request(self._call.request)).setdefault("_redislock_records", set())
        if attempt.pk in begun:  # by a decorator around this one
            return self._call.run()
        try:
            work = attempt.begin()
        except (Done, RecordBusy) as reason:
            return self.answer(reason)
        except LockNotAcquired as busy:
            known = attempt.recorded()
            return self.answer(busy if known is None else Done(known))
        begun.add(attempt.pk)
        with work:
            response = self._call.run()
            kept = not (_may_change(response) or transaction.get_rollback(attempt.using))
            response = self._rendered(response) if kept else response
            attempt.record(self._packed(response) if kept else None)
            return response

    async def acquire(self, port_type: PortType) -> Lease:
        """Return the lease under which to carry the request out.

        Raises `Done` if it was carried out; `LockNotAcquired` if another request with this key
        is being carried out; `LockUnavailable`.
        """
        try:
            return await acquire_unless_recorded(
                port_type, self.lock, lambda value, _lease: value is not None, pattern="."
            )
        except LockUnavailable:
            raise
        except LockError:  # another request holds the lock, or a key can't be read
            known = await self._record(port_type)
            if known is None:
                raise
        raise Done(known)

    async def _record(self, port_type: PortType) -> bytes | None:
        port = port_type(self.lock._plan().server)
        try:
            return await record.read(port, self.lock._keys())
        except LockUnavailable:
            raise
        except LockError:  # it has another type
            return UNREADABLE

    def answer(self, reason: NoLock | Done) -> HttpResponseBase:
        """Return the response of a request that is not carried out."""
        if not isinstance(reason, Done):
            return without_lock(self._call, reason, responses.KEY_IN_USE)
        known = unpack(reason.value)
        if known is None:
            logger.error(
                "The answer of %s at %s can't be read, so the request that sends its "
                "Idempotency-Key again gets %s. If the view may run again, delete the %s.",
                self._call.label,
                self._row or f"the key {self.lock._keys().record!r}",
                responses.ANSWER_UNREADABLE.status,
                "row" if self._row else "key",
            )
            return problem(self._call.request, responses.ANSWER_UNREADABLE)
        if known.fingerprint != self._fingerprint:
            return problem(self._call.request, responses.PAYLOAD_MISMATCH)
        if known.response is None:
            detail = responses.ANSWER_NOT_KEPT.detail % {"status": known.status}
            return problem(self._call.request, responses.ANSWER_NOT_KEPT._replace(detail=detail))
        return known.response

    def keep(self, completion: Completion, response: HttpResponseBase) -> HttpResponseBase:
        """Record the response as soon as it is certain."""
        if not _may_change(response):
            response = self._rendered(response)
            completion.when_committed(self._packed(response))
        return response

    def _packed(self, response: HttpResponseBase) -> bytes:
        try:
            return pack(response, self._fingerprint, self._kept)
        except NotKept as why:
            logger.error(
                "%s was carried out, and its response can't be kept: %s. A request that sends the "
                "same Idempotency-Key again gets %s.",
                self._call.label,
                why,
                responses.ANSWER_NOT_KEPT.status,
                exc_info=why.__cause__,
            )
            return pack_done(response.status_code, self._fingerprint)

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

"""Requests as fingerprints, to recognise them, and responses as bytes, to send them again."""

from __future__ import annotations

import hashlib
import json
from http.cookies import CookieError
from typing import Any, NamedTuple

from django.http import HttpResponse
from django.http.request import RawPostDataException
from django.http.response import HttpResponseBase
from django.utils.functional import Promise

from .decorator import plain_request

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


def pack(response: HttpResponseBase, fingerprint: str, max_size: int) -> bytes:
    """Return the record of a response, for `unpack`. Raises `NotKept`."""
    if not isinstance(response, HttpResponse):
        raise NotKept("it is a streaming response")
    head = {
        "fingerprint": fingerprint,
        "status": response.status_code,
        "reason": response.reason_phrase,
        "headers": list(response.items()),
        "marks": {mark: vars(response)[mark] for mark in _MARKS if mark in vars(response)},
        "cookies": [cookie.OutputString() for cookie in response.cookies.values()],
    }
    try:
        packed = json.dumps(head, default=_plain).encode() + b"\n" + response.content
    except (TypeError, ValueError, RecursionError) as error:  # not a time limit's exception
        raise NotKept(f"JSON can't write a part of it: {error}") from error
    if len(packed) > max_size:
        raise NotKept(f"it takes {len(packed)} bytes, and max_size is {max_size}")
    return packed


def pack_done(response: HttpResponseBase, fingerprint: str) -> bytes:
    """Return the record of a request whose response can't be kept."""
    return json.dumps({"fingerprint": fingerprint, "status": response.status_code}).encode()


def _plain(value: Any) -> Any:
    """Return a list or a text for what Django takes instead of one, such as a set in a CSP."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Promise):
        return _text(value)
    raise TypeError(f"{value!r}")


def _text(lazy: Promise) -> str:
    try:
        return str(lazy)
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
    vars(response).update(head["marks"])
    for cookie in head["cookies"]:
        response.cookies.load(cookie)
    return response

"""A request in a few bytes, to know it again; and a response, to give it again."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from django.http import HttpResponse
from django.http.request import RawPostDataException
from django.http.response import HttpResponseBase

REPLAYED = "Idempotent-Replayed"
"""The header that tells a replay from the first answer."""

_MARKS = ("xframe_options_exempt", "_csp_config", "_csp_ro_config")
"""What decorators of Django write on a response for its middlewares."""


def fingerprint(request: Any) -> str:
    """A digest of what is asked for: method, address and payload."""
    digest = hashlib.sha256(f"{request.method} {request.get_full_path()}\n".encode())
    # Django REST framework's request has what Django's has, and parses each method.
    parsed = request if hasattr(request, "_request") else None
    if request.content_type.startswith("multipart/form-data"):
        _add_form(digest, request, parsed)
        return digest.hexdigest()
    try:
        digest.update(getattr(request, "_request", request).body)
    except RawPostDataException:
        if parsed is None:
            raise
        # It was read before, by a permission perhaps: what was made of it has to do.
        digest.update(json.dumps(parsed.data, sort_keys=True, default=str).encode())
        _add_files(digest, parsed.FILES)
    return digest.hexdigest()


def _add_form(digest: Any, request: Any, parsed: Any) -> None:
    """By its parts: the text between them is made anew whenever a form is sent."""
    if parsed is None and request.method != "POST":  # then Django parses none
        boundary = request.content_params.get("boundary", "").encode()
        digest.update(request.body.replace(boundary, b"") if boundary else request.body)
        return
    for name, values in sorted(request.POST.lists()):
        digest.update(json.dumps([name, [str(value) for value in values]]).encode())
    _add_files(digest, request.FILES)


def _add_files(digest: Any, files: Any) -> None:
    for name in sorted(files):
        # A plain dictionary from some parsers.
        for upload in files.getlist(name) if hasattr(files, "getlist") else [files[name]]:
            digest.update(json.dumps([name, upload.name, upload.size]).encode())
            for chunk in upload.chunks():
                digest.update(chunk)
            upload.seek(0)


def pack(response: HttpResponseBase, fingerprint: str) -> bytes:
    """What `unpack` makes the response of."""
    assert isinstance(response, HttpResponse)
    return json.dumps(
        {
            "fingerprint": fingerprint,
            "status": response.status_code,
            "reason": response.reason_phrase,
            "headers": list(response.items()),
            "marks": {mark: vars(response)[mark] for mark in _MARKS if mark in vars(response)},
            "cookies": [cookie.OutputString() for cookie in response.cookies.values()],
            "content": base64.b64encode(response.content).decode(),
        }
    ).encode()


def unpack(packed: bytes, fingerprint: str) -> HttpResponse | None:
    """The response; None: it was given to another request."""
    fields = json.loads(packed)
    if fields["fingerprint"] != fingerprint:
        return None
    response = HttpResponse(
        base64.b64decode(fields["content"]),
        status=fields["status"],
        reason=fields["reason"],
        headers=dict(fields["headers"]) | {REPLAYED: "true"},
    )
    vars(response).update(fields["marks"])
    for cookie in fields["cookies"]:
        response.cookies.load(cookie)
    return response

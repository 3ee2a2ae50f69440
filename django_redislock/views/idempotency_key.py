"""The `Idempotency-Key` of a request, and its scope: two clients may send the same key.

A key belongs to the user of the request at its host. Without a user it belongs to the request's
`Authorization` header and session. A request with none of these is refused: its key would belong
to everybody, and the next client would get this client's answer. That includes requests whose only
credentials are a header that Django doesn't know, such as X-Api-Key: there the project gives its
own `scope`.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.http.request import split_domain_port

from ..base import label

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
    return label.dotted_path(cls)


def _host(request: Any) -> str:
    """Return one spelling of each host."""
    domain, port = split_domain_port(request.get_host())
    return domain if port in _DEFAULT_PORTS else f"{domain}:{port}"

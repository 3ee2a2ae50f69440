"""Whose `Idempotency-Key` it is: two clients may send the same one.

A key belongs to the user of the request at its host. Without a user it belongs to whoever sends
this `Authorization` and has this session. A request with none of these is refused, since its key
would be everybody's, and the next client would get this one's answer; so is one whose only
credentials are a header that we can't know, such as X-Api-Key. The project's own `scope` says what
is right there.
"""

from __future__ import annotations

import json
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.http.request import split_domain_port

from ..base import label

_DEFAULT_PORTS = ("", "80", "443")
"""Those of both schemes, since a proxy may end TLS without telling Django."""


def scope_of(request: Any) -> str | None:
    """Whose key it is, with all secrets in plain text. None: nobody's.

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
    # A proxy model has the same rows. A token's user is of no model.
    meta = getattr(user, "_meta", None)
    cls = user.__class__ if meta is None else meta.concrete_model
    return label.dotted_path(cls)


def _host(request: Any) -> str:
    """One spelling of each host."""
    domain, port = split_domain_port(request.get_host())
    return domain if port in _DEFAULT_PORTS else f"{domain}:{port}"

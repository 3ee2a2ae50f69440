"""The metrics of the fleet as a view, for whoever knows a token:

path("metrics/locks", fleet_view(token=os.environ["METRICS_TOKEN"]))
"""

from __future__ import annotations

from collections.abc import Callable

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.http import require_safe

from .fleet import Fleet, response


def fleet_view(*, token: str) -> Callable[[HttpRequest], HttpResponse]:
    """Return a view that answers `Authorization: Bearer <token>` with the metrics, and anybody
    else with 401.

    Raises `ImproperlyConfigured` for an empty token: the names of locks and jobs are not for
    everybody.
    """
    if not isinstance(token, str) or not token.strip():
        raise ImproperlyConfigured(
            "fleet_view(token=…) needs a token, such as that of `python -c 'import secrets; "
            "print(secrets.token_urlsafe())'`. To serve the metrics without one, inside your "
            "network, run `manage.py redislock metrics --serve 127.0.0.1:9108`."
        )
    fleet = Fleet()

    @require_safe
    def view(request: HttpRequest) -> HttpResponse:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not constant_time_compare(given.strip(), token.strip()):
            return HttpResponse(
                "The token is missing or wrong.\n",
                status=401,
                content_type="text/plain",
                headers={"WWW-Authenticate": "Bearer", "Cache-Control": "no-store"},
            )
        status, content_type, body = response(fleet)
        return HttpResponse(
            body, status=status, content_type=content_type, headers={"Cache-Control": "no-store"}
        )

    return view

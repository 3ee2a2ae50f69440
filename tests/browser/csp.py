"""What Django has from 6.0 on, for the versions before."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse


def middleware(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    def with_policy(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response["Content-Security-Policy"] = "default-src 'self'"
        return response

    return with_policy

"""What the servers serve: who answers, and whether it leads."""

from __future__ import annotations

import os

from django.http import HttpRequest, HttpResponse
from django.urls import path


def state(request: HttpRequest) -> HttpResponse:
    from .apps import leader

    return HttpResponse(f"{os.getpid()} {leader.is_leader}")


urlpatterns = [path("", state)]

"""Django REST framework is optional: nothing of ours asks for it."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import sys
sys.modules["rest_framework"] = None  # importing it fails
import django
django.setup()
from django.http import HttpResponse
from django.test import RequestFactory
from django.views import View
from django_redislock import redis_lock
from django_redislock.views import idempotent_view, lock_view

@idempotent_view(scope=lambda request: "")
@lock_view("job", wait=0)
def view(request):
    return HttpResponse("done")

@lock_view("job", wait=0)
class Page(View):
    def post(self, request):
        return HttpResponse("done")

request = RequestFactory().post("/", headers={"idempotency-key": "1"})
print(Page.as_view()(request).status_code)
import threading
lease = redis_lock("job").acquire()
statuses = []
ask = lambda: statuses.extend([view(request).status_code, Page.as_view()(request).status_code])
thread = threading.Thread(target=ask)
thread.start()
thread.join()
lease.release()
print(*statuses, view(request).status_code)
"""


def test_nothing_breaks_without_it() -> None:
    """Views run, and are refused, where it can't be imported."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr == ""
    assert result.stdout.split() == ["200", "409", "409", "200"]

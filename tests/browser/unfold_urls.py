"""The shop's, with the page of locks registered as docs/admin.md says for django-unfold."""

import re

from django.contrib import admin

from django_redislock.admin import LockAdmin
from django_redislock.models import LockStatus
from tests.processes import ROOT

__all__ = ["urlpatterns"]

PAGE = (ROOT / "docs" / "admin.md").read_text(encoding="utf-8")
(REGISTER,) = re.findall(r"^```python\n(from unfold.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
NAMES = {"admin": admin, "LockStatus": LockStatus, "LockAdmin": LockAdmin}
exec(REGISTER, {"__name__": __name__, **NAMES})

# Last, since it asks the site for the addresses of what is registered.
from shop.urls import urlpatterns  # type: ignore[import-not-found]  # noqa: E402

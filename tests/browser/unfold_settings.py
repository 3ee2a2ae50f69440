"""The site under django-unfold, whose scripts evaluate strings: so there is no policy here."""

from __future__ import annotations

from tests.browser.settings import *  # noqa: F403
from tests.browser.settings import INSTALLED_APPS, MIDDLEWARE

INSTALLED_APPS = ["unfold", *INSTALLED_APPS]
MIDDLEWARE = [name for name in MIDDLEWARE if "csp" not in name]
ROOT_URLCONF = "tests.browser.unfold_urls"

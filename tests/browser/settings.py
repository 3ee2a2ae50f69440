"""The site's settings: those of the tour, for locks that tests hold, and with quick logins."""

from __future__ import annotations

from tests.browser.tour_settings import *  # noqa: F403
from tests.browser.tour_settings import MIDDLEWARE

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# That of tests/settings.py, in which those run who hold the locks.
REDISLOCK = {"PREFIX": "redislock"}
# Errors are told by the page that has them.
LOGGING_CONFIG = None
# The browser says which language it wants.
MIDDLEWARE = [*MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]

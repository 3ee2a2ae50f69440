"""The Django project of the workers: that of all tests, with a database in a file."""

from __future__ import annotations

import importlib.util
import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as APPS

DATABASE = "REDISLOCK_TEST_DATABASE"
"""The variable with the path of that file."""

INSTALLED_APPS = [*APPS, "django_tasks_db"]
if importlib.util.find_spec("django.tasks") is None:
    INSTALLED_APPS.append("django_tasks")
    IMMEDIATE = "django_tasks.backends.immediate.ImmediateBackend"
else:
    IMMEDIATE = "django.tasks.backends.immediate.ImmediateBackend"

TASKS = {
    "default": {"BACKEND": "django_tasks_db.DatabaseBackend"},
    "immediate": {"BACKEND": IMMEDIATE},
}
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get(DATABASE, ":memory:"),
        # Workers and tests write at the same time.
        "OPTIONS": {"timeout": 20},
    },
}

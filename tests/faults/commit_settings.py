"""The tests' project on the database that the test names."""

from __future__ import annotations

import json
import os

from tests.settings import *  # noqa: F403

DATABASES = {"default": json.loads(os.environ["REDISLOCK_TEST_DATABASE"])}

"""The tests' project on a Redis Cluster, for processes of their own."""

from __future__ import annotations

import os

from tests.caches import cluster
from tests.settings import *  # noqa: F403

CACHES = cluster(os.environ["REDISLOCK_TEST_NODES"].split())

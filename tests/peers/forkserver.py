"""Where processes are forked that work with any of the libraries.

A small server has imported everything already, so they start in no time; and it has neither
threads nor connections, which a fork of the test's own process would copy.
"""

from __future__ import annotations

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "tests.faults.torture.worker",
        "tests.proof.deeds",
        "tests.peers.agent",
        # What their adapters import when they are used; of the others only what is small.
        "django.db.models",
        "django_redis.cache",
        "django_redis.compressors.identity",
        "django_redis.serializers.pickle",
        "django_redislock",
    ]
)

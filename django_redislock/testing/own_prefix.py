"""A prefix per process, for tests on a real Redis that several processes share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from ..settings import conf
from ..settings.policy import Policy
from .condition import Condition
from .no_server import nothing_lost


def names_apart() -> Condition[None]:
    """On a real Redis, keep the locks of this process apart from those of other processes.

    The prefix of their keys contains the process id, so each worker of pytest-xdist and of
    `manage.py test --parallel` has locks of its own. Keys without the prefix stay as they are:
    those of `cache.lock()` and of a `TimestampLock`.
    """
    return Condition(_apart)


@contextmanager
def _apart() -> Iterator[None]:
    read = conf._settings

    def apart() -> conf._Settings:
        its = read()
        prefix = its.given.get("prefix", Policy().prefix)
        given = {**its.given, "prefix": f"{prefix}-test-{os.getpid()}"}
        return its._replace(given=given, policies={})

    with mock.patch.object(conf, "_settings", apart), nothing_lost():
        yield

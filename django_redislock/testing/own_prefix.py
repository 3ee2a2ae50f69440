"""Names of its own for a process, on a real Redis that it shares with others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from ..settings import conf
from ..settings.policy import Policy
from .condition import Condition


def names_apart() -> Condition[None]:
    """On a real Redis, let the names of this process be no other's.

    Their keys get the number of the process into their prefix; so it holds for each worker of
    pytest-xdist and of `manage.py test --parallel`. What others have named stays what it is: the
    keys of `cache.lock()` and of a `TimestampLock`.
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

    with mock.patch.object(conf, "_settings", apart):
        yield

"""The caches of django-cachex. It needs Python 3.12, and from 0.4 on Python 3.14. Where it is not
installed, there are stand-ins with what locks look at."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from django.core.cache.backends.base import BaseCache


class _StandIn(BaseCache):
    def __init__(self, _: Any, params: dict[str, Any]) -> None:
        super().__init__(params)


INSTALLED = find_spec("django_cachex") is not None
if not INSTALLED:
    for _kind in ("Redis", "Valkey", "RedisSentinel", "RedisCluster", "ValkeyGlide", "LocMem"):
        _name, _its = f"{_kind}Cache", {"__module__": "django_cachex.cache"}
        globals()[_name] = type(_name, (_StandIn,), _its)


def cachex(kind: str) -> str:
    """Return the path of a cache of django-cachex, such as "RedisCluster"."""
    return f"{'django_cachex.cache' if INSTALLED else __name__}.{kind}Cache"

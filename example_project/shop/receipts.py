"""Numbers for receipts, in code that is older than django-redislock.

The code calls `cache.lock()` of django-redis. One line in the settings, `CLIENT_CLASS`, makes it a
lock of django-redislock: waiters are woken in order of arrival, and a lost answer leaks no lock.
"""

from django.core.cache import cache


def next_number() -> int:
    """Return the next number. (For a number alone, `cache.incr()` would be enough.)"""
    with cache.lock("receipts", timeout=10, blocking_timeout=10):
        number = cache.get("receipt", 0) + 1
        cache.set("receipt", number, timeout=None)
        return number

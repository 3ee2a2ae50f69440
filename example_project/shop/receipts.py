"""Numbers for receipts, in code that was there before django-redislock.

It calls `cache.lock()` as django-redis has it. One line in the settings, `CLIENT_CLASS`, makes it
one of ours: who waits is woken in order of arrival, and a lost answer does not leak it.
"""

from django.core.cache import cache


def next_number() -> int:
    """The next one. (For a number alone `cache.incr()` would do.)"""
    with cache.lock("receipts", timeout=10, blocking_timeout=10):
        number = cache.get("receipt", 0) + 1
        cache.set("receipt", number, timeout=None)
        return number

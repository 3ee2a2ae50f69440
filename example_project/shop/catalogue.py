"""The catalogue: many processes read it, and one at a time rebuilds it.

The catalogue is more than one value in the cache. Without a lock, a reader during a rebuild would
see the first pages of one edition and the last pages of another.
"""

from __future__ import annotations

from django.core.cache import cache

from django_redislock import ReadWriteLock, current_lease

from .models import Product

lock = ReadWriteLock("catalogue")


@lock.read()
def pages() -> list[str]:
    """Return all pages; none before the first edition."""
    return [cache.get(f"catalogue:{number}", "") for number in range(cache.get("catalogue", 0))]


@lock.write()
def rebuild() -> int:
    """Make a new edition. Returns its number of pages, counted while others may read it."""
    products = Product.objects.order_by("name")
    for number, product in enumerate(products):
        cache.set(f"catalogue:{number}", f"{number + 1}. {product}", timeout=None)
    cache.set("catalogue", len(products), timeout=None)
    current_lease().downgrade()  # waiting readers go on now; no writer begins yet
    return sum(bool(cache.get(f"catalogue:{number}")) for number in range(len(products)))

"""The catalogue: many read it, one writes it anew.

It is more than one value in the cache, so it is whole only while nobody writes: a reader in the
middle of that would see the first pages of one edition and the last ones of another.
"""

from __future__ import annotations

from django.core.cache import cache

from django_redislock import ReadWriteLock, current_lease

from .models import Product

lock = ReadWriteLock("catalogue")


@lock.read()
def pages() -> list[str]:
    """All of it; empty before it was printed first."""
    return [cache.get(f"catalogue:{number}", "") for number in range(cache.get("catalogue", 0))]


@lock.write()
def rebuild() -> int:
    """A new edition. Returns how many pages it has, by a count that others may make, too."""
    products = Product.objects.order_by("name")
    for number, product in enumerate(products):
        cache.set(f"catalogue:{number}", f"{number + 1}. {product}", timeout=None)
    cache.set("catalogue", len(products), timeout=None)
    current_lease().downgrade()  # who has waited reads it now; nobody writes the next one yet
    return sum(bool(cache.get(f"catalogue:{number}")) for number in range(len(products)))

"""Enter a delivery. One host or person at a time does so."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandError

from django_redislock import current_lease, redis_lock
from django_redislock.commands import LockedCommand
from shop.models import Product


class Command(LockedCommand):
    help = 'Reads what was delivered, a line such as "5 lamp" for each product, and stocks it.'
    lock_options = {"wait": 0}

    def handle(self, *_args: Any, **_options: Any) -> None:
        ours = current_lease()
        for line in sys.stdin:
            ours.check()  # a delivery may be long: stop if the lease is lost
            units, _, name = line.strip().partition(" ")
            if not (units.isdecimal() and name):
                raise CommandError(f'Write lines such as "5 lamp", not {line!r}.')
            product = stock(name, int(units))
            self.stdout.write(f"{product} (no. {product.pk})")
            self.stdout.flush()


def stock(name: str, units: int) -> Product:
    """Add units to the stock, under its lock."""
    pk = Product.objects.get_or_create(name=name, defaults={"stock": 0})[0].pk
    with redis_lock(f"stock:{pk}") as lease:
        product = Product.objects.fenced(lease).get(pk=pk)
        product.stock += units
        product.save(lease=lease)
        return product

"""The periodic jobs of the shop, which `manage.py runperiodic` runs."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.db.models import Count, Sum
from django.utils import timezone

from django_redislock import current_lease, redis_lock
from django_redislock.periodic import periodic

from .models import Cart, Product, StockReport

RESERVED_FOR = timedelta(minutes=30)
"""How long a unit is reserved for a customer who has not paid."""


@periodic(every=900, jitter=10)
def stock_report() -> None:
    """Write down what is in stock."""
    stock = Product.objects.aggregate(products=Count("pk"), units=Sum("stock", default=0))
    StockReport.objects.create(**stock, fencing_token=current_lease().fencing_token)


@periodic(every=60, on_crash="retry")
def abandoned_carts() -> None:
    """Put back the units that nobody has paid for.

    A run that was cut short is repeated, so each step has to be complete in itself.
    """
    for cart in Cart.objects.filter(created__lt=timezone.now() - RESERVED_FOR):
        current_lease().check()  # there may be many carts: stop if the lease is lost
        put_back(cart)


def put_back(cart: Cart) -> None:
    """Put the unit of one cart back, under the lock of its stock. The cart may have gone."""
    with redis_lock(f"stock:{cart.product_id}") as lease, transaction.atomic():
        removed, _ = Cart.objects.filter(pk=cart.pk).delete()
        if removed:
            product = Product.objects.fenced(lease).get(pk=cart.product_id)
            product.stock += 1
            product.save(lease=lease)

"""What the shop does every now and then, on whichever host comes first: manage.py runperiodic"""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.db.models import Count, Sum
from django.utils import timezone

from django_redislock import current_lease, redis_lock
from django_redislock.periodic import periodic

from .models import Cart, Product, StockReport

PATIENCE = timedelta(minutes=30)
"""For so long things are kept for somebody who has not paid."""


@periodic(every=900, jitter=10)
def stock_report() -> None:
    """Write down what there is."""
    stock = Product.objects.aggregate(products=Count("pk"), units=Sum("stock", default=0))
    StockReport.objects.create(**stock, fencing_token=current_lease().fencing_token)


@periodic(every=60, on_crash="retry")
def abandoned_carts() -> None:
    """Put back what nobody has paid for. Cut short, it is done again: so each step has to be whole
    in itself."""
    for cart in Cart.objects.filter(created__lt=timezone.now() - PATIENCE):
        current_lease().check()  # there may be many: don't go on beside somebody else
        put_back(cart)


def put_back(cart: Cart) -> None:
    """With nobody else at the product's stock. A cart that is gone is no matter."""
    with redis_lock(f"stock:{cart.product_id}") as lease, transaction.atomic():
        removed, _ = Cart.objects.filter(pk=cart.pk).delete()
        if removed:
            product = Product.objects.fenced(lease).get(pk=cart.product_id)
            product.stock += 1
            product.save(lease=lease)

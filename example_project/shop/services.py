"""Selling one unit: as it is often written, and under a lock.

Both read the stock, do something that takes a moment, and write the new stock. For one row of one
database `F("stock") - 1` or `select_for_update()` would do; a lock on Redis is for the moment in
between, when it is spent outside of the database: with a payment service, a label printer, a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from django.db import transaction

from django_redislock import Lease, MultiLock, current_lease, redis_lock

from .models import Order, Product


@dataclass(frozen=True)
class Sale:
    """What a worker has worked out and is about to write."""

    product_pk: int
    worker: str
    stock: int
    fencing_token: int | None = None


def moment(sale: Sale) -> None:  # noqa: ARG001  # a real one would charge somebody for it
    """Stands for all that takes its time between reading and writing."""
    time.sleep(0.005)


def sell(product_pk: int, worker: str, think: Callable[[Sale], object] = moment) -> Order | None:
    """Sell one unit, the wrong way. None: sold out.

    Two workers that read the same stock will write the same new stock, and two orders. One of
    the updates is lost, so a unit is sold twice. The transaction does not help: each of them is
    consistent in itself.
    """
    stock = Product.objects.get(pk=product_pk).stock
    if stock == 0:
        return None
    sale = Sale(product_pk, worker, stock - 1)
    think(sale)
    with transaction.atomic():
        Product.objects.filter(pk=product_pk).update(stock=sale.stock)
        return Order.objects.create(product_id=product_pk, worker=worker)


@redis_lock("stock:{product_pk}")
def sell_locked(
    product_pk: int, worker: str, think: Callable[[Sale], object] = moment
) -> Order | None:
    """Sell one unit, with nobody else at this product's stock. None: sold out."""
    return sell_under(current_lease(), product_pk, worker, think)


def sell_under(
    lease: Lease, product_pk: int, worker: str, think: Callable[[Sale], object] = moment
) -> Order | None:
    """Sell one unit, for who has the lock already. None: sold out.

    Raises `StaleLease` when this process was stopped for longer than its lease lives, and another
    one took over: then nothing is sold.
    """
    stock = Product.objects.fenced(lease).get(pk=product_pk).stock
    if stock == 0:
        return None
    sale = Sale(product_pk, worker, stock - 1, lease.fencing_token)
    think(sale)
    return record(sale, lease)


@transaction.atomic
def record(sale: Sale, lease: Lease | int) -> Order:
    """Write the sale, unless somebody with a newer lease has begun to work on the product.

    For a sale that comes from elsewhere, say a queue, its fencing token will do.
    """
    # First, since fenced() begins by reading; the settings tell why that would be wrong here.
    order = Order.objects.create(
        product_id=sale.product_pk, worker=sale.worker, fencing_token=sale.fencing_token
    )
    Product.objects.fenced(lease).filter(pk=sale.product_pk).update(stock=sale.stock)
    return order


def order_under(lease: Lease, product_pk: int, customer: str) -> Order | None:
    """Sell one unit, for who has the lock and a transaction. None: sold out, and rolled back."""
    order = Order.objects.create(
        product_id=product_pk, worker=customer, fencing_token=lease.fencing_token
    )
    product = Product.objects.fenced(lease).get(pk=product_pk)
    if product.stock == 0:
        transaction.set_rollback(True)
        return None
    product.stock -= 1
    product.save(lease=lease)
    return order


@MultiLock(["stock:{source_pk}", "stock:{target_pk}"])
def move(source_pk: int, target_pk: int, units: int) -> bool:
    """Relabel units of one product as another, with nobody else at the stock of either. False:
    there are not so many.

    Two that move in opposite directions at the same time don't block each other for ever.
    """
    tokens = current_lease().fencing_tokens
    with transaction.atomic():
        for pk, change in ((source_pk, -units), (target_pk, units)):
            lease = tokens[f"stock:{pk}"]  # each row sees the token of its own lock
            product = Product.objects.fenced(lease).get(pk=pk)
            if product.stock + change < 0:
                transaction.set_rollback(True)
                return False
            product.stock += change
            product.save(lease=lease)
    return True

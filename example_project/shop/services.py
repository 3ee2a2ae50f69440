"""Selling one unit: as it is often written, and under a lock.

Both versions read the stock, do something that takes a moment, and write the new stock. For one
row of one database, `F("stock") - 1` or `select_for_update()` would be enough. A lock on Redis is
needed if the moment in between is spent outside of the database: with a payment service, a label
printer, a file.
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
    """The sale that a worker is about to write."""

    product_pk: int
    worker: str
    stock: int
    fencing_token: int | None = None


def moment(sale: Sale) -> None:  # noqa: ARG001  # a real one would charge somebody for it
    """Stand in for the work between reading and writing."""
    time.sleep(0.005)


def sell(product_pk: int, worker: str, think: Callable[[Sale], object] = moment) -> Order | None:
    """Sell one unit, the wrong way. Returns None if the product is sold out.

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
    """Sell one unit under the lock of the stock. Returns None if the product is sold out."""
    return sell_under(current_lease(), product_pk, worker, think)


def sell_under(
    lease: Lease, product_pk: int, worker: str, think: Callable[[Sale], object] = moment
) -> Order | None:
    """Sell one unit; the caller holds the lock. Returns None if the product is sold out.

    Raises `StaleLease`, and sells nothing, if this process was stopped for longer than its lease
    and another one took over.
    """
    stock = Product.objects.fenced(lease).get(pk=product_pk).stock
    if stock == 0:
        return None
    sale = Sale(product_pk, worker, stock - 1, lease.fencing_token)
    think(sale)
    return record(sale, lease)


@transaction.atomic
def record(sale: Sale, lease: Lease | int) -> Order:
    """Write the sale, unless the holder of a newer lease has begun to work on the product.

    `lease` may be a fencing token, for a sale that comes from a queue, for example.
    """
    # First, since fenced() begins by reading; settings.py says why that would be wrong here.
    order = Order.objects.create(
        product_id=sale.product_pk, worker=sale.worker, fencing_token=sale.fencing_token
    )
    Product.objects.fenced(lease).filter(pk=sale.product_pk).update(stock=sale.stock)
    return order


def order_under(lease: Lease, product_pk: int, customer: str) -> Order | None:
    """Sell one unit; the caller has the lock and a transaction.

    Returns None, and rolls back, if the product is sold out.
    """
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
    """Relabel units of one product as another, under the locks of both stocks.

    Returns False if there are not enough units. Two moves in opposite directions at the same time
    do not deadlock.
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

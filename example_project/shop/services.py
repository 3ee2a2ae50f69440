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

from django_redislock import current_lease, redis_lock

from .models import Order, Product


@dataclass(frozen=True)
class Sale:
    """What a worker has worked out and is about to write."""

    product_pk: int
    worker: str
    stock: int
    fencing_token: int | None = None


class LateWrite(Exception):
    """Somebody with a newer lease has begun to work on this product."""


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
    """Sell one unit, with nobody else at this product's stock. None: sold out.

    Raises `LateWrite` when this process was stopped for longer than its lease lives, and another
    one took over: then nothing is sold.
    """
    fencing_token = current_lease().fencing_token
    stock = read_fenced(product_pk, fencing_token)
    if stock == 0:
        return None
    sale = Sale(product_pk, worker, stock - 1, fencing_token)
    think(sale)
    return write_fenced(sale)


def read_fenced(product_pk: int, fencing_token: int) -> int:
    """Return the stock, and from now on refuse what holders of older leases write.

    The token is shown before reading, and not only when writing. Else a late write could come
    between our reading and our writing: the product would know older tokens only and let it in,
    and we would overwrite it.
    """
    update_fenced(product_pk, fencing_token)
    return Product.objects.get(pk=product_pk).stock


@transaction.atomic
def write_fenced(sale: Sale) -> Order:
    """Write the sale, unless somebody with a newer lease has begun to work on the product."""
    update_fenced(sale.product_pk, sale.fencing_token, stock=sale.stock)
    return Order.objects.create(
        product_id=sale.product_pk, worker=sale.worker, fencing_token=sale.fencing_token
    )


def update_fenced(product_pk: int, fencing_token: int, **values: int) -> None:
    """Show the product a fencing token, and write `values`, or raise `LateWrite`.

    The statement that writes is the one that decides. A check before it would not do, since the
    process may be stopped in between.
    """
    products = Product.objects.filter(pk=product_pk, fence__lte=fencing_token)
    if not products.update(fence=fencing_token, **values):
        raise LateWrite(
            f"Product {product_pk} has seen a newer fencing token than {fencing_token}"
        )

"""Tests of the shop itself. They need the Redis at REDIS_URL: manage.py test"""

# ruff: noqa: PT009, PT027  # for Django's own runner, and so in the manner of unittest

from __future__ import annotations

from django.test import TestCase

from django_redislock import LockReentered, redis_lock

from .models import Order, Product
from .services import LateWrite, Sale, read_fenced, sell, sell_locked, write_fenced


class SellingTest(TestCase):
    def setUp(self) -> None:
        self.product = Product.objects.create(name="lamp", stock=2)

    def assert_product(self, *, stock: int, orders: int) -> None:
        self.product.refresh_from_db()
        self.assertEqual((self.product.stock, self.product.orders.count()), (stock, orders))

    def test_both_ways_sell_until_sold_out(self) -> None:
        """Alone, they do the same; only one of them leaves a fencing token."""
        self.assertIsNone(sell(self.product.pk, "me").fencing_token)
        order = sell_locked(self.product.pk, "me")
        self.product.refresh_from_db()
        self.assertEqual(order.fencing_token, self.product.fence)
        self.assertIsNone(sell(self.product.pk, "me"))
        self.assertIsNone(sell_locked(self.product.pk, "me"))
        self.assert_product(stock=0, orders=2)

    def test_a_sale_in_the_middle_of_another_is_lost_without_the_lock(self) -> None:
        """One unit less, and two orders."""
        sell(self.product.pk, "me", lambda _: sell(self.product.pk, "you"))
        self.assert_product(stock=1, orders=2)

    def test_the_lock_is_held_between_reading_and_writing(self) -> None:
        """It is that of this product."""

        def think(_: Sale) -> None:
            with self.assertRaises(LockReentered):
                redis_lock(f"stock:{self.product.pk}").acquire()

        sell_locked(self.product.pk, "me", think)
        self.assert_product(stock=1, orders=1)

    def test_a_late_write_is_refused_once_the_next_has_read(self) -> None:
        """And it leaves nothing behind, whether it comes before or after the next one's write."""
        late = Sale(self.product.pk, "late", read_fenced(self.product.pk, 6) - 1, 6)
        sale = Sale(self.product.pk, "next", read_fenced(self.product.pk, 7) - 1, 7)
        with self.assertRaises(LateWrite):
            write_fenced(late)
        self.assert_product(stock=2, orders=0)
        write_fenced(sale)
        with self.assertRaises(LateWrite):
            write_fenced(late)
        self.assert_product(stock=1, orders=1)
        self.assertEqual(Order.objects.get().worker, "next")

    def test_late_in_the_middle_of_selling(self) -> None:
        """Whoever was overtaken while it thought sells nothing."""

        def overtaken(sale: Sale) -> None:
            read_fenced(self.product.pk, sale.fencing_token + 1)

        with self.assertRaises(LateWrite):
            sell_locked(self.product.pk, "me", overtaken)
        self.assert_product(stock=2, orders=0)

"""Tests of the shop itself. They need the Redis at REDIS_URL: manage.py test"""

# ruff: noqa: PT009, PT027  # for Django's own runner, and so in the manner of unittest

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import addModuleCleanup, mock
from uuid import uuid4

from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.test import SimpleTestCase, TestCase, TransactionTestCase
from django.utils import timezone

from django_redislock import LeaseLost, LockReentered, StaleLease, redis_lock
from django_redislock.client import Lock
from django_redislock.signals import lock_lost

from . import catalogue
from .models import Cart, Order, Product, StockReport
from .periodic import RESERVED_FOR, abandoned_carts, put_back, stock_report
from .receivers import write_down
from .services import Sale, move, record, sell, sell_locked
from .tour.lanes import AT_ONCE, LEASE, Lane, lanes
from .tour.moments import Doing, Moment


def setUpModule() -> None:
    """Losses come to light in a thread of their own, which would write in the middle of whatever
    test has the database by then."""
    lock_lost.disconnect(write_down)
    addModuleCleanup(lock_lost.connect, write_down)


@contextmanager
def held_elsewhere(lock: str | redis_lock) -> Iterator[None]:
    """Another thread has the lock, as another process would."""
    lock = redis_lock(lock) if isinstance(lock, str) else lock
    held, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            enough.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        if not held.wait(30):
            raise AssertionError(f"{lock} is not free")
        yield
    finally:
        enough.set()
        holder.join()


def deliver(lines: str, **options: Any) -> str:
    """Enter a delivery; returns what is said."""
    out = io.StringIO()
    with mock.patch.object(sys, "stdin", io.StringIO(lines)):
        call_command("restock", stdout=out, **options)
    return out.getvalue()


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
        self.assertEqual(order.fencing_token, self.product.fencing_token)
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
        late, sale = (
            Sale(self.product.pk, worker, Product.objects.fenced(token).get().stock - 1, token)
            for worker, token in [("late", 6), ("next", 7)]
        )
        with self.assertRaises(StaleLease):
            record(late, 6)
        self.assert_product(stock=2, orders=0)
        record(sale, 7)
        with self.assertRaises(StaleLease):
            record(late, 6)
        self.assert_product(stock=1, orders=1)
        self.assertEqual(Order.objects.get().worker, "next")

    def test_late_in_the_middle_of_selling(self) -> None:
        """Whoever was overtaken while it thought sells nothing."""

        def overtaken(sale: Sale) -> None:
            Product.objects.fenced(sale.fencing_token + 1).get()

        with self.assertRaises(StaleLease):
            sell_locked(self.product.pk, "me", overtaken)
        self.assert_product(stock=2, orders=0)


class MovingTest(TestCase):
    def setUp(self) -> None:
        self.lamp = Product.objects.create(name="lamp", stock=2)
        self.chair = Product.objects.create(name="chair", stock=0)

    def test_units_are_moved_or_nothing_is(self) -> None:
        """And each row has seen the fencing token of its own lock."""
        self.assertTrue(move(self.lamp.pk, self.chair.pk, 2))
        self.assertFalse(move(self.lamp.pk, self.chair.pk, 1))
        self.lamp.refresh_from_db()
        self.chair.refresh_from_db()
        self.assertEqual((self.lamp.stock, self.chair.stock), (0, 2))
        self.assertTrue(self.lamp.fencing_token and self.chair.fencing_token)

    def test_both_stocks_are_locked(self) -> None:
        """Whoever sells one of them waits until the units are there."""
        with redis_lock(f"stock:{self.chair.pk}"), self.assertRaises(LockReentered):
            move(self.lamp.pk, self.chair.pk, 1)


class PagesTest(TransactionTestCase):  # with transactions that end, as the views' do
    def setUp(self) -> None:
        self.product = Product.objects.create(name="lamp", stock=2)
        self.at = f"/products/{self.product.pk}"

    def order(self, customer: str = "Ann", **headers: str) -> Any:
        return self.client.post(
            f"{self.at}/orders/",
            {"customer": customer},
            content_type="application/json",
            headers=headers,
        )

    def assert_stock(self, stock: int) -> None:
        self.product.refresh_from_db()
        self.assertEqual((self.product.stock, Order.objects.count()), (stock, 2 - stock))

    def test_buy(self) -> None:
        """Until nothing is left."""
        for left in (1, 0):
            self.assertContains(self.client.post(f"{self.at}/buy/"), "Thank you", status_code=201)
            self.assert_stock(left)
        self.assertContains(self.client.post(f"{self.at}/buy/"), "Sold out", status_code=410)
        self.assertContains(self.client.get("/"), "lamp, sold by the web", count=2)

    def test_buy_what_somebody_else_buys(self) -> None:
        """A program gets problem details, a browser a page; both may come again."""
        with held_elsewhere(f"stock:{self.product.pk}"):
            for accept, kind in [
                ("*/*", "application/problem+json"),
                ("text/html,*/*;q=0.8", "text/html; charset=utf-8"),
            ]:
                answer = self.client.post(f"{self.at}/buy/", headers={"Accept": accept})
                self.assertEqual((answer.status_code, answer["Content-Type"]), (409, kind))
                self.assertEqual(answer["Retry-After"], "1")
        self.assert_stock(2)

    def test_order(self) -> None:
        """The same again makes no second order."""
        key = {"Idempotency-Key": str(uuid4())}
        first, again = self.order(**key), self.order(**key)
        self.assertEqual((first.status_code, first.json()["customer"]), (201, "Ann"))
        self.assertEqual((again.content, again["Idempotent-Replayed"]), (first.content, "true"))
        self.assertEqual(self.order("Bob", **key).status_code, 422)
        self.assertEqual(self.order().status_code, 400)
        self.assert_stock(1)

    def test_a_bad_order(self) -> None:
        """Neither sold nor locked for ever."""
        key = {"Idempotency-Key": str(uuid4())}
        bad = self.client.post(
            f"{self.at}/orders/", "[]", content_type="application/json", headers=key
        )
        self.assertEqual(bad.status_code, 400)
        self.at = "/products/404404"
        self.assertEqual(self.order(**{"Idempotency-Key": str(uuid4())}).status_code, 404)
        self.assert_stock(2)

    def test_labels(self) -> None:
        """Nobody sells until they are sent."""
        labels = self.client.get(f"{self.at}/labels.csv")
        self.assertEqual(self.client.post(f"{self.at}/buy/").status_code, 409)
        lines = b"".join(labels).decode().splitlines()
        self.assertEqual(lines, ["product,unit", *(f"{self.product.pk},{n}" for n in (1, 2))])
        labels.close()
        self.assertEqual(self.client.post(f"{self.at}/buy/").status_code, 201)

    async def test_labels_under_asgi(self) -> None:
        """The same, for a server with an event loop."""
        labels = await self.async_client.get(f"{self.at}/labels.csv")
        parts = [part async for part in labels]
        self.assertEqual(b"".join(parts).count(b"\n"), 3)
        labels.close()

    def test_orders(self) -> None:
        """Three at a time, until each of them is sent."""
        answers = [self.client.get("/orders.csv") for _ in range(3)]
        self.assertEqual(self.client.get("/orders.csv").status_code, 409)
        answers.pop().close()
        answers.append(self.client.get("/orders.csv"))
        for answer in answers:
            self.assertEqual(b"".join(answer).splitlines()[0], b"order,product,by")
            answer.close()

    def test_catalogue(self) -> None:
        """Whoever reads is not kept by others who read, but by one who writes."""
        self.assertEqual(self.client.post("/catalogue/").json(), {"pages": 1})
        with held_elsewhere(catalogue.lock.read()):
            self.assertIn(b"lamp: 2 left", self.client.get("/catalogue/").content)
            self.assertIsNone(catalogue.lock.write().acquire(wait=0))
        with held_elsewhere(catalogue.lock.write()):
            self.assertIsNone(catalogue.lock.read().acquire(wait=0))

    async def test_reorder(self) -> None:
        """Once at a time."""
        path = f"{self.at}/reorder/"
        self.assertEqual((await self.async_client.post(path)).status_code, 202)
        with held_elsewhere(f"reorder:{self.product.pk}"):
            self.assertEqual((await self.async_client.post(path)).status_code, 409)

    def test_news(self) -> None:
        """Who is paid does not wait for as long as it could have taken."""
        self.assertEqual(self.client.post(f"/news/paid-{self.product.pk}/").status_code, 204)
        self.assertEqual(self.client.post(f"{self.at}/buy/", {"seconds": 60}).status_code, 201)
        self.assertEqual(self.client.post(f"{self.at}/buy/", {"seconds": "x"}).status_code, 400)

    def test_the_tour_is_not_here(self) -> None:
        """Its buttons kill processes: they are there while `manage.py tour` runs."""
        self.assertEqual(self.client.get("/tour/").status_code, 404)
        self.assertEqual(self.client.post("/tour/press/kill/").status_code, 404)

    def test_receipts(self) -> None:
        """`cache.lock()` is ours, by a line in the settings."""
        self.assertIsInstance(cache.lock("receipts"), Lock)


class DeliveryTest(TestCase):
    def test_restock(self) -> None:
        """What is new, and what is there already."""
        Product.objects.create(name="lamp", stock=1)
        self.assertRegex(
            deliver("5 lamp\n2 big chair\n"), r"^lamp: 6 left .*\nbig chair: 2 left .*\n$"
        )

    def test_one_at_a_time(self) -> None:
        """Exit code 75, or success if you say so, and nothing is stocked."""
        with held_elsewhere("command:restock"):
            with self.assertRaises(CommandError) as caught:
                deliver("5 lamp\n")
            self.assertEqual(caught.exception.returncode, 75)
            deliver("5 lamp\n", lock_on_conflict="skip", verbosity=0)
        self.assertFalse(Product.objects.exists())

    def test_a_bad_line(self) -> None:
        """It is told, and what came before it counts."""
        with self.assertRaises(CommandError):
            deliver("5 lamp\nsome chairs\n")
        self.assertEqual(Product.objects.get().stock, 5)


class IncidentTest(TestCase):
    def test_cleared(self) -> None:
        """An operator takes a lock away, and the shop has that on its page."""
        lease = redis_lock("report", ttl=2).acquire()
        redis_lock("report").clear(reason="it hangs", by="ann")
        with self.assertRaises(LeaseLost):
            lease.release()
        self.assertContains(self.client.get("/"), "report cleared: it hangs")


class PeriodicTests(TestCase):
    """The jobs themselves; the repository's tests run them in real schedulers."""

    def test_the_stock_report(self) -> None:
        """It counts products and units, also of an empty shop."""
        with redis_lock(f"test:{uuid4()}"):
            stock_report()
        Product.objects.create(name="lamp", stock=3)
        Product.objects.create(name="chair", stock=4)
        with redis_lock(f"test:{uuid4()}"):
            stock_report()
        reports = StockReport.objects.order_by("pk").values_list("products", "units")
        self.assertEqual(list(reports), [(0, 0), (2, 7)])

    def test_abandoned_carts(self) -> None:
        """What is old goes back, once; the rest stays."""
        lamp = Product.objects.create(name="lamp", stock=3)
        old = Cart.objects.create(
            product=lamp, customer="Ann", created=timezone.now() - 2 * RESERVED_FOR
        )
        Cart.objects.create(product=lamp, customer="Bob")
        with redis_lock(f"test:{uuid4()}"):
            abandoned_carts()
            abandoned_carts()
        put_back(old)
        lamp.refresh_from_db()
        self.assertEqual(lamp.stock, 4)
        self.assertEqual([cart.customer for cart in Cart.objects.all()], ["Bob"])


class LanesTest(SimpleTestCase):
    """The lanes of the tour show 30 seconds; here these are the seconds 100 to 130."""

    def lanes(self, *moments: tuple[float, str, Doing]) -> list[Lane]:
        return lanes([Moment(*moment) for moment in moments], now=130)

    def test_customers_take_turns(self) -> None:
        """What began earlier is cut off, and what has not ended goes on until now."""
        ann, bob = self.lanes(
            (90, "ann", Doing.WORKS),
            (91, "bob", Doing.WAITS),
            (95, "ann", Doing.NOTHING),
            (95, "bob", Doing.WORKS),
            (103, "bob", Doing.NOTHING),
            (127, "ann", Doing.WORKS),
        )
        self.assertEqual(ann.bars, [("works", 27, 30)])
        self.assertEqual(bob.bars, [("works", -5, 3)])
        self.assertEqual([(bar.x, bar.width) for bar in ann.bars], [("90.00%", "10.00%")])
        self.assertEqual([(bar.x, bar.width) for bar in bob.bars], [("0.00%", "10.00%")])
        self.assertEqual(bob.bars[0].title, "works: 8.0\N{NO-BREAK SPACE}s")
        self.assertEqual(bob.summary, "works 3.0\N{NO-BREAK SPACE}s")

    def test_customers_work_at_once(self) -> None:
        """Each second of it is shown once in each lane, with three customers, too."""
        found = self.lanes(
            (101, "ann", Doing.WORKS),
            (102, "bob", Doing.WORKS),
            (103, "eve", Doing.WORKS),
            (104, "bob", Doing.NOTHING),
            (105, "ann", Doing.NOTHING),
            (106, "eve", Doing.NOTHING),
        )
        red = [[bar[1:] for bar in lane.bars if bar.kind == AT_ONCE] for lane in found]
        self.assertEqual(red, [[(2, 4), (4, 5)], [(2, 4)], [(3, 5)]])

    def test_a_killed_customer(self) -> None:
        """Its lease shows until anybody works; its replacement goes on in the same lane."""
        ann, bob = self.lanes(
            (110, "ann", Doing.WORKS),
            (110, "bob", Doing.WAITS),
            (111, "ann", Doing.KILLED),
            (112, "ann", Doing.WAITS),
            (113, "bob", Doing.WORKS),
        )
        self.assertEqual(ann.bars, [("works", 10, 11), ("waits", 12, 30), (LEASE, 11, 13)])
        self.assertEqual(ann.labels, [("killed", 11)])
        self.assertEqual(bob.bars, [("waits", 10, 13), ("works", 13, 30)])

    def test_a_stopped_customer(self) -> None:
        """It does not work while it is stopped, and goes on with what it did before."""
        ann, bob = self.lanes(
            (110, "ann", Doing.WORKS),
            (111, "ann", Doing.STOPPED),
            (113, "bob", Doing.WORKS),
            (117, "ann", Doing.WOKEN),
            (118, "ann", Doing.NOTHING),
            (118, "ann", Doing.REFUSED),
            (119, "bob", Doing.STOPPED),
        )
        self.assertEqual(
            ann.bars,
            [("works", 10, 11), ("stopped", 11, 17), ("works", 17, 18), (AT_ONCE, 17, 18)],
        )
        self.assertEqual(ann.labels, [("refused", 18)])
        self.assertEqual(bob.doing, Doing.STOPPED)
        self.assertEqual([label.anchor for label in ann.labels], ["start"])

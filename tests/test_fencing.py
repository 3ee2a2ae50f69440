"""fencing.py: rows that refuse a late holder, on SQLite and on PostgreSQL."""

from __future__ import annotations

import pickle
import random
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from datetime import date
from itertools import cycle
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import (
    DatabaseError,
    IntegrityError,
    NotSupportedError,
    connections,
    models,
    transaction,
)
from django.db.migrations import AddField, CreateModel
from django.db.migrations.state import ModelState, ProjectState
from django.db.migrations.writer import OperationWriter
from django.db.models import Count, F, Prefetch, Q, Sum, Window
from django.db.models.functions import RowNumber
from django.db.transaction import TransactionManagementError
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from redis import Redis

from django_redislock import LeaseLost, LeaseState, redis_lock
from django_redislock.base.exceptions import LockError
from django_redislock.fencing import FencingTokenField, StaleLease, StaleRead
from tests.models import Atlas, Book, Cheap, Display, Order, Parcel, Product, Seat, Shop, Ticket
from tests.waiting import PATIENCE, eventually

OLD, NEW = 6, 7
"""The fencing tokens of a holder that is late, and of the one that came after it."""

BOTH = [
    pytest.param("default", marks=pytest.mark.django_db(databases=["default"]), id="sqlite"),
    pytest.param("postgres", marks=pytest.mark.django_db(databases=["postgres"]), id="postgres"),
]


def committing(alias: str) -> pytest.MarkDecorator:
    """For commits that are real. With `available_apps` the other tables are not emptied after
    each test, nor filled again by Django with what belongs there."""
    return pytest.mark.django_db(databases=[alias], transaction=True, available_apps=["tests"])


COMMITTING = [
    pytest.param("default", marks=committing("default"), id="sqlite"),
    pytest.param("postgres", marks=committing("postgres"), id="postgres"),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes an `alias` on both databases."""
    if "alias" in metafunc.fixturenames:
        metafunc.parametrize("alias", BOTH)
    if "committing_alias" in metafunc.fixturenames:
        metafunc.parametrize("committing_alias", COMMITTING)


def make_book(alias: str) -> Book:
    """A row in the tables of Product and Book that has not seen any token yet."""
    book = Book.objects.using(alias).create(
        name="atlas", stock=3, price=20, made=date(2020, 2, 2), pages=100
    )
    Order.objects.using(alias).create(product=book, worker="me")
    return book


@pytest.fixture
def book(alias: str) -> Book:
    return make_book(alias)


def row(alias: str) -> dict[str, Any] | None:
    """The book's columns in both tables, as the database has them."""
    return Book.objects.using(alias).values().first()


def token(instance: models.Model) -> int:
    """The newest fencing token that the row of an instance has seen."""
    rows = models.QuerySet(type(instance), using=instance._state.db)
    return rows.values_list("fencing_token", flat=True).get(pk=instance.pk)


READS: dict[str, Callable[[Any], Any]] = {
    "get": lambda rows: rows.get(name="atlas"),
    "iteration": set,
    "len": len,
    "bool": bool,
    "index": lambda rows: rows.order_by("name")[0],
    "slice": lambda rows: list(rows.order_by("name")[:2]),
    "slice from": lambda rows: list(rows.order_by("-name")[1:]),
    "step": lambda rows: rows.order_by("name")[0:2:2],
    "first": lambda rows: rows.order_by("name").first(),
    "last": lambda rows: rows.order_by("-name").last(),
    "latest": lambda rows: rows.exclude(made=None).latest("made"),
    "earliest": lambda rows: rows.exclude(made=None).earliest("made"),
    "in_bulk": lambda rows: rows.in_bulk(),
    "iterator": lambda rows: set(rows.iterator(chunk_size=10)),
    "values": lambda rows: list(rows.order_by("name").values("name", "orders__worker")),
    "values_list": lambda rows: set(rows.values_list("stock", flat=True)),
    "slice of a join": lambda rows: list(rows.order_by("name").values_list("orders")[:1]),
    "distinct": lambda rows: list(rows.filter(stock__gt=0).distinct().order_by("name")[:1]),
    "distinct values": lambda rows: set(rows.values_list("price", flat=True).distinct()),
    "dates": lambda rows: list(rows.exclude(made=None).dates("made", "year")),
    "count": lambda rows: rows.count(),
    "count of a slice": lambda rows: rows.order_by("name")[:1].count(),
    "exists": lambda rows: rows.exists(),
    "contains": lambda rows: rows.contains(Product.objects.using(rows.db).get(name="atlas")),
    "aggregate": lambda rows: rows.aggregate(Sum("stock")),
    "annotate": lambda rows: [p.n for p in rows.annotate(n=Count("orders")).filter(n__gt=0)],
    "only": lambda rows: {p.stock for p in rows.only("stock")},
    "defer": lambda rows: {p.stock for p in rows.defer("price")},
    "select_related": lambda rows: {p.shop for p in rows.select_related("shop")},
    "prefetch_related": lambda rows: [
        list(p.orders.all()) for p in rows.prefetch_related("orders").order_by("name")
    ],
    "alias": lambda rows: list(rows.alias(n=F("stock") + 1).filter(n=4)),
    "joined": lambda rows: list(rows.filter(orders__worker="me")),
    "joined or not": lambda rows: list(rows.filter(Q(orders__worker="me") | Q(stock=3))),
    "extra": lambda rows: list(rows.extra(where=["stock = 3"])),
    "select_for_update": lambda rows: rows.select_for_update().get(name="atlas"),
}
reads = pytest.mark.parametrize("read", READS.values(), ids=READS)


class TestReading:
    @reads
    def test_it_shows_the_token(self, read: Any, alias: str, book: Book) -> None:
        """Every read of a fenced queryset returns what Django returns, and the rows have seen the
        token by then."""
        Product.objects.using(alias).create(name="lamp")
        rows = Product.objects.using(alias)
        assert read(rows.fenced(NEW)) == read(rows)
        assert token(book) == NEW
        rows.fenced(NEW).count()  # all rows have seen it now
        assert read(rows.fenced(NEW)) == read(rows)

    @reads
    def test_a_late_holder_is_told(self, read: Any, alias: str, book: Book) -> None:
        """No read returns anything to a late holder, and no other row sees its token."""
        Product.objects.using(alias).fenced(NEW).get()
        other = Product.objects.using(alias).create(name="zoo", stock=3, made=date(2020, 2, 2))
        with pytest.raises(StaleLease):
            read(Product.objects.using(alias).fenced(OLD))
        assert (token(book), token(other)) == (NEW, 0)

    def test_the_token_is_shown_first(self, alias: str, book: Book) -> None:
        """The token is shown before the read: until then, a former holder may write the row."""
        with CaptureQueriesContext(connections[alias]) as queries:
            Product.objects.using(alias).fenced(NEW).get(pk=book.pk)
        kinds = [re.sub(r"\W", " ", query["sql"]).split()[:3] for query in queries]
        shown = kinds.index(["UPDATE", "tests_product", "SET"])
        assert not [query["sql"] for query in queries[:shown] if '"stock"' in query["sql"]]
        assert '"stock"' in queries[shown + 1]["sql"]

    def test_only_the_rows_that_are_asked_for(self, alias: str) -> None:
        """Other rows don't see the token: other holders may work on them."""
        rows = Product.objects.using(alias)
        lamp, desk, rug = (rows.create(name=name) for name in ("lamp", "desk", "rug"))
        list(rows.fenced(NEW).filter(name__in=["lamp", "desk"]).order_by("name")[1:])
        assert [token(each) for each in (lamp, desk, rug)] == [NEW, 0, 0]

    def test_what_is_read_is_kept(self, alias: str, book: Book) -> None:
        """A queryset keeps its rows and asks once, as in Django."""
        rows = Product.objects.using(alias).fenced(NEW)
        first = list(rows)
        rows.count()
        with CaptureQueriesContext(connections[alias]) as queries:
            assert (list(rows), len(rows), rows[0]) == (first, 1, first[0])
        assert len(queries) == 0

    def test_repr_is_harmless(self, alias: str, book: Book) -> None:
        """repr() does not write: a debugger calls it for local variables."""
        repr(Product.objects.using(alias).fenced(NEW))
        assert token(book) == 0

    def test_nothing_there(self, alias: str) -> None:
        """Without any row, a fenced queryset behaves as in Django."""
        rows = Product.objects.using(alias).fenced(NEW)
        with pytest.raises(Product.DoesNotExist):
            rows.get()
        assert (rows.first(), list(rows.none()), rows.update(stock=1)) == (None, [], 0)

    def test_refresh_from_db(self, alias: str, book: Book) -> None:
        """An instance can be read again under the lock."""
        product = Product.objects.using(alias).get()
        Product.objects.using(alias).update(stock=2)
        product.refresh_from_db(from_queryset=Product.objects.using(alias).fenced(NEW))
        assert (product.stock, product.fencing_token, token(product)) == (2, NEW, NEW)

    def test_coroutines(self, alias: str, book: Book) -> None:
        """The asynchronous methods refuse a late holder as well."""
        rows = Book.objects.using(alias).fenced
        rows(NEW).get()

        async def loop(rows: Any) -> list[Any]:
            return [each async for each in rows]

        async def read() -> None:
            assert await rows(NEW).aget() == book
            assert await rows(NEW).acount() == 1
            assert await loop(rows(NEW)) == await loop(rows(NEW).aiterator()) == [book]
            for late in (rows(OLD).aget(), rows(OLD).aexists()):
                with pytest.raises(StaleLease):
                    await late
            for those in (rows(OLD), rows(OLD).aiterator()):
                with pytest.raises(StaleLease):
                    await loop(those)

        async_to_sync(read)()


# Writing: each of these prepares a holder's write to the book, and returns it.

Write = Callable[[], object]
Preparation = Callable[[str, int], Write]


def updating(model: Any, *filters: Q, **values: Any) -> Preparation:
    def prepare(alias: str, token: int) -> Write:
        rows = model.objects.using(alias).fenced(token).filter(*filters)
        return lambda: rows.update(**values)

    return prepare


def deleting(model: Any) -> Preparation:
    return lambda alias, token: model.objects.using(alias).fenced(token).filter(stock=3).delete


def with_instance(model: Any, write: Callable[[Any, int], object], **values: Any) -> Preparation:
    """Read an instance under the lock, change it, and write it."""

    def prepare(alias: str, token: int) -> Write:
        instance = model.objects.using(alias).fenced(token).get(name="atlas")
        for name, value in values.items():
            setattr(instance, name, value)
        return lambda: write(instance, token)

    return prepare


def saving(model: Any, update_fields: list[str] | None = None, **values: Any) -> Preparation:
    def save(instance: Any, token: int) -> None:
        instance.save(lease=token, update_fields=update_fields)

    return with_instance(model, save, **values)


def bulk_updating(model: Any, **values: Any) -> Preparation:
    def bulk_update(instance: Any, token: int) -> None:
        rows = model.objects.using(instance._state.db).fenced(token)
        rows.bulk_update([instance], list(values))

    return with_instance(model, bulk_update, **values)


def select_for_update(alias: str, token: int) -> Write:
    def write() -> None:
        with transaction.atomic(using=alias):
            rows = Product.objects.using(alias).fenced(token)
            product = rows.select_for_update().get(name="atlas")
            product.stock = 1
            product.save(lease=token)

    return write


def update_or_create(alias: str, token: int) -> Write:
    rows = Product.objects.using(alias).fenced(token)
    return lambda: rows.update_or_create(name="atlas", defaults={"stock": 1})


ATLAS = Q(name="atlas")

CHANGES: dict[str, Preparation] = {
    "update": updating(Product, ATLAS, stock=1),
    "update with F": updating(Product, ATLAS, stock=F("stock") - 2),
    "update of what is filtered": updating(Product, Q(stock=3), stock=1),
    "update of a join": updating(Product, Q(orders__worker="me"), stock=1),
    "update of a proxy": updating(Cheap, ATLAS, stock=1),
    "update of a child": updating(Book, ATLAS, stock=1),
    "update of a child's column": updating(Book, ATLAS, pages=50),
    "update by a child's column": updating(Book, Q(pages=100), pages=50),
    "update of both tables": updating(Book, ATLAS, stock=1, pages=50),
    "update with an annotation": lambda alias, token: (
        lambda: (
            Product.objects.using(alias)
            .fenced(token)
            .annotate(less=F("stock") - 2)
            .update(stock=F("less"))
        )
    ),
    "save": saving(Product, stock=1),
    "save with F": saving(Product, stock=F("stock") - 2),
    "save of a field": saving(Product, ["stock"], stock=1),
    "save of a proxy": saving(Cheap, stock=1),
    "save of a child": saving(Book, stock=1, pages=50),
    "save of a child's field": saving(Book, ["pages"], pages=50),
    "asave": with_instance(
        Product, lambda product, token: async_to_sync(product.asave)(lease=token), stock=1
    ),
    "bulk_update": bulk_updating(Product, stock=1),
    "bulk_update with F": bulk_updating(Product, stock=F("stock") - 2),
    "bulk_update of children": bulk_updating(Book, stock=1, pages=50),
    "update_or_create": update_or_create,
    "select_for_update": select_for_update,
}
DELETIONS: dict[str, Preparation] = {
    "delete": deleting(Product),
    "delete of children": deleting(Book),
    "delete of one": with_instance(Product, lambda product, token: product.delete(lease=token)),
    "delete of a child": with_instance(Book, lambda book, token: book.delete(lease=token)),
    "adelete of one": with_instance(
        Product, lambda product, token: async_to_sync(product.adelete)(lease=token)
    ),
}
WRITES = {**CHANGES, **DELETIONS}
writes = pytest.mark.parametrize("prepare", WRITES.values(), ids=WRITES)


class TestWriting:
    @pytest.mark.parametrize("prepare", CHANGES.values(), ids=CHANGES)
    def test_a_change(self, prepare: Preparation, alias: str, book: Book) -> None:
        """The holder's change is written, and the row has seen the token."""
        prepare(alias, NEW)()
        after = row(alias)
        assert after["stock"] == 1 or after["pages"] == 50
        assert after["fencing_token"] == NEW

    @pytest.mark.parametrize("prepare", DELETIONS.values(), ids=DELETIONS)
    def test_a_deletion(self, prepare: Preparation, alias: str, book: Book) -> None:
        """The holder's row is deleted."""
        prepare(alias, NEW)()
        assert not Product.objects.using(alias).exists()

    @writes
    def test_a_late_write(self, prepare: Preparation, alias: str, book: Book) -> None:
        """A former holder can't change a row in any way once the next holder has read or written
        it."""
        late = prepare(alias, OLD)
        rows = Product.objects.using(alias).fenced(NEW)
        for next_one in (rows.get, lambda: rows.update(price=5)):
            next_one()
            before = row(alias)
            with pytest.raises(StaleLease):
                late()
            assert row(alias) == before

    def test_none_or_all(self, alias: str) -> None:
        """If one row has seen a newer token, no row is written."""
        rows = Product.objects.using(alias)
        for name in ("lamp", "desk", "rug"):
            rows.create(name=name)
        products = list(rows.order_by("name"))
        for product in products:
            product.stock = 1
        rows.fenced(NEW).get(name="desk")
        for write in (
            lambda: rows.fenced(OLD).update(stock=1),
            lambda: rows.fenced(OLD).bulk_update(products, ["stock"], batch_size=1),
            lambda: rows.fenced(OLD).delete(),
        ):
            with pytest.raises(StaleLease) as caught:
                write()
            assert caught.value.pks == (products[0].pk,)
            found = set(rows.values_list("name", "stock", "fencing_token"))
            assert found == {("desk", 0, NEW), ("lamp", 0, 0), ("rug", 0, 0)}

    def test_the_answers_are_those_of_django(self, alias: str, book: Book) -> None:
        """The methods return the numbers of rows found, updated and deleted."""
        rows = Product.objects.using(alias).fenced(NEW)
        assert rows.filter(name="lamp").update(stock=1) == 0
        assert rows.update(stock=1) == 1
        product = rows.get()
        assert rows.bulk_update([product], ["stock"]) == 1
        assert rows.bulk_update([], ["stock"]) == 0
        deleted = {"tests.Order": 1, "tests.Book": 1, "tests.Product": 1}
        assert rows.filter(name="atlas").delete() == (3, deleted)

    def test_rows_on_which_nothing_depends(self, alias: str) -> None:
        """Django deletes such rows in one statement, without reading them first."""
        parcels = Parcel.objects.using(alias)
        parcels.create()
        parcels.fenced(NEW).get()
        with pytest.raises(StaleLease):
            parcels.fenced(OLD).delete()
        assert parcels.fenced(NEW).delete() == (1, {"tests.Parcel": 1})

    def test_a_queryset_forgets_what_it_has_changed(self, alias: str, book: Book) -> None:
        """After an update, rows are read again, as in Django."""
        rows = Product.objects.using(alias).fenced(NEW)
        assert [each.stock for each in rows] == [3]
        rows.update(stock=1)
        assert [each.stock for each in rows] == [1]

    def test_what_django_refuses(self, alias: str, book: Book) -> None:
        """Django refuses to update or delete a slice; the rows then see no token either."""
        rows = Product.objects.using(alias).fenced(NEW)[:1]
        for write in (lambda: rows.update(stock=1), rows.delete):
            with pytest.raises(TypeError):
                write()
        assert token(book) == 0

    def test_a_manager_does_not_delete(self) -> None:
        """Managers have no `delete()`, as in Django."""
        assert not hasattr(Product.objects, "delete")
        assert not hasattr(Ticket.objects, "delete")

    def test_templates_do_not_write(self) -> None:
        """The methods are marked, so that Django's templates don't call them."""
        rows = Product.objects.all()
        product = Product()
        for method in (rows.update, rows.delete, rows.create, product.save, product.adelete):
            assert method.alters_data

    def test_coroutines(self, alias: str, book: Book) -> None:
        """The asynchronous methods refuse a late holder as well."""
        rows = Product.objects.using(alias).fenced
        product = rows(OLD).get()
        rows(NEW).get()

        async def write() -> None:
            for late in (
                rows(OLD).aupdate(stock=1),
                rows(OLD).abulk_update([product], ["stock"]),
                rows(OLD).aupdate_or_create(name="atlas", defaults={"stock": 1}),
                rows(OLD).adelete(),
            ):
                with pytest.raises(StaleLease):
                    await late
            assert await rows(NEW).aupdate(stock=1) == 1
            assert (await rows(NEW).acreate(name="lamp")).fencing_token == NEW

        async_to_sync(write)()


class TestSaving:
    def test_a_new_row_has_seen_the_token(self, alias: str) -> None:
        """A new row refuses holders with an older token."""
        product = Product(name="lamp")
        product.save(lease=NEW, using=alias)
        assert (product.fencing_token, token(product)) == (NEW, NEW)
        parcel = Parcel(id=uuid.uuid4())
        parcel.save(lease=NEW, using=alias)
        child = Book(name="atlas")
        child.save(lease=NEW, using=alias)
        assert (token(parcel), token(child)) == (NEW, NEW)

    def test_an_instance_made_by_hand(self, alias: str, book: Book) -> None:
        """An instance that was not read replaces the row, unless the row has seen a newer
        token."""
        Product(pk=book.pk, name="lamp").save(lease=NEW, using=alias)
        product = Product.objects.using(alias).get()
        assert (product.name, product.fencing_token) == ("lamp", NEW)
        with pytest.raises(StaleLease):
            Product(pk=book.pk, name="late").save(lease=OLD, using=alias)
        Product(pk=book.pk + 1, name="next").save(lease=OLD, using=alias)

    def test_a_child_of_a_row_that_exists(self, alias: str) -> None:
        """Saving a child updates the parent's row, which refuses late holders."""
        parent = Product.objects.using(alias).create(name="atlas")
        Product.objects.using(alias).fenced(NEW).get()
        for late in (
            lambda child: child.save(lease=OLD, using=alias),
            lambda child: child.save(lease=OLD, using=alias, force_insert=True),
            lambda child: Book.objects.using(alias).fenced(OLD).create(pk=child.pk, name="late"),
        ):
            with pytest.raises(StaleLease):
                late(Book(product_ptr=parent, name="late"))
        Book(product_ptr=parent, name="globe").save(lease=NEW, using=alias)
        book = Book.objects.using(alias).get()
        assert (book.name, book.fencing_token) == ("globe", NEW)
        with pytest.raises(StaleLease):
            Atlas(book_ptr=book, name="late").save(lease=OLD, using=alias)
        with pytest.raises(StaleLease):
            Display(product_ptr=parent, name="late").save(lease=OLD, using=alias)

    @pytest.mark.parametrize("only", [{"force_update": True}, {"update_fields": ["name"]}])
    def test_only_a_row_that_exists(self, only: dict[str, Any], alias: str, book: Book) -> None:
        """An update of a row that does not exist fails as Django's does, and inserts none."""
        with pytest.raises(DatabaseError, match="has no row to update"):
            Product(pk=book.pk + 1, name="next").save(lease=NEW, using=alias, **only)
        with pytest.raises(ValueError, match="no primary key"):
            Product(name="next").save(lease=NEW, using=alias, **only)
        Product(pk=book.pk, name="globe").save(lease=NEW, using=alias, **only)
        assert Product.objects.using(alias).get().name == "globe"

    def test_deleting_from_another_database(self, alias: str, book: Book) -> None:
        """As in Django, the database may be given by its position."""
        product = Product.objects.using(alias).fenced(NEW).get()
        assert product.delete(alias, lease=NEW)[0] == 3
        assert Product(pk=book.pk).delete(alias, False, lease=NEW) == (0, {})

    def test_deleting_an_instance_made_by_hand(self, alias: str, book: Book) -> None:
        """The row with its key is deleted, if there is one."""
        Product.objects.using(alias).fenced(NEW).get()
        with pytest.raises(StaleLease):
            Product(pk=book.pk).delete(lease=OLD, using=alias)
        assert Product(pk=book.pk + 1).delete(lease=OLD, using=alias)[0] == 0
        assert Product(pk=book.pk).delete(lease=NEW, using=alias)[0] == 3
        with pytest.raises(ValueError, match="can't be deleted"):
            Product().delete(lease=NEW, using=alias)

    def test_a_copy(self, alias: str, book: Book) -> None:
        """Django's ways to copy an instance into a second row work."""
        product = Product.objects.using(alias).fenced(NEW).get()
        product.pk, product.name = None, "second"
        product.save(lease=NEW)
        product.pk, product.name = product.pk + 1, "third"
        product.save(lease=NEW, force_insert=True)
        seen = Product.objects.using(alias).values_list("name", "fencing_token")
        assert set(seen) == {("atlas", NEW), ("second", NEW), ("third", NEW)}
        Parcel.objects.using(alias).create(weight=1)
        parcel = Parcel.objects.using(alias).fenced(NEW).get()
        parcel.pk, parcel._state.adding = uuid.uuid4(), True
        parcel.save(lease=NEW)
        assert Parcel.objects.using(alias).count() == 2

    @pytest.mark.parametrize("since", [OLD, NEW])
    @pytest.mark.parametrize("write", ["save", "delete", "bulk_update"])
    def test_written_since_it_was_read(
        self, since: int, write: str, alias: str, book: Book
    ) -> None:
        """An instance is not written if its row was written since, even under the same lease."""
        rows = Product.objects.using(alias)
        product = rows.get()
        rows.fenced(since).update(stock=2)
        before = row(alias)
        product.stock = 1
        with pytest.raises(StaleRead, match=rf"tests.Product {book.pk} was written or deleted"):
            if write == "bulk_update":
                rows.fenced(NEW).bulk_update([product], ["stock"])
            else:
                getattr(product, write)(lease=NEW)
        assert row(alias) == before
        assert product.fencing_token == 0

    @pytest.mark.parametrize("update_fields", [None, ["stock"]])
    def test_deleted_since_it_was_read(
        self, update_fields: list[str] | None, alias: str, book: Book
    ) -> None:
        """A late save doesn't bring a deleted row back, although no row is left to refuse it."""
        product = Product.objects.using(alias).fenced(OLD).get()
        Product.objects.using(alias).fenced(NEW).delete()
        with pytest.raises(StaleRead):
            product.save(lease=OLD, update_fields=update_fields)
        assert not Product.objects.using(alias).exists()

    def test_read_without_its_token(self, alias: str, book: Book) -> None:
        """An instance without its token is refused: its row may have been written since."""
        product = Product.objects.using(alias).only("stock").get()
        with pytest.raises(StaleRead, match="was read without its fencing_token"):
            product.save(lease=NEW)
        product = Product.objects.using(alias).fenced(NEW).only("stock", "fencing_token").get()
        product.stock = 1
        product.save(lease=NEW)
        assert row(alias)["stock"] == 1

    def test_a_rolled_back_read(self, alias: str, book: Book) -> None:
        """After a rollback, a read does not count: others may have written since."""
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=alias):
            product = Product.objects.using(alias).fenced(NEW).get()
            raise ZeroDivisionError
        Product.objects.using(alias).fenced(OLD).update(stock=2)
        with pytest.raises(StaleRead):
            product.save(lease=NEW)

    def test_a_save_that_fails(self, alias: str, book: Book) -> None:
        """After a failed save, neither the row nor the instance has the token."""
        Product.objects.using(alias).create(name="lamp")
        product = Product.objects.using(alias).get(name="atlas")
        product.name = "lamp"
        with pytest.raises(IntegrityError):
            product.save(lease=NEW)
        assert (product.fencing_token, token(product)) == (0, 0)
        product.name = "globe"
        product.save(lease=NEW)
        assert token(product) == NEW

    def test_bulk_update_of_what_was_never_saved(self, alias: str) -> None:
        """Django's own error is raised."""
        with pytest.raises(ValueError, match="must have a primary key"):
            Product.objects.using(alias).fenced(NEW).bulk_update([Product()], ["stock"])

    @pytest.mark.django_db(databases=["default", "other"])
    def test_to_another_database(self) -> None:
        """In a database from which it was not read, an instance counts as made by hand."""
        product = Product.objects.create(name="lamp")
        product.save(lease=NEW, using="other")
        assert Product.objects.using("other").get().fencing_token == NEW
        assert Product.objects.get().fencing_token == 0


class TestNewRows:
    def test_create(self, alias: str) -> None:
        """New rows have seen the token from the beginning."""
        rows = Product.objects.using(alias).fenced(NEW)
        assert token(rows.create(name="lamp")) == NEW
        assert token(rows.get_or_create(name="desk")[0]) == NEW
        assert token(rows.update_or_create(name="rug", defaults={"stock": 1})[0]) == NEW
        assert token(Book.objects.using(alias).fenced(NEW).create(name="atlas")) == NEW

    def test_get_or_create(self, alias: str, book: Book) -> None:
        """A row that exists is read as by `get`."""
        rows = Product.objects.using(alias)
        product, created = rows.fenced(NEW).get_or_create(name="atlas")
        assert (product.pk, created) == (book.pk, False)
        assert token(book) == NEW
        with pytest.raises(StaleLease):
            rows.fenced(OLD).get_or_create(name="atlas")

    def test_bulk_create(self, alias: str, book: Book) -> None:
        """New rows have seen the token; rows that exist are not touched."""
        rows = Product.objects.using(alias)
        made = rows.fenced(NEW).bulk_create([Product(name="lamp"), Product(name="desk")])
        assert [token(product) for product in made] == [NEW, NEW]
        rows.fenced(NEW).bulk_create([Product(name="atlas")], ignore_conflicts=True)
        assert token(book) == 0

    def test_bulk_create_over_what_is_there(self, alias: str) -> None:
        """`update_conflicts` is refused: rows found only by a conflict can't be shown the token
        first."""
        rows = Product.objects.using(alias).fenced(NEW)
        with pytest.raises(NotSupportedError, match="update_conflicts"):
            rows.bulk_create(
                [Product(name="lamp")],
                update_conflicts=True,
                update_fields=["stock"],
                unique_fields=["name"],
            )


class TestTheTokenOfARow:
    def test_a_plain_save_leaves_it(self, alias: str, book: Book) -> None:
        """A save without a lease does not write the instance's token, which may be old."""
        for model in (Product, Cheap, Book):
            instance = model.objects.using(alias).get()
            Product.objects.using(alias).fenced(NEW).get()
            instance.stock = 1
            instance.save()
            instance.save(update_fields=["fencing_token", "stock"])
            assert row(alias)["stock"] == 1
            assert token(book) == NEW
            instance.fencing_token = 1
            instance.save()
            assert token(book) == NEW

    def test_a_plain_update_or_create_leaves_it(self, alias: str, book: Book) -> None:
        """Neither does `update_or_create`, which saves fields that have a `pre_save`."""
        Product.objects.using(alias).fenced(NEW).get()
        defaults = {"stock": 1, "fencing_token": 1}
        Product.objects.using(alias).update_or_create(name="atlas", defaults=defaults)
        assert token(book) == NEW

    def test_without_a_lease_all_is_as_ever(self, alias: str, book: Book) -> None:
        """Without `fenced` and `lease`, the methods neither show a token nor ask for one."""
        Product.objects.using(alias).fenced(NEW).get()
        product = Product.objects.using(alias).get()
        with CaptureQueriesContext(connections[alias]) as queries:
            product.save()
            Product.objects.using(alias).update(stock=1)
        assert len(queries) == 2
        assert product.delete()[0] == 3

    @pytest.mark.parametrize("fenced", [False, True])
    def test_it_can_not_be_set(self, fenced: bool, alias: str, book: Book) -> None:
        """The token can't be written: an older one would let older holders in again."""
        rows = Product.objects.using(alias)
        if fenced:
            rows = rows.fenced(NEW)
        product = Product.objects.using(alias).get()
        for write in (
            lambda: rows.update(fencing_token=1),
            lambda: rows.bulk_update([product], ["fencing_token"]),
            lambda: rows.bulk_create(
                [product],
                update_conflicts=True,
                update_fields=["fencing_token"],
                unique_fields=["pk"],
            ),
        ):
            with pytest.raises(ValueError, match="fencing_token must never decrease"):
                write()

    @pytest.mark.parametrize("seed", range(5))
    def test_it_never_decreases(self, seed: int, alias: str, book: Book) -> None:
        """In a random order of steps, the token never decreases, and each step ends as it
        should."""
        dice = random.Random(seed)
        rows = Product.objects.using(alias)
        seen, instances = 0, [rows.get()]
        for _ in range(60):
            ours, instance = dice.randint(1, 9), dice.choice(instances)
            step = dice.choice(["read", "update", "save", "bulk_update", "plain save", "rollback"])
            expected = StaleLease if ours < seen and step != "plain save" else None
            if step in ("save", "bulk_update") and not expected:
                expected = StaleRead if instance.fencing_token != seen else None
            ends = {None: nullcontext()}.get(expected) or pytest.raises(expected)
            with ends, suppress(ZeroDivisionError), transaction.atomic(using=alias):
                if step == "update":
                    assert rows.fenced(ours).update(stock=F("stock") + 1) == 1
                elif step == "save":
                    instance.save(lease=ours)
                elif step == "bulk_update":
                    rows.fenced(ours).bulk_update([instance], ["stock"])
                elif step == "plain save":
                    instance.save()
                else:
                    read = rows.fenced(ours).get()
                    if step == "rollback":
                        raise ZeroDivisionError
                    instances.append(read)
            if expected is None and step not in ("plain save", "rollback"):
                seen = ours
            if expected is None and step in ("save", "bulk_update"):
                assert instance.fencing_token == seen, "or it could not be saved again"
            assert token(book) == seen


class Pause:
    """Stop a thread before or after its n-th statement of some kinds, until `go_on` is set."""

    def __init__(
        self, *, before: int = 0, after: int = 0, of: Any = ("UPDATE", "DELETE", "INSERT")
    ) -> None:
        self.before, self.after, self.kinds, self.count = before, after, of, 0
        self.reached, self.go_on = Event(), Event()

    def __call__(self, execute: Any, sql: str, *args: Any) -> Any:
        if not sql.startswith(self.kinds):
            return execute(sql, *args)
        self.count += 1
        if self.count == self.before:
            self._wait()
        answer = execute(sql, *args)
        if self.count == self.after:
            self._wait()
        return answer

    def _wait(self) -> None:
        self.reached.set()
        assert self.go_on.wait(PATIENCE)


class Elsewhere:
    """Another connection to PostgreSQL, in a thread of its own."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor()

    def __call__(self, work: Callable[[], Any], *pauses: Pause) -> Future[Any]:
        return self.threads.submit(self._work, work, pauses)

    def _work(self, work: Callable[[], Any], pauses: Iterable[Pause]) -> Any:
        try:
            with ExitStack() as stack:
                for pause in pauses:
                    stack.enter_context(connections["postgres"].execute_wrapper(pause))
                return work()
        finally:
            connections["postgres"].close()


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    elsewhere = Elsewhere()
    yield elsewhere
    elsewhere.threads.shutdown()


def somebody_waits() -> bool:
    """Whether a connection waits for the transaction of another one."""
    with connections["postgres"].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


@committing("postgres")
class TestAtTheSameTime:
    # Those with FOR UPDATE have locked the row by then.
    @pytest.mark.parametrize(
        "name", sorted(WRITES.keys() - {"update_or_create", "select_for_update"})
    )
    def test_overtaken_before_it_showed_its_token(self, name: str, elsewhere: Elsewhere) -> None:
        """A holder that stops after finding its row, and before its first write, does not write
        once the next holder has read the row."""
        make_book("postgres")
        pause = Pause(before=1)
        late = elsewhere(WRITES[name]("postgres", OLD), pause)
        assert pause.reached.wait(PATIENCE)
        Product.objects.using("postgres").fenced(NEW).get()
        before = row("postgres")
        pause.go_on.set()
        with pytest.raises(StaleLease):
            late.result(PATIENCE)
        assert row("postgres") == before

    @writes
    def test_waiting_for_the_next_one(self, prepare: Preparation, elsewhere: Elsewhere) -> None:
        """A holder that waits for the transaction in which the next one read the row is refused
        after it, although its own statement is older."""
        make_book("postgres")
        write = prepare("postgres", OLD)
        with transaction.atomic(using="postgres"):
            Product.objects.using("postgres").fenced(NEW).get()
            late = elsewhere(write)
            eventually(somebody_waits)
        before = row("postgres")
        with pytest.raises(StaleLease):
            late.result(PATIENCE)
        assert row("postgres") == before

    @pytest.mark.parametrize(
        "name", ["update", "update of a join", "update of both tables", "save", "bulk_update"]
    )
    def test_the_next_one_waits(self, name: str, elsewhere: Elsewhere) -> None:
        """Nobody comes between the check and the write: the next holder waits, and reads what was
        written, although its read began before."""
        make_book("postgres")
        pause = Pause(before=2)
        write = elsewhere(WRITES[name]("postgres", OLD), pause)
        assert pause.reached.wait(PATIENCE)
        reading = elsewhere(lambda: Book.objects.using("postgres").fenced(NEW).get())
        eventually(somebody_waits)
        pause.go_on.set()
        write.result(PATIENCE)
        read = reading.result(PATIENCE)
        assert read.stock == 1 or read.pages == 50
        assert (read.fencing_token, token(read)) == (NEW, NEW)

    def test_a_row_that_comes_back(self, elsewhere: Elsewhere) -> None:
        """A row that was deleted before it saw our token, and made again by the next holder before
        our write, is not written."""
        pk = make_book("postgres").pk
        rows = Product.objects.using("postgres")
        showing, writing = Pause(before=1), Pause(before=2)
        late = elsewhere(lambda: rows.fenced(OLD).update(stock=1), writing, showing)
        assert showing.reached.wait(PATIENCE)
        rows.all().delete()
        showing.go_on.set()
        assert writing.reached.wait(PATIENCE)
        rows.fenced(NEW).create(pk=pk, name="lamp", stock=3)
        writing.go_on.set()
        assert late.result(PATIENCE) == 0
        assert rows.get().stock == 3

    @pytest.mark.parametrize("model", [Product, Book])
    def test_a_row_that_both_make(self, model: Any, elsewhere: Elsewhere) -> None:
        """If the next holder has made the row meanwhile, it is not written over."""
        pause = Pause(before=2)
        late = elsewhere(lambda: model(pk=7, name="late").save(lease=OLD, using="postgres"), pause)
        assert pause.reached.wait(PATIENCE)
        Product.objects.using("postgres").fenced(NEW).create(pk=7, name="lamp")
        pause.go_on.set()
        with pytest.raises(IntegrityError):
            late.result(PATIENCE)
        assert Product.objects.using("postgres").get().name == "lamp"

    def test_a_row_that_appears(self, elsewhere: Elsewhere) -> None:
        """If there was no row to delete, a row that appears then is not deleted."""
        pause = Pause(after=1, of="SELECT")  # of what the row, if there is one, has seen
        late = elsewhere(lambda: Product(pk=7).delete(lease=OLD, using="postgres"), pause)
        assert pause.reached.wait(PATIENCE)
        Product.objects.using("postgres").fenced(NEW).create(pk=7, name="lamp")
        pause.go_on.set()
        assert late.result(PATIENCE)[0] == 0
        assert Product.objects.using("postgres").get().name == "lamp"

    def test_rows_that_others_have_locked(self, elsewhere: Elsewhere) -> None:
        """`skip_locked` and `nowait` don't wait for the fence either."""
        make_book("postgres")
        Product.objects.using("postgres").create(name="lamp")
        locked, done = Event(), Event()

        def lock() -> None:
            with transaction.atomic(using="postgres"):
                Product.objects.using("postgres").select_for_update().get(name="atlas")
                locked.set()
                assert done.wait(PATIENCE)

        holder = elsewhere(lock)
        assert locked.wait(PATIENCE)
        rows = Product.objects.using("postgres").fenced(NEW)
        with transaction.atomic(using="postgres"):
            free = rows.select_for_update(skip_locked=True)
            assert [each.name for each in free] == ["lamp"]
        with pytest.raises(DatabaseError, match="lock"), transaction.atomic(using="postgres"):
            rows.select_for_update(nowait=True).get(name="atlas")
        done.set()
        holder.result(PATIENCE)

    def test_select_for_update_needs_a_transaction(self) -> None:
        """As in Django. The transaction of the fence ends too early to be of use."""
        with pytest.raises(TransactionManagementError):
            Product.objects.using("postgres").fenced(NEW).select_for_update().first()

    def test_select_for_update_of_one_table(self) -> None:
        """Related rows can be left unlocked."""
        make_book("postgres")
        with transaction.atomic(using="postgres"):
            rows = Product.objects.using("postgres").fenced(NEW).select_related("shop")
            assert rows.select_for_update(of=("self",)).get().name == "atlas"


class TestTransactions:
    def test_the_outer_one_goes_on(self, committing_alias: str) -> None:
        """A transaction that catches the error can still commit its other changes."""
        book = make_book(committing_alias)
        rows = Product.objects.using(committing_alias)
        product = rows.get()
        rows.fenced(NEW).get()
        with transaction.atomic(using=committing_alias):
            rows.create(name="before")
            for late in (
                lambda: rows.fenced(OLD).get(name="atlas"),
                lambda: rows.fenced(OLD).update(stock=1),
                lambda: rows.fenced(OLD).bulk_update([book], ["stock"]),
                lambda: rows.fenced(OLD).delete(),
                lambda: product.save(lease=OLD),
                lambda: product.delete(lease=OLD),
            ):
                with pytest.raises(StaleLease):
                    late()
            rows.create(name="after")
        found = set(rows.values_list("name", "stock"))
        assert found == {("atlas", 3), ("before", 0), ("after", 0)}

    @committing("default")
    def test_what_it_costs(self) -> None:
        """The numbers of statements are those in the documentation."""
        make_book("default")
        rows = Product.objects.fenced(NEW)
        product = rows.get()

        def cost(work: Callable[[], object]) -> str:
            with CaptureQueriesContext(connections["default"]) as queries:
                work()
            return " ".join(query["sql"].split()[0] for query in queries)

        assert cost(rows.get) == "SELECT BEGIN UPDATE SELECT COMMIT"
        assert cost(lambda: rows.update(stock=1)) == "SELECT BEGIN UPDATE UPDATE COMMIT"
        assert cost(lambda: product.save(lease=NEW)) == "BEGIN UPDATE UPDATE COMMIT"
        bulk = cost(lambda: rows.bulk_update([product], ["stock"]))
        assert bulk == "BEGIN UPDATE UPDATE COMMIT"
        assert cost(lambda: Product(name="lamp").save(lease=NEW)) == "BEGIN INSERT COMMIT"

    @pytest.mark.django_db(databases=["default", "other"])
    def test_the_database_that_is_written_to(self) -> None:
        """Showing a token is a write, so the router is asked where to write."""
        for alias in ("default", "other"):
            make_book(alias)
        router = "tests.test_fencing.ReadHereWriteThere"
        with override_settings(DATABASE_ROUTERS=[router]):
            assert Product.objects.fenced(NEW).get()._state.db == "other"
            assert Product.objects.fenced(NEW).update(stock=1) == 1
            Product.objects.fenced(NEW).get().save(lease=NEW)
            assert Product.objects.using("default").fenced(OLD).get()._state.db == "default"
        tokens = [Product.objects.using(alias).get() for alias in ("default", "other")]
        assert [(each.fencing_token, each.stock) for each in tokens] == [(OLD, 3), (NEW, 1)]

    @pytest.mark.django_db(databases=["default", "other"])
    def test_a_router_that_changes_its_mind(self) -> None:
        """The database that has seen the token is the one that is written."""
        for alias in ("default", "other"):
            Product.objects.using(alias).create(pk=7, name="lamp")
        answers = cycle(["default", "other"])
        router = SimpleNamespace(db_for_write=lambda *args, **hints: next(answers))
        with override_settings(DATABASE_ROUTERS=[router]):
            Product(pk=7, name="desk").save(lease=NEW)
        products = [Product.objects.using(alias).get() for alias in ("default", "other")]
        assert [each.name for each in products] == ["desk", "lamp"]


class ReadHereWriteThere:
    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "default"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "other"


class TestModels:
    def test_two_parents(self, alias: str) -> None:
        """The token is in one of the parents, and is found by that parent's key."""
        Product.objects.using(alias).create(name="other")
        display = Display.objects.using(alias).create(name="lamp", room="hall")
        assert display.pk != display.id
        read = Display.objects.using(alias).fenced(NEW).get()
        read.lit = True
        read.save(lease=NEW)
        Display.objects.using(alias).fenced(NEW).update(room="shop", stock=1)
        with pytest.raises(StaleLease, match=rf"tests.Display {display.id} saw"):
            Display.objects.using(alias).fenced(OLD).update(lit=False)
        with pytest.raises(StaleLease):
            read.save(lease=OLD)
        after = Display.objects.using(alias).get()
        assert (after.lit, after.room, after.stock, after.fencing_token) == (True, "shop", 1, NEW)
        assert token(Product.objects.using(alias).get(name="other")) == 0

    def test_a_key_of_two_columns(self, alias: str) -> None:
        """Composite primary keys work."""
        rows = Seat.objects.using(alias)
        for number in (1, 2):
            rows.create(row=1, number=number)
        seat = rows.fenced(NEW).get(number=1)
        seat.guest = "anna"
        seat.save(lease=NEW)
        assert rows.fenced(NEW).filter(number=2).update(guest="ben") == 1
        rows.fenced(NEW).bulk_update([seat], ["guest"])
        with pytest.raises(StaleLease, match=r"tests.Seat \(1, 2\) saw"):
            rows.fenced(OLD).filter(number=2).delete()
        assert set(rows.values_list("number", "guest")) == {(1, "anna"), (2, "ben")}

    def test_managers_of_ones_own(self, alias: str) -> None:
        """The field and the queryset work without the base class, and beside a project's own
        methods."""
        make = Ticket.plain.using(alias).create
        free, cheap, dear = (make(price=price) for price in (0, 5, 50))
        manager = Ticket.objects.db_manager(alias)
        assert set(manager.fenced(NEW).cheap()) == {free, cheap}
        assert set(manager.cheap().fenced(NEW)) == {free, cheap}
        assert [token(each) for each in (free, cheap, dear)] == [NEW, NEW, 0]
        with pytest.raises(StaleLease):
            Ticket.free.db_manager(alias).fenced(OLD).update(seat="1A")
        assert Ticket.fenced_only.db_manager(alias).fenced(NEW).update(seat="2B") == 3
        cheap.save()
        assert token(cheap) == NEW

    def test_related_managers(self, alias: str) -> None:
        """`shop.products` can be fenced, and stays limited to the rows of the shop."""
        shop = Shop.objects.using(alias).create(name="ours")
        ours = Product.objects.using(alias).create(name="lamp", shop=shop)
        other = Product.objects.using(alias).create(name="desk")
        assert shop.products.fenced(NEW).get() == ours
        assert shop.products.fenced(NEW).update(stock=1) == 1
        assert (token(ours), token(other)) == (NEW, 0)
        with pytest.raises(StaleLease):
            shop.products.fenced(OLD).update(stock=2)

    def test_prefetched(self, alias: str) -> None:
        """A fenced queryset can be prefetched."""
        shop = Shop.objects.using(alias).create(name="ours")
        product = Product.objects.using(alias).create(name="lamp", shop=shop)
        products = Prefetch("products", Product.objects.using(alias).fenced(NEW))
        shop = Shop.objects.using(alias).prefetch_related(products).get()
        assert list(shop.products.all()) == [product]
        assert token(product) == NEW
        products = Prefetch("products", Product.objects.using(alias).fenced(OLD))
        with pytest.raises(StaleLease):
            Shop.objects.using(alias).prefetch_related(products).get()

    @pytest.mark.parametrize(
        "get_past",
        [
            lambda fenced, rows: fenced.raw("SELECT * FROM tests_product"),
            lambda fenced, rows: fenced.union(rows),
            lambda fenced, rows: rows.union(fenced),
            lambda fenced, rows: rows.intersection(fenced),
            lambda fenced, rows: rows.difference(fenced),
            lambda fenced, rows: rows.union(rows).fenced(NEW).first(),
            lambda fenced, rows: fenced | rows,
            lambda fenced, rows: rows | fenced,
            lambda fenced, rows: rows & fenced,
            lambda fenced, rows: rows ^ fenced,
            lambda fenced, rows: list(rows.filter(pk__in=fenced)),
            lambda fenced, rows: list(fenced.values("price").annotate(Sum("stock"))),
            lambda fenced, rows: fenced.values("price").annotate(Sum("stock")).count(),
            lambda fenced, rows: fenced.values("price").distinct()[:1].count(),
            lambda fenced, rows: list(fenced.annotate(n=Window(RowNumber()))),
        ],
    )
    def test_what_would_get_past_the_fence(self, get_past: Any, alias: str, book: Book) -> None:
        """Combinations that would read or write rows without the fence are refused."""
        rows = Product.objects.using(alias).all()
        with pytest.raises(NotSupportedError, match=r"fenced\(lease\)"):
            get_past(rows.fenced(NEW), rows)
        assert token(book) == 0

    def test_the_same_without_a_fence(self, alias: str, book: Book) -> None:
        """Querysets without a fence can be combined as in Django."""
        rows = Product.objects.using(alias).all()
        assert list(rows | rows) == list(rows & rows) == list(rows.union(rows)) == list(rows)
        assert list(rows.filter(pk__in=rows)) == list(rows)
        assert list((rows.filter(stock=3) | rows.filter(stock=1)).fenced(NEW)) == list(rows)


class TestLeases:
    def test_a_late_lease_is_lost(self, alias: str, book: Book, redis: Redis) -> None:
        """A newer token in the row proves that a later holder had the lock: the lease is lost."""
        with pytest.raises(StaleLease) as caught, redis_lock("atlas") as lease:
            Product.objects.using(alias).fenced(lease.fencing_token + 1).get()
            Product.objects.using(alias).fenced(lease).get()
        assert lease.state == LeaseState.LOST
        assert lease._lifetime.lost is caught.value
        assert caught.value.name == "atlas"

    @pytest.mark.parametrize("how", ["lost", "released"])
    def test_a_lease_that_is_known_to_be_lost(
        self, how: str, alias: str, book: Book, redis: Redis
    ) -> None:
        """With a lost or released lease, the database is asked nothing."""
        with suppress(LeaseLost), redis_lock("atlas") as lease:
            rows = Product.objects.using(alias).fenced(lease)
            if how == "lost":
                lease._lifetime.lose(LeaseLost("atlas", "somebody took it"))
        with CaptureQueriesContext(connections[alias]) as queries:
            for attempt in (
                lambda: Product.objects.using(alias).fenced(lease),
                lambda: list(rows),
                lambda: rows.update(stock=1),
                lambda: rows.bulk_update([book], ["stock"]),
                lambda: rows.create(name="lamp"),
                lambda: rows.bulk_create([Product(name="lamp")]),
                lambda: book.save(lease=lease),
                lambda: book.delete(lease=lease),
            ):
                with pytest.raises(LeaseLost):
                    attempt()
        assert len(queries) == 0

    def test_redis_is_not_asked(self, alias: str, book: Book, redis: Redis) -> None:
        """Fencing sends nothing to Redis."""

        def nothing_was_asked() -> bool:
            before = redis.info("commandstats")
            product = Product.objects.using(alias).fenced(lease).get()
            product.save(lease=lease)
            after = redis.info("commandstats")
            return before | {"cmdstat_info": 0} == after | {"cmdstat_info": 0}

        with redis_lock("atlas") as lease:
            # But for the signs of life of this process, which come every now and then.
            eventually(nothing_was_asked)

    @pytest.mark.parametrize("wrong", [None, "7", 7.0, True, redis_lock("atlas")])
    def test_anything_else(self, wrong: Any) -> None:
        """Other values are refused, with what to write instead."""
        attempts = [Product.objects.fenced]
        if wrong is not None:
            attempts += [lambda lease: Product().save(lease=lease)]
        for attempt in attempts:
            with pytest.raises(TypeError, match=r"lease must be the lease of a `with redis_lock"):
                attempt(wrong)

    @pytest.mark.parametrize("wrong", [0, -1])
    def test_no_fencing_token(self, wrong: int) -> None:
        """A token below 1 is refused: every row has seen 0."""
        with pytest.raises(ValueError, match="at least 1"):
            Product.objects.fenced(wrong)


class TestErrors:
    def test_a_stale_lease(self, alias: str) -> None:
        """The error names some of the rows, our token and the newer one; it can be pickled."""
        rows = Product.objects.using(alias)
        rows.bulk_create(Product(pk=pk, name=f"lamp {pk}") for pk in range(1, 6))
        rows.fenced(NEW).update(stock=1)
        rows.fenced(NEW + 1).filter(pk=1).update(stock=1)
        with pytest.raises(StaleLease) as caught:
            rows.fenced(OLD).order_by("pk").update(stock=2)
        error = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(error, LeaseLost)
        assert sorted(error.pks) == [1, 2, 3, 4, 5]
        assert (error.model, error.fencing_token, error.newer) == ("tests.Product", OLD, NEW + 1)
        assert re.fullmatch(
            r"The lease is lost: tests\.Product \d, \d, \d and others saw the fencing token 8, "
            r"which is newer than 6; if every new lease is refused, see "
            r"`manage\.py redislock fence 'NAME' --model=tests\.Product`\.",
            str(error),
        )

    def test_with_a_name(self) -> None:
        """If there is a lease, the error names its lock."""
        error = StaleLease("lamp", "tests.Product", ["a\nb" * 50], OLD, NEW)
        assert str(error).startswith("The lease on 'lamp' is lost: tests.Product 'a\\nb")
        assert str(error).isprintable()
        assert len(str(error)) < 300

    def test_a_stale_read(self) -> None:
        """The error is no lost lease, says what to do, and can be pickled."""
        error = pickle.loads(pickle.dumps(StaleRead("lamp", "tests.Product", [1], "is gone")))
        assert isinstance(error, LockError)
        assert not isinstance(error, LeaseLost)
        assert (error.name, error.model, error.pks) == ("lamp", "tests.Product", (1,))
        assert str(error) == (
            "tests.Product 1 is gone, so nothing was written. Read it through fenced(lease), "
            "after the lock was acquired."
        )


class TestMigrations:
    def test_the_field(self) -> None:
        """makemigrations writes an ordinary AddField."""
        operation = AddField("product", "fencing_token", FencingTokenField())
        text = "".join(OperationWriter(operation, indentation=0).serialize()[0].split())
        assert text == (
            "migrations.AddField(model_name='product',name='fencing_token',"
            "field=django_redislock.fencing.FencingTokenField(db_default=0,default=0,"
            "editable=False),),"
        )

    def test_a_table_in_use(self, committing_alias: str) -> None:
        """Rows that exist begin at 0, and processes that don't know the column yet can still
        insert."""
        connection = connections[committing_alias]
        state = ProjectState()
        name, table = models.CharField(max_length=10), "tests_old"
        fields = [("id", models.AutoField(primary_key=True)), ("name", name)]
        create = CreateModel("Old", fields, options={"db_table": table})
        add = AddField("Old", "fencing_token", FencingTokenField())
        insert = f"INSERT INTO {table} (name) VALUES ('x')"

        def file() -> object:
            if connection.vendor == "postgresql":
                cursor.execute(f"SELECT pg_relation_filenode('{table}')")
                return cursor.fetchone()
            return None

        with connection.cursor() as cursor:
            try:
                for operation in (create, add):
                    before, state = state, state.clone()
                    operation.state_forwards("tests", state)
                    if operation is add:
                        cursor.execute(insert)
                        was = file()
                    with connection.schema_editor() as editor:
                        operation.database_forwards("tests", editor, before, state)
                assert file() == was, "PostgreSQL has rewritten the whole table"
                cursor.execute(insert)
                cursor.execute(f"SELECT fencing_token FROM {table}")
                assert cursor.fetchall() == [(0,), (0,)]
            finally:
                cursor.execute(f"DROP TABLE IF EXISTS {table}")

    def test_old_models(self) -> None:
        """The models of data migrations have the same field, so they don't lower a token."""
        field = ModelState.from_model(Product).fields["fencing_token"]
        assert isinstance(field, FencingTokenField)
        assert isinstance(field.clone(), FencingTokenField)

"""What the tests of fencing write to. Without migrations: the tables come with the database."""

# ruff: noqa: DJ008, DJ012  # nobody prints them; ruff takes managers for fields

from __future__ import annotations

import uuid
from typing import Self

from django.db import models

from django_redislock.fencing import FencedManager, FencedModel, FencedQuerySet, FencingTokenField


class Shop(models.Model):
    name = models.CharField(max_length=20, unique=True)


class Product(FencedModel):
    name = models.CharField(max_length=20, unique=True)
    stock = models.IntegerField(default=0)
    price = models.IntegerField(default=0)
    made = models.DateField(null=True)
    shop = models.ForeignKey(Shop, models.CASCADE, null=True, related_name="products")


class Cheap(Product):
    """The same table by another name."""

    class Meta:
        proxy = True


class Book(Product):
    """A second table; the token is in the first."""

    pages = models.IntegerField(default=0)


class Atlas(Book):
    """A third table."""

    maps = models.IntegerField(default=0)


class Shelf(models.Model):
    number = models.AutoField(primary_key=True)
    room = models.CharField(max_length=20, default="")


class Display(Shelf, Product):
    """Two parents; its primary key is that of the one without a token."""

    lit = models.BooleanField(default=False)

    objects = FencedManager()  # or it would inherit that of Shelf


class Order(models.Model):
    product = models.ForeignKey(Product, models.CASCADE, related_name="orders")
    worker = models.CharField(max_length=20)


class Parcel(FencedModel):
    """Its key is made here, so Django inserts new ones without looking."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    weight = models.IntegerField(default=0)


class Seat(FencedModel):
    """A key of two columns."""

    pk = models.CompositePrimaryKey("row", "number")
    row = models.IntegerField()
    number = models.IntegerField()
    guest = models.CharField(max_length=20, default="")


class TicketQuerySet(FencedQuerySet["Ticket"]):
    def cheap(self) -> Self:
        return self.filter(price__lt=10)


class Free(models.Manager.from_queryset(TicketQuerySet)):
    def get_queryset(self) -> TicketQuerySet:
        return super().get_queryset().filter(price=0)


class Ticket(models.Model):
    """With the column and managers of its own, and without the base class."""

    price = models.IntegerField(default=0)
    seat = models.CharField(max_length=20, default="")
    fencing_token = FencingTokenField()

    objects = TicketQuerySet.as_manager()
    free = Free()
    plain = models.Manager()
    fenced_only = FencedManager()

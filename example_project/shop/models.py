"""What the shop has, and what it has sold."""

from django.db import models
from django.utils import timezone

from django_redislock.fencing import FencedModel


class Product(FencedModel):
    """What is sold. It keeps the newest fencing token that it has seen, and refuses older ones."""

    name = models.CharField(max_length=100)
    stock = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.name}: {self.stock} left"


class Order(models.Model):
    """One unit, sold."""

    product = models.ForeignKey(Product, on_delete=models.CASCADE, related_name="orders")
    worker = models.CharField(max_length=100)
    fencing_token = models.BigIntegerField(null=True)
    created = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.product.name}, sold by {self.worker}"


class Cart(models.Model):
    """One unit that somebody has put aside, and not paid for."""

    product = models.ForeignKey(Product, on_delete=models.CASCADE, related_name="carts")
    customer = models.CharField(max_length=100)
    created = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"{self.product.name}, put aside by {self.customer}"


class StockReport(models.Model):
    """What was in stock at some time."""

    products = models.PositiveIntegerField()
    units = models.PositiveIntegerField()
    fencing_token = models.BigIntegerField(unique=True)
    created = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.units} units of {self.products} products"


class LockIncident(models.Model):
    """A lock that was lost by its holder, or cleared by an operator; a late write that was
    refused; and what the tour does to holders."""

    outcome = models.CharField(max_length=20)
    name = models.CharField(max_length=200)
    owner = models.CharField(max_length=200)
    why = models.TextField()
    created = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.name} {self.outcome}: {self.why}"

"""Products, orders, carts, and what happened to locks."""

from django.db import models
from django.utils import timezone

from django_redislock.fencing import FencedModel


class Product(FencedModel):
    """A product. It stores the newest fencing token that it has seen, and refuses older ones."""

    name = models.CharField(max_length=100)
    stock = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.name}: {self.stock} left"


class Order(models.Model):
    """One sold unit."""

    product = models.ForeignKey(Product, on_delete=models.CASCADE, related_name="orders")
    worker = models.CharField(max_length=100)
    fencing_token = models.BigIntegerField(null=True)
    created = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.product.name}, sold by {self.worker}"


class Cart(models.Model):
    """One unit that a customer has reserved and not paid for."""

    product = models.ForeignKey(Product, on_delete=models.CASCADE, related_name="carts")
    customer = models.CharField(max_length=100)
    created = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"{self.product.name}, reserved by {self.customer}"


class StockReport(models.Model):
    """The stock at one time."""

    products = models.PositiveIntegerField()
    units = models.PositiveIntegerField()
    fencing_token = models.BigIntegerField(unique=True)
    created = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.units} units of {self.products} products"


class LockIncident(models.Model):
    """A lock that was lost or cleared, a late write that was refused, or what the tour did to a
    holder."""

    outcome = models.CharField(max_length=20)
    name = models.CharField(max_length=200)
    owner = models.CharField(max_length=200)
    why = models.TextField()
    created = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.name} {self.outcome}: {self.why}"

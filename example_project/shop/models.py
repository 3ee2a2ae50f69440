"""What the shop has, and what it has sold."""

from django.db import models


class Product(models.Model):
    name = models.CharField(max_length=100)
    stock = models.PositiveIntegerField()
    fence = models.BigIntegerField(default=0)
    """The largest fencing token that was shown here. Whoever has a smaller one is late."""

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

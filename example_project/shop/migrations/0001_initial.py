import django.db.models.deletion
from django.db import migrations, models

import django_redislock.fencing


def primary_key() -> models.BigAutoField:
    return models.BigAutoField(
        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
    )


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Product",
            fields=[
                ("id", primary_key()),
                (
                    "fencing_token",
                    django_redislock.fencing.FencingTokenField(
                        db_default=0, default=0, editable=False
                    ),
                ),
                ("name", models.CharField(max_length=100)),
                ("stock", models.PositiveIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", primary_key()),
                ("worker", models.CharField(max_length=100)),
                ("fencing_token", models.BigIntegerField(null=True)),
                ("created", models.DateTimeField(auto_now_add=True)),
                (
                    "product",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="orders",
                        to="shop.product",
                    ),
                ),
            ],
        ),
    ]

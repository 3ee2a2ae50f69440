"""The shop, for Django."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "shop"

    def ready(self) -> None:
        from . import receivers  # noqa: F401  # needs the models, and connects itself

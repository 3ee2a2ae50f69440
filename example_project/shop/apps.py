"""The shop, for Django."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "shop"

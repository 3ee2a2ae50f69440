"""The app with the table of the records."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class OnceConfig(AppConfig):
    name = "django_redislock.contrib.once"
    label = "redislock_once"
    verbose_name = _("Redis locks: once")

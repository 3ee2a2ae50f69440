"""The app for INSTALLED_APPS: the command, the system checks, the templates, the translations."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from .doctor import checks


class RedislockConfig(AppConfig):
    name = "django_redislock"
    verbose_name = _("Redis locks")

    def ready(self) -> None:
        checks.register()

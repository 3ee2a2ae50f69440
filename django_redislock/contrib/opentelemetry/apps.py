"""Traces from when the project is set up."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from ... import signals


class OpenTelemetryConfig(AppConfig):
    name = "django_redislock.contrib.opentelemetry"
    label = "redislock_opentelemetry"
    verbose_name = _("Redis locks: OpenTelemetry")

    def ready(self) -> None:
        # Here, so that what is missing is said when the project is set up.
        from .spans import record

        signals.observe(record)

"""Start tracing when Django is set up."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from ... import signals


class OpenTelemetryConfig(AppConfig):
    name = "django_redislock.contrib.opentelemetry"
    label = "redislock_opentelemetry"
    verbose_name = _("Redis locks: OpenTelemetry")

    def ready(self) -> None:
        # Imported here, so that a missing package is reported when Django is set up.
        from .spans import record

        signals.observe(record)

"""Start counting when Django is set up."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from ... import signals


class PrometheusConfig(AppConfig):
    name = "django_redislock.contrib.prometheus"
    label = "redislock_prometheus"
    verbose_name = _("Redis locks: Prometheus")

    def ready(self) -> None:
        # Imported here, since the import registers the metrics.
        from ...tasks import task_event
        from .metrics import count, count_task

        signals.observe(count)
        task_event.connect(count_task)

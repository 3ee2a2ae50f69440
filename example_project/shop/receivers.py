"""A receiver of lock signals, which stores lost and cleared locks."""

from __future__ import annotations

from typing import Any

from django.dispatch import receiver

from django_redislock.signals import LockEvent, lock_cleared, lock_lost

from .models import LockIncident


@receiver([lock_lost, lock_cleared])
def write_down(event: LockEvent, **_: Any) -> None:
    """Store the event, in the process that lost or cleared the lock. The shop's page shows it."""
    LockIncident.objects.create(
        outcome=event.outcome, name=event.name, owner=event.owner or "", why=event.why
    )

"""What the shop does when something happens to one of its locks: it writes that down."""

from __future__ import annotations

from typing import Any

from django.dispatch import receiver

from django_redislock.signals import LockEvent, lock_cleared, lock_lost

from .models import LockIncident


@receiver([lock_lost, lock_cleared])
def write_down(event: LockEvent, **_: Any) -> None:
    """In the process that lost it, or cleared it; the page of the shop shows them."""
    LockIncident.objects.create(
        outcome=event.outcome, name=event.name, owner=event.owner or "", why=event.why
    )

"""Views that run in one place at a time, and views that do a thing once."""

from .idempotency import idempotent_view
from .locking import lock_view

__all__ = ["idempotent_view", "lock_view"]

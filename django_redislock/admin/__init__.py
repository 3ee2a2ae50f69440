"""Pages for the admin: the locks, and the periodic jobs. A project with an admin site of its own
registers them there: `site.register(LockStatus, LockAdmin)`."""

from django.contrib import admin

from ..models import LockStatus, PeriodicJob
from .jobs import PeriodicJobAdmin
from .locks import LockAdmin

__all__ = ["LockAdmin", "PeriodicJobAdmin"]

admin.site.register(LockStatus, LockAdmin)
admin.site.register(PeriodicJob, PeriodicJobAdmin)

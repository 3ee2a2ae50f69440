"""The table of the records. `locks/in_transaction.py` says how it is written."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class Record(models.Model):
    """Work that was done once; or, with steps, that an attempt has begun."""

    # A digest of the name. The collation of some databases takes two names for the same.
    id = models.CharField(primary_key=True, max_length=64)
    name = models.CharField(_("name"), max_length=512)
    label = models.CharField(_("label"), max_length=255)
    token = models.CharField(max_length=32)
    """Of the attempt that has written it; "": any attempt may go on."""
    done = models.BooleanField(_("done"), default=False)
    at = models.DateTimeField(_("changed at"), db_index=True)
    steps = models.JSONField(default=dict)
    """An empty list for each step that has begun, with its result if it has ended."""
    value = models.BinaryField()

    class Meta:
        default_permissions = ("view",)
        ordering = ("-at",)
        verbose_name = _("record")
        verbose_name_plural = _("records")

    def __str__(self) -> str:
        return str(self.name)

"""Clear locks from the admin: only what the operator has seen.

The confirmation carries a signed digest of each holder's token; the token itself stays on the
server. When the confirmation comes back, each lock is read again. If the digest differs, the lock
has changed hands and is left alone. Otherwise the lock is cleared by its token, so that it can't
change hands in between. Of several holders, only those that were seen lose the lock.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from django import forms
from django.core import signing
from django.utils.crypto import salted_hmac
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..base import label
from ..inspection import HolderInfo, Inspector, LockInfo, RedlockInspector, State
from ..inspection.clearing import ClearOutcome, Target
from ..inspection.sentences import translated
from ..inspection.story import consequences, consequences_of_all, held_by, holder_name, safer
from ..inspection.words import clean
from ..models import LockStatus
from ..models.live import LockId
from . import cells
from .pages import Deed, write_down

# What clearing would do, and what it has done, in words for the pages.


logger = logging.getLogger("django_redislock")

NAMED = 3
"""Locks that a message names."""


def some_are_stale(lock: LockStatus) -> bool:
    """Whether a lock has holders that are stale, and others."""
    states = {one.state for one in lock.info.holders} if lock.info else set()
    return State.STALE in states and len(states) > 1


def what_happens(locks: Sequence[LockStatus]) -> list[SafeString]:
    """Return the paragraphs of a confirmation."""
    infos = [lock.info for lock in locks if lock.info is not None]
    if len(infos) == 1:
        waiters = LockId.of(infos[0]).inspector().waiters(infos[0])
        said = consequences(infos[0], waiters)
        return [cells.paragraph(said), cells.sentence(safer(infos[0]))]
    return [cells.paragraph(consequences_of_all(infos))]


def afterwards(cleared: Sequence[Target]) -> str:
    """Say who has the locks now that were cleared; nothing if that can't be read. It raises
    nothing, since they were cleared."""
    try:
        held = _held(cleared)
    except Exception:
        logger.warning("The locks that were cleared can't be read again", exc_info=True)
        return ""
    if not held:
        return ngettext("Nobody holds it now.", "Nobody holds them now.", len(cleared))
    if len(cleared) == 1:
        return _("Now it is held by %(who)s.") % {"who": _who(held[0])}
    named = [f"“{clean(lock.name)}” ({_who(lock)})" for lock in held[:NAMED]]
    text = _("Held again: %(names)s.") % {"names": ", ".join(named)}
    if more := len(held) - len(named):
        text += " " + ngettext("And %(number)s more.", "And %(number)s more.", more) % {
            "number": more
        }
    return text


def _who(lock: LockInfo) -> str:
    return translated(holder_name(lock.holders[0]))


def _held(targets: Sequence[Target]) -> list[LockInfo]:
    names: defaultdict[Inspector | RedlockInspector, list[str]] = defaultdict(list)
    for target in targets:
        names[target.inspector].append(target.name)
    return [lock for one, its in names.items() for lock in one.held(its)]


SALT = "django_redislock.admin.confirmation"
GOOD_FOR = 3600
"""Seconds for which a confirmation is valid."""
WRITTEN_AT_ONCE = 500
"""Locks that are cleared between two writes to the history."""


class ClearForm(forms.Form):
    """The reason, and what was seen."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=200,
        help_text=gettext_lazy("The holder sees the reason, and the history keeps it."),
        widget=forms.TextInput(attrs={"size": 60, "autofocus": True}),
    )
    stale_only = forms.BooleanField(
        label=gettext_lazy("Only the holders that are stale"),
        required=False,
        initial=True,
        label_suffix="",
    )
    seen = forms.CharField(widget=forms.HiddenInput)

    def clean_reason(self) -> str:
        return label.clean(str(self.cleaned_data["reason"]))

    def clean_seen(self) -> dict[str, list[str]]:
        try:
            seen: dict[str, list[str]] = signing.loads(
                self.cleaned_data["seen"], salt=SALT, max_age=GOOD_FOR
            )
            for id in seen:
                LockId.parse(id)  # the settings may have changed
        except (signing.BadSignature, ValueError):
            message = _("This form is not the one that was shown. Start again.")
            raise forms.ValidationError(message) from None
        return seen


def sealed(locks: Iterable[LockStatus]) -> str:
    """Sign what the operator is shown, for `ClearForm.seen`."""
    seen = {
        lock.id: [_digest(one) for one in lock.info.holders]
        for lock in locks
        if lock.info is not None
    }
    return signing.dumps(seen, salt=SALT, compress=True)


def shown(seen: dict[str, list[str]]) -> list[LockStatus]:
    """Return the locks that the operator was shown and that have not changed hands."""
    return [
        LockStatus.of(target.lock)
        for target in targets(seen)
        if target.lock is not None and target.outcome == ClearOutcome.NOT_ASKED
    ]


def targets(seen: dict[str, list[str]], *, stale_only: bool = False) -> Iterator[Target]:
    """Read the locks that were seen again. Raises `LockUnavailable`."""
    servers: dict[tuple[str, bool], dict[str, list[str]]] = defaultdict(dict)
    for id, its_digests in seen.items():
        using, cache_locks, name = LockId.parse(id)
        servers[using, cache_locks][name] = its_digests
    for (using, cache_locks), digests in servers.items():
        inspector = Inspector(using, cache_locks=cache_locks)
        found = {lock.name: lock for lock in inspector.held(list(digests))}
        for name, known in digests.items():
            lock = found.get(name)
            same = lock and _reduced(lock, known, stale_only=stale_only)
            target = Target(name, inspector, same or lock)
            if lock is None:
                target.outcome = ClearOutcome.FREE
            elif same is None:
                target.outcome = ClearOutcome.CHANGED
            yield target


class Done(NamedTuple):
    """The outcome of a confirmation."""

    targets: list[Target]
    written: bool
    """The history has all that was done."""


def clear(user: Any, seen: dict[str, list[str]], reason: str, *, stale_only: bool = False) -> Done:
    """Clear what was seen, and write it into the history. `stale_only`: take a lock only from
    holders that are stale.

    Raises `LockUnavailable` if nothing was cleared.
    """
    found = list(targets(seen, stale_only=stale_only))
    asking, written = True, True
    for start in range(0, len(found), WRITTEN_AT_ONCE):
        batch = found[start : start + WRITTEN_AT_ONCE]
        try:
            for target in batch:
                if asking and target.outcome == ClearOutcome.NOT_ASKED:
                    asking = target.clear(str(user.get_username()), reason)
        finally:
            written &= _write_down(user, batch, reason)
    return Done(found, written)


def _write_down(user: Any, targets: list[Target], reason: str) -> bool:
    """Write what was cleared into the history. False: the database could not be written."""
    words = {
        ClearOutcome.CLEARED: _("Cleared: %(reason)s. %(held)s"),
        ClearOutcome.UNKNOWN: _("Perhaps cleared: %(reason)s. %(held)s"),
    }
    deeds = [
        Deed(
            str(LockId.of(target.lock)),
            target.name,
            words[target.outcome]
            % {"reason": reason.rstrip("."), "held": translated(held_by(target.lock))},
        )
        for target in targets
        if target.lock is not None and target.outcome in words
    ]
    return write_down(user, LockStatus, deeds)


def _reduced(lock: LockInfo, known: list[str], *, stale_only: bool) -> LockInfo | None:
    """The lock with the holders that were seen."""
    return lock.only(
        lambda one: _digest(one) in known and (one.state == State.STALE or not stale_only)
    )


def _digest(one: HolderInfo) -> str:
    return salted_hmac(SALT, one.seen, algorithm="sha256").hexdigest()[:16]

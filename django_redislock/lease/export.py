"""The text of an exported lease, which continues in another process.

Such a text passes through queues, files and forms, where others may change it. So it is signed
with the `SECRET_KEY` of the project, as Django signs a session, and it names no keys: these are
made from the prefix in the settings and from the name, as every lock makes them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from django.core import signing

from ..base import people, tokens
from ..base.clock import now
from ..base.exceptions import LockError
from ..primitives.contract import Claim
from ..primitives.keys import validate_key, validate_name
from ..primitives.timestamp import TOGETHER
from ..settings import conf, kinds
from ..settings.policy import DEFAULTS, EXPORT_VALIDATORS, Policy
from ..settings.validators import MIN_TTL, validate_label
from ..transport.server import clustered
from .lifetime import NEVER, Lifetime
from .notes import EXPORTED

SALT = "django_redislock.lease.lease"


class Exported(NamedTuple):
    """The exported facts of a lease that continues in another process."""

    name: str
    token: str
    label: str
    policy: Policy
    note: str
    """How often it was taken over, and its text, as in lua/note.lua; "": there is none."""

    @classmethod
    def of(cls, lifetime: Lifetime, policy: Policy) -> Exported:
        """Raises `LockError` for a kind that stays where it is."""
        claim, hold_left = lifetime.claim, lifetime.hold_until - now()
        keys, primitive = claim.keys, claim.primitive
        kind = "mutex" if primitive is TOGETHER else primitive.kind
        if kind not in kinds.KINDS or kind == "redlock":
            raise LockError(f"A lease of the kind {kind!r} can't be exported.", keys.name)
        if len(claim.names) > 1:
            raise LockError("A lease on several names can't be exported.", keys.name)
        policy = policy._replace(
            # The lease as it is held, whatever the settings and the lock said.
            kind=kind,
            limit=getattr(primitive, "limit", None) if kind == "semaphore" else None,
            timestamp_key=keys.lock if keys.named_by_others else keys.timestamp_key or None,
            fractions=getattr(primitive, "fractions", False),
            # Near the end of `max_hold` both are less than anybody may ask for.
            ttl=max(claim.ttl, MIN_TTL),
            max_hold=None if hold_left == NEVER else max(hold_left, MIN_TTL),
            renew=lifetime.renew,
        )
        note = "" if lifetime.notes is None else lifetime.notes.exported
        return cls(keys.name, str(claim.token), claim.label, policy, note)

    def signed(self) -> str:
        """Return the text."""
        said = self._asdict() | self.policy._asdict()
        return signing.dumps({field: said[field] for field in _FIELDS}, salt=SALT)

    @classmethod
    def read(cls, text: object) -> Exported:
        """Raises `ValueError` for any other text."""
        try:
            if not isinstance(text, str):
                raise TypeError(text)
            said = signing.loads(text, salt=SALT)
        except (signing.BadSignature, TypeError, ValueError, RecursionError):
            raise ValueError(
                "text must be what Lease.export() returned, in a process with the same "
                "SECRET_KEY: its signature is wrong"
            ) from None
        try:
            return cls._of(said)
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(
                f"text must be what Lease.export() returned, of the same version of "
                f"django-redislock and with the same settings: {error}"
            ) from None

    @classmethod
    def _of(cls, said: dict[str, Any]) -> Exported:
        said = ADDED | said
        fields: dict[str, Any] = {
            field: None if said[field] is DEFAULTS[field] is None else validate(said[field], field)
            for field, validate in EXPORT_VALIDATORS.items()
        }
        if said["prefix"] != conf.prefix():
            raise ValueError(
                f"REDISLOCK['PREFIX'] was {said['prefix']!r} there, and here it is "
                f"{conf.prefix()!r}"
            )
        policy = Policy(prefix=conf.prefix(), **fields)
        kinds.primitive(policy)  # raises unless its fields go together
        validate = validate_key if policy.kind == "timestamp" else validate_name
        return cls(
            name=validate(said["name"]),
            token=tokens.validate(said["token"]),
            label=people.clean(validate_label(said["label"])),
            policy=policy,
            note=str(said["note"]),
        )

    def claim(self) -> Claim:
        """Return the claim of this thread or task that continues the lease."""
        policy = self.policy
        claim = Claim(
            keys=kinds.keys(policy, self.name, clustered),
            token=tokens.new(),
            ttl=min(policy.ttl, policy.max_hold or policy.ttl),
            owner=people.owner(people.holder()),
            label=self.label,
            primitive=kinds.primitive(policy),
            guarded=kinds.guarded(policy, clustered),
        )
        times, _, text = self.note.partition("|")
        claim.found = EXPORTED + f"{times}|0|0|{text}".encode() if text else None
        return claim


ADDED = {"note": "", **{field: DEFAULTS[field] for field in ("note_ttl", "keep_note")}}
"""Fields that are not in the texts of the first versions."""
_FIELDS = ("name", "token", "label", "note", "prefix", *EXPORT_VALIDATORS)

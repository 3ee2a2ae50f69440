"""The text by which a lease goes on in another process.

Such a text passes through queues, files and forms, where others may change it. So it is signed
with the `SECRET_KEY` of the project, as Django signs a session, and it names no keys: these are
made from the prefix in the settings and from the name, as every lock makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.core import signing

from ..base import label, tokens
from ..base.clock import now
from ..base.exceptions import LockError
from ..primitives import mutex_and_timestamp as migration
from ..primitives.keys import Keys, validate_key, validate_name
from ..primitives.permits import Permits
from ..primitives.timestamp import Timestamp
from ..settings import conf, kinds
from ..settings.policy import DEFAULTS, EXPORT_VALIDATORS, Policy
from ..settings.validators import MIN_TTL, validate_label
from ..transport.server import clustered

if TYPE_CHECKING:
    from .lease import Lease

SALT = "django_redislock.lease.lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What is said of a lease that goes on in another process."""

    name: str
    token: str
    label: str
    policy: Policy

    @classmethod
    def of(cls, lease: Lease) -> Exported:
        """Raises `LockError` for a kind that stays where it is."""
        claim = lease.claim
        keys, primitive = claim.keys, claim.primitive
        kind, limit = "mutex" if primitive is migration else primitive.kind, None
        if kind not in kinds.KINDS or kind == "redlock":
            raise LockError(f"A lease of the kind {kind!r} can't be exported.", lease.name)
        if isinstance(primitive, Permits) and kind == "semaphore":
            limit = primitive.limit
        left = lease.hold_left(now())
        policy = Policy(
            using=lease.using,
            prefix=conf.prefix(),
            kind=kind,
            limit=limit,
            timestamp_key=keys.lock if keys.stem else keys.also or None,
            fractions=isinstance(primitive, Timestamp) and primitive.fractions,
            # Near the end of `max_hold` both are less than anybody may ask for.
            ttl=max(claim.ttl, MIN_TTL),
            max_hold=None if left is None else max(left, MIN_TTL),
            renew=lease.renew,
            replicas=lease.replicas,
            replicas_timeout=lease.replicas_timeout,
            release=lease.release_at,
        )
        return cls(name=lease.name, token=lease.token, label=lease.label, policy=policy)

    def signed(self) -> str:
        """The text."""
        policy = self.policy._asdict()
        said = {
            "name": self.name,
            "token": self.token,
            "label": self.label,
            "prefix": self.policy.prefix,
            **{term: policy[term] for term in EXPORT_VALIDATORS},
        }
        return signing.dumps(said, salt=SALT)

    @classmethod
    def read(cls, text: object) -> Exported:
        """Raises `ValueError`, whatever the text is."""
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
        terms: dict[str, Any] = {}
        for term, validate in EXPORT_VALIDATORS.items():
            value = said[term]
            unsaid = value is None and DEFAULTS[term] is None
            terms[term] = None if unsaid else validate(value, term)
        if said["prefix"] != conf.prefix():
            raise ValueError(
                f"REDISLOCK['PREFIX'] was {said['prefix']!r} there, and here it is "
                f"{conf.prefix()!r}"
            )
        policy = Policy(prefix=conf.prefix(), **terms)
        kinds.primitive(policy)  # which its terms must make together
        is_key = policy.kind == "timestamp"
        return cls(
            name=validate_key(said["name"]) if is_key else validate_name(said["name"]),
            token=tokens.validate(said["token"]),
            label=label.clean(validate_label(said["label"])),
            policy=policy,
        )

    @property
    def keys(self) -> Keys:
        return kinds.keys(self.policy, self.name, clustered)

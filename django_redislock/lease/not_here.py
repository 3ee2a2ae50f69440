"""What other libraries have on their locks, and what to write here."""

from __future__ import annotations

from .lease import Lease

_OWNED = (
    "lease.state says whether we hold it, for the lease that acquire() returns; locked() of the "
    "lock says whether anybody does."
)
_EXTENDED = "A lease is renewed while its holder lives; lease.extend() does it by hand."
_CLEARED = "Write lease.release(), or clear(reason=…) to take the lock away from its holder."
_OTHER_NAMES = {
    "owned": _OWNED,
    "is_held": _OWNED,
    "is_owned": _OWNED,
    "reacquire": _EXTENDED,
    "refresh": _EXTENDED,
    "renew": _EXTENDED,
    "reset": _CLEARED,
    "unlock": _CLEARED,
    "get_owner_id": "holder() says who holds it.",
}


def no_attribute(kind: str, name: str) -> AttributeError:
    """Return the error for an attribute that a lock of this kind does not have."""
    # Other libraries have release() and extend() on the lock.
    if not name.startswith("_") and hasattr(Lease, name):
        return AttributeError(
            f"{kind} has no {name}: its lease has. acquire() returns the lease, and so does "
            f"`with {kind}(…) as lease`."
        )
    if name in _OTHER_NAMES:
        return AttributeError(f"{kind} has no {name}. {_OTHER_NAMES[name]}")
    return AttributeError(f"{kind!r} object has no attribute {name!r}")

"""How a primitive asks its port: once more after a lost connection, and in batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..base.exceptions import LockUnavailable
from .contract import Claim, Refusal

if TYPE_CHECKING:
    from .contract import Port

T = TypeVar("T")


async def twice(
    ask: Callable[[], Awaitable[T]], claim: Claim | None = None, *, gives_back: bool = False
) -> T:
    """Return what `ask` answers; ask once more if the connection is lost. An idle connection that
    the server had closed fails so.

    `claim` remembers a doubtful failure, and if `ask` gives it back. Raises `LockUnavailable`.
    """
    asked = False
    while True:
        try:
            return await ask()
        except LockUnavailable as error:
            if claim is not None:
                claim.doubtful |= error.doubtful
                # A request that was never sent releases nothing.
                claim.given_back |= gives_back and error.doubtful
            if asked or not error.passing or error.silent:
                raise
            asked = True


def too_late(claim: Claim, *, doubtful: bool = False) -> LockUnavailable:
    """The error for a grant that arrived after its lease had ended."""
    name = claim.keys.name
    return LockUnavailable(
        f"Redis took longer to answer than the lease on {name!r} lives", name, doubtful=doubtful
    )


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def verdicts(reply: Sequence[Any], number: int) -> list[Refusal | None]:
    """Read what a script that extends this number of leases has answered: for each lease None if
    it was extended, else why not. The answer names only the others, since an answer for each of
    ten thousand leases is long."""
    found: list[Refusal | None] = [None] * number
    for position, *refusal in reply[1:]:
        found[position - 1] = Refusal(*refusal)
    return found


def batches(port: Port, keys: Sequence[str], most: int) -> Iterator[list[int]]:
    """Positions of keys that may be given to one script, up to `most` at a time."""
    slots: dict[int, list[int]] = {}
    for position, key in enumerate(keys):
        slots.setdefault(port.slot(key), []).append(position)
    for positions in slots.values():
        for start in range(0, len(positions), most):
            yield positions[start : start + most]


async def in_batches(
    port: Port, keys: Sequence[str], most: int, ask: Callable[[list[int]], Awaitable[None]]
) -> None:
    """Ask for the positions of each of the `batches`. It may turn out by the first one that the
    server has slots; then it has carried out nothing of it, and is asked again by slot."""
    for batch in batches(port, keys, most):
        try:
            await ask(batch)
        except LockUnavailable:
            parts = [*batches(port, [keys[position] for position in batch], most)]
            if len(parts) == 1:
                raise
            for part in parts:
                await ask([batch[position] for position in part])

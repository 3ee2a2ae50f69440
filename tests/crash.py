"""What a crash reporter would send of an exception: its messages, and the variables of its
frames, of all exceptions in the chain."""

from __future__ import annotations

import traceback


def report(error: BaseException) -> str:
    """Everything that a reporter shows: the chain is followed also where Python's own traceback
    leaves it out (`raise … from None`)."""
    texts = []
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        texts += traceback.TracebackException.from_exception(one, capture_locals=True).format(
            chain=False
        )
        texts += [repr(one), repr(one.args), repr(vars(one))]
        pending += [one.__cause__, one.__context__]
    return "".join(texts)

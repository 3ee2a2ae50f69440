"""What a crash reporter would send of an exception: its messages, and the variables of its
frames, of all exceptions in the chain."""

from __future__ import annotations

import traceback
from pathlib import Path

TESTS = str(Path(__file__).parent)


def report(error: BaseException) -> str:
    """Everything that a reporter shows but the variables of the tests. The chain is followed also
    where Python's own traceback leaves it out (`raise … from None`)."""
    texts: list[str] = []
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        told = traceback.TracebackException.from_exception(one, capture_locals=True)
        for frame in told.stack:
            if not frame.filename.startswith(TESTS):
                texts += [f"{frame.filename}:{frame.lineno} {frame.name}", repr(frame.locals)]
        texts += [*told.format_exception_only(), repr(one), repr(one.args), repr(vars(one))]
        pending += [one.__cause__, one.__context__]
    return "\n".join(texts)

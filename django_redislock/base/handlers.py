"""Exceptions that a signal's handler raises in the middle of anything."""

from __future__ import annotations


def by_a_handler(error: BaseException) -> bool:
    """Return whether a signal's handler raised it: a function that gets the frame that it
    interrupts as an argument."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        interrupted, trace = trace.tb_frame, trace.tb_next
        for given in trace.tb_frame.f_locals.values():
            if given is interrupted or (isinstance(given, tuple) and interrupted in given):
                return True
    return False

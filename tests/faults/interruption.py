"""An exception from outside, at each place in our code where CPython may raise one.

Ctrl-C, the handler of a signal, the soft time limit of a task queue and
`PyThreadState_SetAsyncExc` all raise in the middle of something. Not everywhere, though: CPython
looks for them when a function begins, after a call of something written in C, and when a loop
goes back. These places are found by stepping through the code, one opcode at a time.

    for place in every_place(lambda number: something(f"job {number}")):
        ...                             # it has been interrupted there, once
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self

import django_redislock

PACKAGE = str(Path(django_redislock.__file__).parent)

BEGINNING, CALLED, LOOPED, ELSEWHERE = "the beginning", "after a call", "in a loop", ""


class Interrupted(BaseException):
    """What comes from outside. No Exception, as KeyboardInterrupt is none."""


class Place(NamedTuple):
    function: str
    line: str
    kind: str

    def __str__(self) -> str:
        return f"{self.line} in {self.function}, {self.kind}"


@cache
def _after(code: CodeType) -> dict[int, str]:
    """What CPython may look after: by the offset of an instruction that it has carried out."""
    kinds = {}
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("CALL", "CALL_FUNCTION_EX", "CALL_KW"):
            kinds[instruction.offset] = CALLED
        elif "JUMP_BACKWARD" in instruction.opname:
            kinds[instruction.offset] = LOOPED
    return kinds


class _Stepper:
    """A trace function that raises at the place with a given number."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._seen = 0
        self._kinds: dict[FrameType, str] = {}
        """For each frame that runs: what it did last."""
        self.place: Place | None = None

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Self | None:
        if event == "call":
            # After the call of a Python function nobody looks, since that did. A class is not a
            # function, and calls __init__ from C.
            if frame.f_back in self._kinds and frame.f_code.co_name != "__init__":
                self._kinds[frame.f_back] = ELSEWHERE
            if not frame.f_code.co_filename.startswith(PACKAGE):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            kind = self._kinds.get(frame, BEGINNING)
            self._kinds[frame] = _after(frame.f_code).get(frame.f_lasti, ELSEWHERE)
            if kind:
                self._look(frame, kind)
        elif event == "return":
            self._kinds.pop(frame, None)
        return self

    def _look(self, frame: FrameType, kind: str) -> None:
        self._seen += 1
        if self._seen == self._number:
            code = frame.f_code
            line = f"{Path(code.co_filename).name}:{frame.f_lineno}"
            self.place = Place(code.co_qualname, line, kind)
            raise Interrupted(str(self.place))


def every_place(act: Callable[[int], object]) -> Iterator[tuple[int, Place]]:
    """Call `act(number)` again and again, and interrupt it at one place after the other.

    Only the first exception is raised: what it sets off goes on to its end. Ends when `act` has,
    without being interrupted.
    """
    number = 0
    while True:
        number += 1
        stepper = _Stepper(number)
        before = sys.gettrace()
        sys.settrace(stepper)
        try:
            act(number)
        except Interrupted:
            pass
        finally:
            sys.settrace(before)
        if stepper.place is None:
            return
        yield number, stepper.place

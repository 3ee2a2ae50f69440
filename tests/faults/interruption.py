"""An exception from outside, at each place in our code where CPython may raise one.

Ctrl-C, the handler of a signal, the soft time limit of a task queue and
`PyThreadState_SetAsyncExc` all raise in the middle of something. Not everywhere, though: CPython
looks for them when a function begins, after a call of something written in C, and when a loop
goes back. From Python 3.12 on `sys.monitoring` tells of just these places; before that they are
found by stepping through the code, one opcode at a time.

    for place in every_place(lambda number: something(f"job {number}")):
        ...                             # it has been interrupted there, once
"""

from __future__ import annotations

import dis
import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, Self

import django_redislock

OURS = str(Path(django_redislock.__file__).parent)

BEGINNING, CALLED, LOOPED, ELSEWHERE = "the beginning", "after a call", "in a loop", ""


class Interrupted(BaseException):
    """What comes from outside. No Exception, as KeyboardInterrupt and SystemExit are none."""


class Limit(Exception):
    """As a task queue says that the time of a task is over: an Exception, like any other."""


class Alarm(TimeoutError):
    """As many a handler of SIGALRM raises. Sockets raise it, too."""


class Trouble(OSError):
    """A handler may raise this as well. Sockets do."""


Kind = type[BaseException]
KINDS: tuple[Kind, ...] = (Interrupted, Limit, Alarm, Trouble)


class Place(NamedTuple):
    """Where it was raised, and what became of it. Keeps no frame, and so no lease, alive."""

    number: int
    file: str
    function: str
    line: str
    kind: str
    raised: str
    """What kind of exception it was."""
    instead: str | None = None
    """What the interrupted call ended with in its place; None: it went through."""

    def __str__(self) -> str:
        return f"{self.raised} at {self.line} in {self.function}, {self.kind}"


class _Interrupter:
    """Raises at the place with a given number."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = tuple(folders)
        self._number = self._seen = 0
        self._error: BaseException = Interrupted()
        self._place: Place | None = None
        self._in_a_finalizer = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def run(self, act: Callable[[int], object], number: int, kind: Kind) -> Place | None:
        """None: there are not so many places."""
        self._number, self._seen = number, 0
        raised = self._error = kind("from outside")
        self._place, self._in_a_finalizer, instead = None, False, "nothing"
        self._report, sys.unraisablehook = sys.unraisablehook, self._unraisable
        try:
            self._watching(act, number)
        except BaseException as error:
            if self._place is None:
                raise
            instead = "" if error is raised else repr(error)
        finally:
            sys.unraisablehook = self._report
            self._error = Interrupted()
        place: Place | None = self._place
        if place is None:
            return None
        return place._replace(instead=None if self._in_a_finalizer else instead or None)

    def _unraisable(self, report: sys.UnraisableHookArgs) -> None:
        """Whoever raises in what a finalizer calls, interrupts nobody else."""
        if report.exc_value is self._error:
            self._in_a_finalizer = True
        else:
            self._report(report)

    def _watching(self, act: Callable[[int], object], number: int) -> None:
        raise NotImplementedError

    def _covers(self, code: CodeType) -> bool:
        # Nobody can let an exception go through that comes in a finalizer: CPython reports it.
        return code.co_filename.startswith(self._folders) and code.co_name != "__del__"

    def _look(self, frame: FrameType, kind: str) -> None:
        self._seen += 1
        if self._seen == self._number:
            code, file = frame.f_code, Path(frame.f_code.co_filename).name
            line, raised = f"{file}:{frame.f_lineno}", type(self._error).__name__
            self._place = Place(self._number, file, code.co_qualname, line, kind, raised)
            raise self._error


@cache
def _after(code: CodeType) -> dict[int, str]:
    """What CPython may look after: by the offset of an instruction that it has carried out."""
    kinds = {}
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("CALL", "CALL_FUNCTION_EX"):
            kinds[instruction.offset] = CALLED
        elif "JUMP_BACKWARD" in instruction.opname:
            kinds[instruction.offset] = LOOPED
    return kinds


class _Stepper(_Interrupter):
    """A trace function, for Python 3.11. Later ones may look at a loop or a call in other
    opcodes, and don't tell of all of them."""

    def _watching(self, act: Callable[[int], object], number: int) -> None:
        self._kinds: dict[FrameType, str] = {}
        """For each frame that runs: what it did last."""
        self._ways: dict[FrameType, dict[int, str]] = {}
        """The same frames, with what `_after` says of their code: that has to hash it."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            act(number)
        finally:
            sys.settrace(before)
            self._kinds.clear()
            self._ways.clear()

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "call":
            # After the call of a Python function nobody looks, since that did. A class is not a
            # function, and calls __init__ from C.
            if frame.f_back in self._kinds and frame.f_code.co_name != "__init__":
                self._kinds[frame.f_back] = ELSEWHERE
            if not self._covers(frame.f_code):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._ways[frame] = _after(frame.f_code)
        elif event == "opcode":
            kind = self._kinds.get(frame, BEGINNING)
            self._kinds[frame] = self._ways[frame].get(frame.f_lasti, ELSEWHERE)
            if kind:
                self._look(frame, kind)
        elif event == "return":
            self._kinds.pop(frame, None)
            self._ways.pop(frame, None)
        return self._trace


if sys.version_info >= (3, 12):
    from sys import monitoring

    class _Monitor(_Interrupter):
        """Is called by CPython at these very places."""

        TOOL = 4
        EVENTS = (
            monitoring.events.PY_START
            | monitoring.events.PY_RESUME
            | monitoring.events.CALL  # and with it C_RETURN, of all that isn't a Python function
            | monitoring.events.JUMP
        )

        def __enter__(self) -> Self:
            monitoring.use_tool_id(self.TOOL, "interruption")
            for event, callback in {
                monitoring.events.PY_START: self._begun,
                monitoring.events.PY_RESUME: self._begun,
                monitoring.events.C_RETURN: self._returned,
                monitoring.events.JUMP: self._jumped,
            }.items():
                monitoring.register_callback(self.TOOL, event, callback)
            self._codes = [code for code in _codes() if self._covers(code)]
            for code in self._codes:
                monitoring.set_local_events(self.TOOL, code, self.EVENTS)
            return self

        def __exit__(self, *exc_info: object) -> None:
            for code in self._codes:
                monitoring.set_local_events(self.TOOL, code, 0)
            monitoring.free_tool_id(self.TOOL)

        _thread: int | None = None

        def _watching(self, act: Callable[[int], object], number: int) -> None:
            self._thread = threading.get_ident()
            try:
                act(number)
            finally:
                self._thread = None

        # As the handler of a signal, each of them knows the frame that it interrupts.

        def _begun(self, code: CodeType, offset: int) -> None:
            frame = sys._getframe(1)
            self._meet(frame, BEGINNING)

        def _returned(self, code: CodeType, offset: int, called: object, first: object) -> None:
            frame = sys._getframe(1)
            self._meet(frame, CALLED)

        def _jumped(self, code: CodeType, offset: int, to: int) -> None:
            if to < offset:
                frame = sys._getframe(1)
                self._meet(frame, LOOPED)

        def _meet(self, frame: FrameType, kind: str) -> None:
            if threading.get_ident() == self._thread:
                self._look(frame, kind)


def _codes() -> set[CodeType]:
    """Of all functions that are there."""
    gc.unfreeze()  # what tests/conftest.py has frozen would be missing
    inside = {it.__code__ for it in gc.get_objects() if type(it) is FunctionType}
    found = inside
    while inside:
        inside = {one for code in inside for one in code.co_consts if isinstance(one, CodeType)}
        found |= inside
    return found


def every_place(
    act: Callable[[int], object],
    *,
    kinds: Sequence[Kind] = (Interrupted,),
    every: int = 1,
    folders: Sequence[str] = (OURS,),
    before: Callable[[], object] = int,
) -> Iterator[Place]:
    """Call `act(number)` again and again, and interrupt it at one place after the other, or at
    `every` so many; by one kind of exception after the other. Call `before` first each time, so
    that it goes the same way although the last exception has cost a connection.

    Only the first exception is raised: what it sets off goes on to its end. Ends when `act` has,
    without being interrupted.
    """
    gc.collect()  # or finalizers of other tests' objects come in between, and are interrupted
    make = _Stepper if sys.version_info < (3, 12) else _Monitor
    with make(folders) as interrupter:
        for turn in count():
            before()
            place = interrupter.run(act, 1 + turn * every, kinds[turn % len(kinds)])
            if place is None:
                return
            yield place

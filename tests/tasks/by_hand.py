"""A task queue in this process, whose worker is the test: it takes a message when it wants to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

from django_redislock.primitives.work import Early, Start
from django_redislock.tasks import Delivery, Gate, register


class Handle(NamedTuple):
    """What a caller gets."""

    id: str


class Message(NamedTuple):
    id: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Task:
    """A task of this queue."""

    gate: Gate | None = None

    def __init__(self, function: Callable[..., Any], backlog: Backlog) -> None:
        self.function, self.backlog = function, backlog
        self.run = function
        backlog.task = self

    def enqueue(self, *args: Any, **kwargs: Any) -> Any:
        """As the queue itself, or through its gate."""
        if self.gate is None:
            return self.put(args, kwargs, None)[0]
        id = None if self.backlog.renames else f"m{next(self.backlog.numbers)}"
        return self.gate.enqueue(args, kwargs, lambda: self.put(args, kwargs, id), id=id)

    def put(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], id: str | None
    ) -> tuple[Handle, str]:
        if self.backlog.broken is not None:
            raise self.backlog.broken
        id = id or f"m{next(self.backlog.numbers)}"
        self.backlog.messages.append(Message(id, args, kwargs))
        if self.backlog.immediate:
            self.backlog.work()
        return Handle(id), id


class Backlog:
    """The messages that wait."""

    task: Task
    immediate = False
    """A message is worked on before `enqueue` returns."""
    broken: BaseException | None = None

    def __init__(self, *, renames: bool = False, numbers: Iterator[int] | None = None) -> None:
        self.messages: list[Message] = []
        self.numbers = numbers or count(1)
        self.renames = renames
        self.starts: list[Start] = []
        """Why messages did not begin."""
        self.later: list[tuple[float, Message]] = []

    def work(self, message: Message | None = None) -> Any:
        """Give a message to a worker, by default the next one."""
        message = message or self.messages.pop(0)
        gate, function = self.task.gate, self.task.function
        assert gate is not None

        def instead(start: Start) -> None:
            self.starts.append(start)
            if isinstance(start, Early):
                self.later.append((start.seconds, message))

        def text() -> bytes:
            return json.dumps(message).encode()

        return gate.run(
            Delivery(message.id, message.args, message.kwargs, text), function, instead
        )


class ByHand:
    """The queue, as the package sees it."""

    renamed = False

    def knows(self, task: object) -> bool:
        return isinstance(task, Task) and task.backlog.renames == self.renamed

    def function(self, task: Any) -> Callable[..., Any]:
        return task.function  # type: ignore[no-any-return]

    def guard(self, task: Any, gate: Gate) -> Any:
        task.gate = gate
        return task

    def send_again(self, task: Any, message: bytes) -> str:
        id, args, kwargs = json.loads(message)
        return str(task.put(tuple(args), kwargs, None if self.renamed else id)[1])

    def handle(self, task: Any, id: str) -> Any:
        return Handle(id)

    def dump(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return json.dumps([args, kwargs]).encode()

    def load(self, task: Any, text: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = json.loads(text)
        return tuple(args), kwargs


class Renaming(ByHand):
    """A queue that gives a message a new id when it is sent again."""

    renamed = True


register(ByHand())
register(Renaming())


def task(
    function: Callable[..., Any], *, renames: bool = False, numbers: Iterator[int] | None = None
) -> Task:
    """Make a task with a queue of its own."""
    return Task(function, Backlog(renames=renames, numbers=numbers))

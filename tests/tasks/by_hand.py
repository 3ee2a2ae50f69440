"""A task queue in this process, whose worker is the test: it takes a message when it wants to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

from django_redislock.primitives.work import Why
from django_redislock.tasks import Delivery, Guarded, NotBegun, register


class Handle(NamedTuple):
    """What a caller gets."""

    id: str


class Message(NamedTuple):
    id: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Task:
    """A task of this queue."""

    gate: Guarded | None = None

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
        self.starts: list[Why] = []
        """Why messages did not begin."""
        self.later: list[tuple[float, Message]] = []

    def work(self, message: Message | None = None) -> Any:
        """Give a message to a worker, by default the next one."""
        message = message or self.messages.pop(0)
        gate, function = self.task.gate, self.task.function
        assert gate is not None

        def instead(start: NotBegun) -> None:
            self.starts.append(start.why)

        its = Delivery(message.id, message.args, message.kwargs, message)
        return gate.run(its, function, instead)


class ByHand:
    """The queue, as the package sees it."""

    renamed = False

    def knows(self, task: object) -> bool:
        return isinstance(task, Task) and task.backlog.renames == self.renamed

    def function(self, task: Any) -> Callable[..., Any]:
        return task.function  # type: ignore[no-any-return]

    def guard(self, task: Any, gate: Guarded) -> Any:
        task.gate = gate
        return task

    def send_again(self, task: Any, message: Any, seconds: float = 0.0) -> str:
        id, args, kwargs = message
        new_id = None if self.renamed else id
        if seconds:
            new_id = new_id or f"m{next(task.backlog.numbers)}"
            task.backlog.later.append((seconds, Message(new_id, args, kwargs)))
            return str(new_id)
        return str(task.put(tuple(args), kwargs, new_id)[1])

    def handle(self, task: Any, id: str) -> Any:
        return Handle(id)

    def dump(self, task: Any, value: Any) -> bytes:
        return json.dumps(value).encode()

    def load(self, task: Any, text: bytes) -> Any:
        return json.loads(text)


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

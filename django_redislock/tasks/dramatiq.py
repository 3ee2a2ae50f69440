"""Tasks of Dramatiq."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from dramatiq import Actor, Message
from dramatiq.encoder import MessageData
from dramatiq.message import get_encoder
from dramatiq.middleware import CurrentMessage, Middleware, SkipMessage

from ..primitives.work import Early, Start
from .queue import Delivery, Gate


class _Retries(Middleware):
    """Lets a retry claim its name before it waits. After a kill in between, the queue delivers
    its message again."""

    def __init__(self) -> None:
        self.gates: dict[str, Gate] = {}

    def before_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:  # noqa: ARG002
        gate, id = self.gates.get(message.actor_name), message.message_id
        if gate is not None and delay is not None and message.options.get("retries"):
            gate.enqueue(message.args, message.kwargs, lambda: (message, id), id=id, again=True)


class Dramatiq:
    """Tasks of `@dramatiq.actor`."""

    renamed = False

    def knows(self, task: object) -> bool:
        return isinstance(task, Actor)

    def function(self, task: Any) -> Callable[..., Any]:
        function: Callable[..., Any] = task.fn
        return function

    def guard(self, task: Any, gate: Gate) -> Any:
        run, broker = task.fn, task.broker
        if not any(isinstance(one, CurrentMessage) for one in broker.middleware):
            broker.add_middleware(CurrentMessage())
        retries = next((one for one in broker.middleware if isinstance(one, _Retries)), None)
        if retries is None:
            broker.add_middleware(retries := _Retries())
        retries.gates[task.actor_name] = gate

        def send_with_options(
            *,
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
            delay: timedelta | int | None = None,
            **options: Any,
        ) -> Any:
            if isinstance(delay, timedelta):
                delay = int(delay.total_seconds() * 1000)
            message = task.message_with_options(args=args, kwargs=kwargs, **options)

            def send() -> tuple[Any, str]:
                return broker.enqueue(message, delay=delay), message.message_id

            return gate.enqueue(tuple(args), dict(kwargs or {}), send, id=message.message_id)

        @wraps(run)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            message: Any = CurrentMessage.get_current_message()
            if message is None or message.actor_name != task.actor_name:
                return run(*args, **kwargs)

            def instead(start: Start) -> Any:
                if isinstance(start, Early):
                    again = Message.decode(message.encode())
                    broker.enqueue(again, delay=round(start.seconds * 1000))
                raise SkipMessage(f"{type(start).__name__}: {message.message_id}")

            return gate.run(
                Delivery(message.message_id, args, kwargs, message.encode), run, instead
            )

        task.send_with_options, task.fn = send_with_options, guarded
        return task

    def send_again(self, task: Any, message: bytes) -> str:
        return str(task.broker.enqueue(Message.decode(message)).message_id)

    def handle(self, task: Any, id: str) -> Any:
        """A message with this id: its result can be asked for, and its arguments are not known."""
        return task.message().copy(message_id=id)

    def dump(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:  # noqa: ARG002
        text: bytes = get_encoder().encode({"args": args, "kwargs": kwargs})
        return text

    def load(self, task: Any, text: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:  # noqa: ARG002
        said: MessageData = get_encoder().decode(text)
        return tuple(said["args"]), said["kwargs"]


queue = Dramatiq()

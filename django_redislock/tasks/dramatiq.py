"""Tasks of Dramatiq."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from dramatiq import Actor, Message
from dramatiq.message import get_encoder
from dramatiq.middleware import CurrentMessage, Middleware, SkipMessage

from ..primitives.work import NotBegun
from .guarded import Delivery, Guarded, Queue


class _Retries(Middleware):
    """Lets a retry claim its name before it waits. After a kill in between, the queue delivers
    its message again."""

    def before_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
        actor, id = broker.actors.get(message.actor_name), message.message_id
        gate = getattr(actor, "redislock_gate", None)
        if gate is not None and delay is not None and message.options.get("retries"):
            gate.enqueue(message.args, message.kwargs, lambda: (message, id), id=id, again=True)


class Dramatiq(Queue):
    """Tasks of `@dramatiq.actor`."""

    def knows(self, task: object) -> bool:
        return isinstance(task, Actor)

    def function(self, task: Any) -> Callable[..., Any]:
        return task.fn  # type: ignore[no-any-return]

    def guard(self, task: Any, gate: Guarded) -> Any:
        run, broker = task.fn, task.broker
        for middleware in (CurrentMessage, _Retries):
            if not any(isinstance(one, middleware) for one in broker.middleware):
                broker.add_middleware(middleware())
        task.redislock_gate = gate

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

            def instead(start: NotBegun) -> Any:
                raise SkipMessage(str(start)) from start

            its = Delivery(message.message_id, args, kwargs, message.asdict())
            return gate.run(its, run, instead)

        task.send_with_options, task.fn = send_with_options, guarded
        return task

    def send_again(self, task: Any, message: Any, seconds: float = 0.0) -> str:
        again: Any = Message(**{**message, "args": tuple(message["args"])})
        delay = round(seconds * 1000) if seconds else None
        return str(task.broker.enqueue(again, delay=delay).message_id)

    def handle(self, task: Any, id: str) -> Any:
        """A message with this id: its result can be asked for, and its arguments are not known."""
        return task.message().copy(message_id=id)

    def dump(self, task: Any, value: Any) -> bytes:  # noqa: ARG002
        return bytes(get_encoder().encode(value))

    def load(self, task: Any, text: bytes) -> Any:  # noqa: ARG002
        return get_encoder().decode(text)


queue = Dramatiq()

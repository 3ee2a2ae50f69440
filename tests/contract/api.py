"""The same calls sync and async, so that a contract is written once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import pytest
from redis import Redis

from django_redislock import Lease, LockUnavailable, ainitialise, initialise, once
from django_redislock.base.people import Holder
from django_redislock.lease.lock import Lock
from django_redislock.transport.ports import AsyncPort, BasePort
from tests.calling import watch
from tests.waiting import PATIENCE, eventually


class Api(Protocol):
    """What the tests ask of a lock, blocking their thread."""

    def start(self, call: Callable[[], Any]) -> Future[Any]:
        """Begin something in another thread; its calls are another holder's."""

    def function(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """A function to decorate that runs `body`, and `call` calls."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any: ...
    def acquire(self, lock: Lock, **arguments: Any) -> Any: ...
    def enter(self, lock: Lock | once, body: Callable[[Any], Any]) -> Any: ...
    def forget(self, run: once) -> None: ...
    def initialise(self, name: str, value: Any, **options: Any) -> Any: ...
    def release(self, lease: Lease) -> Any: ...
    def extend(self, lease: Lease, *arguments: Any) -> Any: ...
    def downgrade(self, lease: Lease) -> None: ...
    def holder(self, lock: Lock) -> Holder | None: ...
    def holders(self, lock: Lock) -> list[Holder]: ...
    def locked(self, lock: Lock) -> bool: ...
    def clear(self, lock: Lock, **arguments: Any) -> Any: ...
    def restore(self, text: str) -> Any: ...
    def close(self) -> None: ...


class InThreads:
    def start(self, call: Callable[[], Any]) -> Future[Any]:
        # A new thread each time: one of a pool may be the one that holds the lock.
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future


class SyncApi(InThreads):
    def function(self, body: Callable[..., Any]) -> Callable[..., Any]:
        def work(*arguments: Any) -> Any:
            return body(*arguments)

        return work

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def forget(self, run: once) -> None:
        run.forget()

    def initialise(self, name: str, value: Any, **options: Any) -> Any:
        return initialise(name, value, **options)

    def acquire(self, lock: Lock, **arguments: Any) -> Lease | None:
        return lock.acquire(**arguments)

    def enter(self, lock: Lock | once, body: Callable[[Any], Any]) -> Any:
        with lock as lease:
            return body(lease)

    def release(self, lease: Lease) -> None:
        lease.release()

    def extend(self, lease: Lease, *arguments: Any) -> None:
        lease.extend(*arguments)

    def downgrade(self, lease: Lease) -> None:
        lease.downgrade()

    def holder(self, lock: Lock) -> Holder | None:
        return lock.holder()

    def holders(self, lock: Lock) -> list[Holder]:
        return lock.holders()

    def locked(self, lock: Lock) -> bool:
        return lock.locked()

    def clear(self, lock: Lock, **arguments: Any) -> Holder | None:
        return lock.clear(**arguments)

    def restore(self, text: str) -> Lease:
        return Lease.restore(text)

    def close(self) -> None:
        pass


class AsyncApi(InThreads):
    """Each call is a task of its own on one event loop that runs in a thread."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        self._started.wait(PATIENCE)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        # In whose threads the bodies of blocks run: some tests have many at a time.
        self._loop.set_default_executor(ThreadPoolExecutor(32))
        self._stop = asyncio.Event()
        self._started.set()
        await self._stop.wait()

    def _begin(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._begin(coroutine).result(PATIENCE)

    def function(self, body: Callable[..., Any]) -> Callable[..., Any]:
        async def work(*arguments: Any) -> Any:
            return await asyncio.to_thread(body, *arguments)

        return work

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._run(function(*arguments))

    def forget(self, run: once) -> None:
        self._run(run.aforget())

    def initialise(self, name: str, value: Any, **options: Any) -> Any:
        return self._run(ainitialise(name, value, **options))

    def acquire(self, lock: Lock, **arguments: Any) -> Lease | None:
        lease: Lease | None = self._run(lock.aacquire(**arguments))
        return lease

    def enter(self, lock: Lock | once, body: Callable[[Any], Any]) -> Any:
        async def block() -> Any:
            async with lock as lease:
                return await asyncio.to_thread(body, lease)

        return self._run(block())

    def release(self, lease: Lease) -> None:
        self._run(lease.arelease())

    def extend(self, lease: Lease, *arguments: Any) -> None:
        self._run(lease.aextend(*arguments))

    def downgrade(self, lease: Lease) -> None:
        self._run(lease.adowngrade())

    def holders(self, lock: Lock) -> list[Holder]:
        holders: list[Holder] = self._run(lock.aholders())
        return holders

    def locked(self, lock: Lock) -> bool:
        locked: bool = self._run(lock.alocked())
        return locked

    def holder(self, lock: Lock) -> Holder | None:
        holder: Holder | None = self._run(lock.aholder())
        return holder

    def clear(self, lock: Lock, **arguments: Any) -> Holder | None:
        holder: Holder | None = self._run(lock.aclear(**arguments))
        return holder

    def restore(self, text: str) -> Lease:
        lease: Lease = self._run(Lease.arestore(text))
        return lease

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)


class Computation:
    """What is to be done once, or shared. It counts its runs, and waits if it `waits`."""

    def __init__(self, *, waits: bool = False, error: Exception | None = None) -> None:
        self.runs = 0
        self.begun = threading.Event()
        self.may_end = threading.Event()
        if not waits:
            self.may_end.set()
        self.error = error

    def __call__(self) -> Any:
        self.runs += 1
        number = self.runs
        self.begun.set()
        assert self.may_end.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return {"run": number}


class Meanwhile:
    """Do something once, in the middle of the next script."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._script = BasePort.script
        self._act: Callable[[], Any] | None = None
        watch(monkeypatch, self._watched())

    def __call__(self, act: Callable[[], Any], *, answered: bool = False) -> None:
        """Do it before the script is sent, or after Redis has carried it out.

        What `act` does itself is done by the thread that sends, as by the handler of a signal. If
        it returns a future, another thread or task does it, and the script goes on afterwards.
        """
        self._act, self._answered = act, answered

    def _watched(self) -> Any:
        async def script(port: Any, *call: Any) -> Any:
            act, self._act = self._act, None
            if act is None:
                return await self._script(port, *call)
            if self._answered:
                answer = await self._script(port, *call)
                await self._do(port, act)
                return answer
            await self._do(port, act)
            return await self._script(port, *call)

        return script

    @staticmethod
    async def _do(port: Any, act: Callable[[], Any]) -> None:
        future = act()
        if isinstance(future, Future):
            if isinstance(port, AsyncPort):
                await asyncio.wait_for(asyncio.wrap_future(future), PATIENCE)
            else:
                future.result(PATIENCE)


def extended(api: Api, lease: Lease) -> bool:
    """Whether Redis could be asked to extend it."""
    try:
        api.extend(lease)
    except LockUnavailable:
        return False
    return True


def elsewhere(api: Api, lock: Lock, wait: float | None = 0) -> Future[Any]:
    """Ask for a lock in another thread or task."""
    return api.start(lambda: api.acquire(lock, wait=wait))


def queued(redis: Redis, name: str, number: int = 1) -> None:
    """Wait until so many stand in the queue of a name."""
    eventually(lambda: redis.zcard(f"redislock:{{{name}}}:queue") == number)

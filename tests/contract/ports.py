"""The same calls through both ports, so that a contract is written once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from django_redislock import Lease, redis_lock
from django_redislock.exceptions import Holder
from tests.waiting import PATIENCE


class Port(Protocol):
    """What the tests ask of a lock, blocking, from whichever thread or task `start` makes."""

    name: str

    def start(self, call: Callable[[], Any]) -> Future[Any]:
        """Begin something elsewhere: another thread, or another task."""

    def acquire(self, lock: redis_lock, **arguments: Any) -> Any: ...
    def enter(self, lock: redis_lock, body: Callable[[Lease], Any]) -> Any: ...
    def release(self, lease: Lease) -> Any: ...
    def extend(self, lease: Lease, *arguments: Any) -> Any: ...
    def holder(self, lock: redis_lock) -> Holder | None: ...
    def clear(self, lock: redis_lock, **arguments: Any) -> Any: ...
    def restore(self, text: str) -> Any: ...
    def close(self) -> None: ...


class SyncPort:
    name = "sync"

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=64)

    def start(self, call: Callable[[], Any]) -> Future[Any]:
        return self._threads.submit(call)

    def acquire(self, lock: redis_lock, **arguments: Any) -> Lease | None:
        return lock.acquire(**arguments)

    def enter(self, lock: redis_lock, body: Callable[[Lease], Any]) -> Any:
        with lock as lease:
            return body(lease)

    def release(self, lease: Lease) -> None:
        lease.release()

    def extend(self, lease: Lease, *arguments: Any) -> None:
        lease.extend(*arguments)

    def holder(self, lock: redis_lock) -> Holder | None:
        return lock.holder()

    def clear(self, lock: redis_lock, **arguments: Any) -> Holder | None:
        return lock.clear(**arguments)

    def restore(self, text: str) -> Lease:
        return Lease.restore(text)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


class AsyncPort:
    """Each call is a task of its own on one event loop that runs in a thread."""

    name = "async"

    def __init__(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        self._started.wait(PATIENCE)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._started.set()
        await self._stop.wait()

    def _begin(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._begin(coroutine).result(PATIENCE)

    def start(self, call: Callable[[], Any]) -> Future[Any]:
        # The calls below block their thread, and the loop does the work.
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future

    def acquire(self, lock: redis_lock, **arguments: Any) -> Lease | None:
        lease: Lease | None = self._run(lock.aacquire(**arguments))
        return lease

    def enter(self, lock: redis_lock, body: Callable[[Lease], Any]) -> Any:
        async def block() -> Any:
            async with lock as lease:
                return await asyncio.to_thread(body, lease)

        return self._run(block())

    def release(self, lease: Lease) -> None:
        self._run(lease.arelease())

    def extend(self, lease: Lease, *arguments: Any) -> None:
        self._run(lease.aextend(*arguments))

    def holder(self, lock: redis_lock) -> Holder | None:
        holder: Holder | None = self._run(lock.aholder())
        return holder

    def clear(self, lock: redis_lock, **arguments: Any) -> Holder | None:
        holder: Holder | None = self._run(lock.aclear(**arguments))
        return holder

    def restore(self, text: str) -> Lease:
        lease: Lease = self._run(Lease.arestore(text))
        return lease

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)

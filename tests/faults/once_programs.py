"""What the processes of test_once.py run."""

from __future__ import annotations

import asyncio

from django_redislock import LeaseLost, LockError, once, single_flight
from tests.worker import say, told


def work(on_failure: str = "retry") -> None:
    """Do the job once, when told to go on; or find it done."""
    try:
        with once("job", on_failure=on_failure, wait=None) as first:  # type: ignore[arg-type]
            say("first" if first else "done")
            if first:
                told()
    except LeaseLost:
        say("lost")
    else:
        say("left")


def share(ttl: str = "") -> None:
    """Get the number that the first one is told; compute when nobody does."""

    @single_flight("number", float(ttl) if ttl else None, wait=None)
    def number() -> str:
        say("computing")
        word = told()
        if not word:
            raise ZeroDivisionError("no number")
        return word

    for attempt in range(2):
        say("asking")
        try:
            say("got", number())
        except (ZeroDivisionError, LockError) as error:
            say(type(error).__name__, error)
        if attempt == 0 and told() == "end":
            return


def ashare() -> None:
    """The same in a coroutine."""

    @single_flight("number", wait=None)
    async def number() -> str:
        say("computing")
        return await asyncio.to_thread(told)

    async def main() -> None:
        say("asking")
        say("got", *await asyncio.gather(number(), number()))

    asyncio.run(main())


def fork() -> None:
    """Fork in the middle of a computation: the child has no part in it."""
    import os

    @single_flight("number", wait=None)
    def number() -> int:
        if os.getpid() == parent:
            if (child := os.fork()) == 0:
                say("child", elsewhere())
                os._exit(0)
            children.append(child)
        return os.getpid()

    def elsewhere() -> bool:
        # In another thread, since this one is in the middle of it.
        import threading

        results: list[int] = []
        thread = threading.Thread(target=lambda: results.append(number()))
        thread.start()
        thread.join()
        return results == [os.getpid()] or results == [parent]

    parent, children = os.getpid(), []
    say("parent", number() == parent)
    os.waitpid(children[0], 0)

"""Worker: where blocking file work is done, one job after another, in the order in which it was given.

The only thread of the process that the log knows of is in `ThreadWorker`: one thread, one queue, results handed back
to the loop. A simulator gives a worker that does the job in place and lets virtual time pass.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Worker(Protocol):
    """Runs jobs one at a time, first come, first served."""

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the job returns or raises. A job that was given is done, even when nobody waits for it any more."""
        ...


class ThreadWorker:
    """A worker with a thread of its own. The thread dies with the process: a job half done then is a torn write."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="timerd-disk", daemon=True)
        self._thread.start()

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                result = job(*args, **kwargs)
            except BaseException as error:
                _hand_back(loop, _fail, future, error)
            else:
                _hand_back(loop, _resolve, future, result)

        self._jobs.put(work)
        return await future

    async def close(self) -> None:
        """Return when all jobs given so far are done and the thread has ended."""
        self._jobs.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _work(self) -> None:
        while (work := self._jobs.get()) is not None:
            work()


def _hand_back(loop: asyncio.AbstractEventLoop, settle: Callable[..., None], *args: Any) -> None:
    with suppress(RuntimeError):  # the loop was closed meanwhile: nobody is left who waits
        loop.call_soon_threadsafe(settle, *args)


def _resolve(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[T]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)

"""The machine under a node: a process that can be killed at any instant, and a disk that takes time and fails.

A process is a context: whatever task is begun in it, by whomever, belongs to it, and `end` cancels them all. From that
moment no job of its worker runs any more. So an end is as abrupt as a kill: what is on the disk stays as it is.

The power can be cut at any verb of the disk, in the middle of a job too (`cut_in`). A kill leaves what was written and
not synced in the cache, where the next process finds it, and a later power cut may still take it away.
"""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from tests.sim.disk import FakeDisk
from timerd_storage import body

if TYPE_CHECKING:
    from tests.sim.loop import VirtualLoop

P = ParamSpec("P")
T = TypeVar("T")

CHANGES: Final = frozenset({"write", "allocate", "truncate", "sync", "sync_directory", "unlink", "open"})


class PowerCut(BaseException):
    """The power went in the middle of a job."""


class Process:
    """One life of timerd."""

    def __init__(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        self.number = number
        self.alive = True
        self.ended: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._context = copy_context()
        self._context.run(_PROCESS.set, self)

    def begin(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """A task of this process."""
        return self._loop.create_task(work, context=self._context)

    def own(self, task: "asyncio.Task[Any]") -> None:
        """Note a task; one that a callback begins after the end is cancelled at once."""
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        if not self.alive:
            task.cancel()

    def end(self) -> None:
        """Kill it."""
        if self.alive:
            self.alive = False
            for task in list(self._tasks):
                task.cancel()
            self.ended.set_result(None)

    async def buried(self) -> None:
        """Return when none of its tasks is left. One that wants to clean up first is told again: it is dead."""
        while self._tasks:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.sleep(0)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            # The traceback holds the frames, and in them replies that were not given. Those are not seen by the
            # collector (`gc=False`), so that what leads back to itself through them would never go.
            with suppress(asyncio.CancelledError):
                task.result()


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class _Task(asyncio.Task[Any]):
    """A task whose place in a set depends on when it was made, not on where in memory: sets of them have an order."""

    def __init__(self, work: Any, loop: "VirtualLoop", context: Context | None) -> None:
        loop.tasks_made += 1
        self._number = loop.tasks_made
        super().__init__(work, loop=loop, context=context)

    def __hash__(self) -> int:
        return self._number


def make_task(loop: Any, work: Any, context: Context | None = None) -> "asyncio.Task[Any]":
    """A task factory: tasks belong to the process in whose context they begin."""
    task = _Task(work, loop, context)
    process = _PROCESS.get() if context is None else context.get(_PROCESS)
    if process is not None:
        process.own(task)
    return task


class SimDisk(FakeDisk):
    """A disk whose faults are told it beforehand."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.cut_in: int | None = None
        """Changes until the power goes; None = it stays."""
        self.fail_next: str | None = None
        """The verb (`sync`, `write` or `read`) that fails when it is called next."""
        self.bad_bodies = False
        """No payload that lies apart can be read."""
        self.failed = False
        """It has, and the process may end over it."""
        self.starting = True
        self.on_call = self._consult

    def kill(self) -> None:
        """The process is gone, and the machine goes on: handles and locks are void, the cache stays."""
        self._handles.clear()
        self._locks.clear()

    def _consult(self, verb: str, path: Path) -> None:
        if self.cut_in is not None and verb in CHANGES:
            self.cut_in -= 1
            if self.cut_in <= 0:
                self.cut_in = None
                raise PowerCut
        bad = self.bad_bodies and verb == "read" and body.number_of(path.name) is not None
        if bad or verb == self.fail_next:
            if not bad:
                self.fail_next = None
            # A payload that can't be read keeps a process from starting, and ends none.
            self.failed = self.failed or self.starting or not bad
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


class SimWorker:
    """Jobs of one process, in order, each taking its time. Implements `timerd_storage.worker.Worker`.

    A job is done at one instant, some time after it was given and some time before its giver hears of it. As in the
    real worker, a job that was given is done even when nobody waits for it any more, unless the process has ended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        process: Process,
        random: Random,
        pace: "Pace",
        on_cut: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._process = process
        self._random = random
        self._pace = pace
        self._on_cut = on_cut
        self._jobs: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()
        self._busy = False

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.append((future, partial(job, *args, **kwargs)))
        if not self._busy:
            self._next()
        return await future

    def _next(self) -> None:
        self._busy = True
        self._loop.call_later(self._pace.draw(self._random), self._do)

    def _do(self) -> None:
        if not self._process.alive:
            return
        future, job = self._jobs.popleft()
        try:
            value = job()
        except PowerCut:
            self._on_cut()
            return
        except BaseException as error:
            answer = partial(_fail, future, error)
        else:
            answer = partial(_resolve, future, value)
        self._loop.call_later(self._pace.draw(self._random) / 4, self._hand_back, answer)

    def _hand_back(self, answer: Callable[[], None]) -> None:
        if self._process.alive:
            answer()
            if self._jobs:
                self._next()
            else:
                self._busy = False


class Pace:
    """How long a job takes: `usual_s` on average, and `stall_s` more while the disk stalls."""

    def __init__(self, usual_s: float) -> None:
        self.usual_s = usual_s
        self.stall_s = 0.0

    def draw(self, random: Random) -> float:
        return self.usual_s * (0.5 + random.random()) + self.stall_s * random.random()


def _resolve(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)

"""The loop of a run with several machines: each has its own time on it, and can be stopped while the others go on.

What a process begins belongs to it (`machine.py`), so its callbacks can be told from the others'. In a process `time()`
is its machine's, which runs fast or slow, and what it waits for comes by that time. A process that is frozen does
nothing: whatever would have been called is called when it thaws, in the order in which it had come.

So a pause may lie between any two callbacks, and nowhere else.
"""

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Final

from tests.sim.loop import VirtualLoop
from tests.sim.machine import _PROCESS, Process

RATE_MIN: Final = 0.9
RATE_MAX: Final = 1.1


class Oscillator:
    """What a machine counts time with: `time()` are its seconds. True seconds go through it at `rate`."""

    def __init__(self, loop: "ClusterLoop", rate: float) -> None:
        self._loop = loop
        self._rate = rate
        self._mark = loop.true_time()
        self._base = self._mark

    @property
    def rate(self) -> float:
        """Its seconds in a true one."""
        return self._rate

    def time(self) -> float:
        """Whoever asks."""
        return self._base + (self._loop.true_time() - self._mark) * self._rate

    def true_s(self, when: float) -> float:
        """When its time will be that, if its rate stays."""
        return self._mark + (when - self._base) / self._rate

    def drift(self, rate: float) -> None:
        """From now on at another rate."""
        self._base, self._mark = self.time(), self._loop.true_time()
        self._rate = rate


class NodeProcess(Process):
    """One life of a node."""

    def __init__(self, loop: "ClusterLoop", number: int, oscillator: Oscillator) -> None:
        self.oscillator = oscillator
        self.frozen = False
        self.held: list[asyncio.Handle] = []
        self.shards: Callable[[int], Any] = lambda shard: None
        """What it has made of a shard's stream, for whoever compares."""
        self.seat: Any = None
        """What plans know it by."""
        self._ready_again = loop.again
        super().__init__(loop, number)

    def __repr__(self) -> str:
        return f"process {self.number}"

    def freeze(self) -> None:
        """It does nothing more."""
        self.frozen = True

    def thaw(self) -> None:
        """It goes on."""
        self.frozen = False
        held, self.held = self.held, []
        self._ready_again(held)

    def end(self) -> None:
        """Kill it, frozen or not."""
        self.frozen = False
        super().end()
        self.thaw()


class _Handle(asyncio.Handle):
    __slots__ = ()

    def _run(self) -> None:
        process = self._context.get(_PROCESS)  # type: ignore[attr-defined]
        if process is not None and process.frozen:
            process.held.append(self)
        else:
            super()._run()  # type: ignore[misc]


class _Timer(asyncio.TimerHandle):
    __slots__ = ("_local",)

    def _run(self) -> None:
        process = self._context.get(_PROCESS)  # type: ignore[attr-defined]
        if process is None:
            super()._run()  # type: ignore[misc]
        elif process.frozen:
            process.held.append(self)
        elif self._local is not None and process.oscillator.time() < self._local - 1e-9:
            self._loop.put_back(self, process.oscillator.true_s(self._local))  # type: ignore[attr-defined]
        else:
            super()._run()  # type: ignore[misc]


class ClusterLoop(VirtualLoop):
    """`true_time` is nobody's in particular; `time` is that of whoever asks."""

    def true_time(self) -> float:
        return self._virtual.now

    def time(self) -> float:
        process = _PROCESS.get()
        return self._virtual.now if process is None else process.oscillator.time()  # type: ignore[attr-defined]

    def again(self, handles: list[asyncio.Handle]) -> None:
        """Let these be run."""
        self._ready.extend(handles)  # type: ignore[attr-defined]

    def put_back(self, timer: Any, when: float) -> None:
        """It was too soon for this one."""
        timer._when = when
        timer._scheduled = True
        self._heap_push(timer)

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = _Handle(callback, args, self, context if context is not None else copy_context())
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        asking = _PROCESS.get()
        local: float | None = None
        if asking is not None:
            local, when = when, asking.oscillator.true_s(when)  # type: ignore[attr-defined]
        if context is None:
            context = copy_context()
        elif context.get(_PROCESS) is not asking:
            local = None
        timer = _Timer(when, callback, args, self, context)
        timer._local = local
        timer._scheduled = True  # type: ignore[attr-defined]
        self._heap_push(timer)
        return timer

    def _heap_push(self, timer: asyncio.TimerHandle) -> None:
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]

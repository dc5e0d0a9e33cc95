"""Lag over the last minute, by samples: what a batch adds is bounded, however many timers it has, and so is a second.

What is kept is a block of plain numbers a second. An object for each sample would live a minute among objects that live
for moments, and keep the memory of a backlog from being given back when the backlog is gone.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from typing import Final

from timerd.engine.timer import Timer
from timerd.report import LagWindow

WINDOW_S: Final = 60
SAMPLES_A_BATCH: Final = 32
SAMPLES_A_SECOND: Final = 2_048  # a minute of them is a megabyte a type


class _Second:
    """The lags of one second: of every `step`-th sample, and the largest of all timers."""

    def __init__(self, boot_s: int) -> None:
        self.boot_s = boot_s
        self.largest = 0
        self.samples = array("q")
        self._step = 1
        self._offered = 0

    def add(self, lags: list[int]) -> None:
        self.samples.extend(lags[-self._offered % self._step :: self._step])
        self._offered += len(lags)
        while len(self.samples) > SAMPLES_A_SECOND:
            self.samples = self.samples[::2]
            self._step *= 2


class LagSamples:
    """One type's lags: from when a first attempt was due to when its delivery started."""

    def __init__(self) -> None:
        self._seconds: deque[_Second] = deque()

    def add(self, boot_s: int, wall_ms: int, timers: Sequence[Timer]) -> None:
        """A batch of first attempts leaves."""
        step = -(-len(timers) // SAMPLES_A_BATCH)
        # As `due_at` has it, without a property's call for each timer.
        oldest = min([at if (at := t.fire_at) > (armed_at := t.generation // 1000) else armed_at for t in timers])
        if not self._seconds or self._seconds[-1].boot_s != boot_s:
            self._seconds.append(_Second(boot_s))
            self._forget(boot_s)
        second = self._seconds[-1]
        second.largest = max(second.largest, wall_ms - oldest)
        # (None is negative: generations go on where the wall clock has gone back.)
        second.add([max(0, wall_ms - timer.due_at) for timer in timers[::step]])

    def report(self, boot_s: int) -> LagWindow:
        """The last minute as of now."""
        self._forget(boot_s)
        lags = sorted([lag for second in self._seconds for lag in second.samples])
        if not lags:
            return LagWindow()
        largest = max(second.largest for second in self._seconds)
        return LagWindow(lags[len(lags) // 2], lags[len(lags) * 99 // 100], largest)

    def _forget(self, boot_s: int) -> None:
        while self._seconds and self._seconds[0].boot_s <= boot_s - WINDOW_S:
            self._seconds.popleft()

"""Lag over the last minute, by samples: what a batch adds is bounded, however many timers it has."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from timerd.engine.timer import Timer
from timerd.report import LagWindow

WINDOW_S: Final = 60
SAMPLES_A_BATCH: Final = 32


class LagSamples:
    """One type's lags: from when a first attempt was due to when its delivery started."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, list[int], int]] = deque()  # (boot s, lags of some, the largest of all)

    def add(self, boot_s: int, wall_ms: int, timers: Sequence[Timer]) -> None:
        """A batch of first attempts leaves."""
        step = -(-len(timers) // SAMPLES_A_BATCH)
        # As `due_at` has it, without a property's call for each timer.
        oldest = min([at if (at := t.fire_at) > (armed_at := t.generation // 1000) else armed_at for t in timers])
        self._samples.append((boot_s, [wall_ms - timer.due_at for timer in timers[::step]], wall_ms - oldest))
        self._forget(boot_s)

    def report(self, boot_s: int) -> LagWindow:
        """The last minute as of now."""
        self._forget(boot_s)
        lags = sorted(lag for _, some, _ in self._samples for lag in some)
        if not lags:
            return LagWindow()
        largest = max(largest for _, _, largest in self._samples)
        return LagWindow(lags[len(lags) // 2], lags[len(lags) * 99 // 100], largest)

    def _forget(self, boot_s: int) -> None:
        while self._samples and self._samples[0][0] <= boot_s - WINDOW_S:
            self._samples.popleft()

"""When to write checkpoint slices: the arithmetic behind "the log stays small" (promise 9). Pure.

The log may take 3 x live + 2 segments. Slices are written over the slots that pin the oldest segment, so that the log
loses its oldest segment about as fast as it grows. Writing later costs less (more of what a segment held is dead by
then), too late breaks the bound: before the oldest segment can go, the live bytes of all slots that pin it must be
written again, while appends go on. So slices begin when

    in use + 1.5 x (live bytes pinned by the oldest segment)  >  2.5 x live + 1 or 2 segments

and then may take `PACE` times the bytes that others append: with PACE = 2 at most half of the pinned bytes is appended
meanwhile, which is what the factor 1.5 is for. What is left of live and segments covers what is counted roughly: frame
heads, fill of the last segment, slices of unequal size.

Slices fill segments themselves. Where a checkpoint is about as large as a segment they would chase each other for ever,
with nobody appending anything; that is why the pace counts only what others append, and what dies: live bytes may go
with hardly a frame (a cancel of a large timer, the end of a move), and leave a log behind that was right for more.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

PACE: Final = 2
SLICES_A_TURN_MAX: Final = 6  # about 15 ms of the loop
TURN_BYTES_PRESSED: Final = 768 << 10
"""What turns may gather in all while slices are being written: half of what that many slices come to, so that the pace
is kept whatever is offered. Beyond it callers wait a little."""


class LogState(NamedTuple):
    """Bytes, measured or estimated."""

    disk: int
    """The segments in use, filler included. Spare ones are the room that is kept, and no slice makes them fewer."""
    segment: int
    live: int
    """A full checkpoint."""
    pinned: int
    """The part of a full checkpoint that has to be written before the oldest segment can go; 0: it can go now."""


def is_pressing(log: LogState) -> bool:
    """Whether slices should be written."""
    # The log grows by whole segments: where they are large beside a checkpoint, one has to be left for that.
    segments = log.segment if log.live < 2 * log.segment else 2 * log.segment
    return log.pinned > 0 and log.disk + 3 * log.pinned // 2 > 5 * log.live // 2 + segments


class Pace:
    """How many bytes of slices may be written, by what others have appended and what has died."""

    def __init__(self) -> None:
        self._allowed = 0
        self._earned = 0  # of it by what was appended last
        self._written = 0  # slices since the last `appended`, by what they were taken for
        self._live: int | None = None  # at the last `appended`

    def written(self, slice_bytes: int) -> None:
        """A slice that `take` allowed is written, or will never be; it was taken for so many bytes."""
        self._written += slice_bytes

    def appended(self, size: int, live: int) -> None:
        """So much was appended in all, what was `written` among it. At most a checkpoint is saved up.

        A life begins with one: what the one before had earned is not known. What slices were taken for is a guess,
        sometimes a large one. What is left of it is given back: were it owed instead, what others append would be taken
        for it, and slices would stop while the log grows.
        """
        slices = min(size, self._written)
        unused = self._written - slices
        self._written = 0
        died = live if self._live is None else max(0, self._live - live)
        self._live = live
        self._earned = PACE * (size - slices)
        self._allowed = min(self._allowed + self._earned + unused + died, max(live, self._allowed))

    def take(self, slices: Iterable[int]) -> list[int]:
        """The first of these slices (what each takes, about) that are to be written with the next turn, when pressing.

        Of what is saved up one at a time: it need not be all at once, and others wait for the loop.
        """
        taken: list[int] = []
        earned = self._earned
        for slice_bytes in slices:
            if len(taken) == SLICES_A_TURN_MAX or slice_bytes > self._allowed or (taken and slice_bytes > earned):
                break
            # The first one is what may be taken of what is saved up.
            earned -= slice_bytes if taken else 0
            self._allowed -= slice_bytes
            taken.append(slice_bytes)
        return taken

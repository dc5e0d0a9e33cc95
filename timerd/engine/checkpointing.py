"""When to write checkpoint slices: the arithmetic behind "the log stays small" (promise 9). Pure.

The log may take 3 x live + 2 segments. Slices are written over the slots that pin the oldest segment, so that the log
loses its oldest segment about as fast as it grows. Writing later costs less (more of what a segment held is dead by
then), too late breaks the bound: before the oldest segment can go, the live bytes of all slots that pin it must be
written again, while appends go on. So slices begin when

    on disk + 1.5 x (live bytes pinned by the oldest segment)  >  2.5 x live + 1 segment

and then take `PACE` times the bytes that turns append: with PACE = 2 at most half of the pinned bytes is appended
meanwhile, which is what the factor 1.5 is for. The half segment and quarter of live that are left over cover what is
counted roughly: frame heads, fill of the last segment, slices of unequal size.
"""

from typing import Final, NamedTuple

PACE: Final = 2
SLICES_A_TURN_MAX: Final = 6  # about 15 ms of the loop
TURN_BYTES_PRESSED: Final = 768 << 10
"""What turns may gather in all while slices are being written: half of what that many slices come to, so that the pace
is kept whatever is offered. Beyond it callers wait a little."""


class LogState(NamedTuple):
    """Bytes, measured or estimated."""

    disk: int
    """All segments of frames, filler included."""
    segment: int
    live: int
    """A full checkpoint, and the room kept for completions."""
    pinned: int
    """The part of a full checkpoint that has to be written before the oldest segment can go; 0: it can go now."""


def is_pressing(log: LogState) -> bool:
    """Whether slices should be written."""
    return log.pinned > 0 and log.disk + 3 * log.pinned // 2 > 5 * log.live // 2 + log.segment


def slices_for(appended: int, slice_bytes: int) -> int:
    """How many slices to write with the next turn, when pressing."""
    wanted = -(-PACE * appended // max(1, slice_bytes))
    return max(1, min(SLICES_A_TURN_MAX, wanted))

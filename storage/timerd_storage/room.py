"""Room: how much of the disk must be in hand before more is accepted. Arithmetic only.

What is in hand is the rest of the segment being written and the zero-filled spares behind it (for frames), and the
blocks taken for bodies. Against it stand what was granted and is not written yet, the caller's reserve, and a cushion
of one segment. Granted bytes count as used until the append that they leave with has returned.
"""

from typing import Final

_WASTE_BYTES_MAX: Final = 2 << 20  # what the largest usual frame leaves unused at a segment's end
_BODY_OVERHEAD: Final = 1.6  # a body of 513 bytes with the longest id, heads included


class Room:
    """What is granted and reserved, in bytes."""

    def __init__(self, segment_bytes: int, piece_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        # Filling aims a piece above what a grant asks for, so that small grants never wait for it, and may overshoot by
        # another: together one segment, which is what an idle log holds beside the one being written.
        self._cushion = segment_bytes - 2 * piece_bytes
        self._ahead = piece_bytes
        # Each segment crossed loses what its last frame did not fit into; the first such loss is the cushion's.
        self._waste = min(segment_bytes // 2, _WASTE_BYTES_MAX)
        self._granted_frames = 0
        self._granted_bodies = 0
        self._leaving_frames = 0
        self._leaving_bodies = 0
        self._reserve = 0

    @property
    def granted(self) -> bool:
        """Whether something was granted that does not leave with an append under way."""
        return self._granted_frames > self._leaving_frames or self._granted_bodies > self._leaving_bodies

    def grant(self, frame_bytes: int, body_bytes: int) -> None:
        """Count these as used."""
        self._granted_frames += frame_bytes
        self._granted_bodies += body_bytes

    def reserve(self, length: int) -> None:
        """Keep this much for what ends timers, from now on."""
        self._reserve = length

    def append_begins(self, waiting_frames: int = 0, waiting_bodies: int = 0) -> None:
        """What was granted so far leaves with the append that begins, but for what waits on."""
        self._leaving_frames = max(0, self._granted_frames - waiting_frames)
        self._leaving_bodies = max(0, self._granted_bodies - waiting_bodies)

    def append_returned(self) -> None:
        """It is written, or was never needed."""
        self._granted_frames -= self._leaving_frames
        self._granted_bodies -= self._leaving_bodies
        self._leaving_frames = self._leaving_bodies = 0

    def frames_to_fill(self, more: int) -> int:
        """Bytes of frames that are to be in hand, so that `more` and a little beside it will be accepted."""
        return self.frames_wanted(more) + self._ahead

    def frames_too_many(self, more: int = 0) -> int:
        """Bytes of frames in hand from which on some are to be given back, when `more` are asked for.

        A reserve that comes and goes must not have files made and deleted all the time, so this leaves it some play.
        """
        return self.frames_to_fill(more) + 2 * self._ahead + self._reserve // 2

    def frames_leaving(self, in_hand: int, more: int) -> int:
        """By how much the reserve was larger for which so much came into hand, when `more` are asked for."""
        too_many = max(0, in_hand - self.frames_too_many(more))
        # As `frames_too_many` goes with the reserve: by what segments waste, and by half of it.
        usable = self.segment_bytes - self._waste
        return too_many * 2 * usable // (2 * self.segment_bytes + usable)

    def frames_wanted(self, more: int) -> int:
        """Bytes of frames that must be in hand for `more` to be accepted."""
        return self._cushion + self._frames_needed(more)

    def frames_beyond(self, in_hand: int) -> int:
        """Of so many bytes in hand, what neither the reserve nor anything granted needs: at most the cushion, when
        appends live on it, and less when a torn end or slices have taken of that."""
        return max(0, in_hand - self._frames_needed(0))

    def _frames_needed(self, more: int) -> int:
        length = self._granted_frames + more + self._reserve
        return length * self.segment_bytes // (self.segment_bytes - self._waste)

    def bodies_wanted(self, more: int) -> int:
        """Bytes of bodies that must be in hand for `more` to be accepted."""
        return int((self._granted_bodies + more) * _BODY_OVERHEAD)

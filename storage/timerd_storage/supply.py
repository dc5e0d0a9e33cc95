"""Supply: sees to it that the log has room in hand before more is accepted, and says when it has not.

Room is made in the background, a piece at a time: blocks for bodies, spares for frames; spares that a smaller reserve
no longer asks for are deleted, and so are those that were made for somebody who had to be refused after all. A full
disk is met here and nowhere else: what was granted or reserved is in hand already, so appends go on; grants are refused
until an attempt, made at most every 0.2 s and only when somebody asks, finds space again.

Who asks for more than is in hand, on a disk that clearly has it, may wait in line until it is made. Nobody waits
without a task that makes room: when that ends, with whatever result, all who are left are answered.

Whatever else the system refuses while room is made (no descriptor is left, say) is met in the same way, and told once:
nothing of the log has been touched. Only when a spare can't be deleted is the log's order of names in doubt, and the
log fails.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from timerd_storage.bodies import Bodies
from timerd_storage.disk import NO_SPACE, Disk
from timerd_storage.room import Room
from timerd_storage.spares import Spares

_FILL_AGAIN_S: Final = 0.2  # soon enough for a caller that tries again, too seldom to spin
_CLEARLY_FREE_SEGMENTS: Final = 2  # free beside what is missing: then it is worth waiting for


class Waiting(NamedTuple):
    """Somebody who asks for more than is in hand."""

    frame_bytes: int
    body_bytes: int
    granted: "asyncio.Future[bool]"


class Supply:
    """The room of one log. `rest` tells what the segment being written still holds."""

    def __init__(
        self, directory: Path, disk: Disk, spares: Spares, bodies: Bodies, room: Room, rest: Callable[[], int]
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._spares = spares
        self._bodies = bodies
        self._room = room
        self._rest = rest
        self._filling: asyncio.Task[None] | None = None
        self._starved = False  # the last attempt met a full disk
        self._fill_after = 0.0  # on the loop's clock: no attempt before
        self._told = False  # of what the attempts fail for, which is not want of space
        self._stopped = True
        self._reserve_known = False
        self._line: deque[Waiting] = deque()
        self._line_frames = 0  # what they ask for
        self._line_bodies = 0
        self._handed_frames = 0  # granted to those in line, who have not heard of it
        self._handed_bodies = 0
        self.failure: Exception | None = None
        """What went wrong, if the log can't go on."""

    def start(self) -> None:
        """The log can be written from now on."""
        self._stopped = False
        self.refill()

    async def stop(self) -> None:
        """Return when nothing is being filled any more."""
        self._stopped = True
        if self._filling:
            await self._filling

    async def grant(self, frame_bytes: int, body_bytes: int, reserve_bytes: int) -> bool:
        """Take this much out of what is in hand, if need be when it has been made, or say that it can't be had now."""
        self._know(reserve_bytes)
        if not frame_bytes and not body_bytes:
            await self._give_back()
        if not self._line and not self._missing(frame_bytes, body_bytes):
            self._room.grant(frame_bytes, body_bytes)
            self._fill(0, 0)
            return True
        if not self._in_sight(frame_bytes, body_bytes):
            self._fill(frame_bytes, body_bytes)
            return False
        waiting = Waiting(frame_bytes, body_bytes, asyncio.get_running_loop().create_future())
        self._line.append(waiting)
        self._line_frames += frame_bytes
        self._line_bodies += body_bytes
        self.refill()
        if self._filling is None or self._filling.done():
            self._dismiss()
        try:
            return await waiting.granted
        finally:
            if waiting.granted.done() and not waiting.granted.cancelled() and waiting.granted.result():
                self._handed_frames -= frame_bytes
                self._handed_bodies -= body_bytes

    def keep(self, reserve_bytes: int) -> None:
        """The reserve is this from now on. Nobody waits: it may be another in a moment."""
        self._know(reserve_bytes)
        self.refill()

    @property
    def leaving_bytes(self) -> int:
        """By how much what is kept was larger, while the difference is being given back; 0 if it only lies about."""
        if self._filling is None or self._filling.done():
            return 0
        return self._room.frames_leaving(self._in_hand(), self._line_frames)

    @property
    def beyond_bytes(self) -> int:
        """What is in hand and not needed for the reserve."""
        return self._room.frames_beyond(self._in_hand())

    def _know(self, reserve_bytes: int) -> None:
        self._room.reserve(reserve_bytes)
        self._reserve_known = True

    async def _give_back(self) -> None:
        """Return when what the reserve does not ask for any more has been given back."""
        self._fill(0, 0)
        while self._to_drop() and self._filling and not self._filling.done():
            await asyncio.wait([self._filling])

    def append_begins(self, waiting_bytes: int) -> None:
        """What was granted leaves with it, but for so much, and for what nobody can have used."""
        self._room.append_begins(waiting_bytes + self._handed_frames, self._handed_bodies)

    def low(self) -> bool:
        """Whether what is in hand and in sight is within the reserve."""
        self.refill()
        return not self._in_sight(0, 0)

    def refill(self) -> None:
        """Make what room is missing, unless the disk has just been found full; give back what is too much."""
        self._serve()
        self._fill(0, 0)

    def space_came_back(self) -> None:
        """Something was deleted: the disk may be thought to have room again, until it says otherwise."""
        self._starved = False
        self._fill_after = 0.0
        self.refill()

    def _in_hand(self) -> int:
        return self._rest() + self._spares.taken

    def _to_fill(self, frame_bytes: int) -> bool:
        return self._rest() + self._spares.room < self._room.frames_to_fill(self._line_frames + frame_bytes)

    def _to_drop(self) -> bool:
        if not self._reserve_known:  # what an earlier life has left may be just that
            return False
        last = self._spares.last_room
        return last is not None and self._in_hand() - last >= self._room.frames_too_many()

    def _to_prepare(self, body_bytes: int) -> bool:
        return self._bodies.full or self._bodies.room < self._room.bodies_wanted(self._line_bodies + body_bytes)

    def _missing(self, frame_bytes: int, body_bytes: int) -> int:
        missing = max(0, self._room.frames_wanted(frame_bytes) - self._in_hand())
        return missing + max(0, self._room.bodies_wanted(body_bytes) - self._bodies.room)

    def _in_sight(self, frame_bytes: int, body_bytes: int) -> bool:
        missing = self._missing(self._line_frames + frame_bytes, self._line_bodies + body_bytes)
        if not missing:
            return True
        if self._starved:
            return False
        # A burst may outrun the filling; on a disk that has plenty nobody is to be refused for it.
        return self._disk.space(self._directory).free >= missing + _CLEARLY_FREE_SEGMENTS * self._room.segment_bytes

    def _fill(self, frame_bytes: int, body_bytes: int) -> None:
        if self._stopped or self.failure or (self._filling and not self._filling.done()):
            return
        missing = self._to_fill(frame_bytes) or self._to_prepare(body_bytes)
        # What is given back needs no space, so it waits for no next attempt.
        if self._to_drop() or (missing and self._may_try()):
            self._filling = asyncio.get_running_loop().create_task(self._make_room(frame_bytes, body_bytes))

    def _may_try(self) -> bool:
        return asyncio.get_running_loop().time() >= self._fill_after

    def _serve(self) -> None:
        """Grant to those in line, in order, what has come into hand."""
        while self._line:
            frame_bytes, body_bytes, granted = self._line[0]
            if not granted.done():
                if self._missing(frame_bytes, body_bytes):
                    return
                self._room.grant(frame_bytes, body_bytes)
                self._handed_frames += frame_bytes
                self._handed_bodies += body_bytes
                granted.set_result(True)
            self._leave()

    def _dismiss(self) -> None:
        """It can't be had."""
        while self._line:
            if not self._line[0].granted.done():
                self._line[0].granted.set_result(False)
            self._leave()

    def _leave(self) -> None:
        left = self._line.popleft()
        self._line_frames -= left.frame_bytes
        self._line_bodies -= left.body_bytes

    async def _make_room(self, frame_bytes: int, body_bytes: int) -> None:
        try:
            if not self._may_try() or not await self._add_room(frame_bytes, body_bytes):
                self._dismiss()  # and what was made for them goes again, like anything that is too much
            while not self._stopped and self._to_drop():
                await self._spares.drop_last(self._in_hand() - self._room.frames_too_many())
                self._serve()
                if self._line or self._to_prepare(0):
                    await self._add_room(0, 0)
        except Exception as error:
            if not isinstance(error, OSError) or error.errno not in NO_SPACE:
                self.failure = error
            self._pause()
        finally:
            self._dismiss()

    async def _add_room(self, frame_bytes: int, body_bytes: int) -> bool:
        """False: it can't be had now."""
        try:
            # Blocks cost a moment, zeros much longer.
            while not self._stopped and ((bodies := self._to_prepare(body_bytes)) or self._to_fill(frame_bytes)):
                if bodies and self._to_drop():
                    return True  # that gives space, comes first, and is not put off by bodies without end
                await (self._bodies.prepare(self._spares.piece_bytes) if bodies else self._spares.add_piece())
                self._serve()
        except OSError as error:
            if error.errno not in NO_SPACE and not self._told:
                self._told = True
                name = errno.errorcode.get(error.errno or 0, "")
                structlog.get_logger().warning("log_room_not_made", errno=name, reason=str(error))
            self._pause()
            return False
        self._starved = self._told = False
        return True

    def _pause(self) -> None:
        self._starved = True
        self._fill_after = asyncio.get_running_loop().time() + _FILL_AGAIN_S

"""How much room the servers have left, as far as they say: so that arms are refused before anything else must wait.

An account may have a limit; servers have theirs, and say what they hold where timerd's account may ask
(docs/cluster.md). What nobody says is taken for endless. A look costs an answer of each server, so it is made now and
then, in the background, and sooner the less there is; in between, what was appended is counted off.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from timerd_cluster.connection import ApiError, NoAnswer
from timerd_cluster.servers import ENDLESS, Servers

LOOK_MS: Final = 10_000
LOOK_MIN_MS: Final = 200  # however much is appended
LOOK_PART: Final = 8  # of what is left, appended since, is a reason for a look
SPARE_BYTES: Final = 1 << 20  # servers count what they add to messages, too

log = structlog.get_logger()


class Room:
    """For all logs of a process: each takes its `share`."""

    def __init__(self, servers: Servers, boot_ms: Callable[[], int]) -> None:
        self._servers = servers
        self._boot_ms = boot_ms
        self._free_bytes = ENDLESS
        self._appended_bytes = 0  # since the last look
        self._shares: set[Share] = set()
        self._looked_ms: int | None = None
        self._looking: asyncio.Task[None] | None = None

    def share(self, segment_bytes: int) -> "Share":
        """One log's, to be given back by its `stop`."""
        share = Share(self, segment_bytes)
        self._shares.add(share)
        return share

    def stop(self, share: "Share") -> None:
        """That log is no more."""
        self._shares.discard(share)
        if not self._shares and self._looking is not None:
            self._looking.cancel()

    def left(self) -> int:
        """What may still be appended by all."""
        return self._free_bytes - self._appended_bytes - sum(share.granted_bytes for share in self._shares)

    def kept(self) -> int:
        """What has to stay free for all."""
        return sum(share.kept_bytes for share in self._shares) + SPARE_BYTES

    def appended(self, length: int) -> None:
        """So much was appended."""
        self._appended_bytes += length
        pressed = self._appended_bytes * LOOK_PART > self._free_bytes or self.left() < self.kept()
        self.want_look(LOOK_MIN_MS if pressed else LOOK_MS)

    def purged(self) -> None:
        """There may be more room than was known."""
        if self._free_bytes < ENDLESS:
            self.want_look(0)

    def want_look(self, after_ms: int) -> None:
        """Look in the background, unless the last look was so short a time ago."""
        if self._looking is not None and not self._looking.done():
            return
        if self._looked_ms is None or self._boot_ms() - self._looked_ms >= after_ms:
            self._looking = asyncio.get_running_loop().create_task(self.look())

    async def look(self) -> None:
        """Ask now. What can't be learned leaves what was known."""
        appended = self._appended_bytes
        try:
            self._free_bytes = await self._servers.free_bytes()
        except (NoAnswer, ApiError) as error:
            log.warning("room_unknown", reason=str(error))
            return
        finally:
            self._looked_ms = self._boot_ms()
        self._appended_bytes -= appended


class Share:
    """One log's part."""

    def __init__(self, room: Room, segment_bytes: int) -> None:
        self.granted_bytes = 0
        """Granted, and taken along by no append."""
        self._room = room
        self._segment_bytes = segment_bytes
        self._reserve_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """What has to stay free for this log."""
        return self._reserve_bytes + self._segment_bytes

    @property
    def granted(self) -> bool:
        """Whether something was granted that no append has taken along."""
        return self.granted_bytes > 0

    def keep(self, reserve_bytes: int) -> None:
        """This is the reserve from now on."""
        self._reserve_bytes = reserve_bytes

    def grant(self, arm_bytes: int, reserve_bytes: int) -> bool:
        """Whether there is room for that beside all reserves, and a segment of each log."""
        self.keep(reserve_bytes)
        if self._room.left() < arm_bytes + self._room.kept():
            self._room.want_look(LOOK_MIN_MS)
            return False
        self.granted_bytes += arm_bytes
        return True

    def low(self) -> bool:
        """Whether only the reserve is left."""
        return self._room.left() < self._room.kept()

    def appended(self, length: int, waiting_bytes: int) -> None:
        """So much was appended; of what was granted so much waits on."""
        self.granted_bytes = min(self.granted_bytes, waiting_bytes)
        self._room.appended(length)

    def purged(self) -> None:
        """There may be more room than was known."""
        self._room.purged()

    def stop(self) -> None:
        """Take part no more."""
        self._room.stop(self)

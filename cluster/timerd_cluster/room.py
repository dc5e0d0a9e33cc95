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
    """For one log."""

    def __init__(self, servers: Servers, segment_bytes: int, boot_ms: Callable[[], int]) -> None:
        self._servers = servers
        self._segment_bytes = segment_bytes
        self._boot_ms = boot_ms
        self._free_bytes = ENDLESS
        self._appended_bytes = 0  # since the last look
        self._granted_bytes = 0
        self._reserve_bytes = 0
        self._looked_ms: int | None = None
        self._looking: asyncio.Task[None] | None = None

    @property
    def granted(self) -> bool:
        """Whether something was granted that no append has taken along."""
        return self._granted_bytes > 0

    def grant(self, arm_bytes: int, reserve_bytes: int) -> bool:
        """Whether there is room for that beside the reserve and a segment."""
        self._reserve_bytes = reserve_bytes
        if self._left() < arm_bytes + self._kept():
            self._look(LOOK_MIN_MS)
            return False
        self._granted_bytes += arm_bytes
        return True

    def low(self) -> bool:
        """Whether only the reserve is left."""
        return self._left() < self._kept()

    def appended(self, length: int, waiting_bytes: int) -> None:
        """So much was appended; of what was granted so much waits on."""
        self._appended_bytes += length
        self._granted_bytes = min(self._granted_bytes, waiting_bytes)
        pressed = self._appended_bytes * LOOK_PART > self._free_bytes or self.low()
        self._look(LOOK_MIN_MS if pressed else LOOK_MS)

    def purged(self) -> None:
        """There may be more room than was known."""
        if self._free_bytes < ENDLESS:
            self._look(0)

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

    def stop(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()

    def _left(self) -> int:
        return self._free_bytes - self._appended_bytes - self._granted_bytes

    def _kept(self) -> int:
        return self._reserve_bytes + self._segment_bytes + SPARE_BYTES

    def _look(self, after_ms: int) -> None:
        if self._looking is not None and not self._looking.done():
            return
        if self._looked_ms is None or self._boot_ms() - self._looked_ms >= after_ms:
            self._looking = asyncio.get_running_loop().create_task(self.look())

"""Admission: how much of what callers send is taken up in one turn of the loop.

Everything shares one loop: when hundreds of large requests are there at once, taking all of them up in one turn keeps
deliveries, small requests and new connections waiting for as long as that takes. So bodies pass here first in, first
out, a share a turn. Who would wait too long is told so, before the body is read.
"""

import asyncio
from collections import deque
from typing import Final

BYTES_A_TURN: Final = 512 * 1024  # about ten thousand small arms, 20 ms; or one body, however large
WAIT_S_MAX: Final = 1.0  # of who is next


class Admission:
    """Of one loop. Nothing runs while nobody asks."""

    def __init__(self) -> None:
        self._left = BYTES_A_TURN
        self._waiting: deque[tuple[asyncio.Future[None], int, float]] = deque()  # (told, bytes, since when)
        self._refilling = False

    def is_full(self) -> bool:
        """Whether who is next has waited for long."""
        return bool(self._waiting) and asyncio.get_running_loop().time() - self._waiting[0][2] > WAIT_S_MAX

    async def enter(self, size: int) -> None:
        """Wait until a body of `size` may be taken up."""
        if self._left > 0 and not self._waiting:
            self._spend(size)
            return
        loop = asyncio.get_running_loop()
        told = loop.create_future()
        self._waiting.append((told, size, loop.time()))
        await told

    def _spend(self, size: int) -> None:
        self._left -= size
        if not self._refilling:
            self._refilling = True
            asyncio.get_running_loop().call_soon(self._refill)  # in the next turn

    def _refill(self) -> None:
        self._refilling = False
        self._left = BYTES_A_TURN
        while self._waiting and self._left > 0:
            told, size, _ = self._waiting.popleft()
            if not told.done():  # else whoever asked has gone
                told.set_result(None)
                self._spend(size)

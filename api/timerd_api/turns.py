"""Turns: calls that read much take turns, so that those that read or write little need not wait for all of them.

A page of a thousand timers keeps the loop for some milliseconds. Fifty callers that ask for one at once would keep it
for a second, and an arm that comes meanwhile would wait for all of them. So one such call works at a time, after each
the loop is left to others for as long as it took, and only so many wait.

Only the reading itself may be in a turn, never the sending: a caller that does not take its answer would keep the turn.
"""

import asyncio
import time
from types import TracebackType
from typing import Final

from timerd_api.problem import OVERLOADED, Problem

WAITING_MAX: Final = 64  # at some milliseconds each, who waits longer has given up
WAIT_S_MAX: Final = 10.0  # in a cluster others' shards may be long in answering
AT_ONCE_IN_A_CLUSTER: Final = 8  # most of such a call is waiting for other nodes
PAUSE_S_MAX: Final = 0.05


class Turns:
    """One at a time, or a few: `async with turns`. Raises Problem when too many wait already, or it takes too long."""

    def __init__(self, at_once: int = 1) -> None:
        self._lock = asyncio.Semaphore(at_once)
        self._waiting = 0
        self._began = 0.0
        self._free_at = 0.0

    async def __aenter__(self) -> None:
        if self._waiting >= WAITING_MAX:
            raise Problem(OVERLOADED, "too many calls that read much wait for their turn")
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                await self._lock.acquire()
        except TimeoutError:
            raise Problem(OVERLOADED, "calls that read much take too long") from None
        finally:
            self._waiting -= 1
        try:
            if (pause := self._free_at - time.monotonic()) > 0:
                await asyncio.sleep(pause)
        except BaseException:
            self._lock.release()
            raise
        self._began = time.monotonic()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = time.monotonic()
        self._free_at = now + min(now - self._began, PAUSE_S_MAX)
        self._lock.release()

"""timerd inside another process: in memory, on a virtual clock, without a port. For tests of what uses it.

It is the service itself, joined from the parts that keep nothing: what a test sees of it is what the process does.
"""

import logging
import random
import time
from typing import Self

import structlog

from timerd import boot
from timerd.engine.settings import Settings
from timerd.node import Node
from timerd.ports import Deliver
from timerd.turner import Turner
from timerd.virtual_clock import VirtualClock
from timerd_api.app import create_app
from timerd_api.settings import ApiSettings
from timerd_storage.memory_catalog import MemoryCatalog
from timerd_storage.memory_log import MemoryLog

SHARDS = 2  # more than one, so that a test meets what comes of that; few, since each costs a turn


class InProcess:
    """One service. `app` is its API, an ASGI application that serves requests to a loopback `Host`."""

    def __init__(self, node: Node, clock: VirtualClock, turner: Turner) -> None:
        self.app = create_app(node, ApiSettings(), turner)
        self.clock = clock
        self.turner = turner
        self._node = node

    @classmethod
    async def start(cls, deliver: Deliver, *, now_ms: int | None = None) -> Self:
        """A service without timers, whose clock shows `now_ms` (if None, the time). Deliveries go through `deliver`."""
        if not structlog.is_configured():  # else the program's own settings hold
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
        clock = VirtualClock(time.time_ns() // 1_000_000 if now_ms is None else now_ms)
        settings = Settings(shards=SHARDS)
        # Jitter from a fixed seed: a test that passes once passes again.
        node = await boot.start(settings, MemoryLog(), MemoryCatalog(), clock, deliver, random.Random(0).random)  # noqa: S311
        return cls(node, clock, node.turner(clock))

    async def stop(self) -> None:
        """End at once; deliveries that are open are broken off."""
        await self._node.stop(0)

"""timerd inside another process: in memory, on a virtual clock, without a port. For tests of what uses it.

It is the service itself, joined from the parts that keep nothing: what a test sees of it is what the process does.
"""

import logging
import random
import time
from collections.abc import Sequence
from typing import Self

import structlog

from timerd import boot
from timerd.engine.address import Address, Network, Targets
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


class MountedTargets(Targets):
    """Beside what is allowed, the addresses at which something inside the process answers; more may come."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        super().__init__(allowed)
        self.mounted: set[Address] = set()

    def refusal(self, address: Address) -> str | None:
        """See `Targets`."""
        return None if address in self.mounted else super().refusal(address)


class InProcess:
    """One service. `app` is its API, an ASGI application that serves requests to a loopback `Host`."""

    def __init__(self, node: Node, clock: VirtualClock, turner: Turner, targets: Targets) -> None:
        self.app = create_app(node, ApiSettings(targets=targets), turner)
        self.clock = clock
        self.turner = turner
        self._node = node

    @classmethod
    async def start(cls, deliver: Deliver, *, now_ms: int | None = None, targets: Targets | None = None) -> Self:
        """A service without timers, whose clock shows `now_ms` (if None, the time). Deliveries go through `deliver`.

        `targets` says which addresses callbacks may be armed for; what is connected to is up to `deliver`.
        """
        if not structlog.is_configured():  # else the program's own settings hold
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
        clock = VirtualClock(time.time_ns() // 1_000_000 if now_ms is None else now_ms)
        settings = Settings(shards=SHARDS)
        # Jitter from a fixed seed: a test that passes once passes again.
        node = await boot.start(settings, MemoryLog(), MemoryCatalog(), clock, deliver, random.Random(0).random)  # noqa: S311
        return cls(node, clock, node.turner(clock), targets or Targets())

    async def stop(self) -> None:
        """End at once; deliveries that are open are broken off."""
        await self._node.stop(0)

"""A node of a cluster, joined by what the roof joins it with, and its front."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from tests.sim.cluster.checker import GRACE_S
from tests.sim.cluster.loop import NodeProcess
from timerd import joining
from timerd.config import Config
from timerd.engine.errors import CorruptLog, LogFailed
from timerd.engine.settings import Settings
from timerd.engine.shard import Shard
from timerd.node import Node
from timerd.store import OF_THE_CLUSTER

if TYPE_CHECKING:
    from tests.sim.cluster.host import Host
    from tests.sim.cluster.world import World

MAY_FAIL: Final = (*OF_THE_CLUSTER, LogFailed, CorruptLog)


class Joined:
    """Implements `host.Life`."""

    def __init__(self, joined: joining.Joined) -> None:
        self.service: Any = joined.front
        self._joined = joined
        self._node: Node = joined.node

    def held(self) -> Mapping[int, int]:
        return self._node.held

    async def ended(self) -> str:
        displaced = asyncio.get_running_loop().create_task(self._joined.ownership.displaced.wait())
        either: list[asyncio.Future[Any]] = [self._node.failed, displaced]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._node.failed.done():
            self._node.failed.result()
        return "displaced"

    async def stop(self, grace_ms: int) -> None:
        """As `timerd.serve` does it."""
        await self._joined.leave(grace_ms)
        self._node.drain()
        await self._node.stop(grace_ms)
        await self._joined.close()


async def begin(world: "World", host: "Host", process: NodeProcess) -> Joined:
    """One of them, up. Raises MAY_FAIL."""
    swarm = world.swarm
    config = Config(
        cluster=f"fake://{host.name}",
        cluster_prefix=world.names.prefix,
        cluster_replicas=3,
        cluster_lease=swarm.lease_ms / 1000,
        cluster_address=f"http://{host.name}:8470",
        node=host.name,
        shards=swarm.shards,
        segment_bytes=swarm.segment_bytes,
        grace=GRACE_S,
    )
    settings = Settings(node=host.name, shards=swarm.shards)
    listener: Any = SimpleNamespace(getsockname=lambda: ("127.0.0.1", 8470))
    joined = await joining.join(config, settings, host.target(process), host.clock, listener)
    node = joined.node

    def recovered(shard: int) -> Shard | None:
        groups = [group for group in node._runners.groups if shard in group.runner.shards]
        return groups[-1].runner.shards[shard] if groups else None

    process.shards = recovered
    process.seat = joined.ensemble.me.seat
    host.door = joined.parts.hear
    joined.start()
    for type in swarm.types:
        while type.name not in node.types:
            await joined.front.put_type(type, False, None)
    return Joined(joined)

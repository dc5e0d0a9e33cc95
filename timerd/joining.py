"""A node of a cluster: connected, a member, with the shards that the plan gives it; and how it goes.

Part of the roof: it joins adapters, and says in one line what keeps a process from being a node.
"""

import asyncio
import random
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from timerd import boot, listening
from timerd.config import Config, ConfigError, node_name
from timerd.engine.errors import IncompleteDirectory
from timerd.engine.ring import RingTable, build_table
from timerd.engine.settings import Settings
from timerd.node import Node
from timerd.ownership import Ownership
from timerd.ports import Clock, Deliver, Member
from timerd.store import servers_of
from timerd_cluster.connection import Connection
from timerd_cluster.ensemble import KvEnsemble
from timerd_cluster.kv_catalog import KvCatalog
from timerd_cluster.logs import SEGMENT_BYTES, Logs
from timerd_cluster.names import Names, names
from timerd_cluster.roster import DEAD_MS
from timerd_cluster.servers import Servers

SHARDS_DEFAULT: Final = 24  # a small multiple of the nodes: so many streams their servers like, and 12 nodes have some
DEAD_MIN_MS: Final = 1_000
READY_S: Final = 15.0  # beyond two leases: so long the ready line waits for shards whose owners hold on to them
REREAD_S: Final = 1.0

log = structlog.get_logger()


class Joined:
    """Made by `join`."""

    def __init__(
        self, node: Node, ownership: Ownership, ensemble: KvEnsemble, connection: Connection, ready_s: float
    ) -> None:
        self.node = node
        self.ownership = ownership
        self.ensemble = ensemble
        self._connection = connection
        self._ready_s = ready_s
        self._left = False
        self._news = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        ensemble.on_catalogue_change = self._news.set
        node.not_yet = ownership.unready

    def start(self) -> None:
        """Begin to take shards, and to hear of what others put into the catalogue."""
        self.ownership.start()
        self._following = asyncio.get_running_loop().create_task(self._follow([self.node.refresh]))

    async def until_ready(self) -> None:
        """Return when this node holds what the plan gives it, or has waited long enough for that."""
        await self.ownership.until_ready(self._ready_s)

    async def leave(self, grace_ms: int) -> bool:
        """Give the shards away, and be no member any more. True: all of them cleanly."""
        self._left = True
        return await self.ownership.stop(grace_ms)

    async def close(self) -> None:
        """Let go of the connection, after `leave` if it came so far."""
        if self._following is not None:
            self._following.cancel()
        if not self._left:
            await self.ensemble.leave()
        await self._connection.close()

    async def _follow(self, refreshes: list[Callable[[], Awaitable[object]]]) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                for refresh in refreshes:
                    await refresh()
            except Exception as error:  # read again, until it can be
                log.warning("catalogue_not_read", reason=f"{type(error).__name__}: {error}")
                self._news.set()
                await asyncio.sleep(REREAD_S)


async def join(config: Config, settings: Settings, deliver: Deliver, clock: Clock, listener: socket.socket) -> Joined:
    """Connect, and be a member; the first of all makes the streams.

    Raises ConfigError, WrongShards, WrongClock, IncompleteDirectory, CorruptLog; store.OF_THE_CLUSTER.
    """
    prefix = names(config.cluster_prefix)
    if prefix is None:
        raise ConfigError("--cluster-prefix must be 1 to 32 letters, digits, _ or -")
    name = node_name(config)
    connection = await Connection.connect(servers_of(config), f"timerd {name}")
    ensemble: KvEnsemble | None = None
    try:
        lease_ms = round(config.cluster_lease * 1000)
        catalog = await KvCatalog.open(connection, prefix, config.cluster_replicas)
        table = await _table(config, connection, prefix, catalog, lease_ms, clock)
        logs = await _logs(config, connection, prefix, table, lease_ms, clock, new=False)
        me = Member(name, _address(config, listener, connection), secrets.token_hex(6))
        dead_ms = min(DEAD_MS, max(DEAD_MIN_MS, lease_ms * DEAD_MS // 5_000))
        ensemble = await KvEnsemble.join(connection, prefix, config.cluster_replicas, me, clock, dead_ms)
        log.info("joined", node=name, address=me.url, shards=len(table.shard_ids))
        node = await boot.join(settings, table, catalog, clock, deliver, random.random)
    except BaseException:
        if ensemble is not None:
            await ensemble.leave()
        await connection.close()
        raise
    ownership = Ownership(ensemble, node, logs.log, table.shard_ids, clock, round(config.grace * 1000))
    return Joined(node, ownership, ensemble, connection, READY_S + 2 * config.cluster_lease)


async def _table(
    config: Config, connection: Connection, prefix: Names, catalog: KvCatalog, lease_ms: int, clock: Clock
) -> RingTable:
    """The ring table of the cluster. The first is put when its streams are there, else they would be missed."""
    stored = await catalog.ring()
    if stored is None:
        table = build_table(range(config.shards or SHARDS_DEFAULT))
        has_logs = await (await Servers.check(connection)).written(prefix)
        if has_logs and config.shards is None and (stored := await catalog.ring()) is None:
            raise IncompleteDirectory(
                f"there are logs and no catalogue (the bucket {prefix.prefix}-catalog), which holds the types. Put it "
                "back; or, if it is lost, start once with --shards N, as many as there were, and put the types again"
            )
        if stored is None:
            await _logs(config, connection, prefix, table, lease_ms, clock, new=True)
            stored = await catalog.begin_ring(table)
    count = len(stored.shard_ids)
    if config.shards not in (None, count):
        raise boot.WrongShards(
            f"the cluster has {count} shards and {config.shards} are asked for; their number is fixed"
        )
    return stored


async def _logs(
    config: Config, connection: Connection, prefix: Names, table: RingTable, lease_ms: int, clock: Clock, *, new: bool
) -> Logs:
    return await Logs.open(
        connection,
        prefix,
        table.shard_ids,
        config.cluster_replicas,
        config.segment_bytes or SEGMENT_BYTES,
        new=new,
        lease_ms=lease_ms,
        boot_ms=lambda: clock.now().boot_ms,
    )


def _address(config: Config, listener: socket.socket, connection: Connection) -> str:
    """Where the other nodes reach this one."""
    if config.cluster_address is not None:
        return config.cluster_address
    host = connection.local_host if listening.is_everywhere(config.host) else config.host
    scheme = "http" if config.tls_cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"

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
from timerd.engine.errors import UnreadableCatalog
from timerd.engine.plan import Plan
from timerd.engine.ring import RingTable, build_table
from timerd.engine.settings import Settings
from timerd.front import Front
from timerd.node import Node
from timerd.ownership import SETTLE_MS, Ownership
from timerd.parts import Parts
from timerd.peers import HttpPeers
from timerd.ports import Clock, Deliver, Member
from timerd.store import OF_THE_CLUSTER, servers_of
from timerd_cluster.connection import Connection, NoAnswer, Unreachable, UserRefused
from timerd_cluster.ensemble import KvEnsemble
from timerd_cluster.kv_catalog import KvCatalog
from timerd_cluster.lease import LEASE_MS
from timerd_cluster.logs import SEGMENT_BYTES, Logs
from timerd_cluster.names import Names, names
from timerd_cluster.roster import DEAD_MS
from timerd_cluster.servers import Servers

SHARDS_DEFAULT: Final = 24  # a small multiple of the nodes: so many streams their servers like, and 12 nodes have some
DEAD_MIN_MS: Final = 1_000
READY_S: Final = 15.0  # beyond two leases: so long the ready line waits for shards whose owners hold on to them
REREAD_S: Final = 1.0
PATIENCE_MS: Final = 30_000  # servers that are about to start are not there, or silent while they choose who leads
AGAIN_S: Final = 1.0
MAKE_MS: Final = 15_000  # to make all streams, before the next in line tries
LOOK_S: Final = 0.2

log = structlog.get_logger()


class Joined:
    """Made by `join`."""

    def __init__(
        self,
        node: Node,
        ownership: Ownership,
        ensemble: KvEnsemble,
        connection: Connection,
        secret: str,
        ready_s: float,
    ) -> None:
        self.node = node
        self.secret = secret
        """What the nodes know each other by."""
        self.parts = Parts(node, ensemble.me.life)
        self._peers = HttpPeers(secret)
        self.front = Front(node, ensemble.me, self.parts, self._peers, ownership, OF_THE_CLUSTER)
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
        self._following = asyncio.get_running_loop().create_task(self._follow(self.node.refresh))

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
        await self.ensemble.close()
        await self._peers.close()
        await self._connection.close()

    async def _follow(self, refresh: Callable[[], Awaitable[object]]) -> None:
        unread = ""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await refresh()
                unread = ""
            except Exception as error:  # read again, until it can be
                reason = f"{type(error).__name__}: {error}"
                if reason != unread:
                    event = "catalogue_unreadable" if isinstance(error, UnreadableCatalog) else "catalogue_not_read"
                    log.warning(event, reason=reason)
                unread = reason
                self._news.set()
                await asyncio.sleep(REREAD_S)


async def join(config: Config, settings: Settings, deliver: Deliver, clock: Clock, listener: socket.socket) -> Joined:
    """Connect, and be a member; the first of all makes the streams. Servers that have just started are waited for.

    Raises ConfigError, WrongShards, WrongClock, IncompleteDirectory, CorruptLog, UnreadableCatalog;
    store.OF_THE_CLUSTER.
    """
    prefix = names(config.cluster_prefix)
    if prefix is None:
        raise ConfigError("--cluster-prefix must be 1 to 32 letters, digits, _ or -")
    until_ms = clock.now().boot_ms + PATIENCE_MS
    connection = await _connect(config, clock, until_ms)
    me = Member(node_name(config), _address(config, listener, connection), secrets.token_hex(6))
    coming = _Coming(config, settings, deliver, clock, connection, prefix, me)
    try:
        while True:
            try:
                return await coming.join()
            except NoAnswer as error:
                if clock.now().boot_ms > until_ms:
                    raise
                log.warning("not_joined_yet", reason=str(error))
                await asyncio.sleep(AGAIN_S)
    except BaseException:
        if coming.ensemble is not None:
            await coming.ensemble.leave()
            await coming.ensemble.close()
        await connection.close()
        raise


async def _connect(config: Config, clock: Clock, until_ms: int) -> Connection:
    """Servers that are started with this process are waited for; those that refuse it are not."""
    while True:
        try:
            return await Connection.connect(servers_of(config), f"timerd {node_name(config)}")
        except UserRefused:
            raise
        except Unreachable as error:
            if clock.now().boot_ms > until_ms:
                raise
            log.warning("nats_unreachable", reason=str(error))
            await asyncio.sleep(AGAIN_S)


class _Coming:
    """A node on its way into the cluster; a step that failed is taken again."""

    def __init__(
        self,
        config: Config,
        settings: Settings,
        deliver: Deliver,
        clock: Clock,
        connection: Connection,
        prefix: Names,
        me: Member,
    ) -> None:
        self.ensemble: KvEnsemble | None = None
        self._config = config
        self._settings = settings
        self._deliver = deliver
        self._clock = clock
        self._connection = connection
        self._prefix = prefix
        self._me = me
        self._lease_ms = round(config.cluster_lease * 1000)

    async def join(self) -> Joined:
        config, connection, clock = self._config, self._connection, self._clock
        anew = config.cluster_new_catalog
        catalog = await KvCatalog.open(connection, self._prefix, config.cluster_replicas, anew=anew)
        logs: Logs | None = None
        if (table := await catalog.ring()) is not None:
            # Before the others hear of it: one that is refused must not be in their plan, not even for a moment.
            logs = await self._logs(self._checked(table), new=False)
        secret = await catalog.secret(config.cluster_secret, f"tdcs_{secrets.token_urlsafe(32)}")
        if self.ensemble is None:
            dead_ms = min(DEAD_MS, max(DEAD_MIN_MS, self._lease_ms * DEAD_MS // LEASE_MS))
            self.ensemble = await KvEnsemble.join(
                connection, self._prefix, config.cluster_replicas, self._me, clock, dead_ms
            )
        if table is None or logs is None:
            table = await self._table(catalog, self.ensemble)
            logs = await self._logs(table, new=False)
        node = await boot.join(self._settings, table, catalog, clock, self._deliver, random.random)
        node.catalogue.swap = catalog.swap_type
        log.info("joined", node=self._me.name, address=self._me.url, shards=len(table.shard_ids))
        ownership = Ownership(self.ensemble, node, logs.log, table.shard_ids, clock, round(config.grace * 1000))
        return Joined(node, ownership, self.ensemble, connection, secret, READY_S + 2 * config.cluster_lease)

    async def _table(self, catalog: KvCatalog, ensemble: KvEnsemble) -> RingTable:
        """The ring table of the cluster. The first is put when its streams are there, else they would be missed."""
        stored = await catalog.ring()
        if stored is None:
            await asyncio.sleep(SETTLE_MS / 1000)  # several that start at once know each other by then
        began_ms = self._clock.now().boot_ms
        while stored is None:
            rank = ensemble.members().index(self._me) if self._me in ensemble.members() else 1
            if self._clock.now().boot_ms - began_ms >= rank * MAKE_MS:  # one of them makes the streams
                stored = await self._first_table(catalog, ensemble.plan())
            else:
                await asyncio.sleep(LOOK_S)
                stored = await catalog.ring()
        return self._checked(stored)

    def _checked(self, table: RingTable) -> RingTable:
        count = len(table.shard_ids)
        for shard in self._config.cluster_new_shard:
            if shard not in table.shard_ids:
                raise ConfigError(f"--cluster-new-shard: the cluster has shards 0 to {count - 1}, and no {shard}")
        if self._config.shards not in (None, count):
            raise boot.WrongShards(
                f"--shards: the cluster has {count} shards, for good, and {self._config.shards} are asked for"
            )
        return table

    async def _first_table(self, catalog: KvCatalog, plan: Plan | None) -> RingTable:
        servers = await Servers.check(self._connection)
        written = 0
        if self._config.cluster_new_catalog:
            written = await servers.written(self._prefix)
            if written and plan:
                written = max(written, len(plan.owners))  # the last shard's streams may be lost as well
        else:
            await catalog.refuse_if_lost(servers)  # once more: a backup may be coming back just now
        if (stored := await catalog.ring()) is not None:  # another node was quicker
            return stored
        table = build_table(range(written or self._config.shards or SHARDS_DEFAULT))
        await self._logs(self._checked(table), new=True)
        return await catalog.begin_ring(table)

    async def _logs(self, table: RingTable, *, new: bool) -> Logs:
        return await Logs.open(
            self._connection,
            self._prefix,
            table.shard_ids,
            self._config.cluster_replicas,
            self._config.segment_bytes or SEGMENT_BYTES,
            new=new,
            anew=self._config.cluster_new_shard,
            lease_ms=self._lease_ms,
            boot_ms=lambda: self._clock.now().boot_ms,
        )


def _address(config: Config, listener: socket.socket, connection: Connection) -> str:
    """Where the other nodes reach this one."""
    if config.cluster_address is not None:
        return config.cluster_address
    host = connection.local_host if listening.is_everywhere(config.host) else config.host
    scheme = "http" if config.tls_cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"

"""Where a process keeps its log and its catalogue: a directory of its own, or the streams of a cluster's servers.

Part of the roof: it joins adapters, and says in one line what keeps them from being opened.
"""

import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

from timerd.config import Config, ConfigError
from timerd.engine.errors import ClusterRefused
from timerd.ports import Catalog, Clock, Deliver, Log
from timerd_cluster.connection import ApiError, Connection, NoAnswer, Unreachable
from timerd_cluster.kv_catalog import KvCatalog
from timerd_cluster.names import names
from timerd_cluster.stream_log import SEGMENT_BYTES, StreamLog
from timerd_storage.catalog import SqliteCatalog
from timerd_storage.disk import OsDisk
from timerd_storage.file_log import FileLog
from timerd_storage.worker import ThreadWorker

CATALOG: Final = "catalog.sqlite"
OF_THE_CLUSTER: Final = (ClusterRefused, Unreachable, NoAnswer, ApiError)
"""What keeps a process from beginning on a cluster, each with a message for the operator."""


class Store(NamedTuple):
    """Opened; `close` it after the node has stopped, which closes the log."""

    log: Log
    catalog: Catalog
    deliver: Deliver
    """What was given."""
    close: Callable[[], Awaitable[None]]


async def open_store(config: Config, shards_default: int, deliver: Deliver, clock: Clock) -> Store:
    """What the configuration names.

    Raises DirectoryLocked, CorruptLog, UnreadableCatalog, CatalogFull, OSError, ConfigError; OF_THE_CLUSTER.
    """
    if config.cluster is None:
        return await _open_files(config, deliver)
    return await _open_cluster(config, shards_default, deliver, clock)


async def _open_files(config: Config, deliver: Deliver) -> Store:
    directory = Path(config.data)
    log = await FileLog.open(directory, OsDisk(), ThreadWorker(), segment_bytes=config.segment_bytes)
    catalog = await SqliteCatalog.open(directory / CATALOG)
    return Store(log, catalog, deliver, catalog.close)


async def _open_cluster(config: Config, shards_default: int, deliver: Deliver, clock: Clock) -> Store:
    prefix = names(config.cluster_prefix)
    if prefix is None:
        raise ConfigError("--cluster-prefix must be 1 to 32 letters, digits, _ or -")
    connection = await Connection.connect(servers_of(config), f"timerd {config.node}")
    try:
        catalog = await KvCatalog.open(connection, prefix, config.cluster_replicas)
        ring = await catalog.ring()
        shards = range(config.shards or shards_default) if ring is None else ring.shard_ids
        log = await StreamLog.open(
            connection,
            prefix,
            shards,
            secrets.token_hex(6),
            config.cluster_replicas,
            config.segment_bytes or SEGMENT_BYTES,
            new=ring is None,
            lease_ms=round(config.cluster_lease * 1000),
            boot_ms=lambda: clock.now().boot_ms,
        )
    except BaseException:
        await connection.close()
        raise
    return Store(log, catalog, deliver, connection.close)


def servers_of(config: Config) -> list[str]:
    """The urls of a cluster's servers; passwords may be in them."""
    return (config.cluster or "").replace(",", " ").split()

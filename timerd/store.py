"""Where a process keeps its log and its catalogue: a directory of its own. A node of a cluster: `joining.py`.

Part of the roof: it joins adapters, and names what keeps them from being opened.
"""

from pathlib import Path
from typing import Final, NamedTuple

from timerd.config import Config
from timerd.engine.errors import ClusterRefused
from timerd.ports import Catalog, Log
from timerd_cluster.connection import ApiError, NoAnswer, Unreachable
from timerd_storage.catalog import SqliteCatalog
from timerd_storage.disk import OsDisk
from timerd_storage.file_log import FileLog
from timerd_storage.worker import ThreadWorker

CATALOG: Final = "catalog.sqlite"
OF_THE_CLUSTER: Final = (ClusterRefused, Unreachable, NoAnswer, ApiError)
"""What keeps a process from beginning on a cluster, each with a message for the operator."""


class Store(NamedTuple):
    """Opened; the catalogue is to be closed after the node has stopped, which closes the log."""

    log: Log
    catalog: Catalog


async def open_files(config: Config) -> Store:
    """The directory that the configuration names.

    Raises DirectoryLocked, CorruptLog, UnreadableCatalog, CatalogFull, OSError.
    """
    directory = Path(config.data)
    log = await FileLog.open(directory, OsDisk(), ThreadWorker(), segment_bytes=config.segment_bytes)
    catalog = await SqliteCatalog.open(directory / CATALOG)
    return Store(log, catalog)


def servers_of(config: Config) -> list[str]:
    """The urls of a cluster's servers; passwords may be in them."""
    return (config.cluster or "").replace(",", " ").split()

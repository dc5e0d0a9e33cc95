"""The logs of all shards of a cluster: one a shard, opened when the shard is to be taken.

What they share is here: the connection, what is known of the servers, and the room that these have left.
"""

import secrets
from collections.abc import Callable, Collection, Sequence

from timerd_cluster.connection import Connection
from timerd_cluster.lease import LEASE_MS
from timerd_cluster.names import Names
from timerd_cluster.room import Room
from timerd_cluster.servers import Servers
from timerd_cluster.stream_log import StreamLog

SEGMENT_BYTES = 2 << 20  # of each shard's log: many of them are kept in part, so they are smaller than a sole log's


class Logs:
    """Made by `open`. The connection stays the caller's."""

    def __init__(
        self,
        connection: Connection,
        names: Names,
        servers: Servers,
        replicas: int,
        segment_bytes: int,
        lease_ms: int,
        boot_ms: Callable[[], int],
    ) -> None:
        self._connection = connection
        self._names = names
        self._servers = servers
        self._replicas = replicas
        self._segment_bytes = segment_bytes
        self._lease_ms = lease_ms
        self._boot_ms = boot_ms
        self._room = Room(servers, boot_ms)

    @classmethod
    async def open(
        cls,
        connection: Connection,
        names: Names,
        shards: Sequence[int],
        replicas: int,
        segment_bytes: int = SEGMENT_BYTES,
        *,
        new: bool,
        anew: Collection[int] = (),
        lease_ms: int = LEASE_MS,
        boot_ms: Callable[[], int],
    ) -> "Logs":
        """Check the servers and these shards' streams, which are made if they are `new`, or lost and to begin `anew`.

        Raises ClusterRefused, NoAnswer, and CorruptLog if none is left of those that there were.
        """
        servers = await Servers.check(connection)
        await servers.streams(names, shards, replicas, lease_ms, new=new, anew=anew, some=not new)
        logs = cls(connection, names, servers, replicas, segment_bytes, lease_ms, boot_ms)
        await logs._room.look()
        return logs

    async def log(self, shard: int) -> StreamLog:
        """One shard's, for one try at it: each has a writer's name of its own, so that nothing that an earlier one of
        this process has sent is ever taken for its. Raises ClusterRefused, CorruptLog, NoAnswer, ApiError."""
        await self._servers.verify(self._names, shard, self._replicas, self._lease_ms)
        return StreamLog.of(
            self._connection,
            self._names,
            self._servers,
            shard,
            secrets.token_hex(6),
            self._segment_bytes,
            self._lease_ms,
            self._boot_ms,
            self._room,
        )

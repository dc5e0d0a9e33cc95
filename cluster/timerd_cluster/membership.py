"""Membership: a heartbeat of ours in a key-value bucket, and everybody's read back.

One put and one read a second and member. A read may be a replica's that is behind; it is news a moment later then.
While the servers don't answer nothing is heard of anybody: who can't beat can't hear either, so after a while each is
alone in its own eyes, and takes nothing, since taking a shard is an append to a stream of the same servers.
"""

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from timerd.ports import Member
from timerd_cluster.connection import ApiError, Connection, NoAnswer
from timerd_cluster.kv_catalog import OPERATION, key_of
from timerd_cluster.names import Names
from timerd_cluster.roster import BEAT_MS, DEAD_MS, Roster
from timerd_cluster.servers import Servers

BUCKET = "members"

_decoder = msgspec.json.Decoder(Member)

log = structlog.get_logger()


class Membership:
    """Made by `join`. `on_change` is told the members whenever they are others than before."""

    def __init__(
        self,
        connection: Connection,
        names: Names,
        me: Member,
        boot_ms: Callable[[], int],
        on_change: Callable[[list[Member]], None],
        dead_ms: int,
    ) -> None:
        self._connection = connection
        self._stream = names.bucket_stream(BUCKET)
        self._prefix = names.bucket_subject(BUCKET, "")
        self._me = me
        self._boot_ms = boot_ms
        self._on_change = on_change
        self._roster = Roster(boot_ms(), dead_ms)
        self._beat_s = BEAT_MS / 1000 * dead_ms / DEAD_MS
        self._there: list[Member] = []
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def join(
        cls,
        connection: Connection,
        names: Names,
        replicas: int,
        me: Member,
        boot_ms: Callable[[], int],
        on_change: Callable[[list[Member]], None],
        dead_ms: int = DEAD_MS,
    ) -> "Membership":
        """Check the bucket, which is made if there is none, and be heard. The connection stays the caller's.

        Raises ClusterRefused, NoAnswer, ApiError.
        """
        await (await Servers.check(connection)).bucket(names, BUCKET, replicas)
        membership = cls(connection, names, me, boot_ms, on_change, dead_ms)
        await membership._beat()
        membership._task = asyncio.get_running_loop().create_task(membership._run())
        return membership

    def there(self) -> list[Member]:
        """Who is there, by name."""
        return self._roster.there(self._boot_ms())

    def is_settled(self) -> bool:
        """Whether those who died before this process began are no longer among them."""
        return self._roster.is_settled(self._boot_ms())

    async def leave(self) -> None:
        """Say that we go, so that nobody has to wait to notice. Best effort: else they do wait."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._connection.publish(self._prefix + key_of(self._me.name), b"", {OPERATION: "DEL"})
        except (NoAnswer, ApiError) as error:
            log.warning("leave_unknown", reason=str(error))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._beat_s)
            try:
                await self._beat()
            except (NoAnswer, ApiError) as error:
                log.warning("heartbeat_unknown", reason=str(error))
            self._tell()

    async def _beat(self) -> None:
        """Put ours, then hear all."""
        await self._connection.publish(self._prefix + key_of(self._me.name), msgspec.json.encode(self._me), {})
        async for stored in self._connection.last_messages(self._stream, f"{self._prefix}>"):
            member = None if OPERATION in stored.headers else _decoder.decode(stored.data)
            self._roster.heard(self._boot_ms(), stored.subject, member, stored.sequence)
        self._tell()

    def _tell(self) -> None:
        there = self._roster.there(self._boot_ms())
        if there != self._there:
            self._there = there
            log.info("members", names=",".join(member.name for member in there))
            self._on_change(there)

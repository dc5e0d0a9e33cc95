"""The log on JetStream: a stream for each shard, a message for each turn, and a stream for each shard's large payloads.

Shards share nothing here but the connection: their appends go out together, and each is stored, or its shard fenced, by
itself. An append returns when all of them are; a log of one shard makes its shard wait for no other.

A stream is cut into segments, for upkeep alone: each message names the segment that it belongs to, which is how a
restart finds the same ones. Deleting a segment is a purge of each stream up to the segment's last message in it.

Invariants:

1. One append at a time. Nothing counts as appended before its stream's leader has acknowledged it.
2. Bodies are stored before a frame that may refer to them is sent.
3. Purges go from the oldest segment on, and only behind what is durable.
4. What failed stays failed; what is not known to have failed is waited for (shard_stream.py).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import structlog

from timerd.engine.errors import CorruptLog, LogFailed
from timerd.engine.record import Closed, Owned
from timerd.engine.timer import BodyRef
from timerd.ports import Body, BodySegment, Frame, LogUsage, OldestSegment
from timerd_cluster import message
from timerd_cluster.body_stream import BodyStream
from timerd_cluster.connection import Connection, NoAnswer
from timerd_cluster.extents import shard_of
from timerd_cluster.lease import LEASE_MS, Lease
from timerd_cluster.message import BadMessage
from timerd_cluster.names import Names
from timerd_cluster.room import Room, Share
from timerd_cluster.servers import Servers
from timerd_cluster.shard_stream import ShardStream

SEGMENT_BYTES: Final = 16 << 20
FOLLOW_MS: Final = 100  # between two looks at the end of a stream that somebody else may be writing
AT_END_MS: Final = 500  # between two times that `at_end` is called

logger = structlog.get_logger()


class Segment:
    """A run of the log's turns, over all its shards."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.bytes = 0
        self.last: dict[int, tuple[int, int]] = {}
        """Shard -> lsn and sequence of its last turn here."""


class StreamLog:
    """Implements `timerd.ports.Log`. Made by `open`."""

    def __init__(
        self,
        connection: Connection,
        names: Names,
        servers: Servers,
        shards: Sequence[int],
        writer: str,
        size: int,
        lease: Callable[[], Lease],
        room: Share,
    ) -> None:
        self.durability = servers.durability
        self.replicas = servers.replicas
        self.shares_bodies = False
        self.sync = servers.sync
        self.begun = servers.found
        self.names = names
        self.at_end: Callable[[], Awaitable[None]] = _nothing
        self.is_wanted: Callable[[], bool] = lambda: True
        self._segment_bytes = size
        self._streams = {shard: ShardStream(connection, names, shard, writer, lease()) for shard in shards}
        self._bodies = {shard: BodyStream(connection, names, shard, size) for shard in shards}
        self._segments = [Segment(1)]
        self._room = room
        self._released: dict[int, int] = {}  # shard -> the sequence of its last turn if it let go of it, else 0
        self._renewed_bytes = 0  # since the last append
        self._replayed = False
        self._busy = False
        self._failure: BaseException | None = None
        self._confirming: asyncio.Task[bool] | None = None
        self._look = asyncio.Event()

    @classmethod
    async def open(
        cls,
        connection: Connection,
        names: Names,
        shards: Sequence[int],
        writer: str,
        replicas: int,
        segment_bytes: int = SEGMENT_BYTES,
        *,
        new: bool = True,
        lease_ms: int = LEASE_MS,
        boot_ms: Callable[[], int],
    ) -> "StreamLog":
        """Check the servers and these shards' streams. The connection stays the caller's.

        `new`: streams that are missing are made; without it a missing one is a loss. `writer` is a name that no other
        process has ever had. `lease_ms` is the same for all who ever open these streams, who compare it; `boot_ms`
        reads the boot clock. Raises ClusterRefused, CorruptLog, NoAnswer.
        """
        servers = await Servers.check(connection)
        await servers.streams(names, shards, replicas, lease_ms, new=new)
        room = Room(servers, boot_ms)
        await room.look()
        lease = partial(Lease, lease_ms, boot_ms)
        return cls(connection, names, servers, shards, writer, segment_bytes, lease, room.share(segment_bytes))

    @classmethod
    def of(
        cls,
        connection: Connection,
        names: Names,
        servers: Servers,
        shard: int,
        writer: str,
        segment_bytes: int,
        lease_ms: int,
        boot_ms: Callable[[], int],
        room: Room,
    ) -> "StreamLog":
        """One shard's, whose streams have been checked."""
        lease = partial(Lease, lease_ms, boot_ms)
        return cls(connection, names, servers, [shard], writer, segment_bytes, lease, room.share(segment_bytes))

    async def replay(self) -> AsyncIterator[Frame]:
        """All frames still held, each shard's in order, until the shards may be taken.

        Whoever owns a shard may still be writing, and what it writes is read too. This ends when each stream ends in a
        `Closed`, or its end has not moved for a whole lease (lease.py), and the log `is_wanted`; then the first append,
        `Owned`, may follow.
        Raises CorruptLog, NoAnswer, ApiError, and LogFailed if the log is closed meanwhile.
        """
        assert not self._replayed, "a log is replayed once"
        segments: dict[int, Segment] = {}
        for stream in self._streams.values():
            async for frame in self._read(stream, segments):
                yield frame
        told_ms: int | None = None
        unknown = ""  # what was said of a look that had no answer
        for stream in self._streams.values():  # the waits are for all at once
            while (wait_ms := stream.lease.wait_ms()) or not self.is_wanted():
                self._refuse_if_failed()
                if told_ms is None or stream.lease.now_ms() - told_ms >= AT_END_MS:
                    told_ms = stream.lease.now_ms()
                    await self.at_end()
                # Boot time passes no slower than the loop's.
                await self._pause(min(FOLLOW_MS, wait_ms + 1 if wait_ms else FOLLOW_MS) / 1000)
                try:
                    async for frame in self._read(stream, segments):
                        yield frame
                    unknown = ""
                except NoAnswer as error:  # then nobody's append is acknowledged; the first append will tell
                    if unknown != str(error):
                        unknown = str(error)
                        logger.info("follow_unknown", shard=stream.shard, reason=unknown)
            if not stream.is_read:
                raise NoAnswer(f"the stream of shard {stream.shard} could not be read to its end")
        await self._open_bodies()  # not before: what was read may refer to what was stored meanwhile
        for stream in self._streams.values():
            for number, count in stream.renewals.items():
                segments.setdefault(number, Segment(number)).bytes += count * message.OVERHEAD_BYTES
        self._segments = [segments[number] for number in sorted(segments)] or self._segments
        newest = max(stream.segment for stream in self._streams.values())
        if self._segments[-1].number < newest:  # all that is there of it is parts without an end
            self._segments.append(Segment(newest))
        self._replayed = True

    def look_soon(self) -> None:
        """See the port. Of a look that is under way it is not known whether it saw the news: then there is one more."""
        self._look.set()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._look.wait()
        self._look.clear()

    async def _read(self, stream: ShardStream, segments: dict[int, Segment]) -> AsyncIterator[Frame]:
        """What is new in a stream, up to its present end."""
        first, shard = not stream.lease.has_read, stream.shard
        async for turn in stream.read():
            segment = segments.setdefault(turn.head.segment, Segment(turn.head.segment))
            segment.bytes += turn.bytes
            segment.last[shard] = turn.head.lsn, turn.sequence
            try:
                records = message.decode(turn.payload)
            except BadMessage as error:
                raise CorruptLog(f"the stream of shard {shard}", turn.sequence, str(error)) from error
            self._released[shard] = turn.sequence if records and isinstance(records[-1], Closed) else 0
            yield Frame(shard, turn.head.lsn, records)
        if self._released.get(shard, 0) == stream.sequence:  # nothing follows it; one without a message had no owner
            stream.lease.released()
        elif first and (wait_ms := stream.lease.wait_ms()):
            logger.info("shard_waits", shard=shard, ms=wait_ms)

    async def check_bodies(self, places: Sequence[BodyRef]) -> None:
        """After replay: raise CorruptLog unless every live body's segment is there and long enough.

        Nothing is damaged if whoever had a shard was only taken for dead, has moved bodies since we read its turns, and
        has dropped their segments: then its turns go on behind those that we know. Raises NoAnswer for that.
        """
        try:
            self._check_bodies(places)
        except CorruptLog as error:
            logger.warning("bodies_missing", reason=str(error))
            await self._open_bodies()  # and then the turns: a segment is dropped after the turn that moves what it held
            for stream in self._streams.values():
                if await stream.has_grown():
                    why = f"the stream of shard {stream.shard} has grown behind what was read: another process has it"
                    raise NoAnswer(why) from error
            self._check_bodies(places)

    async def _open_bodies(self) -> None:
        for shard, stream in self._streams.items():
            await self._bodies[shard].open()
            self._bodies[shard].begin(stream.epoch)

    def _check_bodies(self, places: Sequence[BodyRef]) -> None:
        for place in places:
            bodies = self._bodies.get(shard_of(place.segment))
            if bodies is None:
                raise CorruptLog("the log", 0, f"a live payload lies in segment {place.segment}, of another shard")
            bodies.check([place])

    @property
    def fenced(self) -> Collection[int]:
        """Shards that another writer has taken."""
        return [shard for shard, stream in self._streams.items() if stream.fenced]

    async def append(self, frames: Sequence[Frame], waiting_bytes: int = 0) -> int:
        """Store bodies, then all frames, each shard's in its stream; return when each is stored or its shard fenced.

        The bytes of renewals since the last one are among those that it returns: upkeep has to see them.
        Raises LogFailed, now and ever after; a cancelled append fails the log too, since its outcome is not known.
        """
        self._refuse_if_failed()
        assert self._replayed, "replay comes first"
        assert not self._busy, "one append at a time"
        by_shard: dict[int, list[tuple[Frame, bytes]]] = {}
        for frame in frames:
            before = by_shard.setdefault(frame.shard, [])
            last = before[-1][0].lsn if before else self._streams[frame.shard].lsn
            assert last is None or frame.lsn == last + 1, f"shard {frame.shard}: lsn {frame.lsn} follows {last}"
            for record in frame.records:
                if isinstance(record, Owned):
                    assert record.epoch == self._streams[frame.shard].epoch, "a shard's epoch is its stream's"
            before.append((frame, message.encode(frame.records)))
        self._busy = True
        with self._fatal():
            stored = await asyncio.gather(*(bodies.store() for bodies in self._bodies.values() if bodies.dirty))
            if frames and self._segments[-1].bytes >= self._segment_bytes:
                self._segments.append(Segment(self._segments[-1].number + 1))
            if len(by_shard) == 1:  # most of the time
                lengths = [await self._append_one(shard, turns) for shard, turns in by_shard.items()]
            else:
                lengths = await asyncio.gather(*(self._append_one(shard, turns) for shard, turns in by_shard.items()))
        self._busy = False
        self._room.appended(sum(stored) + sum(lengths), waiting_bytes)
        renewed_bytes, self._renewed_bytes = self._renewed_bytes, 0
        return sum(lengths) + renewed_bytes

    def is_confirmed(self) -> bool:
        """Whether a delivery may begin at this moment: nothing has to be asked."""
        return self._failure is None and all(stream.is_confirmed() for stream in self._streams.values())

    async def is_current(self) -> bool:
        """Whether the streams seem to end where we left them, by what their leaders say. Who has nothing to store or to
        deliver would else never hear that it was taken for dead."""
        return all(await asyncio.gather(*(stream.is_current() for stream in self._streams.values())))

    async def confirm(self) -> bool:
        """Before a delivery begins: whether all shards are still ours (lease.py). Raises LogFailed."""
        self._refuse_if_failed()
        if self._confirming is None or self._confirming.done():
            if all(stream.is_confirmed() for stream in self._streams.values()):
                return True
            # One for all who ask meanwhile; and a delivery that is broken off must not break off an append.
            self._confirming = asyncio.get_running_loop().create_task(self._confirm())
        return await asyncio.shield(self._confirming)

    async def _confirm(self) -> bool:
        before = sum(stream.renewals.total() for stream in self._streams.values())
        with self._fatal():
            ours = all(await asyncio.gather(*(stream.confirm() for stream in self._streams.values())))
        renewed = sum(stream.renewals.total() for stream in self._streams.values()) - before
        self._renewed_bytes += renewed * message.OVERHEAD_BYTES
        self._segments[-1].bytes += renewed * message.OVERHEAD_BYTES
        return ours

    def unsettled(self) -> bool:
        """Whether something was placed or granted that waits for an append: `append([])` settles it."""
        return self._room.granted or any(bodies.dirty for bodies in self._bodies.values())

    async def grant(self, arm_bytes: int, reserve_bytes: int, body_bytes: int | None = None) -> bool:
        """Whether `arm_bytes` more may be accepted while `reserve_bytes` and one segment stay free on the servers.

        By what these say; one that is full all the same makes appends wait.
        """
        return self._room.grant(arm_bytes, reserve_bytes)

    def keep(self, reserve_bytes: int) -> None:
        """The reserve is this from now on."""
        self._room.keep(reserve_bytes)

    def low(self) -> bool:
        """Whether appends are living on the reserve: nothing but what ends or shrinks timers should be written."""
        return self._room.low()

    def place_bodies(self, shard: int, bodies: Sequence[tuple[str, bytes]]) -> list[BodyRef]:
        """Give each (id, payload) of a shard its place. They are stored by the next append."""
        return self._bodies[shard].place(bodies) if bodies else []

    def shard_of(self, place: BodyRef) -> int | None:
        """Its segment's number says so."""
        return shard_of(place.segment)

    async def read_bodies(self, places: Sequence[BodyRef]) -> list[bytes | None]:
        """The payloads; None for one that can't be read or fails its checksum. Bodies just placed can be read."""
        found: list[bytes | None] = [None] * len(places)
        by_shard: dict[int, list[int]] = {}
        for index, place in enumerate(places):
            by_shard.setdefault(shard_of(place.segment), []).append(index)

        async def read(bodies: BodyStream, indexes: Sequence[int]) -> None:
            for index, data in zip(indexes, await bodies.read([places[index] for index in indexes]), strict=True):
                found[index] = data

        known = self._bodies
        await asyncio.gather(*(read(known[shard], indexes) for shard, indexes in by_shard.items() if shard in known))
        return found

    @property
    def body_answers(self) -> int:
        """How many pieces of bodies were asked for and answered."""
        return sum(bodies.answers for bodies in self._bodies.values())

    def body_segments(self) -> list[BodySegment]:
        """All body segments, each shard's oldest first."""
        return [segment for bodies in self._bodies.values() for segment in bodies.segments()]

    def scan_bodies(self, number: int) -> AsyncIterator[Sequence[Body]]:
        """The bodies of one sealed segment, in chunks of about 256 KiB."""
        return self._bodies[shard_of(number)].scan(number)

    async def drop_bodies(self, number: int) -> None:
        """Delete a body segment in which nothing is live by what is durable. Raises LogFailed."""
        self._refuse_if_failed()
        with self._fatal():
            await self._bodies[shard_of(number)].drop(number)
        self._room.purged()

    def oldest(self) -> OldestSegment | None:
        """The oldest segment, unless it is the one being written."""
        if len(self._segments) == 1:
            return None
        return OldestSegment({shard: lsn for shard, (lsn, _) in self._segments[0].last.items()})

    async def trim(self, needed: Mapping[int, int]) -> int:
        """Delete the oldest segments while each holds only frames before its shards' `needed` lsns. Returns how many.

        A shard that `needed` does not name still needs everything. Raises LogFailed.
        """
        self._refuse_if_failed()
        trimmed = 0
        while len(self._segments) > 1:
            last = self._segments[0].last
            if any(lsn >= needed.get(shard, 0) for shard, (lsn, _) in last.items()):
                break
            with self._fatal():
                await asyncio.gather(*(self._streams[shard].purge(at) for shard, (_, at) in last.items()))
            del self._segments[0]
            trimmed += 1
        if trimmed:
            self._room.purged()
        return trimmed

    def usage(self) -> LogUsage:
        """About the bytes in the streams, one replica's. The servers' files are somewhat larger."""
        frame_bytes = sum(segment.bytes for segment in self._segments)
        body_bytes = sum(bodies.stored_bytes for bodies in self._bodies.values())
        return LogUsage(frame_bytes, body_bytes, self._segment_bytes, beyond_bytes=self._segment_bytes)

    async def close(self) -> None:
        """Take no more. The connection stays."""
        self._room.stop()
        self._failure = self._failure or LogFailed("the log is closed")

    async def _append_one(self, shard: int, turns: Sequence[tuple[Frame, bytes]]) -> int:
        stream = self._streams[shard]
        length = 0
        for frame, payload in turns:
            segment = self._segments[-1]
            if not await stream.append(frame.lsn, payload, segment.number):
                break
            stream.closed = isinstance(frame.records[-1], Closed)
            size = len(payload) + message.OVERHEAD_BYTES
            segment.bytes += size
            segment.last[shard] = frame.lsn, stream.sequence
            length += size
        return length

    def _refuse_if_failed(self) -> None:
        if self._failure:
            raise LogFailed(f"the log failed before: {self._failure}")

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        """Whatever goes wrong in here fails the log for good, a cancellation included."""
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise


async def _nothing() -> None:
    """Nobody wants to know."""

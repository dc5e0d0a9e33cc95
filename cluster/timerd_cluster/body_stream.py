"""One shard's large payloads, in a stream of their own.

A body's place is given at once, in memory; the next append stores it before the frames that may refer to it. Until then
it is read from memory. A body that no frame refers to means nothing, so these messages need no fence, no order and no
expected sequence: one that is stored twice is stored once. What keeps owners apart is that each writes segments of its
own.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import structlog

from timerd.engine.errors import CorruptLog, LogFailed
from timerd.engine.timer import BodyRef
from timerd.ports import Body, BodySegment
from timerd_cluster import extents
from timerd_cluster.connection import ApiError, Connection, NoAnswer, Nobody, Stored
from timerd_cluster.extents import Extent, segment_number
from timerd_cluster.message import HEAD_BYTES_MAX
from timerd_cluster.missing import Missing
from timerd_cluster.names import Names
from timerd_cluster.shard_stream import LASTING, NO_STREAM, PAUSE_MAX_S, PAUSE_S

EXTENT_BYTES: Final = 256 << 10  # larger ones are stored faster, and a single body of them read slower
EXTENTS_AT_ONCE: Final = 8
NEAR_S: Final = 0.5  # for a replica's answer, before the leader is asked
FAR_S: Final = 5.0  # the leader alone is asked, after a replica has not answered
AGAIN_S: Final = 0.4  # until one that is missing is asked for once more: sooner than who waits gives its servers up

log = structlog.get_logger()


class Piece(NamedTuple):
    """Bytes of a segment that are not stored yet."""

    segment: int
    start: int
    data: bytes


class BodyStream:
    """Implements the part of `timerd.ports.Log` that is about bodies, for one shard. `open` it first, then `begin`."""

    def __init__(self, connection: Connection, names: Names, shard: int, segment_bytes: int) -> None:
        self._connection = connection
        self._names = names
        self._shard = shard
        self._stream = names.bodies(shard)
        self._segment_bytes = segment_bytes
        self._ends: dict[int, list[int]] = {}  # of each segment's extents; segments oldest first
        self._epoch = 0
        self._count = 0
        self._number: int | None = None  # of the segment being written
        self._cursor = 0
        self._pieces: list[Piece] = []
        self._unwritten: dict[tuple[int, int], bytes] = {}
        self.answers = 0
        """How many extents were asked for and answered."""
        self._missing = Missing()
        self._silent = False
        self._near_from_s = 0.0  # replicas are asked first, from then on

    async def open(self) -> None:
        """Learn what there is. Raises NoAnswer, ApiError."""
        ends: defaultdict[int, list[int]] = defaultdict(list)
        wanted: dict[str, Any] = {"subjects_filter": self._names.body_subject(self._shard, "*", "*"), "offset": 0}
        while True:
            answer = await self._connection.api(f"STREAM.INFO.{self._stream}", wanted)
            subjects: Mapping[str, int] = answer["state"].get("subjects") or {}
            for subject in subjects:
                segment, end = subject.rsplit(".", 2)[1:]
                ends[int(segment)].append(int(end))
            wanted["offset"] += len(subjects)
            if not subjects or wanted["offset"] >= answer.get("total", 0):
                break
        self._ends = {number: sorted(ends[number]) for number in sorted(ends)}

    def begin(self, epoch: int) -> None:
        """Write in this epoch, in segments that nobody has written before."""
        first = segment_number(self._shard, epoch, 0)
        behind = segment_number(self._shard, epoch + 1, 0)
        self._epoch = epoch
        self._count = max((number - first + 1 for number in self._ends if first <= number < behind), default=0)

    @property
    def dirty(self) -> bool:
        """Whether something waits for an append."""
        return bool(self._pieces)

    @property
    def stored_bytes(self) -> int:
        """Of all segments."""
        return sum(segment.bytes for segment in self.segments())

    def segments(self) -> list[BodySegment]:
        """All segments, oldest first."""
        unstored = {piece.segment for piece in self._pieces} | ({self._number} if self._number is not None else set())
        sizes = {number: ends[-1] for number, ends in self._ends.items()}
        for piece in self._pieces:
            sizes[piece.segment] = piece.start + len(piece.data)
        return [BodySegment(number, sizes[number], number not in unstored) for number in sorted(sizes)]

    def place(self, bodies: Sequence[tuple[str, bytes]]) -> list[BodyRef]:
        """Give each (id, payload) its place."""
        if self._number is None or self._cursor >= self._segment_bytes:
            self._number = segment_number(self._shard, self._epoch, self._count)
            self._count += 1
            self._cursor = 0
        start = self._cursor
        places: list[BodyRef] = []
        parts: list[bytes] = []
        for id, payload in bodies:
            digest = extents.digest_of(payload)
            head = extents.encode(id, payload, digest)
            parts += (head, payload)
            offset = self._cursor + len(head)
            self._cursor = offset + len(payload)
            places.append(BodyRef(self._number, offset, len(payload), digest))
            self._unwritten[self._number, offset] = payload
        self._pieces.append(Piece(self._number, start, b"".join(parts)))
        return places

    async def store(self) -> int:
        """Store what was placed; its bytes. Raises LogFailed."""
        pieces, self._pieces = self._pieces, []
        storing = list(self._unwritten)
        size = min(EXTENT_BYTES, self._connection.max_payload - HEAD_BYTES_MAX)
        try:
            for segment, group in groupby(pieces, lambda piece: piece.segment):
                several = list(group)
                start, data = several[0].start, b"".join(piece.data for piece in several)
                cuts = range(0, len(data), size)
                found = [(Extent(start + at, start + min(at + size, len(data))), at) for at in cuts]
                await _few_at_once([self._store_one(segment, extent, data[at : at + size]) for extent, at in found])
                self._ends.setdefault(segment, []).extend(extent.end for extent, _ in found)
        except BaseException:
            self._pieces = pieces + self._pieces
            raise
        for key in storing:
            del self._unwritten[key]
        return sum(len(piece.data) for piece in pieces)

    def check(self, places: Sequence[BodyRef]) -> None:
        """Raise CorruptLog unless every place lies in a segment that is there and long enough."""
        for place in places:
            ends = self._ends.get(place.segment)
            end = place.offset + place.length
            name = f"stream {self._stream}, segment {place.segment}"
            if ends is None:
                raise CorruptLog(name, 0, "live timers have their payloads in this segment, and it is missing")
            if end > ends[-1]:
                raise CorruptLog(name, ends[-1], f"the segment ends here, and a live payload reaches to {end}")

    async def read(self, places: Sequence[BodyRef]) -> list[bytes | None]:
        """The payloads; None for one that can't be read or isn't what was written."""
        found: list[bytes | None] = [None] * len(places)
        wanted: defaultdict[tuple[int, tuple[Extent, ...]], list[int]] = defaultdict(list)
        for index, place in enumerate(places):
            unwritten = self._unwritten.get((place.segment, place.offset))
            if unwritten is not None or not place.length:
                found[index] = unwritten or b""
            elif covering := extents.covering(self._ends.get(place.segment, ()), place.offset, place.length):
                wanted[place.segment, tuple(covering)].append(index)

        async def fetch(segment: int, covering: tuple[Extent, ...], indexes: list[int]) -> None:
            parts = [await self._extent(segment, extent) for extent in covering]
            data = b"".join(part for part in parts if part is not None)
            if None not in parts:
                for index in indexes:
                    at = places[index].offset - covering[0].start
                    found[index] = data[at : at + places[index].length]

        await _few_at_once([fetch(segment, covering, indexes) for (segment, covering), indexes in wanted.items()])
        return [
            data if data is not None and extents.digest_of(data) == place.digest else None
            for data, place in zip(found, places, strict=True)
        ]

    async def scan(self, number: int) -> AsyncIterator[Sequence[Body]]:
        """The bodies of one sealed segment, an extent at a time; up to the first extent that can't be read."""
        scan = extents.Scan(number)
        start = 0
        for end in list(self._ends[number]):
            data = await self._extent(number, Extent(start, end))
            if data is None:
                log.warning("bodies_unreadable", stream=self._stream, segment=number, start=start, end=end)
                return
            if found := list(scan.feed(data)):
                yield found
            start = end

    async def drop(self, number: int) -> None:
        """Delete a sealed segment. Raises LogFailed."""
        assert number != self._number, "only sealed segments are dropped"
        subject = self._names.body_subject(self._shard, number, "*")
        await self._surely(lambda: self._connection.api(f"STREAM.PURGE.{self._stream}", {"filter": subject}))
        del self._ends[number]
        self._missing.drop(number)

    async def _store_one(self, segment: int, extent: Extent, data: bytes) -> None:
        subject = self._names.body_subject(self._shard, segment, extent.end)
        headers = {extents.BODY: extents.encode_header(extent.start, data)}
        await self._surely(lambda: self._connection.publish(subject, data, headers))

    async def _extent(self, segment: int, extent: Extent) -> bytes | None:
        """The bytes of one extent; None if they are not there, or are not what was written. Raises LogFailed.

        That it is not there takes time to be believed (missing.py), and one copy may be damaged. Each answer counts, so
        that who waits can tell servers that say so from servers that say nothing.
        """
        key = segment, extent.end
        what = {"last_by_subj": self._names.body_subject(self._shard, segment, extent.end)}
        pause = PAUSE_S
        while True:
            try:
                data = _whole(await self._near(what), extent)
                if data is None:
                    data = _whole(await self._connection.message(self._stream, what), extent)
                self._silent = False
                self.answers += 1
                if data is not None:
                    self._missing.found(key)
                    return data
                if self._missing.is_new(key):
                    log.warning("body_not_found", stream=self._stream, segment=segment, end=extent.end)
                if self._missing.said(key, asyncio.get_running_loop().time()):
                    return None
                await asyncio.sleep(AGAIN_S)
            except (NoAnswer, ApiError) as error:
                self._near_from_s = 0.0
                if not self._silent:  # said once, however many extents are asked for
                    log.warning("bodies_unread", stream=self._stream, reason=str(error))
                    self._silent = True
                await self._refuse_if_gone(error)
                await asyncio.sleep(pause)
                pause = min(PAUSE_MAX_S, 2 * pause)

    async def _near(self, what: Mapping[str, Any]) -> Stored | None:
        """From any replica. One that stands still may be chosen again and again: so for a while none is asked then."""
        now_s = asyncio.get_running_loop().time
        if now_s() < self._near_from_s:
            return None
        try:
            return await self._connection.near_message(self._stream, what, NEAR_S)
        except NoAnswer:
            self._near_from_s = now_s() + FAR_S
            return None

    async def _surely(self, ask: Callable[[], Awaitable[Any]]) -> None:
        """Ask until it is answered: to do it twice does no harm."""
        pause = PAUSE_S
        while True:
            try:
                await ask()
                return
            except NoAnswer as error:
                log.warning("bodies_unknown", stream=self._stream, reason=str(error))
                await self._refuse_if_gone(error)
            except ApiError as error:
                if error.code in LASTING:
                    raise LogFailed(f"stream {self._stream}: {error}") from error
                log.warning("bodies_refused", stream=self._stream, reason=error.text)
            await asyncio.sleep(pause)
            pause = min(PAUSE_MAX_S, 2 * pause)

    async def _refuse_if_gone(self, error: NoAnswer | ApiError) -> None:
        """Nobody listens where a stream has no leader just now, or where there is none any more. Raises LogFailed."""
        if isinstance(error, Nobody):
            try:
                await self._connection.api(f"STREAM.INFO.{self._stream}")
            except NoAnswer:
                return
            except ApiError as said:
                error = said
        if isinstance(error, ApiError) and error.code == NO_STREAM:
            raise LogFailed(f"stream {self._stream} is gone") from error


def _whole(stored: Stored | None, extent: Extent) -> bytes | None:
    """The extent's bytes; None if that is not them."""
    if stored is None or not extents.is_whole(stored.headers.get(extents.BODY), extent.start, stored.data):
        return None
    return stored.data


async def _few_at_once(jobs: Sequence[Awaitable[None]]) -> None:
    for at in range(0, len(jobs), EXTENTS_AT_ONCE):
        await asyncio.gather(*jobs[at : at + EXTENTS_AT_ONCE])

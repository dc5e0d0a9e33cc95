"""The log in memory: the reference that every other log is compared with, and what tests of the shell run on.

Keeps nothing across processes; `reopen` stands in for a restart. Frames are kept encoded, as a disk would keep them,
because records hold live timers, which change.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Final

from timerd.engine.errors import CorruptLog, LogFailed
from timerd.engine.timer import BodyRef
from timerd.ports import Body, BodySegment, Frame, LogUsage, OldestSegment
from timerd_storage import body, codec
from timerd_storage.frame import OVERHEAD_BYTES

SEGMENT_BITS: Final = 20


class MemoryLog:
    """Implements `timerd.ports.Log`. `capacity` bounds frames and bodies together; None is no bound.

    `shard`: it is the log of this one alone, beside those of others, and its bodies' places say so.
    """

    durability = "none"
    replicas = 1
    shares_bodies = True
    sync = "never"
    fenced: Collection[int] = ()
    body_answers = 0  # nobody is asked who might not answer

    def __init__(self, segment_bytes: int = 1 << 20, capacity: int | None = None, shard: int | None = None) -> None:
        self.capacity = capacity
        self._shard = shard
        self._first = 1 if shard is None else (shard << SEGMENT_BITS) + 1
        self.begun = False
        self._segment_bytes = segment_bytes
        self._segments: list[list[tuple[int, int, bytes]]] = [[]]
        self._bodies: dict[int, dict[int, tuple[str, bytes]]] = {}
        self._placed: list[tuple[int, int]] = []  # since the last append
        self._lsns: dict[int, int] = {}
        self._granted = self._reserve = 0
        self._closed = False

    def reopen(self) -> "MemoryLog":
        """What a process finds that starts after this one ended, cleanly or not."""
        again = MemoryLog(self._segment_bytes, self.capacity, self._shard)
        again.begun = True
        again._segments = [list(segment) for segment in self._segments]
        again._bodies = {number: dict(bodies) for number, bodies in self._bodies.items()}
        for number, offset in self._placed:
            del again._bodies[number][offset]
        again._bodies[max(again._bodies, default=self._first - 1) + 1] = {}
        return again

    def is_confirmed(self) -> bool:
        return True

    async def confirm(self) -> bool:
        return True

    async def is_current(self) -> bool:
        return True

    def shard_of(self, place: BodyRef) -> int | None:
        return None if self._shard is None else place.segment >> SEGMENT_BITS

    async def replay(self) -> AsyncIterator[Frame]:
        for segment in self._segments:
            for shard, lsn, payload in segment:
                self._lsns[shard] = lsn
                yield Frame(shard, lsn, codec.decode(payload))

    async def check_bodies(self, places: Sequence[BodyRef]) -> None:
        for place in places:
            if place.offset not in self._bodies.get(place.segment, {}):
                raise CorruptLog(body.name_of(place.segment), place.offset, "a live payload is missing")

    async def append(self, frames: Sequence[Frame], waiting_bytes: int = 0) -> int:
        self._check()
        granted = max(0, self._granted - waiting_bytes)
        length = 0
        for frame in frames:
            assert frame.lsn == self._lsns.get(frame.shard, frame.lsn - 1) + 1, "lsns are dense"
            self._lsns[frame.shard] = frame.lsn
            payload = codec.encode(frame.records)
            if _size(self._segments[-1]) + len(payload) + OVERHEAD_BYTES > self._segment_bytes and self._segments[-1]:
                self._segments.append([])
            self._segments[-1].append((frame.shard, frame.lsn, payload))
            length += len(payload) + OVERHEAD_BYTES
        self._placed.clear()
        self._granted -= granted
        return length

    def unsettled(self) -> bool:
        return bool(self._placed or self._granted)

    async def grant(self, arm_bytes: int, reserve_bytes: int, body_bytes: int | None = None) -> bool:
        self._reserve = reserve_bytes
        granted = self._free() >= arm_bytes + reserve_bytes + self._segment_bytes
        self._granted += arm_bytes if granted else 0
        return granted

    def keep(self, reserve_bytes: int) -> None:
        self._reserve = reserve_bytes

    def low(self) -> bool:
        return self._free() < self._reserve + self._segment_bytes

    def place_bodies(self, shard: int, bodies: Sequence[tuple[str, bytes]]) -> list[BodyRef]:
        if bodies and (not self._bodies or _body_size(self._bodies[max(self._bodies)]) >= self._segment_bytes):
            self._bodies[max(self._bodies, default=self._first - 1) + 1] = {}
        places = []
        for id, payload in bodies:
            number = max(self._bodies)
            place = BodyRef(number, len(self._bodies[number]), len(payload), body.digest_of(payload))
            self._bodies[number][place.offset] = (id, payload)
            self._placed.append((number, place.offset))
            places.append(place)
        return places

    async def read_bodies(self, places: Sequence[BodyRef]) -> list[bytes | None]:
        found = [self._bodies.get(place.segment, {}).get(place.offset) for place in places]
        whole = zip(found, places, strict=True)
        return [each[1] if each and body.digest_of(each[1]) == place.digest else None for each, place in whole]

    def body_segments(self) -> list[BodySegment]:
        newest = max(self._bodies, default=0)
        return [BodySegment(n, _body_size(bodies), n != newest) for n, bodies in self._bodies.items() if bodies]

    async def scan_bodies(self, number: int) -> AsyncIterator[Sequence[Body]]:
        yield [
            Body(id, BodyRef(number, offset, len(data), body.digest_of(data)), data)
            for offset, (id, data) in self._bodies[number].items()
        ]

    async def drop_bodies(self, number: int) -> None:
        self._check()
        del self._bodies[number]

    def oldest(self) -> OldestSegment | None:
        if len(self._segments) == 1:
            return None
        return OldestSegment({shard: lsn for shard, lsn, _ in self._segments[0]})

    async def trim(self, needed: Mapping[int, int]) -> int:
        self._check()
        trimmed = 0
        while (oldest := self.oldest()) and all(lsn < needed.get(s, 0) for s, lsn in oldest.last_lsns.items()):
            del self._segments[0]
            trimmed += 1
        return trimmed

    def usage(self) -> LogUsage:
        frames = sum(_size(segment) for segment in self._segments)
        return LogUsage(
            frames,
            sum(_body_size(bodies) for bodies in self._bodies.values()),
            self._segment_bytes,
            beyond_bytes=1 << 40,
        )

    async def close(self) -> None:
        self._closed = True

    def _free(self) -> int:
        if self.capacity is None:
            return 1 << 60
        usage = self.usage()
        return self.capacity - usage.frame_bytes - usage.body_bytes - self._granted

    def _check(self) -> None:
        if self._closed:
            raise LogFailed("the log is closed")


def _size(segment: Sequence[tuple[int, int, bytes]]) -> int:
    return sum(len(payload) + OVERHEAD_BYTES for _, _, payload in segment)


def _body_size(bodies: Mapping[int, tuple[str, bytes]]) -> int:
    return sum(len(data) for _, data in bodies.values())

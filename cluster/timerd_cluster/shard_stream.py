"""One shard's stream: appends that are stored, or fenced, and nothing in between.

Every message names the sequence that it expects to be the last. So a writer that has read the stream to its end, and
only such a one, can append; and once another one has, none of ours is taken any more.

An append without an answer is not known to be stored. It is settled by looking at the very sequence where it was to be
(STREAM.md, "Unknown outcomes"): ours, then it is stored; another's, then the shard is fenced; nothing yet, then the
same bytes go out again with the same sequence, never with a newer one. A look may be stale, and the first copy may
still arrive after the second: the sequence makes both harmless. Until it is settled `append` does not return; its shard
stands still, however long that is.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from enum import Enum, auto
from typing import Final

import structlog

from timerd.engine.errors import CorruptLog, LogFailed
from timerd_cluster import message
from timerd_cluster.connection import ApiError, Connection, NoAnswer, Stored
from timerd_cluster.lease import Lease
from timerd_cluster.message import BadMessage, Head, Turn
from timerd_cluster.names import Names

WRONG_SEQUENCE: Final = (10071, 10164)
NO_STREAM: Final = 10059
NO_ROOM: Final = (10002, 10023, 10028, 10047, 10077, 10122)  # resources, storage of the account, the server, the stream
LASTING: Final = (NO_STREAM, 10054)  # no stream, a message above its limit: to ask again changes nothing
LOOK_S: Final = 0.5  # a question that comes while nobody leads is dropped: the next one finds the new leader sooner
PAUSE_S: Final = 0.05  # before the first look that follows one without a result; twice as long each time
PAUSE_MAX_S: Final = 1.0
SHRUNK_LOOKS: Final = 200  # a leader that knows less than it has acknowledged may be a new one that is catching up

log = structlog.get_logger()


class Finding(Enum):
    """What a look at a sequence has shown."""

    OURS = auto()
    OTHERS = auto()
    NOTHING = auto()
    UNCLEAR = auto()


class ShardStream:
    """The stream of one shard, for one writer. `read` it to its end before the first `append`."""

    def __init__(self, connection: Connection, names: Names, shard: int, writer: str, lease: Lease) -> None:
        self.shard = shard
        self.lease = lease
        self.epoch = 0
        """In which this writer appends: the one behind the last that was read."""
        self.lsn: int | None = None
        """Of the last turn."""
        self.sequence = 0
        """Of the stream's last message, by what is known here."""
        self.segment = 0
        """Of the last message."""
        self.fenced = False
        self.closed = False
        """Its last turn was `Closed`: nothing may follow that."""
        self._connection = connection
        self._name = names.log(shard)
        self._subject = names.log_subject(shard)
        self._writer = writer
        self._reader = message.Reader(shard)
        self._shrunk = 0
        self._appending = asyncio.Lock()
        self._owned = False  # the first append, which takes the stream, has been sent

    @property
    def renewals(self) -> Counter[int]:
        """How many there are, by segment: they take room like turns."""
        return self._reader.renewals

    @property
    def is_read(self) -> bool:
        """Whether the last `read` came to its end."""
        return not self._reader.begun or self._reader.sequence == self.sequence

    async def read(self) -> AsyncIterator[Turn]:
        """All whole turns that were not read before, oldest first, up to what is the end when this ends.

        Raises CorruptLog, ApiError, and NoAnswer when the servers don't answer, or another writer purges meanwhile.
        Called again, it goes on behind what it gave out last.
        """
        reader = self._reader
        first, last = await self._bounds()
        if self.lease.has_read and last <= self.sequence:
            return  # nothing new: the wait for the end that is known goes on
        following = reader.sequence + 1 if reader.begun else first
        while following <= last:
            start = following
            async with aclosing(self._connection.messages(self._name, following)) as batch:
                async for stored in batch:
                    if stored.sequence != following:
                        break  # a reply was lost, or messages are gone: asked for by its number it will tell
                    following += 1
                    if (turn := self._feed(reader, stored)) is not None:
                        yield turn
            if following == start:
                following += 1
                if (turn := self._feed(reader, await self._exactly(start))) is not None:
                    yield turn
            if following > last:
                _, last = await self._bounds()
        self.lease.read()
        self.sequence = following - 1
        self.epoch, self.lsn, self.segment = reader.epoch + 1, reader.lsn, reader.segment

    async def append(self, lsn: int, payload: bytes, segment: int) -> bool:
        """Append a turn; True when it is stored, False when another writer has the stream. Raises LogFailed.

        The first one takes the shard: it waits until whoever had it before can have no right to deliver any more.
        """
        parts = message.split(payload, self._connection.max_payload - message.HEAD_BYTES_MAX)
        async with self._appending:
            if not self._owned and (wait_ms := self.lease.wait_ms()):
                log.info("shard_waits", shard=self.shard, ms=wait_ms)
                await asyncio.sleep((wait_ms + 1) / 1000)  # boot time passes no slower than the loop's
            self._owned = True
            for number, data in enumerate(parts, 1):
                head = Head(self.epoch, lsn, self._writer, segment, number, len(parts))
                if self.fenced or not await self._store(head, data):
                    self.fenced = True
                    return False
            self.lsn, self.segment = lsn, segment
        return True

    def is_confirmed(self) -> bool:
        """Whether a delivery may begin: the shard is ours, and nothing of ours is unacknowledged."""
        return self.lease.holds() and not self._appending.locked() and not self.fenced and not self.closed

    async def is_current(self) -> bool:
        """Whether nobody seems to have appended behind us. Nobody can have while our right lasts."""
        if self.lease.holds() or self._appending.locked():
            return True
        try:
            _, last = await self._bounds()
        except (NoAnswer, ApiError):
            return True  # nothing is known
        return last <= self.sequence or self._appending.locked()

    async def has_grown(self) -> bool:
        """Whether somebody has appended behind what was read. Raises NoAnswer, ApiError."""
        _, last = await self._bounds()
        return last > self.sequence

    async def confirm(self) -> bool:
        """The same, after what is under way, and with the right renewed if it has run out. Raises LogFailed."""
        async with self._appending:
            assert self._owned, "deliveries come after the first append"
            while not self.fenced and not self.closed and not self.lease.holds():
                assert self.lsn is not None
                renewal = Head(self.epoch, self.lsn, self._writer, self.segment, 0, 0)
                self.fenced = not await self._store(renewal, b"")
                self.renewals[self.segment] += not self.fenced
        return not self.fenced and not self.closed

    async def purge(self, sequence: int) -> None:
        """Delete everything up to and with `sequence`, for good. Raises LogFailed."""
        pause = PAUSE_S
        while True:
            try:
                await self._connection.api(f"STREAM.PURGE.{self._name}", {"seq": sequence + 1})
                return
            except NoAnswer as error:
                log.warning("purge_unknown", stream=self._name, reason=str(error))
            except ApiError as error:
                if error.code in LASTING:
                    raise LogFailed(f"stream {self._name}: it can't be purged: {error}") from error
                log.warning("purge_unknown", stream=self._name, reason=str(error))
            await asyncio.sleep(pause)
            pause = min(PAUSE_MAX_S, 2 * pause)

    async def _store(self, head: Head, data: bytes) -> bool:
        """Store one message behind the last; False when another's is there."""
        expected = self.sequence
        headers = {"Nats-Expected-Last-Sequence": str(expected), message.TURN: head.encode(self.shard, data)}
        pause = PAUSE_S
        first_sent_ms = self.lease.now_ms()
        while True:
            finding = Finding.UNCLEAR
            try:
                sequence = await self._connection.publish(self._subject, data, headers)
                if sequence != expected + 1:
                    raise LogFailed(f"stream {self._name}: stored at {sequence} what was to follow {expected}")
                finding = Finding.OURS
            except NoAnswer as error:
                self._unknown(error)
            except ApiError as error:
                if error.code in LASTING:
                    raise LogFailed(f"stream {self._name}: {error}") from error
                if error.code in NO_ROOM:
                    log.warning("append_refused", stream=self._name, reason=error.text)
                    finding = Finding.NOTHING
                elif error.code not in WRONG_SEQUENCE:
                    self._unknown(error)
            while finding is Finding.UNCLEAR:
                if (finding := await self._look(expected + 1, head)) is Finding.UNCLEAR:
                    await asyncio.sleep(PAUSE_S)
            if finding is Finding.NOTHING:  # the same bytes, the same sequence
                await asyncio.sleep(pause)
                pause = min(PAUSE_MAX_S, 2 * pause)
                continue
            self._shrunk = 0
            if finding is Finding.OTHERS:
                self._connection.shards_fenced += 1
                log.warning("shard_fenced", shard=self.shard, epoch=self.epoch, sequence=expected + 1)
                return False
            self.sequence = expected + 1
            self.lease.acknowledged(first_sent_ms)
            return True

    def _unknown(self, error: Exception) -> None:
        self._connection.appends_unknown += 1
        log.warning("append_unknown", stream=self._name, sequence=self.sequence + 1, reason=str(error))

    async def _look(self, sequence: int, ours: Head) -> Finding:
        """What is at `sequence`, by the stream's leader. Raises LogFailed."""
        try:
            stored = await self._connection.message(self._name, {"seq": sequence}, LOOK_S)
            if stored is not None:
                same = message.is_same(stored.headers.get(message.TURN), ours)
                return Finding.OURS if same else Finding.OTHERS
            first, last = await self._bounds(LOOK_S)
        except NoAnswer:
            return Finding.UNCLEAR
        except ApiError as error:
            if error.code == NO_STREAM:
                raise LogFailed(f"stream {self._name} is gone") from error
            return Finding.UNCLEAR
        if first > sequence:
            return Finding.OTHERS  # and purged: its writer has gone far beyond us
        if last == sequence - 1:
            return Finding.NOTHING
        if last < sequence - 1:
            self._shrunk += 1
            if self._shrunk >= SHRUNK_LOOKS:
                raise LogFailed(
                    f"stream {self._name} ends at {last}, but its servers had acknowledged up to {sequence - 1}: "
                    "they have lost what they said was stored"
                )
        return Finding.UNCLEAR

    async def _exactly(self, sequence: int) -> Stored:
        """The message at `sequence`, which was there by what the leader said."""
        stored = await self._connection.message(self._name, {"seq": sequence})
        if stored is not None:
            return stored
        first, _ = await self._bounds()
        if first > sequence:
            raise NoAnswer(f"stream {self._name} was purged while it was read: another process has the shard")
        raise self._corrupt(sequence, "the message is missing")

    def _feed(self, reader: message.Reader, stored: Stored) -> Turn | None:
        try:
            return reader.feed(stored.sequence, stored.headers.get(message.TURN), stored.data)
        except BadMessage as error:
            raise self._corrupt(stored.sequence, str(error)) from error

    def _corrupt(self, sequence: int, reason: str) -> CorruptLog:
        return CorruptLog(f"stream {self._name}", sequence, reason)

    async def _bounds(self, answer_s: float | None = None) -> tuple[int, int]:
        """The first sequence, and the last one, by the stream's leader."""
        state = (await self._connection.api(f"STREAM.INFO.{self._name}", answer_s=answer_s))["state"]
        return max(1, int(state["first_seq"])), int(state["last_seq"])

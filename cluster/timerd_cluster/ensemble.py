"""Who is there and who is to have which shard, in one key-value bucket.

A key for each node, put again with every beat, and one for the plan. Each put names the revision it replaces: so two
processes of one name notice each other, and of two that publish a plan one is told to look again. Nothing in here is a
lease, and no key has to go away for somebody to go on: a member is given up by this machine's clock (roster.py), and
what it may still do ends with its leases.

One put and two reads a beat and member. Beside them a plain subscription to the bucket's own subjects: whoever puts
something is heard at once by those who are connected. It is a nudge to read sooner and may be lost; the beat is what
counts. While the bucket can't be read, or takes no beat of ours, nothing is heard of anybody, and nobody is given up.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import structlog

from timerd.engine.errors import ClusterRefused
from timerd.engine.plan import Plan, Seat
from timerd.ports import Clock, Link, Member, Word
from timerd_cluster import kv_catalog
from timerd_cluster.bucket import OPERATION, Bucket, Entry
from timerd_cluster.connection import ApiError, Connection, NoAnswer
from timerd_cluster.kv_catalog import key_of, name_of
from timerd_cluster.names import Names
from timerd_cluster.roster import BEAT_MS, DEAD_MS, Roster
from timerd_cluster.servers import NO_STREAM, Servers

BUCKET: Final = "members"
PLAN: Final = "plan.table"  # a node's key has no dot
HEARD_BEATS: Final = 2.5  # so long a process of our name that lives can't be silent
STORED_BEATS: Final = 2.5
SILENT_BEATS: Final = 1.75  # one is missing; what is done then harms nobody, and can be undone
LOOK_S: Final = 0.1
AGAIN_S: Final = 0.1  # after a nudge: what it told of may not have been stored when we looked
LEAVE_S: Final = 2.0
FORGET_MS: Final = 60_000  # without news of a name, before its key goes: some have a new name at each start
FORGET_MAX: Final = 32  # at one look

# The latter is what nesting without end raises, in a field that is not known.
UNREADABLE: Final = (msgspec.MsgspecError, RecursionError)

_member_decoder = msgspec.json.Decoder(Member)
_plan_decoder = msgspec.json.Decoder(Plan)
_seat_decoder = msgspec.json.Decoder(Seat)

log = structlog.get_logger()


class KvEnsemble:
    """Implements `timerd.ports.Ensemble`. Made by `join`."""

    def __init__(self, connection: Connection, names: Names, me: Member, clock: Clock, dead_ms: int) -> None:
        self.me = me
        self.on_change: Callable[[], None] = lambda: None
        self.on_catalogue_change: Callable[[], None] = lambda: None
        self.on_said: Callable[[Word, int, Seat], None] = lambda word, shard, seat: None
        self.displaced = False
        self._connection = connection
        self._names = names
        self._bucket = Bucket(connection, names, BUCKET)
        self._catalogue = Bucket(connection, names, kv_catalog.BUCKET)
        self._clock = clock
        self._roster = Roster(self._now_ms(), dead_ms)
        self._beat_s = BEAT_MS / 1000 * dead_ms / DEAD_MS
        self._key = key_of(me.name)
        self._revision = 0  # of our key
        self._stored_ms = 0  # when our last beat was known to be
        self._plan: Plan | None = None
        self._plan_revision = 0
        self._catalogue_sequence: int | None = None
        self._there: list[Member] = []
        self._unread: dict[str, int] = {}  # keys that are no member's, and at which revision that was said
        self._nudge = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._left = False
        self._closed = False
        self._make: Callable[[], Awaitable[None]] = _nothing

    @classmethod
    async def join(
        cls,
        connection: Connection,
        names: Names,
        replicas: int,
        me: Member,
        clock: Clock,
        dead_ms: int = DEAD_MS,
    ) -> "KvEnsemble":
        """Check the bucket, which is made if there is none, and be heard. The connection stays the caller's.

        Raises ClusterRefused, also when another process of this name is there; NoAnswer, ApiError.
        """
        servers = await Servers.check(connection)
        await servers.bucket(names, BUCKET, replicas)
        ensemble = cls(connection, names, me, clock, dead_ms)
        ensemble._make = lambda: servers.bucket(names, BUCKET, replicas)
        await ensemble._enter()
        for bucket in (ensemble._bucket, ensemble._catalogue):
            await connection.watch(f"{bucket.prefix}>", ensemble._nudged)
        await connection.watch(names.said("*", "*"), ensemble._hear_said)
        await ensemble._look()
        ensemble._beating = asyncio.get_running_loop().create_task(ensemble._beat())
        ensemble._listening = asyncio.get_running_loop().create_task(ensemble._listen())
        return ensemble

    def members(self) -> list[Member]:
        """See the port."""
        return list(self._there)

    def link(self) -> Link:
        """See the port."""
        connection = self._connection
        age_ms = max(0, self._now_ms() - self._stored_ms)
        return Link(connection.is_connected, connection.appends_unknown, connection.shards_fenced, age_ms)

    def silent(self) -> list[Member]:
        """See the port. One of ours must have been stored when theirs was due: else it is the bucket that is slow."""
        beat_ms = self._beat_s * 1000
        since_ms = min(self._now_ms() - SILENT_BEATS * beat_ms, self._stored_ms - beat_ms)
        return [member for member in self._roster.silent(round(since_ms)) if member != self.me]

    def is_settled(self) -> bool:
        """See the port."""
        return self._roster.is_settled(self.me.name)

    def seen_at(self, name: str) -> int | None:
        """See the port."""
        seen_ms = self._roster.seen_ms(name)
        now = self._clock.now()
        return None if seen_ms is None else now.wall_ms - (now.boot_ms - seen_ms)

    def plan(self) -> Plan | None:
        """See the port."""
        return self._plan

    async def publish(self, plan: Plan) -> bool:
        """See the port."""
        try:
            revision = await self._bucket.put(PLAN, msgspec.json.encode(plan), self._plan_revision)
            if revision is not None:
                self._plan, self._plan_revision = plan, revision
                self._tell()
                return True
        except (NoAnswer, ApiError) as error:
            log.warning("plan_unknown", version=plan.version, reason=str(error))
        await self.refresh()
        return self._plan == plan

    async def refresh(self) -> bool:
        """See the port."""
        try:
            self._learn(await self._bucket.read(PLAN))
        except (NoAnswer, ApiError) as error:
            log.warning("plan_not_read", reason=str(error))
            return False
        return True

    async def say(self, word: Word, shard: int) -> None:
        """See the port."""
        await self._connection.tell(self._names.said(word, shard), msgspec.json.encode(self.me.seat))

    async def leave(self) -> None:
        """See the port."""
        self._left = True  # the client library may take a cancellation for a closed connection
        await _ended(self._beating)
        if self.displaced:
            return
        try:
            async with asyncio.timeout(LEAVE_S):
                while await self._bucket.put(self._key, None, self._revision) is None:
                    entry = await self._bucket.read(self._key)
                    if not self._is_ours(entry):
                        return
                    self._revision = entry.revision  # a beat of ours whose answer was lost
        except (NoAnswer, ApiError, TimeoutError) as error:
            log.warning("leave_unknown", reason=str(error))

    async def close(self) -> None:
        """Hear no more. To be called after `leave`."""
        self._closed = True
        await _ended(self._listening)

    # ---- our own key

    async def _enter(self) -> None:
        """Put our key for the first time. Raises ClusterRefused, NoAnswer, ApiError."""
        entry = await self._bucket.read(self._key)
        while True:
            if entry.data is not None and not self._is_ours(entry):
                entry = await self._silent(entry)
            revision = await self._bucket.put(self._key, msgspec.json.encode(self.me), entry.revision)
            if revision is not None:
                self._revision, self._stored_ms = revision, self._now_ms()
                return
            entry = await self._bucket.read(self._key)

    async def _silent(self, entry: Entry) -> Entry:
        """Listen for another process of our name; what its key has once it is known to be silent, or gone."""
        until_ms = self._now_ms() + round(HEARD_BEATS * self._beat_s * 1000)
        log.info("node_name_in_use", node=self.me.name)
        while self._now_ms() < until_ms:
            await asyncio.sleep(LOOK_S)
            now = await self._bucket.read(self._key)
            if now.data is None:
                return now
            if now.revision != entry.revision:
                other = _member(now.data)
                raise ClusterRefused(
                    f"another process{f', at {other.url},' if other else ''} is node {self.me.name} of this cluster; "
                    "give each its own name with --node"
                )
        return entry

    async def _put_beat(self) -> None:
        """Be heard. A key that is not as we left it is looked into."""
        data = msgspec.json.encode(self.me)
        revision = await self._bucket.put(self._key, data, self._revision, self._beat_s)
        if revision is None:
            entry = await self._bucket.read(self._key)
            other = None if entry.data is None else _member(entry.data)
            if other is None or other.life == self.me.life:  # an answer was lost, or somebody tidied up, or scribbled
                revision = await self._bucket.put(self._key, data, entry.revision, self._beat_s)
            else:
                self.displaced = True
                log.error("node_displaced", node=self.me.name, by=other.url)
                self.on_change()
        if revision is not None:
            if revision < self._revision:
                log.warning("members_anew", reason=f"the bucket {self._bucket.stream} is another one")
                self._roster.begin_anew()
                self._plan_revision = 0
            self._revision, self._stored_ms = revision, self._now_ms()

    async def _make_if_gone(self) -> None:
        """Make the bucket again if somebody has deleted it: without one nobody is heard. Raises NoAnswer, ApiError."""
        try:
            await self._bucket.last_sequence(self._beat_s)
        except ApiError as error:
            if error.code != NO_STREAM:
                raise
            log.warning("members_made_again", reason=f"the bucket {self._bucket.stream} was gone")
            await self._make()

    def _is_ours(self, entry: Entry) -> bool:
        member = None if entry.data is None else _member(entry.data)
        return member is not None and member.life == self.me.life

    # ---- what there is to hear

    async def _beat(self) -> None:
        while not self.displaced and not self._left:
            await asyncio.sleep(self._beat_s)
            try:
                await self._put_beat()
                await self._look_at_catalogue()
            except (NoAnswer, ApiError) as error:
                log.warning("heartbeat_unknown", reason=f"{self._bucket.stream}: {error}")
            except Exception as error:  # nothing may end this: who is not heard is given up
                log.error("heartbeat_failed", exc_info=error)

    async def _look_at_catalogue(self) -> None:
        try:
            sequence = await self._catalogue.last_sequence()
        except (NoAnswer, ApiError) as error:
            log.warning("catalogue_not_read", reason=f"{self._catalogue.stream}: {error}")
            return
        if sequence != self._catalogue_sequence:
            self._catalogue_sequence = sequence
            self.on_catalogue_change()

    async def _listen(self) -> None:
        while not self._closed:
            nudged = False
            with contextlib.suppress(TimeoutError):
                nudged = await asyncio.wait_for(self._nudge.wait(), self._beat_s)
            self._nudge.clear()
            try:
                try:
                    await self._look()
                except (NoAnswer, ApiError):
                    await self._make_if_gone()  # here, since beats must not wait for that
                    raise
                if nudged:
                    await asyncio.sleep(AGAIN_S)
                    await self._look()
            except (NoAnswer, ApiError) as error:
                log.warning("members_not_read", reason=str(error))
            except Exception as error:  # as above
                log.error("members_not_read", exc_info=error)

    async def _look(self) -> None:
        """Hear all. What a replica says may be old; then it is news a moment later."""
        found = [each async for each in self._connection.last_messages(self._bucket.stream, f"{self._bucket.prefix}>")]
        now_ms = self._now_ms()
        if now_ms - self._stored_ms < STORED_BEATS * self._beat_s * 1000:
            self._roster.listened(now_ms)  # a bucket that takes no beat of ours takes nobody's, though it can be read
        for stored in found:
            key = stored.subject.removeprefix(self._bucket.prefix)
            data = None if OPERATION in stored.headers else stored.data
            if key == PLAN:
                self._learn(Entry(stored.sequence, data))
            elif "." not in key:
                self._hear(now_ms, key, data, stored.sequence)
        if self._unread:
            keys = {stored.subject.removeprefix(self._bucket.prefix) for stored in found}
            self._unread = {key: revision for key, revision in self._unread.items() if key in keys}
        self._tell()
        self._roster.forget(FORGET_MS)
        if self._there[:1] == [self.me]:
            for name, revision in self._roster.old(FORGET_MS)[:FORGET_MAX]:
                await self._bucket.forget(key_of(name), revision)

    def _hear(self, now_ms: int, key: str, data: bytes | None, revision: int) -> None:
        name = name_of(key)
        member = None if data is None else _member(data)
        if data is not None and (member is None or member.name != name):  # somebody else's, or a later build's
            if self._unread.get(key) != revision:  # it may stay for ever, and is looked at with each beat
                self._unread[key] = revision
                log.warning("member_not_read", key=key)
            return
        self._unread.pop(key, None)
        self._roster.heard(now_ms, name, member, revision)

    def _learn(self, entry: Entry) -> None:
        """What the plan's key has; a plan that was deleted, or can't be read, is one that was never put."""
        if entry.revision <= self._plan_revision:
            return
        self._plan_revision = entry.revision
        try:
            self._plan = None if entry.data is None else _plan_decoder.decode(entry.data)
        except UNREADABLE as error:
            log.error("plan_damaged", reason=str(error))
            self._plan = None
        if self._plan is not None:
            log.info("plan", version=self._plan.version)
        self.on_change()

    def _nudged(self, subject: str, data: bytes) -> None:
        """Somebody has put something, or has tried to."""
        if subject.startswith(self._catalogue.prefix):
            self.on_catalogue_change()
            return
        member = _member(data) if data else None
        if member in self._there:  # a beat like those before
            self._roster.sounded(self._now_ms(), member.name)
        else:
            self._nudge.set()

    def _hear_said(self, subject: str, data: bytes) -> None:
        try:
            _, word, shard = subject.rsplit(".", 2)
            self.on_said(msgspec.convert(word, Word), int(shard), _seat_decoder.decode(data))
        except (ValueError, RecursionError) as error:  # msgspec's are the former
            log.warning("word_not_read", subject=subject, reason=str(error))

    def _tell(self) -> None:
        there = self._roster.there()
        if there != self._there:
            self._there = there
            log.info("members", names=",".join(member.name for member in there))
            self.on_change()

    def _now_ms(self) -> int:
        return self._clock.now().boot_ms


async def _nothing() -> None:
    """Stands for what `join` sets."""


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait([task], timeout=LEAVE_S)


def _member(data: bytes) -> Member | None:
    """None: that is no member's."""
    try:
        return _member_decoder.decode(data)
    except UNREADABLE:
        return None

"""The account of the streams: what lies in them, folded as it is stored, and whose it is.

What the servers have stored is what there is; no more than that has to be known of anybody's memory. Every message of
a shard's stream is read here by a reader of its own, which knows the page of formats and nothing of the product's code:
that one process writes in an epoch, that no turn is there twice, that nothing follows a `Closed`. Whole turns are
folded into the shard's account, with their causes.
"""

from collections import ChainMap
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from tests.sim.account import Account, Between, Causes, Entry, Violation
from tests.sim.jetstream import Kept
from timerd.engine.record import Closed, Owned, Record
from timerd.ports import Frame

TURN: Final = "Timerd-Turn"
BODY: Final = "Timerd-Body"
BODY_HEAD: Final = 4 + 2 + 16

_records = msgspec.msgpack.Decoder(list[Record])


class Place(NamedTuple):
    """A message's own words."""

    epoch: int
    lsn: int
    part: int
    parts: int


class Bodies(dict[tuple[int, int], bytes]):
    """Payloads that lie apart, by (segment, offset): cut out of the extents as they come together."""

    def __init__(self) -> None:
        super().__init__()
        self._extents: dict[int, dict[int, bytes]] = {}
        self._joined: dict[int, bytearray] = {}
        self._cut: dict[int, int] = {}

    def stored(self, segment: int, start: int, data: bytes) -> None:
        """An extent is there."""
        extents = self._extents.setdefault(segment, {})
        extents[start] = data
        joined = self._joined.setdefault(segment, bytearray())
        while (more := extents.pop(len(joined), None)) is not None:
            joined += more
        at = self._cut.get(segment, 0)
        while at + BODY_HEAD <= len(joined):
            length = int.from_bytes(joined[at : at + 4], "little")
            begin = at + BODY_HEAD + int.from_bytes(joined[at + 4 : at + 6], "little")
            if begin + length > len(joined):
                break
            self[segment, begin] = bytes(joined[begin : begin + length])
            at = begin + length
        self._cut[segment] = at


class ShardStory:
    """One shard's stream so far."""

    def __init__(self, shard: int, account: Account) -> None:
        self.shard = shard
        self.account = account
        self.epoch = 0
        self.owner: Any = None
        """The process whose turns are the last, and which has not closed."""
        self.takes = 0
        self._writers: dict[int, Any] = {}  # epoch -> process
        self._parts: list[tuple[Place, bytes]] = []

    def stored(self, by: Any, header: str, data: bytes, causes: Causes) -> Owned | None:
        """A message is there; the `Owned` that has been made whole with it. Raises Violation."""
        version, epoch, lsn, _, _, of, _ = header.split(" ")
        place = Place(int(epoch), int(lsn), *map(int, of.split("/")))
        where = f"shard {self.shard}, {place}"
        if version != "1" or place.epoch < self.epoch:
            raise Violation(f"{where}: behind epoch {self.epoch}")
        if place.epoch == self.epoch and self._writers.get(place.epoch, by) is not by:
            raise Violation(f"{where}: two processes append in one epoch: {self._writers[place.epoch]}, {by}")
        if place.epoch == self.epoch and self.owner is None and self.epoch:
            raise Violation(f"{where}: appended behind Closed")
        if place.parts == 0:
            if place.epoch != self.epoch or place.lsn != self.account.lsn:
                raise Violation(f"{where}: a renewal that follows turn {self.account.lsn} of epoch {self.epoch}")
            self._parts.clear()
            return None
        if place.part == 1:
            self._parts.clear()
        if len(self._parts) != place.part - 1:
            raise Violation(f"{where}: a part that follows nothing")
        self._parts.append((place, data))
        if place.part < place.parts:
            return None
        if self.account.lsn and place.lsn != self.account.lsn + 1:
            raise Violation(f"{where}: it follows turn {self.account.lsn}")
        records = _records.decode(b"".join(data for _, data in self._parts))
        self._parts.clear()
        owned = next((record for record in records if isinstance(record, Owned)), None)
        if (place.epoch > self.epoch) != (owned is not None):
            raise Violation(f"{where}: a new epoch begins with Owned, and nothing else does: {records[:2]}")
        if owned is not None:
            if owned.epoch != place.epoch:
                raise Violation(f"{where}: it says {owned}")
            self.takes += 1
        self.epoch = place.epoch
        self._writers[place.epoch] = by
        self.owner = by
        self.account.apply(Frame(self.shard, place.lsn, records), causes)
        if isinstance(records[-1], Closed):
            self.owner = None
        return owned


class Streams:
    """All of one timerd. Told of every message by the servers."""

    def __init__(self, prefix: str, shards: int, causes: Causes) -> None:
        self.bodies = Bodies()
        self.between = Between()
        self.shards = [ShardStory(shard, Account(self.bodies, self.between)) for shard in range(shards)]
        self.versions = ChainMap(*(story.account.versions for story in self.shards))
        self.ended = ChainMap(*(story.account.ended for story in self.shards))
        self.on_owned: Callable[[ShardStory], None] = lambda story: None
        """Told when an `Owned` has been stored."""
        self.on_closed: Callable[[ShardStory, Any], None] = lambda story, by: None
        """Told when a `Closed` has been stored, and by whom."""
        self._logs = {f"{prefix}-log-{shard}": shard for shard in range(shards)}
        self._bodies = {f"{prefix}-bodies-{shard}" for shard in range(shards)}
        self._causes = causes

    def stored(self, stream: str, kept: Kept, by: Any) -> None:
        """A message has just been stored."""
        if stream in self._bodies:
            segment = int(kept.subject.split(".")[-2])
            self.bodies.stored(segment, int(kept.headers[BODY].split(" ")[1]), kept.data)
        elif (shard := self._logs.get(stream)) is not None:
            story = self.shards[shard]
            was = story.owner
            if story.stored(by, kept.headers[TURN], kept.data, self._causes) is not None:
                self.on_owned(story)
            if was is by and story.owner is None:
                self.on_closed(story, by)

    def entry(self, id: str) -> Entry | None:
        """What is stored of an id."""
        return self.between.find(id)

    def entries(self) -> dict[str, Entry]:
        """All that is stored, by id. Raises Violation where an id lives twice."""
        ids = [id for story in self.shards for id in story.account.entries]
        return {id: entry for id in ids if (entry := self.between.find(id)) is not None}

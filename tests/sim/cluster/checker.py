"""The checker of a cluster: what callers are told and what processors are given, held against what the streams hold.

Each record has a cause outside: a call that is open or whose end nobody has heard, or what a processor has answered
some attempt of that generation. An acknowledgement rests on what is stored at that instant. A delivery starts at the
shard's owner alone, of what is stored, current and due by that machine's wall.

A call whose answer was lost may still have its effect, once: its items stay allowed until they have been stored.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from tests.sim.account import Entry, Version, Violation
from tests.sim.clock import SimClock
from tests.sim.cluster.streams import ShardStory, Streams
from tests.sim.deliveries import Said, Sent
from tests.sim.ledger import COUNTED
from timerd.engine.late import UNTRIED
from timerd.engine.message import ArmDone, ArmResult, CancelResult, Refused, TimerView
from timerd.engine.ring import RingTable, slot_of
from timerd.report import NodeTally

UNAVAILABLE: Final = "unavailable"
GRACE_S: Final = 5.0
"""So long open deliveries have to end when their shard goes to another,"""
WARM_S: Final = GRACE_S / 2
"""and so much of that may go by before no new ones begin."""


class Item(NamedTuple):
    """What a caller asked to be armed."""

    id: str
    type: str
    fire_at: int
    payload: bytes | None


class Call:
    """An arm, a fire or a cancel that was asked for."""

    def __init__(self, number: int, items: Counter[Any]) -> None:
        self.number = number
        self.left = items
        """What of it has had no effect yet."""


class Attempt(NamedTuple):
    """A delivery that a process has open."""

    process: Any
    type: str
    sent: Sequence[Sent]
    epochs: Mapping[str, int]
    began_s: float
    """By the process's own time."""


class Checker:
    """Implements `account.Causes`. One for each run; told of everything, and raises Violation."""

    streams: Streams

    def __init__(self, table: RingTable) -> None:
        self.counts: Counter[str] = Counter()
        self.sure_walls = True
        """The machines' walls are near to each other, and go on."""
        self._table = table
        self._calls = 0
        self._arms: dict[int, Call] = {}
        self._cancels: dict[int, Call] = {}
        self._fires: dict[int, Call] = {}
        self._said: dict[tuple[str, int], list[Said]] = {}
        self._open: dict[str, tuple[Any, int]] = {}
        """Id -> who delivers it, in which epoch."""
        self._attempts: dict[int, Attempt] = {}
        self._unsure: dict[tuple[str, int], None] = {}
        self._barred: dict[tuple[str, int], None] = {}
        self._after_end: Counter[tuple[str, int]] = Counter()
        self._bare: list[Version] = []

    # ---- causes

    def armed(self, new: Version, old: Entry | None) -> None:
        item = Item(new.id, new.type, new.fire_at, new.payload)
        if self._spend(self._arms, item):
            return
        if old is not None and self._is_fired_now(new, old.version) and self._spend(self._fires, new.id):
            if new.payload is None and old.version.payload is not None:
                self._bare.append(new)
            return
        if new.payload is None:  # of those that had ended when their frame was written
            for call in self._arms.values():
                for asked, count in call.left.items():
                    if count > 0 and asked[:3] == item[:3]:
                        call.left[asked] -= 1
                        self._bare.append(new)
                        return
        raise Violation(f"armed, and nobody asked for it, or not so often: {new}, over {old}")

    def framed(self, entries: Mapping[str, Entry]) -> None:
        for new in self._bare:
            entry = entries.get(new.id)
            if entry is not None and entry.version == new:
                raise Violation(f"armed without its payload: {new}")
        self._bare.clear()

    def cancelled(self, old: Entry) -> None:
        if not self._spend(self._cancels, old.version.id):
            raise Violation(f"cancelled, and nobody asked for it: {old}")

    def fired(self, old: Entry) -> None:
        self._settled(old, "ok")
        self.counts["fired"] += 1

    def rearmed(self, old: Entry, new: Version) -> None:
        said = self._settled(old, "rearm", fire_at=new.fire_at)  # it may have been delivered twice, and answered
        if (new.fire_at, new.type) != (said.fire_at, old.version.type):
            raise Violation(f"re-armed as {new}, and the answer was {said}")
        if new.payload is None and old.version.payload is not None:
            self._bare.append(new)
        elif new.payload != old.version.payload:
            raise Violation(f"re-armed with another payload: {new}, {old}")
        self.counts["fired"] += 1
        self.counts["rearms"] += 1

    def dropped(self, old: Entry, reason: str) -> None:
        if reason != "processor":
            raise Violation(f"dropped for {reason}: {old}")
        self._settled(old, "drop")

    def retried(self, old: Entry, error: str, counted: bool) -> None:
        if error == UNTRIED and not counted:
            self.counts["not sent, its shard stood still"] += 1
            return
        self._settled(old, "retry", "fail")
        self.counts["retries"] += 1

    def buried(self, old: Entry, attempted: bool, error: str) -> None:
        self._settled(old, "dead", "retry", "fail")
        self.counts["dead"] += 1

    def revived(self, old: Entry) -> None:
        raise Violation(f"revived, and nobody asked for it: {old}")

    def purged(self, old: Entry) -> None:
        raise Violation(f"purged, and nobody asked for it: {old}")

    def taken(self, old: Entry) -> None:
        raise Violation(f"taken to another shard: {old}")

    def closed(self) -> None:
        """Who closes has nothing open: looked at where it is known who does (`closing`)."""

    def low(self) -> None: ...

    # ---- owners

    def died(self, process: Any) -> None:
        """Nobody will say what became of its deliveries."""
        for number, attempt in list(self._attempts.items()):
            if attempt.process is process:
                self._forget(number)

    def owned(self, story: ShardStory) -> None:
        """Another has a shard now: what the one before had begun, and has not recorded, is not known to it."""
        for attempt in self._attempts.values():
            for timer in attempt.sent:
                if self._shard(timer.id) == story.shard:
                    self._unsure[timer.id, timer.generation] = None
        for member in self._said:
            if self._shard(member[0]) == story.shard:
                self._unsure[member] = None

    def delivering(self, by: Any, shard: int) -> list[Sent]:
        """What a process has begun to deliver of a shard, and has not heard about, since it has it."""
        return self._delivering(by, shard, inf)

    def closing(self, story: ShardStory, by: Any) -> None:
        """A shard's owner lets go of it."""
        if mine := self.delivering(by, story.shard):
            raise Violation(f"shard {story.shard} closed with deliveries open: {mine}")

    def gone(self, shard: int, by: Any) -> None:
        """A process says that it has let go of a shard, and has waited for what it had begun."""
        if self.streams.shards[shard].owner is by and (mine := self._delivering(by, shard, GRACE_S - WARM_S)):
            raise Violation(f"{by} has let go of shard {shard}, and delivers {mine}")

    # ---- callers

    def arming(self, items: Sequence[Item]) -> int:
        """An arm is asked for; the number of the call."""
        # A front may ask a second time, if it has not heard what became of the first.
        return self._begin(self._arms, Counter(items) + Counter(items))

    def arm_done(self, number: int, items: Sequence[Item], before: Sequence[int], done: ArmDone) -> None:
        """It was answered."""
        results = done.results
        assert results is not None
        left = [item for item, result in zip(items, results, strict=True) if result.status == UNAVAILABLE]
        if left:
            call = self._arms[number]
            for item in list(call.left):
                call.left[item] = min(call.left[item], 2 * left.count(item))
            self.counts["unavailable"] += len(left)
        else:
            del self._arms[number]
        seen = Counter(item.id for item in items)
        for item, result, was in zip(items, results, before, strict=True):
            if result.status == UNAVAILABLE:
                continue
            self.counts["arms"] += 1
            version = self.streams.versions.get((item.id, result.generation))
            if version is None:
                raise Violation(f"acknowledged before it was stored: {item} {result}")
            if result.status in ("created", "moved") and version.fire_at != item.fire_at:
                raise Violation(f"asked for {item}, armed {version}")
            if result.generation < was and seen[item.id] == 1:
                raise Violation(f"generation {was} of {item.id!r} was there, and an arm says {result}")

    def arm_refused(self, number: int) -> None:
        """Nothing of it was done."""
        del self._arms[number]

    def cancelling(self, ids: Sequence[str]) -> int:
        """A cancel is asked for; the number of the call."""
        return self._begin(self._cancels, Counter(ids))

    def cancel_done(
        self, number: int, ids: Sequence[str], before: Sequence[int], results: Sequence[CancelResult]
    ) -> None:
        """It was answered."""
        call = self._cancels[number]
        unknown = [id for id, result in zip(ids, results, strict=True) if result.unavailable]
        if unknown:
            for id in list(call.left):
                call.left[id] = min(call.left[id], unknown.count(id))
        else:
            # What it found and nothing was put down to it was put down to another call, whose effect may be to come.
            call.left = Counter(
                {id: 1 for id, result in zip(ids, results, strict=True) if result.found and call.left[id]}
            )
            if not call.left:
                del self._cancels[number]
        for id, was, result in zip(ids, before, results, strict=True):
            if result.unavailable:
                continue
            if result.found:
                self.counts["cancels"] += 1
                ended = self.streams.ended.get((id, result.generation)) if result.generation else "cancelled"
                if ended not in ("cancelled", "purged"):
                    raise Violation(f"cancel of {id!r} was acknowledged before it was stored: {result}, {ended}")
                if not result.in_flight and result.generation:
                    self._barred[id, result.generation] = None
            elif was and self.top([id]) == [was] and ids.count(id) == 1:
                raise Violation(f"{id!r} is there with generation {was}, and a cancel did not find it")

    def cancel_refused(self, number: int) -> None:
        """Nothing of it was done."""
        del self._cancels[number]

    def firing(self, id: str) -> int:
        """A timer is to be fired now; the number of the call."""
        return self._begin(self._fires, Counter([id]))

    def fire_done(self, number: int, id: str, result: ArmResult | Refused | None) -> None:
        """It was answered."""
        del self._fires[number]
        if isinstance(result, ArmResult) and (id, result.generation) not in self.streams.versions:
            raise Violation(f"acknowledged before it was stored: fire of {id!r} {result}")

    def top(self, ids: Sequence[str]) -> list[int]:
        """The current stored generation of each id; 0 = nothing there."""
        return [entry.version.generation if (entry := self.streams.entry(id)) else 0 for id in ids]

    def seen(self, id: str, was: int, view: TimerView | None) -> None:
        """A read was answered."""
        if view is None:
            if was and self.top([id]) == [was]:
                raise Violation(f"{id!r} is there with generation {was}, and a read did not find it")
            return
        self._matches(view)
        if view.generation < was:
            raise Violation(f"generation {was} of {id!r} was there, and a read shows {view.generation}")

    def listed_all(self, views: Sequence[TimerView]) -> None:
        """Everything there is was shown, and nothing happened meanwhile."""
        expected = self.streams.entries()
        shown = {view.id: view for view in views}
        if len(shown) != len(views):
            raise Violation("a timer was listed twice")
        for id, entry in expected.items():
            view = shown.get(id)
            if view is None:
                raise Violation(f"not listed: {entry}")
            if view.generation != entry.version.generation or (view.state == "dead") != entry.dead:
                raise Violation(f"listed as {view}, expected {entry}")
            self._matches(view)
        if len(shown) > len(expected):
            raise Violation(f"listed, and not there: {sorted(shown.keys() - expected.keys())[:3]}")

    def sums(self) -> dict[str, Counter[str]]:
        """The counts of each type over all shards."""
        sums: dict[str, Counter[str]] = {}
        for story in self.streams.shards:
            for name, counts in story.account.totals.items():
                sums.setdefault(name, Counter()).update(counts)
        return sums

    def balanced(self, tallies: Sequence[NodeTally]) -> None:
        """Promise 8, by the equation and by what the streams hold, when nothing happens."""
        told: dict[str, Counter[str]] = {}
        for tally in tallies:
            for name, report in tally.types.items():
                gone = report.fired + report.cancelled + report.replaced + report.dead + sum(report.dropped.values())
                if report.armed + report.revived != gone + report.live:
                    raise Violation(f"the counters do not balance: {report}")
                told.setdefault(name, Counter()).update({field: getattr(report, field) for field in COUNTED})
        for name, expected in self.sums().items():
            for field in COUNTED:
                if told[name][field] != expected[field]:
                    raise Violation(f"{field} of {name} is {told[name][field]}, expected {expected[field]}")

    # ---- processors

    def posted(self, process: Any, clock: SimClock, type: str, sent: Sequence[Sent]) -> int:
        """A delivery starts; its number."""
        epochs = {}
        for timer in sent:
            story = self.streams.shards[self._shard(timer.id)]
            if story.owner is not process:
                raise Violation(f"{process} delivers {timer} of shard {story.shard}, which {story.owner} has")
            epochs[timer.id] = story.epoch
            self._starts(type, timer, clock, story)
            self._open[timer.id] = process, story.epoch
        self.counts["posts"] += 1
        self._calls += 1
        self._attempts[self._calls] = Attempt(process, type, sent, epochs, process.oscillator.time())
        return self._calls

    def answered(self, number: int, said: Sequence[Said], unknown: bool) -> None:
        """The process hears what became of it."""
        attempt = self._attempts.pop(number, None)
        if attempt is None:
            return  # it is dead
        for timer, what in zip(attempt.sent, said, strict=True):
            member = timer.id, timer.generation
            if self._open.get(timer.id) == (attempt.process, attempt.epochs[timer.id]):
                del self._open[timer.id]
            self._said.setdefault(member, []).append(what)
            if unknown:
                self._unsure[member] = None

    # ---- steps

    def _begin(self, calls: dict[int, Call], items: Counter[Any]) -> int:
        self._calls += 1
        calls[self._calls] = Call(self._calls, items)
        return self._calls

    def _spend(self, calls: dict[int, Call], what: Any) -> bool:
        for call in calls.values():
            if call.left[what] > 0:
                call.left[what] -= 1
                return True
        return False

    def _is_fired_now(self, new: Version, old: Version) -> bool:
        """Whether it may be the same, to be fired now. Either may be without its payload, if it had ended."""
        return new.type == old.type and (None in (new.payload, old.payload) or new.payload == old.payload)

    def _shard(self, id: str) -> int:
        return self._table.shards[slot_of(id)]

    def _delivering(self, by: Any, shard: int, than_s: float) -> list[Sent]:
        """The same, of what has begun less than so long ago."""
        epoch = self.streams.shards[shard].epoch
        return [
            timer
            for attempt in self._attempts.values()
            if attempt.process is by and by.oscillator.time() - attempt.began_s < than_s
            for timer in attempt.sent
            if self._shard(timer.id) == shard and attempt.epochs[timer.id] == epoch
        ]

    def _forget(self, number: int) -> None:
        attempt = self._attempts.pop(number)
        for timer in attempt.sent:
            self._unsure[timer.id, timer.generation] = None
            if self._open.get(timer.id) == (attempt.process, attempt.epochs[timer.id]):
                del self._open[timer.id]

    def _starts(self, type: str, timer: Sent, clock: SimClock, story: ShardStory) -> None:
        member = timer.id, timer.generation
        version = self.streams.versions.get(member)
        if version is None:
            raise Violation(f"delivered before it was stored: {timer}")
        if (version.type, version.fire_at, version.payload) != (type, timer.fire_at, timer.payload):
            raise Violation(f"delivered {timer}, armed {version}")
        if timer.fire_at > clock.wall_ms and clock.went_back_at < 0:
            raise Violation(f"early by {timer.fire_at - clock.wall_ms} ms: {timer}")
        if member in self._barred:
            raise Violation(f"delivered after a cancel had said that it would not be: {timer}")
        open = self._open.get(timer.id)
        if open is not None and open == (story.owner, story.epoch):
            raise Violation(f"two deliveries of {timer.id!r} at once: {timer}")
        if (how := self.streams.ended.get(member)) is not None:
            # Only what was handed out before its end may still leave, once.
            self._after_end[member] += 1
            if how not in ("cancelled", "replaced") or self._after_end[member] > 1:
                raise Violation(f"delivered after its end ({how}): {timer}")
            return
        entry = self.streams.entry(timer.id)
        if entry is None or entry.version.generation != timer.generation or entry.dead:
            raise Violation(f"delivered, and not current: {timer}, {entry}")
        if timer.attempt != entry.attempts + 1:
            raise Violation(f"attempt {timer.attempt} after {entry.attempts}: {timer}")
        unsure = member in self._unsure or entry.unknown
        if unsure and not timer.possible_duplicate and self.sure_walls:
            raise Violation(f"not flagged as a possible duplicate: {timer}")

    def _settled(self, old: Entry, *whats: str, fire_at: int | None = None) -> Said:
        member = old.version.id, old.version.generation
        heard = self._said.get(member, [])
        for said in heard:
            if said.what in whats and fire_at in (None, said.fire_at):
                heard.remove(said)
                if not heard:
                    del self._said[member]
                return said
        raise Violation(f"settled as {whats[0]}, and no answer said so: {old}, {heard}")

    def _matches(self, view: TimerView) -> None:
        version = self.streams.versions.get((view.id, view.generation))
        if version is None:
            raise Violation(f"shown before it was stored: {view}")
        if (view.fire_at, view.type) != (version.fire_at, version.type):
            raise Violation(f"shown {view}, armed {version}")
        if view.payload != version.payload and (view.id, view.generation) not in self.streams.ended:
            raise Violation(f"shown {view}, armed {version}")

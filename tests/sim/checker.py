"""The checker: what callers are told, and why there are records, held against the ledger.

The chain of the argument: what is acknowledged is durable in the ledger (here); what is durable comes back after any
crash (ledger); every record has a cause outside (here); what is delivered is what was armed, current, and due
(deliveries); what is due is delivered (world, at the end of a run). So nothing acknowledged is lost, and nothing else
happens.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.sim.account import Entry, Version, Violation
from tests.sim.clock import SimClock
from tests.sim.deliveries import Deliveries, Said
from tests.sim.ledger import COUNTED, Ledger
from timerd.engine.message import ArmResult, CancelResult, Condition, TimerView
from timerd.engine.timer import INLINE_PAYLOAD_BYTES, Timer
from timerd.report import NodeTally


class Item(NamedTuple):
    """What a caller asked to be armed."""

    id: str
    type: str
    fire_at: int
    payload: bytes | None


class Checker(Deliveries):
    """Implements `ledger.Causes`. One for each run; told of everything, and raises Violation."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: SimClock, ledger: Ledger) -> None:
        super().__init__(loop, clock, ledger)
        self.worst_disk = 0.0
        # Calls that have not returned.
        self._arms: Counter[Item] = Counter()
        self._fires: Counter[str] = Counter()
        self._cancels: Counter[str] = Counter()
        self._bare: list[Version] = []
        self._revives: Counter[str] = Counter()
        self._purges: Counter[str] = Counter()
        self._over: dict[tuple[str, int], tuple[Entry | None, int]] = {}
        """What each generation was armed over, and what fire time may be due then."""
        self._gone: dict[str, list[int]] = {}  # generations that were cancelled, by id
        self.dead_kept_all = True
        self.lost_bodies = False
        """Some payloads could not be read."""

    # ---- what the world tells

    def crashed(self) -> None:
        """Nobody will hear the end of what was under way."""
        for calls in (self._arms, self._fires, self._cancels, self._revives, self._purges):
            calls.clear()
        for id, generation in self._open.items():
            self._unsure[id, generation] = None
        for member in self._said:
            self._unsure[member] = None
        self._open.clear()
        self._said.clear()

    def low(self) -> None:
        """The log lives on its reserve: retries are known to the process and, until the next slice, not to the log."""
        self._ledger.lacks_retries = True

    # ---- what callers are told

    def top(self, ids: Sequence[str]) -> list[int]:
        """The current durable generation of each id; 0 = nothing there."""
        return [entry.version.generation if (entry := self._entry(id)) else 0 for id in ids]

    def arming(self, items: Sequence[Item]) -> None:
        self._arms.update(items)

    def armed(self, new: Version, old: Entry | None) -> None:
        self._over[new.id, new.generation] = old, max(self._clock.wall_ms, self._clock.high_ms)
        item = Item(new.id, new.type, new.fire_at, new.payload)
        if self._arms[item] > 0:
            return
        if new.payload is None and any(n > 0 and asked[:3] == item[:3] for asked, n in self._arms.items()):
            self._bare.append(new)
            return
        if self._fires[new.id] > 0 and old is not None and old.version.type == new.type:
            if new.payload is None and old.version.payload is not None:
                self._bare.append(new)
            elif new.payload != old.version.payload and old.version.payload is not None:
                raise Violation(f"fired now with another payload: {new}, {old}")
            return
        raise Violation(f"armed, and nobody asked for it: {new}")

    def framed(self, entries: Mapping[str, Entry]) -> None:
        """A frame ends here. A generation that ended in the frame that armed it may be without its payload there."""
        for new in self._bare:
            entry = entries.get(new.id)
            if entry is not None and entry.version == new:
                raise Violation(f"armed without its payload: {new}")
        self._bare.clear()

    def arm_done(
        self,
        items: Sequence[Item],
        conditions: Sequence[Condition] | None,
        before: Sequence[int],
        results: Sequence[ArmResult] | None,
    ) -> None:
        """An arm was acknowledged. `before`: what `top` said when it was asked for; 0 says nothing."""
        self._arms.subtract(items)
        if results is None:
            self.counts["arms"] += len(items)
            return
        wanted = conditions or [Condition()] * len(items)
        for item, condition, was, result in zip(items, wanted, before, results, strict=True):
            if result.status == "conflict":
                if condition.if_generation is None or (
                    was == condition.if_generation != 0 and self.top([item.id]) == [was]
                ):
                    raise Violation(f"{item} with {condition} over {was}: {result}")
                continue
            version = self._ledger.versions.get((item.id, result.generation))
            if version is None:
                raise Violation(f"acknowledged before it was durable: {item} {result}")
            if result.generation < was:
                raise Violation(f"generation {was} of {item.id!r} was there, and the answer is {result}")
            if result.status in ("created", "moved"):
                self.counts["arms"] += 1
                self._judge_condition(item, condition, result)
                if result.generation == was:
                    raise Violation(f"{item.id!r} was armed and kept its generation {was}")
                payload = None if self._is_bare(version) else item.payload
                if version != (item.id, result.generation, item.fire_at, item.type, payload):
                    raise Violation(f"asked for {item}, armed {version}")
            elif result.status == "unchanged":
                payload = None if self._is_bare(version) else item.payload
                if version[2:] != (item.fire_at, item.type, payload):
                    raise Violation(f"unchanged, it says: {item} {version}")

    def _judge_condition(self, item: Item, condition: Condition, result: ArmResult) -> None:
        """Whether it may be armed over what was there."""
        old, at_ms = self._over[item.id, result.generation]
        there = old.version if old is not None else None
        if (result.status == "created") != (old is None or old.dead):
            raise Violation(f"{result} over {old}")
        if condition.if_generation is not None and condition.if_generation != (there.generation if there else 0):
            raise Violation(f"{item} with {condition} was armed over {old}")
        if there is None or result.status == "created" or there.fire_at <= at_ms:
            return  # nothing that waits: what is due may be in flight, and counts as absent then
        right = {
            "replace": True,
            "keep": False,
            "earliest": item.fire_at < there.fire_at,
            "latest": item.fire_at > there.fire_at,
        }
        if not right[condition.mode]:
            raise Violation(f"{item} with {condition} was armed over {old}")

    def arm_refused(self, items: Sequence[Item]) -> None:
        """Nothing of it was done."""
        self._arms.subtract(items)

    def firing(self, id: str) -> None:
        self._fires[id] += 1

    def fire_done(self, id: str, result: ArmResult | None) -> None:
        self._fires[id] -= 1
        if result is not None and result.status == "moved":
            if (id, result.generation) not in self._ledger.versions:
                raise Violation(f"acknowledged before it was durable: fire of {id!r} {result}")
            self.counts["fire_nows"] += 1

    def cancelling(self, ids: Sequence[str]) -> None:
        self._cancels.update(ids)

    def cancelled(self, old: Entry) -> None:
        if self._cancels[old.version.id] <= 0:
            raise Violation(f"cancelled, and nobody asked for it: {old}")
        self._gone.setdefault(old.version.id, []).append(old.version.generation)

    def cancel_done(self, ids: Sequence[str], before: Sequence[int], results: Sequence[CancelResult]) -> None:
        """A cancel was acknowledged."""
        self._cancels.subtract(ids)
        for id, was, result in zip(ids, before, results, strict=True):
            if result.found:
                self.counts["cancels"] += 1
                ended = self._ledger.ended
                # An answer of many names no generations.
                gone = [result.generation] if result.generation else [g for g in self._gone.get(id, ()) if g >= was]
                gone = [g for g in gone if ended.get((id, g)) in ("cancelled", "purged")]
                if not gone:
                    raise Violation(f"cancel of {id!r} was acknowledged before it was durable: {result}")
                if not result.in_flight and len(gone) == 1:
                    self._barred[id, gone[0]] = None
                    if self._open.get(id) == gone[0]:
                        raise Violation(f"a delivery is open, and a cancel says that none is: {id!r} {result}")
            elif was and self.top([id]) == [was] and ids.count(id) == 1:
                raise Violation(f"{id!r} is there with generation {was}, and a cancel did not find it")

    def seen(self, id: str, was: int, view: TimerView | None) -> None:
        """A read was answered."""
        if view is None:
            if was and self.top([id]) == [was]:
                raise Violation(f"{id!r} is there with generation {was}, and a read did not find it")
            return
        self._matches(view)
        if view.generation < was:
            raise Violation(f"generation {was} of {id!r} was there, and a read shows {view.generation}")

    def listed(self, views: Sequence[TimerView]) -> None:
        """A page was shown."""
        for view in views:
            self._matches(view)

    def listed_all(self, views: Sequence[TimerView]) -> None:
        """Everything there is was shown, and nothing happened meanwhile."""
        expected = self._ledger.entries()
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

    def reviving(self, ids: Sequence[str]) -> None:
        self._revives.update(ids)

    def revive_done(self, ids: Sequence[str]) -> None:
        self._revives.subtract(ids)

    def revived(self, old: Entry) -> None:
        if self._revives[old.version.id] <= 0 and self._revives[old.version.type] <= 0:
            raise Violation(f"revived, and nobody asked for it: {old}")
        self.counts["revived"] += 1

    def purging(self, ids: Sequence[str]) -> None:
        self._purges.update(ids)

    def purge_done(self, ids: Sequence[str]) -> None:
        self._purges.subtract(ids)

    def purged(self, old: Entry) -> None:
        wanted = self._purges[old.version.id] > 0 or self._purges[old.version.type] > 0
        if not wanted and self.dead_kept_all:
            raise Violation(f"purged, and nobody asked for it: {old}")
        self.counts["purged"] += 1

    def taken(self, old: Entry) -> None:
        """A cancel or a purge is to take it from another shard."""
        if old.dead and self._cancels[old.version.id] <= 0:
            self.purged(old)
        else:
            self.cancelled(old)

    # ---- what becomes of deliveries

    def fired(self, old: Entry) -> None:
        self._settled(old, "ok")
        self.counts["fired"] += 1

    def rearmed(self, old: Entry, new: Version) -> None:
        said = self._settled(old, "rearm")
        payload = old.version.payload if said.payload is None else said.payload
        if new.payload is None and payload is not None:
            self._bare.append(new)
            payload = None
        fire_at = new.fire_at if self._coalesced(old, said.fire_at, new.fire_at) else said.fire_at
        if (new.fire_at, new.payload, new.type) != (fire_at, payload, old.version.type):
            raise Violation(f"re-armed as {new}, and the answer was {said}")
        late_ms = new.generation // 1000 - new.fire_at
        sure = self._clock.went_back_at < 0 and not self.excused
        self._limits.rearmed(new.type, (new.id, new.generation), late_ms, sure=sure)
        self.counts["fired"] += 1
        self.counts["rearms"] += 1

    def dropped(self, old: Entry, reason: str) -> None:
        if reason == "misfire":
            self._judge_drop(old)
            return
        if reason != "processor":
            raise Violation(f"dropped for {reason}: {old}")
        self._settled(old, "drop")

    def retried(self, old: Entry, error: str, counted: bool) -> None:
        allowed = ("retry", "fail", "rearm") if error.startswith("re-arm") else ("retry", "fail")
        if self._settled(old, *allowed).spared and counted:
            raise Violation(f"a target that asked for a pause costs an attempt: {old}")
        self.counts["retries"] += 1

    def buried(self, old: Entry, attempted: bool, error: str) -> None:
        if not attempted:
            apart = old.version.payload is not None and len(old.version.payload) > INLINE_PAYLOAD_BYTES
            lost = error in ("its payload can't be read", "its request can't be read")
            if not (apart and self.lost_bodies and lost):
                raise Violation(f"buried without an attempt, {error}: {old}")
            self.counts["bodies lost"] += 1
            return
        said = self._settled(old, *(("rearm",) if error.startswith("re-arm") else ()), "dead", "retry", "fail")
        self.counts["dead"] += 1
        if said.what == "dead" or said.no_retry:
            return
        limits = [form.retry.max_attempts for form in self._forms[old.version.type] if form.retry.max_attempts]
        if not limits or (old.counted + 1 < min(limits) and not self._ledger.lacks_retries):
            raise Violation(f"buried with {old.counted + 1} failures counted, the limits were {limits}: {old}")

    def closed(self) -> None:
        if self._open:
            raise Violation(f"closed while deliveries are open: {self._open}")

    # ---- counts

    def sums(self) -> dict[str, Counter[str]]:
        """The counts by the ledger, of each type over all shards."""
        sums: dict[str, Counter[str]] = {}
        for account in self._ledger.durable:
            for name, counts in account.totals.items():
                sums.setdefault(name, Counter()).update(counts)
        return sums

    def balanced(self, stats: Mapping[str, Mapping[str, Any]], before: Mapping[str, Counter[str]]) -> None:
        """Promise 8, as a caller can see it. `before`: the counts by the ledger when they were asked for."""
        after = self.sums()
        if before and not stats:
            raise Violation("no counts are shown")
        for name, of in stats.items():
            gone = of["fired"] + of["cancelled"] + of["replaced"] + of["dead"] + sum(of["dropped"].values())
            if of["armed"] + of["revived"] != gone + of["live"]:
                raise Violation(f"the counters of {name} do not balance: {of}")
            self._judge_counts(name, of, before, after)

    def tallied(
        self, tally: NodeTally, before: Mapping[str, Counter[str]], segment_bytes: int, *, judge_disk: bool
    ) -> None:
        """Promise 8, by the equation and by the ledger (`before`: when it was asked for); and promise 9."""
        after = self.sums()
        for name, report in tally.types.items():
            gone = report.fired + report.cancelled + report.replaced + report.dead + sum(report.dropped.values())
            if report.armed + report.revived != gone + report.live:
                raise Violation(f"the counters do not balance: {report}")
            self._judge_counts(name, {field: getattr(report, field) for field in COUNTED}, before, after)
        bound = 3 * tally.log_live_bytes + 4 * segment_bytes
        ratio = tally.log_disk_bytes / bound
        if judge_disk:
            self.worst_disk = max(self.worst_disk, ratio)
        if ratio > 1 and judge_disk:
            raise Violation(
                f"{tally.log_disk_bytes} bytes on disk, {tally.log_live_bytes} live, segment {segment_bytes}"
            )

    # ---- steps

    def _judge_drop(self, old: Entry) -> None:
        """A timer was dropped as missed: an untried one, overdue by more than the grace of a type that drops."""
        version = old.version
        late_ms = self._clock.wall_ms - max(version.fire_at, version.generation // 1000)
        graces = [form.grace_ms for form in self._forms[version.type] if form.misfire.policy == "drop"]
        if not graces or late_ms <= min(graces):
            raise Violation(f"dropped {late_ms} ms after it was due, the graces were {graces}: {old}")
        if old.attempts or (version.id, version.generation) in self._said:
            raise Violation(f"dropped, and it had been tried: {old}")
        if self._open.get(version.id) == version.generation:
            raise Violation(f"dropped while it was being delivered: {old}")
        since = self.paused.get(version.type)
        if since is not None and self._loop.time() > since + 1.0 and not self.excused:
            raise Violation(f"dropped while its type is paused: {old}")
        self.counts["dropped as missed"] += 1

    def _coalesced(self, old: Entry, asked: int, became: int) -> bool:
        """Whether a re-arm may have been moved like this: by whole steps, to the first moment that is not past."""
        now_ms, step = self._clock.wall_ms, asked - old.version.fire_at
        graces = [form.grace_ms for form in self._forms[old.version.type] if form.misfire.policy == "coalesce"]
        if became == asked or not graces or step <= 0 or now_ms - asked <= min(graces):
            return False
        self.counts["coalesced"] += 1
        return (became - asked) % step == 0 and now_ms <= became < now_ms + step

    def _judge_counts(
        self,
        name: str,
        shown: Mapping[str, Any],
        before: Mapping[str, Counter[str]],
        after: Mapping[str, Counter[str]],
    ) -> None:
        # The answer is made at a step and leaves with its turn, so it lies between the two.
        for field in COUNTED:
            low, high = (sums.get(name, Counter())[field] for sums in (before, after))
            if not low <= shown[field] <= high and not (field == "retried" and self._ledger.lacks_retries):
                raise Violation(f"{field} of {name} is {shown[field]}, expected {low} to {high}")

    def _is_bare(self, version: Version) -> bool:
        """Whether the log may have it without its payload: it had ended when its frame was written."""
        return version.payload is None and (version.id, version.generation) in self._ledger.ended

    def _matches(self, view: TimerView) -> None:
        version = self._ledger.versions.get((view.id, view.generation))
        if version is None:
            raise Violation(f"shown before it was durable: {view}")
        payload = None if self._is_bare(version) else view.payload
        if payload is None and self.lost_bodies and len(version.payload or b"") > INLINE_PAYLOAD_BYTES:
            payload = version.payload
        if version[2:] != (view.fire_at, view.type, payload):
            raise Violation(f"shown {view}, armed {version}")

    def _settled(self, old: Entry, *whats: str) -> Said:
        member = (old.version.id, old.version.generation)
        said = self._said.pop(member, None)
        if said is None:
            raise Violation(f"settled as {whats[0]}, and no answer was for it: {old}")
        if said.what not in whats:
            raise Violation(f"settled as {whats[0]}, and the answer was {said}: {old}")
        return said


def timers_of(items: Sequence[Item]) -> list[Timer]:
    """What the API hands to the node for them."""
    return [Timer(item.fire_at, 0, item.id, item.type, item.payload) for item in items]

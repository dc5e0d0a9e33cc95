"""One type's flow: what is ready of it in all shards, and whether, when and how much of it may leave.

A flow knows counts, not timers: its work does not grow with how much is due. It decides one batch at a time and is
asked again after every event; the dispatcher does the bookkeeping of the batches that are open, and `Target` knows when
the target may be tried.

Invariants
1. A batch is from one lane. Lanes are (type, limit): limit 0 are first attempts, `MISSED` those that catch up (see
   catchup.py), any other the retries that may travel in batches of at most that size. So retries never share a batch
   with first attempts, and what catches up with nothing else.
2. Nothing is chosen unless it may leave now: slot, rate, breaker, pause and Retry-After are asked first, and there is
   no queue behind a choice.
3. `wake` is never later than the first moment at which time alone changes the choice.
"""

from typing import Final

from timerd.engine.catchup import MISSED, CatchUp
from timerd.engine.choice import Choice, Lane
from timerd.engine.command import TargetTurned
from timerd.engine.condition import Condition
from timerd.engine.effect import Ready
from timerd.engine.now import Now
from timerd.engine.rate import Rate, rate_of
from timerd.engine.target import Target
from timerd.engine.timer import RetryPolicy, TimerType

CLOSE_EARLY_MS_MAX: Final = 50  # a batch closes this much before max_lag is up: promise 3 has 250 ms for all the rest


class Flow:
    """Of one type. `wake` = (wall ms, boot ms), each or both None: when to ask `choose` again without an event."""

    def __init__(self, name: str, lanes: dict[int, Lane] | None = None) -> None:
        """`lanes`: what the shards have ready already."""
        self.name = name
        self.type: TimerType | None = None
        self.open: set[int] = set()
        """The batches under way, one slot each."""
        self.target = Target(name, self.open)
        self.moved_at = 0
        """Boot ms at which a batch last got on: was begun, posted, answered, settled."""
        self.wake: tuple[int | None, int | None] = (None, None)
        self.lanes = {} if lanes is None else lanes
        self.catching_up: set[int] = set()
        """The batches of catch-up; those that are not open any more are forgotten in time."""
        self._catch_up = CatchUp()
        self._rate: Rate | None = None
        self._retries_next = False
        self._first_probed_at = 0

    def set_type(self, type: TimerType | None, boot_ms: int) -> None:
        """Know the type as it is now; None: there is no such type, and its timers wait."""
        self.target.set_type(type, self.type, boot_ms)
        self.type = type
        self._catch_up.set_type(type, boot_ms)
        self._rate = rate_of(type.max_per_second if type else None, self._rate, boot_ms)

    def report(self, ready: Ready) -> None:
        """A shard says what it has of a lane. Nothing of a processor's is ever parked."""
        if ready.key:
            return
        lane = self.lanes.get(ready.limit)
        if lane is None:
            lane = self.lanes[ready.limit] = Lane(ready.limit)
        lane.reported[ready.shard] = ready
        self._tidy(lane, ready.shard)

    def forget(self, shard: int) -> list[Ready]:
        """Take out what the shard has said, so that it is not asked."""
        said: list[Ready] = []
        for lane in list(self.lanes.values()):
            said += lane.forget(shard)
            self._tidy(lane, shard)
        return said

    def ask(self, choice: Choice) -> None:
        """The choice is carried out: its takes are under way."""
        lane = self.lanes[choice.limit]
        for shard, count in choice.takes:
            lane.asked[shard] = lane.asked.get(shard, 0) + count
            for rate in self._rates(choice.limit):
                rate.spend(count)
        if choice.limit != MISSED:
            self._retries_next = choice.limit == 0

    def receive(self, limit: int, shard: int, asked: int, taken: int) -> None:
        """A take has ended with this many."""
        lane = self.lanes[limit]
        lane.asked[shard] -= asked
        self._tidy(lane, shard)
        for rate in self._rates(limit):
            rate.give_back(asked - taken)

    @property
    def policy(self) -> RetryPolicy:
        """How its failures are tried again."""
        return self.type.retry if self.type else RetryPolicy()

    def condition(self, boot_ms: int) -> Condition:
        """How its target is."""
        return self.target.condition(boot_ms)

    @property
    def turned(self) -> list[TargetTurned]:
        """What the target has come to, and nobody has been told."""
        return self.target.turned

    @property
    def weight(self) -> int:
        """Its share of what may begin, beside others that have as much to do."""
        return self.type.max_in_flight if self.type else 1

    @property
    def idle(self) -> bool:
        """Whether the flow could be forgotten."""
        return self.type is None and not self.open and not self.lanes

    def choose(self, now: Now, hurried: bool = False) -> Choice | None:
        """The next batch that may leave now, or None until `wake` or the next event. `hurried`: none waits for more."""
        self.wake = (None, None)
        type = self.type
        target = self.target
        if type is None or target.gone or type.state != "active" or len(self.open) >= target.slots:
            return None
        closes_at = self._closes_at(type)
        if hurried and closes_at is not None:
            closes_at = 0
        first = self.lanes[0] if closes_at is not None and closes_at <= now.wall_ms else None
        if first is None:
            self.wake = (closes_at, None)
        on_time, missed = self._pick(first, self._oldest_retries()), self._missed_lane()
        if target.breaker.open and target.breaker.probe is not None:
            return None
        for lane in (missed, on_time) if self._catch_up.its_turn else (on_time, missed):
            if lane is None:
                continue
            choice, free_at = self._choice(type, lane, now)
            if choice is not None:
                self._catch_up.note_choice(lane is missed, missed is not None)
                return choice
            self.wake = (self.wake[0], free_at if self.wake[1] is None else min(free_at, self.wake[1]))
            if lane is on_time:
                return None  # what they wait for is not spent on catch-up
        return None

    def _choice(self, type: TimerType, lane: Lane, now: Now) -> tuple[Choice | None, int]:
        """A batch of this lane, or None and when it may leave (boot ms)."""
        free_at, breaker = self.target.free_at, self.target.breaker
        whole = lane.limit if lane.limit > 0 else type.batch_size
        count = min(lane.total(), whole, type.batch_size)
        if breaker.open and breaker.probes_single:
            count = 1
        rates = self._rates(lane.limit)
        for rate in rates:
            count = min(count, rate.burst)
        for rate in rates:
            free_at = max(free_at, rate.free_at(count, now.boot_ms))
        if free_at > now.boot_ms:
            return None, free_at
        return Choice(lane.limit, whole, lane.split(count)), free_at

    def note_probe(self, choice: Choice, batch_no: int, boot_ms: int) -> None:
        """The choice leaves while the breaker is open."""
        self.target.breaker.send_probe(batch_no)
        if choice.limit == 0:
            self._first_probed_at = boot_ms

    def _pick(self, first: Lane | None, retries: Lane | None) -> Lane | None:
        """Which of the two kinds goes next.

        In turns, so that neither starves for the slots or the rate; among the retries the one tried longest ago. A
        probe goes to the longest ago of all, and first attempts, never tried, count as tried when one of them last was:
        so a stream of them that hangs the target can't be the only probe for ever.
        """
        if first is None or retries is None:
            return first or retries
        if self.target.breaker.open:
            return first if self._first_probed_at <= retries.last_try() else retries
        return retries if self._retries_next else first

    def waits(self, now: Now) -> bool:
        """Whether something may leave now by all that time and target decide: it lacks a slot, or somebody's work."""
        type = self.type
        target = self.target
        if type is None or target.gone or type.state != "active" or target.breaker.open or target.free_at > now.boot_ms:
            return False
        closes_at = self._closes_at(type)
        if (closes_at is not None and closes_at <= now.wall_ms) or self._oldest_retries() is not None:
            return True
        return self._missed_lane() is not None and all(r.available(now.boot_ms) > 0 for r in self._rates(MISSED))

    def _oldest_retries(self) -> Lane | None:
        lanes = [lane for limit, lane in self.lanes.items() if limit > 0 and lane.total()]
        return min(lanes, key=Lane.last_try, default=None)

    def _missed_lane(self) -> Lane | None:
        """What may catch up, if that has a request left."""
        lane = self.lanes.get(MISSED)
        if self.type is None or lane is None or not lane.total():
            return None
        self.catching_up &= self.open
        return lane if self._catch_up.room(len(self.catching_up), self.target.slots) else None

    def _rates(self, limit: int) -> list[Rate]:
        """Which hold for a lane."""
        rates = (self._rate, self._catch_up.rate if limit == MISSED else None)
        return [rate for rate in rates if rate is not None]

    def _closes_at(self, type: TimerType) -> int | None:
        """Unix ms from which the first attempts that are ready may leave as a batch."""
        first = self.lanes.get(0)
        total = first.total() if first else 0
        if first is None or total == 0:
            return None
        if total >= type.batch_size or first.urgent():
            return 0
        since = first.since()
        if since is None:
            return None
        return since + type.max_lag_ms - min(CLOSE_EARLY_MS_MAX, type.max_lag_ms // 2)

    def _tidy(self, lane: Lane, shard: int) -> None:
        """Forget what says nothing, so that lanes don't pile up."""
        lane.tidy(shard)
        if not lane.reported and not lane.asked:
            del self.lanes[lane.limit]

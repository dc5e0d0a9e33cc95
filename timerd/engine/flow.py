"""One type's flow: what is ready of it in all shards, and whether, when and how much of it may leave.

A flow knows counts, not timers: its work does not grow with how much is due. It decides one batch at a time and is
asked again after every event; the dispatcher does the bookkeeping of the batches that are open. It also judges what a
failure says of a batch and of the target (ADR 3).

Invariants
1. A batch is from one lane. Lanes are (type, limit): limit 0 are first attempts, `MISSED` those that catch up (see
   catchup.py), any other the retries that may travel in batches of at most that size. So retries never share a batch
   with first attempts, and what catches up with nothing else.
2. Nothing is chosen unless it may leave now: slot, rate, breaker, pause and Retry-After are asked first, and there is
   no queue behind a choice.
3. `wake` is never later than the first moment at which time alone changes the choice.
"""

from typing import Final, NamedTuple

from timerd.engine.answer import Failed
from timerd.engine.backoff import backoff_ms
from timerd.engine.batch import Batch
from timerd.engine.breaker import Breaker
from timerd.engine.catchup import MISSED, CatchUp
from timerd.engine.command import TargetTurned
from timerd.engine.condition import Condition, Course, condition_of, course_of, turns
from timerd.engine.effect import Ready
from timerd.engine.message import WholeFailure
from timerd.engine.now import Now
from timerd.engine.pace import Pace
from timerd.engine.rate import Rate, rate_of
from timerd.engine.timer import RetryPolicy, Timer, TimerType

CLOSE_EARLY_MS_MAX: Final = 50  # a batch closes this much before max_lag is up: promise 3 has 250 ms for all the rest


class Choice(NamedTuple):
    """A batch that may leave now."""

    limit: int
    whole: int
    """The largest batch that its members may travel in."""
    takes: list[tuple[int, int]]
    """(shard, how many)"""
    key: str = ""
    """Not empty: of what is parked under it."""


class Lane:
    """What the shards have ready of one lane, by what each said last."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reported: dict[int, Ready] = {}
        self.asked: dict[int, int] = {}
        """By shard: what Takes under way may still take of `reported`."""

    def free(self, shard: int) -> int:
        """How many more this shard can be asked for.

        A Ready that was made before the shard saw a Take still counts what the Take is about to get, so takes under way
        are subtracted from every Ready, until their Taken arrives.
        """
        return max(0, self.reported[shard].count - self.asked.get(shard, 0))

    def total(self) -> int:
        """How many can be asked for in all shards."""
        return sum([self.free(shard) for shard in self.reported])

    def urgent(self) -> bool:
        """Whether somewhere one is ready that waits for no batch."""
        return any(ready.urgent and self.free(shard) for shard, ready in self.reported.items())

    def since(self) -> int | None:
        """The longest wait, where it is known: a shard with a Take under way will say anew."""
        return min(
            (ready.since for shard, ready in self.reported.items() if ready.count and not self.asked.get(shard)),
            default=None,
        )

    def last_try(self) -> int:
        """Boot ms of the longest waiting retry's last attempt."""
        return min((ready.since for shard, ready in self.reported.items() if self.free(shard)), default=0)

    def split(self, count: int) -> list[tuple[int, int]]:
        """Which shards give how many of `count`: urgent ones first, then those that have waited longest."""
        takes = []
        for shard, _ in sorted(self.reported.items(), key=lambda item: (not item[1].urgent, item[1].since, item[0])):
            part = min(count, self.free(shard))
            if part:
                takes.append((shard, part))
                count -= part
        return takes

    def forget(self, shard: int) -> list[Ready]:
        """Take out what the shard has said; its takes under way stay."""
        said = self.reported.pop(shard, None)
        return [] if said is None else [said]

    def tidy(self, shard: int) -> None:
        """Forget what says nothing of this shard."""
        if not self.asked.get(shard):
            self.asked.pop(shard, None)
            if shard in self.reported and not self.reported[shard].count:
                del self.reported[shard]


class Flow:
    """Of one type. `wake` = (wall ms, boot ms), each or both None: when to ask `choose` again without an event."""

    def __init__(self, name: str, lanes: dict[int, Lane] | None = None) -> None:
        """`lanes`: what the shards have ready already."""
        self.name = name
        self.type: TimerType | None = None
        self.breaker = Breaker()
        self.pace = Pace()
        self.turned: list[TargetTurned] = []
        """What the target has come to, and nobody has been told."""
        self.open: set[int] = set()
        """The batches under way, one slot each."""
        self.gone = False
        """The target answered that it is gone; until the types are set again."""
        self.moved_at = 0
        """Boot ms at which a batch last got on: was begun, posted, answered, settled."""
        self.wake: tuple[int | None, int | None] = (None, None)
        self.lanes = {} if lanes is None else lanes
        self.catching_up: set[int] = set()
        """The batches of catch-up; those that are not open any more are forgotten in time."""
        self._catch_up = CatchUp()
        self._rate: Rate | None = None
        self._held_until = 0
        self._ours_until = 0  # we could not send: nothing is tried before. 0: we could, as far as is known
        self._troubled_since = 0
        self._url: str | None = None  # the address it had last
        self._elsewhere: set[int] = set()  # batches under way to an address that the type had before
        self._retries_next = False
        self._first_probed_at = 0

    def set_type(self, type: TimerType | None, boot_ms: int) -> None:
        """Know the type as it is now; None: there is no such type, and its timers wait.

        What is known of a target (its breaker, a pause it asked for) ends with its address.
        """
        if type is not None:
            if self._url is not None and type.url != self._url:
                self.breaker, self.pace = Breaker(), Pace()
                self._held_until = self._troubled_since = 0
                self._elsewhere = set(self.open)
            self._url = type.url
            by = type.tries_by(self.type, boot_ms)
            self.breaker.hasten(by)
            self.pace.hasten(by)
        if type != self.type:
            self._ours_until = 0
        self.type = type
        self.gone = False
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
        return condition_of(self.breaker, self.pace, self._held_until, self._bound, boot_ms, self._troubled_since)

    @property
    def weight(self) -> int:
        """Its share of what may begin, beside others that have as much to do."""
        return self._bound

    @property
    def idle(self) -> bool:
        """Whether the flow could be forgotten."""
        return self.type is None and not self.open and not self.lanes

    def choose(self, now: Now, hurried: bool = False) -> Choice | None:
        """The next batch that may leave now, or None until `wake` or the next event. `hurried`: none waits for more."""
        self.wake = (None, None)
        type = self.type
        if type is None or self.gone or type.state != "active" or len(self.open) >= self._slots(type):
            return None
        closes_at = self._closes_at(type)
        if hurried and closes_at is not None:
            closes_at = 0
        first = self.lanes[0] if closes_at is not None and closes_at <= now.wall_ms else None
        if first is None:
            self.wake = (closes_at, None)
        on_time, missed = self._pick(first, self._oldest_retries()), self._missed_lane()
        if self.breaker.open and self.breaker.probe is not None:
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
        free_at = max(self._held, self._ours_until, self.breaker.probe_at if self.breaker.open else 0)
        whole = lane.limit if lane.limit > 0 else type.batch_size
        count = min(lane.total(), whole, type.batch_size)
        if self.breaker.open and self.breaker.probes_single:
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
        self.breaker.send_probe(batch_no)
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
        if self.breaker.open:
            return first if self._first_probed_at <= retries.last_try() else retries
        return retries if self._retries_next else first

    def leave(self) -> bool:
        """A batch is being sent. Whether more may be begun for that."""
        was, self._ours_until = self._ours_until, 0
        return was > 0

    def accept(self, batch_no: int, boot_ms: int) -> None:
        """The target has taken a batch."""
        if batch_no in self._elsewhere:
            return
        was, reason = course_of(self.breaker, self.pace), self.pace.reason
        self.pace.succeed(boot_ms, self._bound)
        self.breaker.succeed(boot_ms)
        self._turn(was, boot_ms, reason)

    def judge(self, now: Now, batch: Batch, failed: Failed, jitter: float) -> WholeFailure:
        """What a failure of the whole batch makes of its members; the breaker and the hold learn what it says of the
        target.

        Either it says nothing about them (a down target, Retry-After, 410): they stay whole, and it does not count. Or
        it may be one of them: they travel in half the size next time, and it counts when there is only one.
        """
        breaker, policy = self.breaker, self.policy
        alone = batch.timers[0] if len(batch.timers) == 1 else None
        gap_ms = max(1, round(policy.min_backoff_ms * jitter))
        if batch.batch_no in self._elsewhere:
            return WholeFailure(failed.error, gap_ms, batch.whole, unknown=failed.unknown)
        if failed.ours:
            breaker.drop_probe(batch.batch_no)
            gap_ms = max(gap_ms, failed.retry_after_ms or 0)
            self._ours_until = max(self._ours_until, now.boot_ms + gap_ms)
            return WholeFailure(failed.error, gap_ms, batch.whole)
        was = course_of(breaker, self.pace)
        if breaker.open:
            self.pace.note(failed.error, now.boot_ms)
        elif failed.wants_pause or not (failed.suspect and self._is_own_fault(batch, failed, alone)):
            newest, under_way = max(self.open, default=batch.batch_no), len(self.open)
            who = batch.timers[0]
            self.pace.fail(
                failed, batch.batch_no, newest, under_way, self._bound, policy, now.boot_ms, jitter,
                who.id, who.failure is not None,
            )  # fmt: skip
        if failed.suspect:
            breaker.suspect(batch.batch_no, alone.id if alone else None, policy, now.boot_ms, jitter)
        elif failed.sent:
            breaker.hear()
        else:
            breaker.drop_probe(batch.batch_no)
        if failed.retry_after_ms is not None:
            self._held_until = max(self._held_until, now.boot_ms + failed.retry_after_ms)
        self._turn(was, now.boot_ms, failed.error)
        if failed.retry_after_ms is not None:
            return WholeFailure(failed.error, max(gap_ms, failed.retry_after_ms), batch.whole)
        if failed.gone:
            self.gone = True
            return WholeFailure(failed.error, gap_ms, batch.whole)
        if failed.suspect and not self._is_own_fault(batch, failed, alone):
            if alone and alone.failure and not breaker.open:
                # No probe spaces out the tries of a timer that is the only one to fail.
                gap_ms = max(1, round(backoff_ms(policy, alone.failure.attempts + 1) * jitter))
            return WholeFailure(failed.error, gap_ms, batch.whole, unknown=failed.unknown)
        half = max(1, min(batch.whole, len(batch.timers)) // 2)
        bury = alone is not None and failed.no_retry
        counted = alone is not None and not bury
        return WholeFailure(failed.error, gap_ms, half, counted=counted, unknown=failed.unknown, bury=bury)

    @property
    def _held(self) -> int:
        """Nothing is sent before, for the target's sake."""
        return max(self._held_until, self.pace.held_until)

    @property
    def _bound(self) -> int:
        return self.type.max_in_flight if self.type else 1

    def _slots(self, type: TimerType) -> int:
        """How many batches may be under way. While the breaker is open that is the breaker's business. While we can't
        send, one finds out whether we can again."""
        if self._ours_until:
            return 1
        return type.max_in_flight if self.breaker.open else self.pace.limit(type.max_in_flight)

    def _turn(self, was: Course, boot_ms: int, reason: str) -> None:
        """The target has been heard of: what has changed is told, and an outage that has ended ends gently."""
        if was.open and not self.breaker.open:
            self.pace.restart(max(self.open, default=0), self._bound, reason, boot_ms)
        self._ours_until = 0
        now = course_of(self.breaker, self.pace)
        self.turned += turns(was, now, self.name, "", reason)
        held = self._held > boot_ms
        self._troubled_since = (self._troubled_since or boot_ms) if now.open or now.slowed or held else 0

    def _is_own_fault(self, batch: Batch, failed: Failed, alone: Timer | None) -> bool:
        """Whether a sign of a down target comes from something in the batch.

        It does when the target has taken other batches since these timers failed before, and is not known to be down.
        To split a batch by that is cheap; to count it against a timer wants more: that it failed in the same way then.
        So the first batches that meet an outage, before the breaker has noticed, pay nothing for what they had before.
        """
        if self.breaker.open or not failed.sent or not 0 < batch.tried_at <= self.breaker.succeeded_at:
            return False
        if alone is None or alone.failure is None:
            return True
        return alone.failure.error.partition(":")[0] == failed.error.partition(":")[0]

    def waits(self, now: Now) -> bool:
        """Whether something may leave now by all that time and target decide: it lacks a slot, or somebody's work."""
        type = self.type
        if type is None or self.gone or type.state != "active" or self.breaker.open:
            return False
        if max(self._held, self._ours_until) > now.boot_ms:
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
        return lane if self._catch_up.room(len(self.catching_up), self._slots(self.type)) else None

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

"""The checker of deliveries: what targets are given, and when, held against the ledger and the clocks.

What is delivered is what was armed, durable, current and due, not delivered twice at once, not after a cancel that said
so, flagged if an earlier attempt's outcome is unknown, within the type's limits, and in time where nothing excuses
lateness. What a target has said of a generation is kept until something has come of it.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tests.sim.account import Entry, Version, Violation
from tests.sim.clock import SimClock
from tests.sim.ledger import Ledger
from tests.sim.limits import Limits
from tests.sim.spared import Spared
from timerd.engine.timer import TimerType

LATE_MS: Final = 250  # promise 3
FORGIVEN_S: Final = 0.5  # a batch that was taken before the wall was set back may leave this much later,
SHAKEN_S: Final = 2.0  # so long after a clock was set, how late something was when it was handed out is not known
FORGIVEN_STALLED_S: Final = 15.0  # or this much on a disk that stalls


class Said(NamedTuple):
    """What a target's answer said of one timer."""

    what: str
    """ok | drop | dead | retry | rearm | fail"""
    fire_at: int = 0
    payload: bytes | None = None
    no_retry: bool = False
    spared: bool = False
    """It costs no attempt."""


class Sent(NamedTuple):
    """One timer of a delivery, as the target reads it."""

    id: str
    generation: int
    fire_at: int
    attempt: int
    possible_duplicate: bool
    payload: bytes | None


class Deliveries:
    """The base of the checker: told of every delivery's start and end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: SimClock, ledger: Ledger) -> None:
        self.counts: Counter[str] = Counter()
        self.worst_late_ms = 0
        self.calm: dict[str, bool] = {}
        self.excused = 0
        """Nothing is judged late while this is not 0."""
        self._loop = loop
        self._clock = clock
        self._ledger = ledger
        self.scaled = False
        """Slots move between shards: an id's new generation may leave while one that another shard has sent is open."""
        self._limits = Limits(loop, clock)
        self._spared = Spared(lambda: clock.lived_s)
        self._open: dict[str, int] = {}
        self._ended_at: dict[str, float] = {}
        self._ended_lived_s: dict[tuple[str, int], float] = {}
        self._started_s = 0.0
        self._said: dict[tuple[str, int], Said] = {}
        self._unsure: dict[tuple[str, int], None] = {}
        self._barred: dict[tuple[str, int], None] = {}
        self._after_end: Counter[tuple[str, int]] = Counter()
        # What excuses lateness, and what types have been.
        self._disturbed_at = 0.0
        self._type_disturbed_at: dict[str, float] = {}
        self._forms: dict[str, list[TimerType]] = {}
        self._heard: set[str] = set()
        """Hosts from which something has come back since there was nothing under way to them."""
        self.paused: dict[str, float] = {}
        """Types that are known to be paused, and since when."""
        self._guessed_forms: set[str] = set()
        """Types whose last form was asked for, and perhaps refused: nobody knows what lateness would be."""

    # ---- what the world tells

    def starting(self) -> None:
        """A process begins: retries count their gaps anew."""
        self._started_s = self._clock.lived_s
        self._spared.forget()

    def started(self, types: Mapping[str, TimerType]) -> None:
        """It can be called, and these are its types."""
        for type in types.values():
            self._limits.known(type)
            self._forms.setdefault(type.name, []).append(type)
        self._guessed_forms.clear()
        self._heard.clear()
        self._limits.started()
        self.disturb()

    def disturb(self, type: str | None = None) -> None:
        """Something happens that excuses lateness."""
        if type is None:
            self._disturbed_at = self._loop.time()
        else:
            self._type_disturbed_at[type] = self._loop.time()

    def typed(self, type: TimerType) -> None:
        """The type is, or is about to be, this."""
        self._forms.setdefault(type.name, []).append(type)
        self.paused.pop(type.name, None)
        self._guessed_forms.add(type.name)
        self._limits.maybe(type)
        self._spared.forget(type.name)
        self.disturb(type.name)

    def type_done(self, type: TimerType) -> None:
        """It is, says the answer."""
        self._limits.known(type)
        self._guessed_forms.discard(type.name)
        self.disturb(type.name)

    def open_ids(self) -> list[str]:
        """Those that are being delivered."""
        return list(self._open)

    # ---- deliveries

    def version(self, id: str, generation: int) -> Version:
        """What was armed, of what is delivered."""
        found = self._ledger.versions.get((id, generation))
        if found is None:
            raise Violation(f"delivered before it was durable: {id!r} {generation}")
        return found

    def posted(self, type: str, sent: Sequence[Sent], open_posts: int, lane: str, lane_posts: int) -> None:
        """A delivery starts. `open_posts`: of this type, this one included.

        `lane`: whom it goes to, the type itself or a host of it, with `lane_posts` under way.
        """
        if lane != type:
            self._limits.shared(type, lane_posts, stalled=self.excused > 0)
            self._disturb_if_full(type, lane, lane_posts)
        self._limits.posted(type, len(sent), open_posts, stalled=self.excused > 0)
        if len({timer.attempt == 1 for timer in sent}) != 1:
            raise Violation(f"first attempts and retries share a batch: {[(t.id, t.attempt) for t in sent]}")
        if open_posts >= min(form.max_in_flight for form in self._forms[type]):
            self.disturb(type)
        self._spared.posted(lane, sent[0].id, excused=self.excused > 0)
        wall_ms = self._clock.wall_ms
        if sent[0].attempt == 1:
            late = {
                (timer.id, timer.generation): (
                    wall_ms - max(timer.fire_at, timer.generation // 1000),
                    wall_ms - timer.fire_at,
                )
                for timer in sent
            }
            shaken = self.excused > 0 or self._loop.time() - self._disturbed_at < SHAKEN_S
            self._limits.caught_up(type, late, stalled=shaken)
        for timer in sent:
            self._starts(type, timer, wall_ms, lane)
        self.counts["posts"] += 1
        self.counts["caught up"] = self._limits.missed
        self.counts["caught up turns"] = self._limits.turns

    def asked_to_wait(self, lane: str, seconds: float) -> None:
        """A target has asked for a pause; what has been decided on may still leave."""
        self._spared.asked_to_wait(lane, seconds)

    def arrived(self, sent: Sequence[Sent]) -> None:
        """A target has a delivery in its hands."""
        wall_ms = self._clock.wall_ms
        for timer in sent:
            self._not_early(timer, wall_ms)

    def answered(
        self,
        type: str,
        sent: Sequence[Sent],
        said: Sequence[Said],
        unknown: bool,
        open_posts: int,
        lane: str,
        lane_posts: int,
    ) -> None:
        """The process hears what became of a delivery. `open_posts`, `lane_posts`: those that are left."""
        if lane != type:
            self._disturb_if_full(type, lane, lane_posts + 1)
            if lane_posts and not unknown:
                self._heard.add(lane)
            else:
                self._heard.discard(lane)  # with nothing under way it may be forgotten
        if open_posts + 1 >= min(form.max_in_flight for form in self._forms[type]):
            self.disturb(type)
        self._limits.answered(type, (sent[0].id, sent[0].generation))
        self._spared.answered(lane, sent[0].id, taken=all(what.what != "fail" for what in said))
        for timer, what in zip(sent, said, strict=True):
            member = (timer.id, timer.generation)
            if self._open.get(timer.id) == timer.generation:
                del self._open[timer.id]
            self._ended_at[timer.id] = self._loop.time()
            self._ended_lived_s[member] = self._clock.lived_s
            self._said[member] = what
            if unknown:
                self._unsure[member] = None
            entry = self._entry(timer.id)
            if entry is None or entry.version.generation != timer.generation:
                self.counts["superseded"] += 1
                self.counts[f"superseded {what.what}"] += 1

    def settled_all(self) -> None:
        """Nothing is under way: whatever was said of a current timer must have come to something."""
        for (id, generation), said in self._said.items():
            entry = self._entry(id)
            if entry is not None and entry.version.generation == generation and not self._ledger.lacks_retries:
                raise Violation(f"{said} was the answer for {entry}, and nothing came of it")
        self._said.clear()

    # ---- steps

    def _entry(self, id: str) -> Entry | None:
        return self._ledger.entry(id)

    def _disturb_if_full(self, type: str, lane: str, posts: int) -> None:
        """While a host has its share, nothing of it can be late. One from which nothing has come back gets one."""
        share = min(max(1, form.max_in_flight // 4) for form in self._forms[type])
        if posts >= (share if lane in self._heard else 1):
            self.disturb(lane)

    def _starts(self, type: str, timer: Sent, wall_ms: int, lane: str) -> None:
        id, member = timer.id, (timer.id, timer.generation)
        version = self._ledger.versions.get(member)
        if version is None:
            raise Violation(f"delivered before it was durable: {timer}")
        if (version.type, version.fire_at, version.payload) != (type, timer.fire_at, timer.payload):
            raise Violation(f"delivered {timer}, armed {version}")
        self._not_early(timer, wall_ms)
        if member in self._barred:
            raise Violation(f"delivered after a cancel had said that it would not be: {timer}")
        if id in self._open and not self.scaled:
            raise Violation(f"two deliveries of {id!r} at once: {timer}, {self._open[id]}")
        if (how := self._ledger.ended.get(member)) is not None:
            # Only what was handed out before its end may still leave, once.
            self._after_end[member] += 1
            if how not in ("cancelled", "replaced") or self._after_end[member] > 1:
                raise Violation(f"delivered after its end ({how}): {timer}")
        elif not self._ledger.lacks_retries:
            entry = self._entry(id)
            if entry is None or entry.version.generation != timer.generation:
                raise Violation(f"delivered, and not current: {timer}, {entry}")
            if timer.attempt != entry.attempts + 1:
                raise Violation(f"attempt {timer.attempt} after {entry.attempts}: {timer}")
            if entry.attempts:
                self._judge_wait(type, timer, entry, lane)
        stepped_back = self._clock.went_back_at >= 0
        if (
            member in self._unsure
            and not timer.possible_duplicate
            and not stepped_back
            and not self._ledger.lacks_retries
        ):
            raise Violation(f"not flagged as a possible duplicate: {timer}")
        if timer.attempt == 1 and self.calm[lane] and not self.excused and member not in self._unsure:
            self._judge_lateness(type, timer, version, wall_ms, lane)
        self._open[id] = timer.generation

    def _not_early(self, timer: Sent, wall_ms: int) -> None:
        if timer.fire_at > wall_ms:
            since_s = self._loop.time() - self._clock.went_back_at
            recent = since_s < (FORGIVEN_STALLED_S if self.excused else FORGIVEN_S)
            if not (recent and timer.fire_at <= self._clock.high_ms):
                raise Violation(f"early by {timer.fire_at - wall_ms} ms: {timer}")

    def _judge_lateness(self, type: str, timer: Sent, version: Version, wall_ms: int, lane: str) -> None:
        form = self._forms[type][-1]
        late_ms = wall_ms - max(timer.fire_at, timer.generation // 1000)
        due_at = self._loop.time() - late_ms / 1000
        disturbed_at = max(
            self._disturbed_at,
            *(self._type_disturbed_at.get(what, 0.0) for what in (type, lane)),
            self._ended_at.get(timer.id, -1.0),
        )
        # A wall that was set back gives generations ahead of it for a while, and no moments of acceptance.
        guessed = type in self._guessed_forms or wall_ms <= self._clock.high_ms + form.max_lag_ms + 1_000
        behind = self._limits.behind((timer.id, timer.generation))  # it catches up, at the rate for that
        if form.max_per_second is None and disturbed_at < due_at - 0.1 and not guessed and not behind:
            self.counts["judged"] += 1
            self._note_lateness(late_ms, form, timer)

    def _judge_wait(self, type: str, timer: Sent, entry: Entry, lane: str) -> None:
        """A retry waits for its gap, on boot time; after a start it begins to wait anew. Then it is due."""
        since_s = max(self._ended_lived_s.get((timer.id, timer.generation), 0.0), self._started_s)
        late_ms = (self._clock.lived_s - since_s) * 1000 - entry.gap_ms
        if late_ms < -1:
            raise Violation(f"a retry {-late_ms:.0f} ms before its time: {timer} {entry}")
        form = self._forms[type][-1]
        due_at = self._loop.time() - late_ms / 1000
        disturbed_at = max(self._disturbed_at, *(self._type_disturbed_at.get(what, 0.0) for what in (type, lane)))
        judged = self.calm[lane] and not self.excused and self._clock.went_back_at < 0 and form.max_per_second is None
        if judged and disturbed_at < due_at - 0.1 and type not in self._guessed_forms:
            self.counts["retries judged"] += 1
            self._note_lateness(round(late_ms), form, timer)

    def _note_lateness(self, late_ms: int, form: TimerType, timer: Sent) -> None:
        self.worst_late_ms = max(self.worst_late_ms, late_ms - form.max_lag_ms)
        if late_ms > form.max_lag_ms + LATE_MS:
            raise Violation(f"late by {late_ms} ms with a max_lag of {form.max_lag_ms}: {timer}")

"""The dispatcher against a fake shard, with time moved by hand.

`World` is a small model of the rest: shards that keep timers in lanes and obey Take and Settle, and a target that is a
function of a batch. It checks on every step what must always hold: no timer in two open batches, no more slots than
allowed, one lane a batch, and no moment missed by `wake_at`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timerd.engine.answer import Accepted, Failed, Outcome
from timerd.engine.backoff import backoff_ms
from timerd.engine.batch import Batch
from timerd.engine.command import PauseType, Post, SendSettle, SendTake, TargetTurned
from timerd.engine.dispatcher import Dispatcher
from timerd.engine.effect import Ready, Settled, Taken
from timerd.engine.message import ItemResult, Settle, Take
from timerd.engine.now import Now
from timerd.engine.timer import Failure, RetryPolicy, Timer, TimerType

T0 = 1_796_025_600_000
OK = Accepted()
REFUSED = Failed("HTTP 500")
DOWN = Failed("connect", suspect=True, sent=False)
DEAF = Failed("HTTP 503", suspect=True)
HANGS = Failed("timeout", suspect=True, unknown=True)

Target = Callable[[Batch], Outcome]


def always(outcome: Outcome) -> Target:
    """A target that answers every batch like this."""
    return lambda batch: outcome


def unless(bad: str, outcome: Outcome) -> Target:
    """A target that takes every batch in which no id begins like this."""

    def answer(batch: Batch) -> Outcome:
        return outcome if any(t.id == bad or t.id.startswith(f"{bad}.") for t in batch.timers) else OK

    return answer


@dataclass
class Entry:
    timer: Timer
    limit: int = 0
    ready_at: int = 0
    """Wall ms for a first attempt, boot ms for a retry."""
    tried_at: int = 0
    counted: int = 0
    urgent: bool = False


@dataclass
class FakeShard:
    """Lanes as lists, in the order in which the timers wait."""

    number: int
    entries: dict[str, Entry] = field(default_factory=dict)
    taken: dict[int, list[Entry]] = field(default_factory=dict)
    reported: dict[tuple[str, int], Ready] = field(default_factory=dict)

    def lanes(self, now: Now) -> dict[tuple[str, int], list[Entry]]:
        found: dict[tuple[str, int], list[Entry]] = {}
        for entry in self.entries.values():
            if entry.ready_at <= (now.boot_ms if entry.limit else now.wall_ms):
                found.setdefault((entry.timer.type, entry.limit), []).append(entry)
        for lane in found.values():
            lane.sort(key=lambda e: (not e.urgent, e.tried_at or e.ready_at, e.timer.generation))
        return found

    def news(self, now: Now) -> list[Ready]:
        lanes = self.lanes(now)
        news = []
        for key in {**self.reported, **lanes}:
            lane = lanes.get(key, [])
            since = min((e.tried_at if e.limit else e.ready_at for e in lane), default=0)
            ready = Ready(self.number, *key, len(lane), since, any(e.urgent for e in lane))
            if self.reported.get(key) != ready:
                self.reported[key] = ready
                news.append(ready)
        return news

    def take(self, now: Now, message: Take) -> Taken:
        lane = self.lanes(now).get((message.type, message.limit), [])[: message.count]
        self.taken[message.batch_no] = lane
        for entry in lane:
            del self.entries[entry.timer.id]
        tried = [entry.tried_at for entry in lane if entry.tried_at]
        return Taken(message.batch_no, self.number, [e.timer for e in lane], min(tried, default=0))

    def settle(self, now: Now, message: Settle, policy: RetryPolicy) -> tuple[list[str], list[str]]:
        """Returns the ids that fired and those that were buried."""
        fired, buried = [], []
        for entry in self.taken.pop(message.batch_no):
            failure = message.failure
            named = (message.results or {}).get(entry.timer.id)
            if failure is None and named is None:
                fired.append(entry.timer.id)
                continue
            if failure is not None and failure.bury:
                buried.append(entry.timer.id)
                continue
            counted = failure is None or failure.counted
            entry.counted += counted
            gap = round(backoff_ms(policy, entry.counted) * message.jitter) if counted else failure.gap_ms  # type: ignore[union-attr]
            entry.limit = failure.limit if failure else entry.limit or 10**6
            entry.tried_at = now.boot_ms
            entry.ready_at = now.boot_ms + gap
            entry.urgent = False
            attempts = 1 + (entry.timer.failure.attempts if entry.timer.failure else 0)
            old = entry.timer
            error = failure.error if failure else named.error  # type: ignore[union-attr]
            record = Failure(attempts, entry.counted, gap, entry.limit, error)
            entry.timer = Timer(old.fire_at, old.generation, old.id, old.type, None, 0, record)
            self.entries[entry.timer.id] = entry
        return fired, buried


class World:
    """Everything around one dispatcher."""

    def __init__(self, *types: TimerType, shards: int = 2, target: Target | None = None, takes_ms: int = 5) -> None:
        self.now = Now(T0 * 1000, 1_000)
        self.dispatcher = Dispatcher()
        self.shards = [FakeShard(n) for n in range(shards)]
        self.types = {type.name: type for type in types}
        self.dispatcher.set_types(self.types)
        self.target = target or always(OK)
        self.takes_ms = takes_ms
        self.answers: list[tuple[int, int, Batch]] = []
        """(boot ms, batch number, batch) of the POSTs under way."""
        self.posts: list[tuple[int, Batch]] = []
        self.turned: list[TargetTurned] = []
        self.takes: list[tuple[int, int, Take]] = []
        self.settles: list[Settle] = []
        self.paused: list[str] = []
        self.fired: dict[str, int] = {}
        self.buried: list[str] = []
        self.random = 0.5
        self.last_generation = T0 * 1000
        self.open: dict[int, str] = {}
        self.hold_settled: list[Settled] | None = None

    def arm(self, count: int, type: str = "t", prefix: str = "x", urgent: bool = False) -> list[str]:
        ids = [f"{prefix}-{n}" for n in range(count)]
        for n, id in enumerate(ids):
            self.last_generation += 1
            entry = Entry(Timer(self.now.wall_ms, self.last_generation, id, type), ready_at=self.now.wall_ms)
            entry.urgent = urgent
            self.shards[n % len(self.shards)].entries[id] = entry
        return ids

    def entries(self) -> dict[str, Entry]:
        return {id: entry for shard in self.shards for id, entry in shard.entries.items()}

    def step(self) -> None:
        """Do everything that can be done at this moment."""
        while True:
            for shard in self.shards:
                for ready in shard.news(self.now):
                    self.dispatcher.ready(ready)
            commands = self.dispatcher.commands(self.now)
            due = [answer for answer in self.answers if answer[0] <= self.now.boot_ms]
            self.answers = [answer for answer in self.answers if answer[0] > self.now.boot_ms]
            for _, number, batch in due:
                self.dispatcher.answered(self.now, number, self.target(batch), self.random)
            if not commands and not due:
                break
            for command in commands:
                self.obey(command)
            self.check()

    def obey(self, command: object) -> None:
        match command:
            case SendTake(shard, message):
                self.open[message.batch_no] = message.type
                self.takes.append((self.now.boot_ms, shard, message))
                self.dispatcher.taken(self.shards[shard].take(self.now, message))
            case Post(batch):
                assert batch.timers
                self.posts.append((self.now.boot_ms, batch))
                self.answers.append((self.now.boot_ms + self.takes_ms, batch.batch_no, batch))
            case SendSettle(shard, message):
                if not self.settles or self.settles[-1] is not message:
                    self.settles.append(message)
                type = self.types.get(self.open[message.batch_no])
                fired, buried = self.shards[shard].settle(self.now, message, type.retry if type else RetryPolicy())
                for id in fired:
                    self.fired[id] = self.fired.get(id, 0) + 1
                self.buried += buried
                settled = Settled(message.batch_no, shard)
                if self.hold_settled is None:
                    self.dispatcher.settled(settled)
                else:
                    self.hold_settled.append(settled)
            case TargetTurned():
                self.turned.append(command)
            case PauseType(name, _):
                self.paused.append(name)
            case _:
                raise AssertionError(command)

    def check(self) -> None:
        under_way = [timer.id for _, _, batch in self.answers for timer in batch.timers]
        assert len(under_way) == len(set(under_way)), "a timer in two open batches"
        for name, stats in self.dispatcher.stats().items():
            if name in self.types:
                assert stats.open_batches <= self.types[name].max_in_flight

    def advance(self, ms: int) -> None:
        self.now = Now(self.now.wall_us + ms * 1000, self.now.boot_ms + ms)

    def run(self, ms: int) -> None:
        """Let this much time pass, from one moment at which something happens to the next."""
        end = self.now.boot_ms + ms
        self.step()
        while True:
            moments = [answer[0] for answer in self.answers]
            wall, boot = self.dispatcher.wake_at()
            if wall is not None:
                moments.append(self.now.boot_ms + wall - self.now.wall_ms)
            if boot is not None:
                moments.append(boot)
            for entry in self.entries().values():
                at = entry.ready_at if entry.limit else self.now.boot_ms + entry.ready_at - self.now.wall_ms
                if at > self.now.boot_ms:
                    moments.append(at)
            moments = [moment for moment in moments if moment > self.now.boot_ms]
            at = min(moments, default=end)
            if at > end:
                at = end
            self.advance(at - self.now.boot_ms)
            self.step()
            if at == end:
                return

    def sizes(self) -> list[int]:
        return [len(batch.timers) for _, batch in self.posts]


def type_of(name: str = "t", **fields: object) -> TimerType:
    defaults = {"url": "http://t", "batch_size": 50, "max_lag_ms": 1000, "max_in_flight": 4}
    return TimerType(name, **{**defaults, **fields})  # type: ignore[arg-type]


# ---- when a batch closes


def test_a_full_batch_leaves_at_once_with_parts_of_several_shards() -> None:
    world = World(type_of(), shards=5)
    world.arm(50)
    world.step()
    assert world.sizes() == [50]
    assert [take.count for _, _, take in world.takes] == [10] * 5


def test_a_batch_that_is_not_full_leaves_a_little_before_its_max_lag() -> None:
    world = World(type_of())
    world.arm(3)
    world.run(2000)
    assert world.posts[0][0] == 1000 + 1000 - 50
    assert world.sizes() == [3]


@pytest.mark.parametrize(("max_lag", "leaves"), [(0, 0), (1, 1), (10, 5), (80, 40), (100, 50), (10_000, 9950)])
def test_it_never_leaves_before_half_of_max_lag(max_lag: int, leaves: int) -> None:
    world = World(type_of(max_lag_ms=max_lag))
    world.arm(3)
    world.run(20_000)
    assert world.posts[0][0] - 1000 == leaves


def test_an_urgent_one_takes_along_what_is_ready() -> None:
    world = World(type_of())
    world.arm(3)
    world.step()
    assert not world.posts
    world.arm(1, prefix="now", urgent=True)
    world.step()
    assert world.sizes() == [4]


def test_more_than_a_batch_goes_in_full_batches_and_the_rest_waits_for_its_lag() -> None:
    world = World(type_of(max_in_flight=2))
    world.arm(220)
    world.step()
    assert world.sizes() == [50, 50]
    world.run(5)
    assert world.sizes() == [50, 50, 50, 50]
    world.run(900)
    assert world.sizes() == [50, 50, 50, 50]
    world.run(200)
    assert world.sizes()[4:] == [20]
    assert set(world.fired.values()) == {1}
    assert len(world.fired) == 220


def test_a_slot_is_free_when_the_outcome_is_durable_in_every_shard() -> None:
    world = World(type_of(max_in_flight=1))
    world.arm(50)
    world.hold_settled = []
    world.step()
    world.arm(50, prefix="y")
    world.run(100)
    assert world.sizes() == [50]
    assert world.dispatcher.open_batches() == 1
    first, second = world.hold_settled
    world.dispatcher.settled(first)
    world.run(100)
    assert world.sizes() == [50]
    world.dispatcher.settled(second)
    world.step()
    assert world.sizes() == [50, 50]


def test_an_empty_take_is_no_post_and_frees_its_slot() -> None:
    world = World(type_of(max_in_flight=1, max_lag_ms=0))
    world.dispatcher.ready(Ready(0, "t", 0, 7, T0))
    world.shards[0].reported["t", 0] = Ready(0, "t", 0, 7, T0)
    world.step()
    assert not world.posts
    assert world.dispatcher.idle()
    world.arm(1)
    world.step()
    assert world.sizes() == [1]


def test_a_ready_made_before_a_take_was_seen_is_not_counted_twice() -> None:
    dispatcher = Dispatcher()
    dispatcher.set_types({"t": type_of(batch_size=5)})
    now = Now(T0 * 1000, 0)
    dispatcher.ready(Ready(0, "t", 0, 5, T0))
    assert dispatcher.commands(now) == [SendTake(0, Take(1, "t", 0, 5))]
    dispatcher.ready(Ready(0, "t", 0, 6, T0))
    assert dispatcher.commands(now) == []
    dispatcher.ready(Ready(0, "t", 0, 10, T0))
    assert dispatcher.commands(now) == [SendTake(0, Take(2, "t", 0, 5))]
    dispatcher.taken(Taken(1, 0, []))
    dispatcher.taken(Taken(2, 0, []))
    dispatcher.ready(Ready(0, "t", 0, 3, T0))
    assert [type(command) for command in dispatcher.commands(now)] == [SendSettle, SendSettle]
    assert dispatcher.wake_at() == (T0 + 950, None)


def test_a_batch_knows_all_that_its_parts_say() -> None:
    dispatcher = Dispatcher()
    dispatcher.set_types({"t": type_of()})
    now = Now(T0 * 1000, 9000)
    for shard in range(3):
        dispatcher.ready(Ready(shard, "t", 25, 2, 500))
    assert dispatcher.wake_at() == (None, 0)
    takes = dispatcher.commands(now)
    assert len(takes) == 3
    timers = [Timer(T0, n + 1, f"x-{n}", "t") for n in range(3)]
    dispatcher.taken(Taken(1, 0, [timers[0]], 700, frozenset({"x-0"})))
    dispatcher.taken(Taken(1, 1, [timers[1]], 500, frozenset({"x-1"})))
    for shard in range(3):
        dispatcher.ready(Ready(shard, "t", 25, 0, 0))
    assert dispatcher.commands(now) == []
    assert dispatcher.wake_at() == (None, None)
    dispatcher.taken(Taken(1, 2, [timers[2]], 600))
    assert dispatcher.wake_at() == (None, 0)
    assert dispatcher.commands(now) == [Post(Batch(1, "t", timers, frozenset({"x-0", "x-1"}), 500, 25))]


# ---- what failures come to


def test_retries_never_share_a_batch_with_first_attempts() -> None:
    world = World(type_of(max_lag_ms=0), target=always(DOWN))
    world.arm(10)
    world.run(999)
    world.target = always(OK)
    world.arm(10, prefix="y")
    world.run(20)
    assert [len({t.id[0] for t in batch.timers}) for _, batch in world.posts] == [1] * len(world.posts)
    assert len(world.fired) == 20


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50, 64, 100])
@pytest.mark.parametrize("answer", [REFUSED, Failed("HTTP 302"), Failed("HTTP 200 with a body that can't be read")])
def test_poison_ends_alone_within_log2_rounds_and_its_neighbours_are_delivered(count: int, answer: Failed) -> None:
    bad = f"x-{count // 2}"
    world = World(
        type_of(batch_size=count, max_lag_ms=0, max_in_flight=1000),
        target=unless(bad, answer),
    )
    world.arm(count)
    rounds = ceil(log2(count)) if count > 1 else 0
    world.run(rounds * 1010 + 10)
    assert set(world.fired) == {f"x-{n}" for n in range(count)} - {bad}
    assert set(world.fired.values()) <= {1}
    assert world.entries()[bad].counted >= 1
    world.run(100_000)
    gaps = [at for at, batch in world.posts if len(batch.timers) == 1 and batch.timers[0].id == bad]
    assert [round((b - a - 5) / 1000) for a, b in pairwise(gaps)][:5] == [1, 2, 4, 8, 16]


def test_named_failures_leave_the_others_alone() -> None:
    results = {"x-7": ItemResult("retry", error="no")}
    world = World(type_of(), target=lambda batch: Accepted(results, 3))
    world.arm(50)
    world.run(500)
    assert len(world.fired) == 49
    assert world.settles[0].results is results
    assert world.dispatcher.stats()["t"][:4] == (1, 50, 3, 0)


def test_no_retry_buries_a_timer_alone_and_splits_several() -> None:
    world = World(
        type_of(batch_size=8, max_lag_ms=0),
        target=unless("x-3", Failed("x", no_retry=True)),
    )
    world.arm(8)
    world.run(10_000)
    assert world.buried == ["x-3"]
    assert len(world.fired) == 7


def test_retry_after_holds_the_whole_type_and_costs_nothing() -> None:
    wait = Failed("HTTP 429", retry_after_ms=30_000)
    world = World(type_of(max_lag_ms=0), type_of("other", max_lag_ms=0), target=always(wait))
    world.arm(10)
    world.run(100)
    world.arm(50, prefix="y")
    world.arm(50, prefix="z", type="other")
    world.target = always(OK)
    world.run(29_000)
    assert [batch.type for _, batch in world.posts] == ["t", "other"]
    assert {e.counted for e in world.entries().values()} == {0}
    world.run(1_000)
    assert len(world.fired) == 110
    assert min(at for at, batch in world.posts[2:]) == 1005 + 30_000


def test_retry_after_of_nothing_still_waits_min_backoff() -> None:
    world = World(type_of(max_lag_ms=0), target=always(Failed("HTTP 503", suspect=True, retry_after_ms=0)))
    world.arm(10)
    world.run(1000)
    assert len(world.posts) == 1


def test_gone_pauses_the_type_and_the_timers_wait() -> None:
    world = World(type_of(max_lag_ms=0), target=always(Failed("HTTP 410", gone=True)))
    world.arm(10)
    world.run(60_000)
    assert world.paused == ["t"]
    assert len(world.posts) == 1
    world.target = always(OK)
    world.dispatcher.set_types({"t": type_of(state="paused")})
    world.run(60_000)
    assert len(world.posts) == 1
    world.dispatcher.set_types({"t": type_of(max_lag_ms=0)})
    world.run(10)
    assert world.sizes() == [10, 10]
    assert len(world.fired) == 10


# ---- the breaker


def test_an_outage_costs_no_attempt_and_meets_no_storm() -> None:
    world = World(type_of(max_lag_ms=0, retry=RetryPolicy(jitter=0.0)), target=always(DOWN))
    world.arm(500)
    world.run(3_600_000)
    assert world.dispatcher.conditions(world.now.boot_ms)["t"].is_down
    assert {e.counted for e in world.entries().values()} == {0}
    assert {e.limit for e in world.entries().values()} <= {0, 50}
    probes = [at for at, _ in world.posts][4:]
    gaps = [b - a for a, b in pairwise(probes)]
    assert gaps == sorted(gaps)
    assert gaps[0] >= 1000
    assert gaps[-1] == 300_005
    world.target = always(OK)
    world.run(300_000 + 50)
    assert len(world.fired) == 500
    assert not world.dispatcher.conditions(world.now.boot_ms)["t"].is_down


@pytest.mark.parametrize("outage", [DOWN, DEAF, HANGS, Failed("HTTP 503", suspect=True, retry_after_ms=100)])
def test_an_outage_costs_no_attempt_whatever_happened_before(outage: Failed) -> None:
    """Timers that failed by themselves before others succeeded are the first to meet the outage."""
    world = World(type_of(max_lag_ms=0, batch_size=1, max_in_flight=20))
    world.target = unless("x", REFUSED)
    world.arm(2, prefix="x.1")
    world.run(10)
    world.arm(3, prefix="good")
    world.run(10)
    assert [entry.counted for entry in world.entries().values()] == [1, 1]
    world.target = always(outage)
    world.run(600_000)
    assert [entry.counted for entry in world.entries().values()] == [1, 1]


def test_a_poison_that_fails_in_the_same_way_while_others_succeed_is_counted() -> None:
    world = World(type_of(max_lag_ms=0), target=unless("x-0", DEAF))
    world.arm(1)
    for n in range(30):
        world.arm(1, prefix=f"good{n}")
        world.run(1000)
    assert world.entries()["x-0"].counted >= 3
    assert len(world.fired) == 30


def test_one_or_two_failures_do_not_open_the_breaker() -> None:
    answers: list[Outcome] = [DOWN, DOWN, OK, DOWN, DOWN, OK]
    world = World(type_of(max_lag_ms=0), target=lambda batch: answers.pop(0))
    world.arm(5)
    world.run(2100)
    world.arm(5, prefix="y")
    world.run(2100)
    assert len(world.fired) == 10


def test_an_answer_of_the_target_ends_an_outage_though_it_is_no_success() -> None:
    world = World(type_of(max_lag_ms=0), target=always(DOWN))
    world.arm(4)
    world.run(3000)
    assert world.dispatcher.conditions(world.now.boot_ms)["t"].is_down
    world.target = always(REFUSED)
    world.run(2000)
    assert not world.dispatcher.conditions(world.now.boot_ms)["t"].is_down


def test_poison_that_hangs_the_target_is_isolated_while_others_succeed() -> None:
    world = World(
        type_of(max_lag_ms=0, max_in_flight=50),
        target=unless("x-7", HANGS),
    )
    world.arm(50)
    for n in range(60):
        world.arm(5, prefix=f"good{n}")
        world.run(500)
    assert len(world.fired) == 49 + 300
    assert not world.dispatcher.conditions(world.now.boot_ms)["t"].is_down
    assert world.entries()["x-7"].counted >= 1


@pytest.mark.parametrize("bad", ["x-0", "x-1", "x-25", "x-49"])
def test_poison_that_hangs_the_target_is_isolated_with_nothing_else_under_way(bad: str) -> None:
    world = World(type_of(max_lag_ms=0), target=unless(bad, HANGS), takes_ms=3000)
    world.arm(50)
    world.run(120_000)
    assert len(world.fired) == 49
    assert set(world.fired.values()) == {1}


def test_a_lone_hanging_timer_does_not_close_the_way_to_others() -> None:
    world = World(type_of(max_lag_ms=0), target=unless("x-0", HANGS))
    world.arm(1)
    world.run(600_000)
    assert not world.dispatcher.conditions(world.now.boot_ms)["t"].is_down
    assert len(world.posts) < 15
    world.arm(1, prefix="y")
    world.run(10)
    assert world.fired == {"y-0": 1}


def test_a_stream_of_first_attempts_that_hang_does_not_keep_retries_from_probing() -> None:
    world = World(type_of(max_lag_ms=0), target=always(DOWN))
    world.arm(50, prefix="good")
    world.run(3000)
    world.target = unless("bad", HANGS)
    for n in range(60):
        world.arm(1, prefix=f"bad.{n}")
        world.run(1000)
    assert sum(id.startswith("good") for id in world.fired) == 50


def probing() -> World:
    """A world whose breaker is open, with a probe due."""
    world = World(type_of(max_lag_ms=0), shards=1, target=always(DOWN))
    world.arm(4)
    world.run(3000)
    assert world.dispatcher.conditions(world.now.boot_ms)["t"].is_down
    assert not world.answers
    world.advance(10_000)
    world.target = always(OK)
    return world


def test_a_probe_that_found_nothing_makes_room_for_the_next() -> None:
    world = probing()
    kept = world.shards[0].entries
    for ready in world.shards[0].news(world.now):
        world.dispatcher.ready(ready)
    (take,) = world.dispatcher.commands(world.now)
    world.shards[0].entries = {}
    world.obey(take)
    world.shards[0].entries = kept
    world.run(10)
    assert len(world.fired) == 4


def test_a_probe_whose_payloads_are_lost_makes_room_for_the_next() -> None:
    world = probing()
    world.step()
    ((_, number, _),) = world.answers
    world.answers = []
    world.shards[0].taken[number] = []
    world.dispatcher.emptied(number)
    world.arm(3, prefix="y")
    world.run(10)
    assert len(world.fired) == 3


# ---- fairness and limits


def test_neither_retries_nor_first_attempts_starve_for_slots() -> None:
    world = World(type_of(max_lag_ms=0, max_in_flight=1), takes_ms=100)
    world.arm(50, prefix="old")
    world.target = always(REFUSED)
    world.run(150)
    world.target = always(OK)
    for n in range(40):
        world.arm(50, prefix=f"new{n}")
        world.run(100)
    assert sum(id.startswith("old") for id in world.fired) == 50
    assert sum(id.startswith("new") for id in world.fired) > 1500


@pytest.mark.parametrize(("rate", "size"), [(100.0, 10), (2000.0, 50), (5.0, 1), (0.5, 1)])
def test_a_rate_is_kept_in_batches_of_a_tenth_of_a_second(rate: float, size: int) -> None:
    world = World(type_of(max_lag_ms=0, max_in_flight=1000, max_per_second=rate), takes_ms=1)
    world.arm(1000)
    world.run(10_000)
    assert max(world.sizes()) == size
    for start, _ in world.posts:
        sent = sum(len(batch.timers) for at, batch in world.posts if start <= at < start + 1000)
        assert sent <= rate + max(1, rate / 10)
    assert sum(world.sizes()) >= min(1000, int(rate * 10))


def test_a_slow_type_holds_up_no_other() -> None:
    world = World(type_of("slow", max_lag_ms=0), type_of("fast", max_lag_ms=0), takes_ms=5)
    world.target = always(OK)
    world.arm(2000, type="slow", prefix="s")
    world.step()
    world.answers = [(at + 30_000, number, batch) for at, number, batch in world.answers]
    for n in range(20):
        world.arm(5, type="fast", prefix=f"f{n}")
        world.run(50)
    assert len(world.fired) == 100
    assert world.dispatcher.stats()["slow"].open_batches == 4


# ---- what is wrong with us


def test_what_could_leave_and_does_not_is_overdue() -> None:
    world = World(type_of(max_lag_ms=0))
    world.run(10_000)
    world.hold_settled = []
    world.arm(10)
    world.run(900)
    assert world.dispatcher.overdue(world.now) is None
    world.run(5_000)
    assert world.dispatcher.overdue(world.now) == "t"
    for settled in world.hold_settled:
        world.dispatcher.settled(settled)
    world.step()
    assert world.dispatcher.overdue(world.now) is None


@pytest.mark.parametrize("answer", [DOWN, Failed("HTTP 429", retry_after_ms=100_000), Failed("HTTP 410", gone=True)])
def test_what_the_target_holds_up_is_not_overdue(answer: Failed) -> None:
    world = World(type_of(max_lag_ms=0), target=always(answer))
    world.arm(500)
    for _ in range(20):
        world.run(3_000)
        assert world.dispatcher.overdue(world.now) is None


def test_a_slow_target_is_not_overdue() -> None:
    world = World(type_of(max_lag_ms=0), takes_ms=30_000)
    world.arm(500)
    world.run(29_000)
    assert world.dispatcher.overdue(world.now) is None


# ---- types that change, and the end


def test_a_type_that_is_unknown_or_paused_waits_and_loses_nothing() -> None:
    world = World()
    world.arm(10)
    world.run(60_000)
    assert not world.takes
    world.dispatcher.set_types({"t": type_of(state="paused")})
    world.run(60_000)
    assert not world.takes
    world.dispatcher.set_types({"t": type_of()})
    world.run(10)
    assert len(world.fired) == 10


def test_a_type_that_goes_while_a_take_is_under_way_gives_its_timers_back() -> None:
    world = World(type_of(max_lag_ms=0))
    world.arm(1)
    for ready in world.shards[0].news(world.now):
        world.dispatcher.ready(ready)
    (take,) = world.dispatcher.commands(world.now)
    world.dispatcher.set_types({})
    world.dispatcher.commands(world.now)
    world.obey(take)
    world.run(5000)
    assert not world.posts
    assert world.dispatcher.idle()
    world.dispatcher.set_types({"t": type_of(max_lag_ms=0)})
    world.run(5000)
    assert world.fired == {"x-0": 1}


def test_a_removed_type_leaves_nothing_behind() -> None:
    world = World(type_of(max_lag_ms=0))
    world.arm(1)
    world.run(10)
    world.dispatcher.set_types({})
    world.step()
    assert not world.dispatcher._flows
    assert world.dispatcher.stats()["t"].batches == 1


def test_a_type_paused_with_an_open_batch_ends_it_as_usual() -> None:
    world = World(type_of(max_lag_ms=0))
    world.arm(10)
    world.step()
    world.dispatcher.set_types({"t": type_of(state="paused")})
    world.run(100)
    assert len(world.fired) == 10


def test_a_drain_ends_what_is_open_and_begins_nothing() -> None:
    world = World(type_of(max_lag_ms=0))
    world.arm(100)
    world.step()
    world.arm(50, prefix="late")
    world.dispatcher.drain()
    assert not world.dispatcher.idle()
    world.run(60_000)
    assert world.dispatcher.idle()
    assert len(world.fired) == 100
    assert world.dispatcher.wake_at() == (None, None)


def test_a_batch_whose_payloads_are_lost_says_nothing_about_the_target() -> None:
    world = World(type_of(max_lag_ms=0))
    world.arm(3)
    world.step()
    ((_, number, _),) = world.answers
    world.answers = []
    for shard in world.shards:
        shard.taken[number] = []
    world.dispatcher.emptied(number)
    world.step()
    assert world.dispatcher.idle()


# ---- whatever happens


@st.composite
def worlds(draw: st.DrawFn) -> World:
    outcomes: st.SearchStrategy[Outcome] = st.sampled_from(
        [
            OK,
            OK,
            REFUSED,
            DOWN,
            HANGS,
            Failed("HTTP 503", suspect=True, retry_after_ms=500),
            Failed("no", no_retry=True),
            Accepted({"a-1": ItemResult("retry")}),
        ]
    )
    type = type_of(
        batch_size=draw(st.integers(1, 20)),
        max_lag_ms=draw(st.sampled_from([0, 10, 1000])),
        max_in_flight=draw(st.integers(1, 5)),
        max_per_second=draw(st.sampled_from([None, None, 3.0, 50.0, 1000.0])),
        retry=RetryPolicy(min_backoff_ms=draw(st.sampled_from([1, 100])), max_backoff_ms=1000),
    )
    world = World(type, shards=draw(st.integers(1, 4)), takes_ms=draw(st.integers(0, 50)))
    script = draw(st.lists(outcomes, max_size=60))
    world.target = lambda batch: script.pop() if script else OK
    return world


@settings(max_examples=300, deadline=None)
@given(
    worlds(),
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 40), st.booleans(), st.integers(0, 3000)), max_size=6),
)
def test_in_the_end_everything_is_delivered_once(world: World, steps: list[tuple[str, int, bool, int]]) -> None:
    armed: set[str] = set()
    for n, (letter, count, urgent, ms) in enumerate(steps):
        armed |= set(world.arm(count, prefix=f"{letter}{n}", urgent=urgent))
        world.run(ms)
    world.run(600_000)
    assert set(world.fired) | set(world.buried) == armed
    assert set(world.fired.values()) <= {1}
    assert world.dispatcher.idle()
    rate = world.types["t"].max_per_second
    if rate:
        for start, _ in world.posts:
            sent = sum(len(batch.timers) for at, batch in world.posts if start <= at < start + 1000)
            assert sent <= rate + max(1, rate / 10)


@settings(max_examples=150, deadline=None)
@given(worlds(), st.integers(1, 60), st.lists(st.integers(1, 400), max_size=30))
def test_wake_at_is_never_late(world: World, count: int, steps: list[int]) -> None:
    """Between two events, `commands` has nothing to give before the moment that `wake_at` named."""
    world.arm(count)
    world.step()
    for ms in steps:
        wall, boot = world.dispatcher.wake_at()
        news = [s.news(Now(world.now.wall_us + ms * 1000, world.now.boot_ms + ms)) for s in world.shards]
        for shard, list_ in zip(world.shards, news, strict=True):
            for ready in list_:
                shard.reported.pop((ready.type, ready.limit))
        for _ in range(ms):
            world.advance(1)
            passed = (wall is not None and wall <= world.now.wall_ms) or (
                boot is not None and boot <= world.now.boot_ms
            )
            if not passed:
                for flow in world.dispatcher._flows.values():
                    before = flow.wake
                    assert flow.choose(world.now) is None, "a batch could leave before wake_at"
                    flow.wake = before
        world.step()

"""Any sequence of messages, clock movements and crashes leaves a shard as a plain dict would be.

The model knows nothing of queues, slots or records: a dict of what is there, a few counts, and what the log would say
of failures that a full disk let nobody write. After each turn everything a reader can see is compared, the harness
holds the shard's caches against its timers, and the log is folded again from where it may be trimmed.

A turn may have several messages; a crash in the middle of one takes back what it had not made durable.
"""

from collections import Counter
from copy import deepcopy
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.engine.harness import DAY, HOUR, MINUTE, SECOND, Bench
from timerd.engine import shard as shard_module
from timerd.engine.backoff import backoff_ms
from timerd.engine.burial import KEPT_MS
from timerd.engine.catchup import MISSED, is_missed, key_of_missed
from timerd.engine.effect import Reply, Taken
from timerd.engine.message import (
    TIMER_DEAD,
    Arm,
    BodyLost,
    Cancel,
    CancelResult,
    Close,
    Condition,
    Filter,
    FireNow,
    ItemResult,
    List,
    Message,
    Purge,
    Relocate,
    Revive,
    SetReserve,
    Settle,
    SettleSome,
    SetTypes,
    Slice,
    WholeFailure,
)
from timerd.engine.record import Checkpoint, Fired
from timerd.engine.ring import slot_of
from timerd.engine.timer import PARKED, BodyRef, Misfire, Payload, RetryPolicy, Timer, TimerType

IDS = ["a", "b", "c", "d", "é", "1", "01", "f"]
SLOTS = sorted({slot_of(id) for id in IDS} | {0, 7})
TYPES = {
    "p": TimerType("p", batch_size=3, max_lag_ms=0, retry=RetryPolicy(max_attempts=3, min_backoff_ms=100)),
    "q": TimerType(
        "q",
        batch_size=2,
        max_lag_ms=0,
        retry=RetryPolicy(min_backoff_ms=1, multiplier=3.0),
        misfire=Misfire("drop", 0),
    ),
    "slow": TimerType("slow", batch_size=5, max_lag_ms=10_000, misfire=Misfire("coalesce", 30_000)),
}
NAMES = [*TYPES, "unknown"]
BODIES = [BodyRef(1, 0, 600, b"0" * 16), BodyRef(1, 600, 700, b"1" * 16), BodyRef(2, 0, 600, b"2" * 16)]
KEPT = 2

PAYLOADS = [None, b"1", b'{"x":2}', *BODIES]
OFFSETS = [-DAY, -5, -5, 0, 0, 1, 2, 60, 3 * SECOND, 9 * SECOND, 11 * MINUTE, 10 * HOUR, 40 * DAY]
STEPS = [1, 1, 1, 2, 100, 100, SECOND, 4 * SECOND, 10 * SECOND, 9 * MINUTE, 10 * HOUR, 31 * DAY, -1, -70, -DAY]

# Hypothesis chooses which rules run, and each rule draws its details from one seed: drawn one by one they would use up
# an example long before anything has been in flight.
chance = st.integers(0, 2**32 - 1).map(Random)


class Failure(msgspec.Struct):
    attempts: int
    counted: int
    gap_ms: int
    limit: int
    error: str
    unknown: bool
    since: int = 0


class Entry(msgspec.Struct):
    """What is there of an id. `place`: waiting | flight | dead."""

    fire_at: int
    generation: int
    type: str
    payload: Payload
    created_at: int
    place: str = "waiting"
    failure: Failure | None = None
    logged: Failure | None = None
    """The failure as the log has it."""
    died_at: int = 0
    parked: str = ""
    """The key that it was put back under, last."""
    behind: bool = False
    """It was missed already when an answer re-armed it, in this process."""

    @property
    def due_at(self) -> int:
        return max(self.fire_at, self.generation // 1000)


class Model:
    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.last = 0
        self.counts: dict[str, Counter[str]] = {}
        self.logged_retried: Counter[str] = Counter()
        self.flights: dict[int, tuple[str, list[tuple[str, int]]]] = {}
        self.unclean_at = 0
        self.unclean_generation = 0
        self.low = False
        self.forgets = False
        self.closed = True

    def count(self, type: str, what: str, by: int = 1) -> None:
        self.counts.setdefault(type, Counter())[what] += by

    def open(self, id: str) -> bool:
        """Whether a delivery of any generation of the id is open."""
        return any(id == other for _, members in self.flights.values() for other, _ in members)

    def leave(self, id: str, why: str) -> None:
        entry = self.entries.pop(id)
        self.count(entry.type, "purged" if entry.place == "dead" else why)

    def current(self, members: list[tuple[str, int]]) -> list[str]:
        found = []
        for id, generation in members:
            entry = self.entries.get(id)
            if entry is not None and entry.generation == generation and entry.place == "flight":
                found.append(id)
        return found

    def bury(self, id: str, at: int, error: str, attempted: bool, unknown: bool = False) -> None:
        entry = self.entries[id]
        before = entry.failure or Failure(0, 0, 0, 0, "", False)
        entry.failure = Failure(
            before.attempts + attempted, before.counted + attempted, 0, 0, error, before.unknown or unknown
        )
        before = entry.logged or Failure(0, 0, 0, 0, "", False)
        entry.logged = Failure(
            before.attempts + attempted, before.counted + attempted, 0, 0, error, before.unknown or unknown
        )
        entry.place, entry.died_at = "dead", at
        self.count(entry.type, "dead")

    def retry(self, id: str, gap_ms: int, limit: int, counted: bool, unknown: bool, error: str, boot_ms: int) -> None:
        entry = self.entries[id]

        def next_failure(before: Failure | None) -> Failure:
            old = before or Failure(0, 0, 0, 0, "", False)
            return Failure(
                old.attempts + 1, old.counted + counted, gap_ms, limit, error, old.unknown or unknown, boot_ms
            )

        entry.failure = next_failure(entry.failure)
        entry.place, entry.parked = "waiting", ""
        self.count(entry.type, "retried")
        if self.low:
            self.forgets = True
        else:
            entry.logged = next_failure(entry.logged)
            self.logged_retried[entry.type] += 1


def content(payload: Payload) -> object:
    """What a payload says, wherever it lies."""
    return (payload.digest, payload.length) if isinstance(payload, BodyRef) else payload


class ShardMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.bench = Bench(*TYPES.values(), slots=SLOTS, kept=KEPT)
        self.model = Model()
        self.expected: list[Any] = []
        self.got: list[Any] = []
        self.low_lsn = 1
        self.folded_lsn = 0
        self.durable = deepcopy(self.model)
        self.after_own()

    def after_own(self) -> None:
        model = self.model
        if not model.closed:
            model.unclean_at = max(model.unclean_at, self.bench.wall_ms, model.last // 1000)
            model.unclean_generation = model.last
        model.closed = False
        self.sync()

    # ---- how a turn is made

    def send(self, message: Message, *expected: Any) -> None:
        self.bench.step(message)
        self.expected += expected

    def end_turn(self) -> list[Any]:
        effects = self.bench.turn()
        for record in self.bench.records:
            self.model.closed = type(record).__name__ == "Closed"
        for record in self.bench.records:
            if isinstance(record, Checkpoint):
                for id, entry in self.model.entries.items():
                    if slot_of(id) in record.slots:
                        entry.logged = deepcopy(entry.failure)
                for name, counts in self.model.counts.items():
                    self.model.logged_retried[name] = counts["retried"]
        self.expire()
        self.drop()
        replies = [effect.value for effect in effects if isinstance(effect, Reply)]
        assert replies == self.expected
        self.expected = []
        self.sync()
        return effects

    def _maybe_end_turn(self, random: Random) -> None:
        if random.random() < 0.7:
            self.end_turn()

    def expire(self) -> None:
        """Purge what the shard says it has purged, if it should have."""
        dead = {id for id, entry in self.model.entries.items() if entry.place == "dead"}
        gone = {id for id in dead if self.bench.state.find(id) is None}
        for name in NAMES:
            mine = {id for id in dead if self.model.entries[id].type == name}
            left = mine - gone
            assert len(left) <= KEPT
            for id in mine & gone:
                old = self.model.entries[id].died_at <= self.bench.wall_ms - KEPT_MS
                assert old or len(mine) > KEPT
        for id in gone:
            self.model.leave(id, "purged")

    def drop(self) -> None:
        """Take out what the turn says it has dropped, if it should have."""
        for record in self.bench.records:
            if isinstance(record, Fired):
                for id in [id for reason, ids in record.dropped if reason == "misfire" for id in ids]:
                    entry = self.model.entries[id]
                    type = TYPES[entry.type]
                    assert (type.misfire.policy, type.state) == ("drop", "active")
                    assert entry.place == "waiting"
                    assert self.late(entry)
                    assert not self.model.open(id)
                    self.model.leave(id, "dropped")

    def late(self, entry: Entry) -> bool:
        """Whether it is missed."""
        type = ALL_TYPES.get(entry.type)
        if type is None or entry.failure:
            return False
        since = entry.fire_at if entry.behind and type.misfire.policy != "drop" else entry.due_at
        return self.bench.wall_ms - since > type.grace_ms

    def sync(self) -> None:
        self.durable = deepcopy(self.model)

    def next_generation(self) -> int:
        return max(self.bench.wall_us, self.model.last + 1)

    # ---- rules: arms

    @rule(random=chance)
    def arm(self, random: Random) -> None:
        self._arm(random)
        self._maybe_end_turn(random)

    def _arm(self, random: Random) -> None:
        items = [
            (
                random.choice(IDS),
                random.choice(NAMES[:2] * 3 + NAMES),
                random.choice(OFFSETS),
                random.choice(PAYLOADS),
                random.choice(["replace"] * 3 + ["earliest", "latest", "keep"]),
                random.choice([None] * 6 + ["none", "right", "wrong"]),
                random.random() < 0.15,
            )
            for _ in range(random.randint(1, 6))
        ]
        model = self.model
        timers, conditions, results = [], [], []
        generation = self.next_generation()
        armed = conflicts = 0
        for id, name, offset, payload, mode, match, again in items:
            old = model.entries.get(id)
            fire_at = old.fire_at if old and again else self.bench.wall_ms + offset
            if old and again:
                name, payload = old.type, old.payload
            wanted = {None: None, "none": 0, "right": old.generation if old else 0, "wrong": 77}[match]
            timers.append(Timer(fire_at, 0, id, name, payload))
            conditions.append(Condition(mode, wanted))
            shown = (old.generation, old.fire_at) if old else (0, 0)
            unchanged = (
                old is not None
                and old.place == "waiting"
                and old.failure is None
                and (old.fire_at, old.type, content(old.payload)) == (fire_at, name, content(payload))
            )
            absent = old is None or old.place != "waiting"
            if wanted is not None and wanted != shown[0]:
                conflicts += 1
                results.append(("conflict", *shown, None))
            elif not absent and mode == "keep":
                results.append(("kept", *shown, None))
            elif unchanged:
                results.append(("unchanged", *shown, None))
            elif (old and not absent) and (
                (mode == "earliest" and old.fire_at <= fire_at) or (mode == "latest" and old.fire_at >= fire_at)
            ):
                results.append(("kept", *shown, None))
            else:
                armed += 1
                created_at = old.created_at if old else generation // 1000
                moved = old is not None and old.place != "dead"
                if old:
                    model.leave(id, "replaced")
                model.entries[id] = Entry(fire_at, generation, name, payload, created_at)
                model.count(name, "armed")
                status = "moved" if moved else "created"
                results.append((status, generation, fire_at, old.fire_at if old and moved else None))
                model.last = generation
                generation += 1
        self.bench.step(Arm(timers, None, conditions))
        done = self.bench.shard._draft.effects[-1].value
        assert (done.armed, done.conflicts) == (armed, conflicts)
        assert [msgspec.structs.astuple(result) for result in done.results] == results
        self.expected.append(done)

    @rule(random=chance)
    def cancel(self, random: Random) -> None:
        chosen = random.choices(IDS, k=random.randint(1, 3))
        answers = []
        for id in chosen:
            entry = self.model.entries.get(id)
            if entry is None:
                answers.append(CancelResult(False))
            else:
                answers.append(CancelResult(True, entry.place == "flight", entry.generation))
                self.model.leave(id, "cancelled")
        self.bench.step(Cancel(chosen, None))
        got = self.bench.shard._draft.effects[-1].value
        assert got == answers
        self.expected.append(got)
        self._maybe_end_turn(random)

    @rule(random=chance)
    def fire_now(self, random: Random) -> None:
        id = random.choice(IDS)
        entry = self.model.entries.get(id)
        self.bench.step(FireNow(id, None))
        got = self.bench.shard._draft.effects[-1].value
        self.expected.append(got)
        if entry is None:
            assert got is None
        elif entry.place == "dead":
            assert got == TIMER_DEAD
        elif entry.place == "flight":
            assert (got.status, got.generation) == ("unchanged", entry.generation)
        else:
            generation = self.next_generation()
            self.model.leave(id, "replaced")
            self.model.entries[id] = Entry(self.bench.wall_ms, generation, entry.type, entry.payload, entry.created_at)
            self.model.count(entry.type, "armed")
            self.model.last = generation
            assert (got.status, got.generation, got.previous_fire_at) == ("moved", generation, entry.fire_at)
        self.end_turn()

    # ---- rules: deliveries

    @rule(random=chance)
    def work(self, random: Random) -> None:
        """What fills most days: something is armed, time goes by, something leaves."""
        self._arm(random)
        self.end_turn()
        self._pass_time(random.choice([1, 2, 10 * SECOND]))
        for _ in range(random.randint(1, 3)):
            self._take(random)
        if random.random() < 0.3:
            self._arm(random)
        for _ in range(random.randint(0, 3)):
            if self.model.flights:
                random.choice([self._answer, self._answer, self._fail_batch, self._settle_some])(random)
                self._maybe_end_turn(random)

    @rule(random=chance)
    def take(self, random: Random) -> None:
        self._take(random)

    def _take(self, random: Random) -> None:
        count = random.randint(1, 4)
        self.end_turn()
        lanes = sorted((*key, "") for key, said in self.bench.told.items() if said.count)
        lanes += sorted((name, 0, key) for (name, key), count in self.bench.parked.items() if count)
        name, limit, key = random.choice(lanes or [("p", 0, ""), ("q", 4, ""), ("q", 0, "k")])
        told = self.bench.told.get((name, limit))
        self.bench.step(message := self.bench.take_message(count, name, limit, key))
        (taken,) = [effect for effect in self.end_turn() if isinstance(effect, Taken)]
        if key:
            assert len(taken.timers) <= count
            assert {self.model.entries[timer.id].parked for timer in taken.timers} <= {key}
            for id, entry in self.model.entries.items():  # what has aged there is missed instead
                if entry.parked == key and self.late(entry) and self.bench.state.find(id).state != PARKED:  # type: ignore[union-attr]
                    entry.parked = ""
        else:
            most = min(count, told.count if told else 0)
            assert len(taken.timers) <= most
            aged = any(self.late(e) for e in self.model.entries.values() if e.type == name and e.place == "waiting")
            assert len(taken.timers) == most or (aged and limit == 0)
        members = []
        for timer in taken.timers:
            entry = self.model.entries[timer.id]
            assert (entry.generation, entry.type, entry.place) == (timer.generation, name, "waiting")
            assert not self.model.open(timer.id), "in two open deliveries"
            if entry.failure:
                assert key or limit == entry.failure.limit
                assert entry.failure.since + entry.failure.gap_ms <= self.bench.boot_ms
            else:
                assert key or limit == (MISSED if self.late(entry) else 0)
                assert not (key and self.late(entry)) or is_missed(key)
            assert entry.fire_at <= self.bench.wall_ms, "early"
            assert timer.payload == entry.payload
            repeat = bool(entry.failure and entry.failure.unknown) or (
                entry.generation <= self.model.unclean_generation and entry.fire_at <= self.model.unclean_at
            )
            assert (timer.id in taken.flagged) == repeat
            entry.place, entry.parked = "flight", ""
            members.append((timer.id, timer.generation))
        self.model.flights[message.batch_no] = (name, members)
        self.sync()

    @precondition(lambda self: self.model.flights)
    @rule(random=chance)
    def answer(self, random: Random) -> None:
        self._answer(random)
        self._maybe_end_turn(random)

    def _answer(self, random: Random) -> None:
        model = self.model
        jitter = random.choice([0.8, 1.0])
        verdicts = random.choice([["ok", "retry", "retry", "drop", "dead", "rearm", "rearm"], ["drop"], ["rearm"]])
        batch_no = random.choice(sorted(model.flights))
        name, members = model.flights.pop(batch_no)
        current = model.current(members)
        results = {
            id: ItemResult(
                random.choice(verdicts),
                self.bench.wall_ms + random.choice(OFFSETS),
                random.choice(PAYLOADS),
                random.choice(["", "no"]),
            )
            for id, _ in members
        }
        results = {id: result for id, result in results.items() if result.status != "ok"}
        if len(current) < len(members):
            model.count(name, "superseded", len(members) - len(current))
        generation = self.next_generation()
        for id in current:
            entry = model.entries[id]
            match results.get(id):
                case None:
                    model.leave(id, "fired")
                case ItemResult("rearm") as result:
                    model.leave(id, "fired")
                    payload = entry.payload if result.payload is None else result.payload
                    fire_at = self._coalesced(entry, result.fire_at)
                    type = TYPES.get(name)
                    behind = type is not None and self.bench.wall_ms - fire_at > type.grace_ms
                    new = Entry(fire_at, generation, name, payload, entry.created_at, behind=behind)
                    model.entries[id] = new
                    model.count(name, "armed")
                    model.last = generation
                    generation += 1
                case ItemResult("drop"):
                    model.leave(id, "dropped")
        for id in current:
            match results.get(id):
                case ItemResult("retry") as result:
                    limit = TYPES[name].batch_size if name in TYPES else 1
                    self._fail_alone(id, result.error, limit, jitter, False, 1)
                case ItemResult("dead") as result:
                    model.bury(id, self.bench.wall_ms, result.error, True)
        self.send(Settle(batch_no, jitter, results))

    def _coalesced(self, entry: Entry, fire_at: int) -> int:
        type, now, step = TYPES.get(entry.type), self.bench.wall_ms, fire_at - entry.fire_at
        if type is None or type.misfire.policy != "coalesce" or step <= 0 or fire_at >= now - type.grace_ms:
            return fire_at
        return fire_at + -(-(now - fire_at) // step) * step

    def _fail_alone(self, id: str, error: str, limit: int, jitter: float, unknown: bool, least_gap_ms: int) -> None:
        entry = self.model.entries[id]
        policy = TYPES[entry.type].retry if entry.type in TYPES else RetryPolicy()
        counted = (entry.failure.counted if entry.failure else 0) + 1
        if policy.max_attempts and counted >= policy.max_attempts:
            self.model.bury(id, self.bench.wall_ms, error, True, unknown)
            return
        gap_ms = max(least_gap_ms, round(backoff_ms(policy, counted) * jitter))
        if entry.failure and entry.failure.limit:
            limit = min(limit, entry.failure.limit)
        self.model.retry(id, gap_ms, limit, True, unknown, error, self.bench.boot_ms)

    @precondition(lambda self: self.model.flights)
    @rule(random=chance)
    def fail(self, random: Random) -> None:
        self._fail_batch(random)
        self._maybe_end_turn(random)

    def _fail_batch(self, random: Random) -> None:
        model = self.model
        kind = random.choice(["counted", "counted", "uncounted", "uncounted", "bury"])
        unknown = random.random() < 0.5
        limit = random.randint(1, 3)
        batch_no = random.choice(sorted(model.flights))
        name, members = model.flights.pop(batch_no)
        current = model.current(members)
        for id in current:
            if kind == "bury":
                model.bury(id, self.bench.wall_ms, "down", True, unknown)
            elif kind == "counted":
                self._fail_alone(id, "down", limit, 1.0, unknown, 50)
            else:
                model.retry(id, 50, limit, False, unknown, "down", self.bench.boot_ms)
        if len(current) < len(members):
            model.count(name, "superseded", len(members) - len(current))
        failure = WholeFailure("down", 50, limit, kind == "counted", unknown, kind == "bury")
        self.send(Settle(batch_no, 1.0, failure=failure))

    @precondition(lambda self: self.model.flights)
    @rule(random=chance)
    def settle_some(self, random: Random) -> None:
        self._settle_some(random)
        self._maybe_end_turn(random)

    def _settle_some(self, random: Random) -> None:
        """Some members of a batch end, each in its own way; some are put back; the others stay in flight."""
        model = self.model
        batch_no = random.choice(sorted(model.flights))
        name, members = model.flights[batch_no]
        chosen = [member for member in members if random.random() < 0.7]
        current = model.current(chosen)
        fired: list[str] = []
        failed: list[tuple[str, WholeFailure]] = []
        parked: dict[str, list[str]] = {}
        superseded = 0
        for id, _ in chosen:
            way = random.choice(["fired", "failed", "uncounted", "buried", "parked", "parked"])
            if way == "fired":
                fired.append(id)
            elif way == "parked":
                key = random.choice(["k", "l", key_of_missed("k")])
                parked.setdefault(key, []).append(id)
                if id in current:
                    entry = model.entries[id]
                    entry.place, entry.parked = "waiting", key if entry.fire_at <= self.bench.wall_ms else ""
                continue
            else:
                counted, bury, attempted = way == "failed", way == "buried", random.random() < 0.5
                failed.append((id, WholeFailure(way, 70, 3, counted, False, bury, attempted)))
            superseded += id not in current
        for id in current:
            if id in fired:
                model.leave(id, "fired")
        for id, failure in sorted(failed, key=lambda each: [f for _, f in failed].index(each[1])):
            if id not in current:
                continue
            if failure.bury:
                model.bury(id, self.bench.wall_ms, failure.error, failure.attempted)
            elif failure.counted:
                self._fail_alone(id, failure.error, 3, 1.0, False, 70)
            else:
                model.retry(id, 70, 3, False, False, failure.error, self.bench.boot_ms)
        if superseded:
            model.count(name, "superseded", superseded)
        if left := [member for member in members if member not in chosen]:
            model.flights[batch_no] = (name, left)
        else:
            del model.flights[batch_no]
        self.send(SettleSome(batch_no, 1, 1.0, fired, failed, parked))

    @precondition(lambda self: self.model.flights)
    @rule(random=chance)
    def lose_a_body(self, random: Random) -> None:
        batch_no = random.choice(sorted(self.model.flights))
        name, members = self.model.flights[batch_no]
        if members:
            id, generation = random.choice(members)
            if id in self.model.current(members):
                self.model.bury(id, self.bench.wall_ms, "lost", False)
                self.model.flights[batch_no] = (name, [member for member in members if member[0] != id])
            self.send(BodyLost(batch_no, [(id, generation)], "lost", None), None)
        self.end_turn()

    # ---- rules: dead letters

    @rule(random=chance)
    def revive_or_purge(self, random: Random) -> None:
        chosen = random.choices(IDS, k=4)
        purge = random.random() < 0.3
        dead = [id for id in dict.fromkeys(chosen) if (e := self.model.entries.get(id)) and e.place == "dead"]
        generation = self.next_generation()
        for id in dead:
            entry = self.model.entries[id]
            if purge:
                self.model.leave(id, "purged")
                continue
            self.model.entries[id] = Entry(entry.fire_at, generation, entry.type, entry.payload, entry.created_at)
            self.model.count(entry.type, "revived")
            self.model.last = generation
            generation += 1
        self.send(Purge(chosen, None, None) if purge else Revive(chosen, None, None), (len(dead), False))
        self._maybe_end_turn(random)

    # ---- rules: time, types, the log

    @rule(random=chance)
    def pass_time(self, random: Random) -> None:
        self._pass_time(random.choice(STEPS))

    def _pass_time(self, ms: int) -> None:
        self.end_turn()
        self.bench.wall_us += ms * 1000
        self.bench.boot_ms += max(0, ms)
        for entry in self.model.entries.values():
            if entry.fire_at > self.bench.wall_ms:
                entry.parked = ""  # what is not due any more waits for its time, and not for its key
        self.end_turn()

    @rule(random=chance)
    def set_types(self, random: Random) -> None:
        known = random.choice([["p", "q", "slow"], ["p", "q", "slow"], ["q"]])
        size = random.choice([1, 3])
        TYPES["p"] = msgspec.structs.replace(ALL_TYPES["p"], batch_size=size)
        for name in ALL_TYPES:
            if name not in known:
                TYPES.pop(name, None)
            elif name not in TYPES:
                TYPES[name] = ALL_TYPES[name]
        if "q" in TYPES:
            TYPES["q"] = msgspec.structs.replace(ALL_TYPES["q"], state=random.choice(["active", "paused"]))
        if "p" not in known:
            TYPES.pop("p", None)
        self.bench.types = dict(TYPES)
        self.send(SetTypes(self.bench.types))
        self.end_turn()

    @rule(random=chance)
    def fill_the_disk(self, random: Random) -> None:
        low = random.random() < 0.5
        self.model.low = low
        self.send(SetReserve(low))
        self.end_turn()

    @rule(random=chance)
    def slice(self, random: Random) -> None:
        for _ in range(random.randint(1, 3)):
            self.send(Slice())
        self.end_turn()

    @rule(random=chance)
    def trim(self, random: Random) -> None:
        """The log may begin anywhere up to the first frame that is needed."""
        self.end_turn()
        needed = self.bench.shard.needed_lsn()
        assert needed >= self.low_lsn
        self.low_lsn = random.choice([needed, random.randint(self.low_lsn, needed)])
        self.bench.frames = [frame for frame in self.bench.frames if frame[0] >= self.low_lsn]

    @rule(random=chance)
    def relocate(self, random: Random) -> None:
        id, place = random.choice(IDS), random.choice(BODIES)
        entry = self.model.entries.get(id)
        if entry and isinstance(entry.payload, BodyRef):
            new = BodyRef(place.segment, place.offset, entry.payload.length, entry.payload.digest)
            self.send(Relocate([(id, entry.generation, entry.payload, new)], None), None)
            entry.payload = new
            self.end_turn()

    @rule(random=chance)
    def crash_or_stop(self, random: Random) -> None:
        """A crash, in the middle of whatever turn it is; or a stop, clean if it can be."""
        if random.random() < 0.3:
            self._restart()
        elif random.random() < 0.3:
            self.end_turn()
            self.send(Close(None), None)
            clean = not self.model.flights and not self.model.forgets
            self.end_turn()
            assert self.model.closed == clean
            self._restart()

    def _restart(self) -> None:
        model = self.model = self.durable
        self.expected = []
        model.flights.clear()
        model.low = model.forgets = False
        for name, counts in model.counts.items():
            counts["retried"] = model.logged_retried[name]
        for entry in model.entries.values():
            if entry.place == "flight":
                entry.place = "waiting"
            entry.parked = ""
            entry.failure = deepcopy(entry.logged)
            entry.behind = False
            if entry.failure:
                entry.failure.since = self.bench.boot_ms
        self.bench.crash(self.low_lsn)
        self.expire()
        self.drop()
        self.after_own()

    # ---- what a reader sees

    @invariant()
    def same(self) -> None:
        if self.expected or self.bench.shard._draft.records:
            return  # in the middle of a turn
        wall_ms, boot_ms = self.bench.wall_ms, self.bench.boot_ms
        bench, model = self.bench, self.model
        for id in IDS:
            view, entry = bench.get(id), model.entries.get(id)
            assert (view is None) == (entry is None), id
            if view is None or entry is None:
                continue
            failure = entry.failure
            assert (view.type, view.fire_at, view.generation, view.payload, view.created_at, view.updated_at) == (
                entry.type,
                entry.fire_at,
                entry.generation,
                entry.payload,
                entry.created_at,
                entry.generation // 1000,
            )
            assert view.state == self._state(entry)
            assert view.attempt == (failure.attempts if failure else 0) + (entry.place == "flight")
            assert view.last_error == (failure.error if failure else None)
            assert view.died_at == (entry.died_at or None)
            if view.next_attempt_at is not None:
                assert failure is not None
                gap_left = max(0, failure.since + failure.gap_ms - boot_ms)
                assert view.next_attempt_at == max(entry.fire_at, wall_ms + gap_left)
        listed = bench.listed(List(Filter(), (-1, ""), 5, None))
        assert [view.id for view in listed] == sorted(model.entries, key=lambda id: (slot_of(id), id))
        waiting = [(e.fire_at, e.generation, id) for id, e in model.entries.items() if e.place == "waiting"]
        assert bench.ids() == [id for _, _, id in sorted(waiting)]
        assert bench.ids(count=2) == [id for _, _, id in sorted(waiting)][:2]
        self._tally()
        self._awake()

    def _state(self, entry: Entry) -> str:
        if entry.place != "waiting":
            return {"flight": "in_flight", "dead": "dead"}[entry.place]
        if entry.type in TYPES and TYPES[entry.type].state == "paused":
            return "paused"
        if entry.failure:
            return "retrying"
        return "due" if entry.fire_at <= self.bench.wall_ms else "armed"

    def _tally(self) -> None:
        tally, model, wall_ms = self.bench.tally(), self.model, self.bench.wall_ms
        due = [e for e in model.entries.values() if e.place == "waiting" and not e.failure and e.fire_at <= wall_ms]
        assert tally.oldest_due_at == min((min(e.due_at, wall_ms) for e in due), default=None)
        for name, shown in tally.types.items():
            counts = model.counts.get(name, Counter())
            mine = [e for e in model.entries.values() if e.type == name]
            for what in (
                "armed",
                "revived",
                "fired",
                "cancelled",
                "replaced",
                "dead",
                "purged",
                "superseded",
                "retried",
            ):
                assert getattr(shown, what) == counts[what], (name, what)
            assert sum(shown.dropped.values()) == counts["dropped"]
            assert shown.live == sum(e.place != "dead" for e in mine)
            assert shown.in_flight == sum(e.place == "flight" for e in mine)
            assert shown.retrying == sum(e.place == "waiting" and e.failure is not None for e in mine)
            assert shown.dead_letters == sum(e.place == "dead" for e in mine)
            assert shown.due == sum(e.place == "waiting" and not e.failure and e.fire_at <= wall_ms for e in mine)

    def _awake(self) -> None:
        """No work is missed, and none is done for nothing."""
        for _ in range(3):
            self.bench.turn()
            self.drop()
        wall, boot = self.bench.shard.wake_at()
        assert wall is None or wall > self.bench.wall_ms
        assert boot is None or boot > self.bench.boot_ms
        for name, type in self.bench.types.items():
            mine = [
                (id, e)
                for id, e in self.model.entries.items()
                if e.type == name and e.place == "waiting" and not e.parked and not self.model.open(id)
            ]
            parked = Counter(e.parked for e in self.model.entries.values() if e.type == name and e.parked)
            assert all(self.bench.parked[name, key] >= count for key, count in parked.items())
            first = [e for _, e in mine if not e.failure]
            due = sum(e.fire_at <= self.bench.wall_ms for e in first)
            late = sum(self.late(e) for e in first)
            ready, missed = (told.count if (told := self.bench.told.get((name, lane))) else 0 for lane in (0, MISSED))
            assert ready + missed <= due
            assert missed <= (late if type.misfire.policy != "drop" else 0)
            if type.max_lag_ms == 0:
                assert ready >= min(due - late, type.batch_size), f"{due - late} due, {ready} ready"
            if type.misfire.policy != "drop":
                soon = late if type.max_lag_ms else due  # one that may wait is looked for a moment later
                assert ready + missed >= min(soon, type.batch_size), f"{soon} due, {ready} ready, {missed} missed"
            if ready < type.batch_size:
                for entry in first:
                    assert entry.fire_at <= self.bench.wall_ms or (wall is not None and wall <= entry.fire_at + 49)
            retries = [e for _, e in mine if e.failure]
            over = [e for e in retries if e.failure and e.failure.since + e.failure.gap_ms <= self.bench.boot_ms]
            for limit in {e.failure.limit for e in over if e.failure}:
                ripe = [e for e in over if e.failure and e.failure.limit == limit and e.fire_at <= self.bench.wall_ms]
                retry = self.bench.told.get((name, limit))
                assert (retry.count if retry else 0) == min(len(ripe), type.batch_size), f"{len(ripe)} retries are due"
            for entry in over:
                assert entry.fire_at <= self.bench.wall_ms or (wall is not None and wall <= entry.fire_at)
            for _, entry in mine:
                if entry.failure and entry.failure.since + entry.failure.gap_ms > self.bench.boot_ms:
                    retry = self.bench.told.get((name, entry.failure.limit))
                    if retry and retry.count == type.batch_size:
                        continue  # a Take comes first
                    assert boot is not None
                    assert boot <= entry.failure.since + entry.failure.gap_ms

    @invariant()
    def the_log_is_the_truth(self) -> None:
        """The fold of the log, from wherever it may begin, is the state."""
        if self.expected or self.bench.shard._draft.records:
            return
        live = self.bench.state
        if live.lsn == self.folded_lsn:
            return
        self.folded_lsn = live.lsn
        needed = self.bench.shard.needed_lsn()
        for first in {self.low_lsn + live.lsn % max(1, needed - self.low_lsn + 1)}:
            folded = self.bench.recovered(first)
            assert (folded.last, folded.lsn, folded.epoch) == (live.last, live.lsn, live.epoch)
            assert (folded.unclean_at, folded.unclean_generation) == (live.unclean_at, live.unclean_generation)
            assert (folded.timers, folded.id_bytes, folded.payload_bytes) == (
                live.timers,
                live.id_bytes,
                live.payload_bytes,
            )
            assert folded.body_bytes == live.body_bytes
            assert list(folded.covered.items()) == list(live.covered.items())
            for run, twins in zip(folded.runs, live.runs, strict=True):
                assert run.slots == twins.slots
                assert run.by_id.keys() == twins.by_id.keys()
                for id, timer in run.by_id.items():
                    twin = twins.by_id[id]
                    assert timer.payload == twin.payload
                    assert (timer.fire_at, timer.generation, timer.type) == (twin.fire_at, twin.generation, twin.type)
                    logged = self.model.entries[id].logged
                    assert (timer.failure is None) == (logged is None)
                    if timer.failure and logged:
                        assert timer.failure.attempts == logged.attempts
                        assert timer.failure.counted == logged.counted
                        assert (timer.failure.error, timer.failure.limit) == (logged.error, logged.limit)
                        assert timer.failure.unknown == logged.unknown
            for name, lane in folded.lanes.items():
                theirs = live.lanes[name].totals
                retried = self.model.logged_retried[name]
                assert lane.totals == msgspec.structs.replace(theirs, retried=retried)
                assert lane.live == live.lanes[name].live
                assert sorted(lane.dead) == sorted(live.lanes[name].dead)

    def teardown(self) -> None:
        TYPES.update(ALL_TYPES)


ALL_TYPES = dict(TYPES)


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "SLICE_TIMERS", 3)


class TestShard(ShardMachine.TestCase):
    settings = settings(
        max_examples=40,
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_long_walk(seed: int) -> None:
    """Histories far longer than hypothesis makes; it is the one that makes a failure short."""
    random = Random(seed)
    machine = ShardMachine()
    machine.begin()
    for _ in range(120):
        name = random.choice(WALK)
        if name not in NEED_A_FLIGHT or machine.model.flights:
            getattr(machine, name)(random)
            machine.same()
            machine.the_log_is_the_truth()
    machine.teardown()


NEED_A_FLIGHT = ("answer", "fail", "lose_a_body")
WALK = (
    ["work", "arm", "answer", "fail", "take", "pass_time"] * 4
    + ["cancel", "fire_now", "lose_a_body", "revive_or_purge", "slice", "trim", "relocate"] * 2
    + ["set_types", "fill_the_disk", "crash_or_stop"]
)

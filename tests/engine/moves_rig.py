"""Shards that hand slots to one another over a network that loses, doubles and reorders, and die anywhere.

A direct translation of the checked model of the protocol onto the shipped shards: the same actors, the same luck, and
what the checker remembers (`Ghost`) judged by the same invariants:

    I1 an acknowledged arm lives on one shard, or fired, or gave way to a later operation
    I2 after an acknowledged cancel no delivery of that or an older generation starts, nor does a read show one
    I3 nothing lives or starts again after it fired; at rest an id lives on one shard at most
    I4 acknowledged generations of an id grow
    I5 a generation is delivered twice only after a crash or a lost answer
    I6 from every state the slots become drained, once messages flow
    I7 a conditional arm is acknowledged only if the generation it names was current

Beyond the model: what a timer is (time, payload, age, attempts, death) goes with it, the counts balance over all shards
at every moment, logs are trimmed, and tables follow one another.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final

import msgspec

from tests.engine.harness import T0, check
from timerd.engine import ceding, ring
from timerd.engine import replay as replay_module
from timerd.engine import shard as shard_module
from timerd.engine import state as state_module
from timerd.engine.effect import Reply, Send, Settled, Taken
from timerd.engine.message import (
    Arm,
    ArmDone,
    ArmResult,
    Bounced,
    Cancel,
    Condition,
    FireNow,
    Get,
    ItemResult,
    Message,
    Purge,
    Relocate,
    Revive,
    SetReserve,
    Settle,
    SetTypes,
    Slice,
    Take,
    TimerView,
    WholeFailure,
)
from timerd.engine.move_message import SetPull, SetTable
from timerd.engine.now import Now
from timerd.engine.record import Record
from timerd.engine.replay import Replay
from timerd.engine.ring import RingTable, slot_of
from timerd.engine.shard import Shard
from timerd.engine.state import State
from timerd.engine.timer import DEAD, BodyRef, RetryPolicy, Timer, TimerType

SLOTS: Final = 16
IDS: Final = [f"id{n}" for n in range(9)]
TYPES: Final = {
    "t": TimerType("t", batch_size=4, max_lag_ms=0, retry=RetryPolicy(max_attempts=3, min_backoff_ms=20)),
    "u": TimerType("u", batch_size=2, max_lag_ms=0, retry=RetryPolicy(min_backoff_ms=10)),
}
PAYLOADS: Final = [None, b"1", BodyRef(1, 0, 600, b"0" * 16), BodyRef(2, 600, 700, b"1" * 16)]

LUCK: Final = {
    "operate": 22,
    "carry": 30,
    "lose": 3,
    "come_late": 2,
    "take": 8,
    "settle": 6,
    "wait": 12,
    "die": 1,
    "publish": 4,
    "slice": 3,
    "trim": 3,
    "relocate": 1,
    "fill": 0.5,
    "pace": 0.5,
}

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Record]).decode


class Broken(Exception):
    """An invariant does not hold."""


@contextmanager
def few_slots(at_once: int = 5) -> Iterator[None]:
    """Sixteen slots, so that a run has several ids in each; so many are ceded at once."""
    places = [(ring, "SLOTS", SLOTS), (ring, "_MASK", SLOTS - 1), (state_module, "SLOTS", SLOTS)]
    places += [(replay_module, "SLOTS", SLOTS), (shard_module, "SLICE_TIMERS", 3), (ceding, "CEDE_AT_ONCE", at_once)]
    usual = [(module, name, getattr(module, name)) for module, name, _ in places]
    for module, name, value in places:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in usual:
            setattr(module, name, value)


class Ghost:
    """What the world outside knows of one id."""

    def __init__(self) -> None:
        self.acked = 0
        self.dead = 0
        """Cancelled up to here."""
        self.fired: set[int] = set()
        self.done: set[int] = set()
        self.open: set[int] = set()
        self.lost: set[int] = set()
        """In flight when their shard died."""
        self.may_cancel = 0
        self.versions: dict[int, tuple[int, str, Any]] = {}
        """generation -> (fire_at, type, payload), of whatever was acknowledged."""


class Host:
    """One shard, its log, and its machine's clocks."""

    def __init__(self, rig: "Rig", id: int, ahead_ms: int) -> None:
        self.rig = rig
        self.id = id
        self.ahead_ms = ahead_ms
        self.frames: list[tuple[int, bytes]] = []
        self.inbox: list[Message] = []
        self.flights: dict[int, Taken] = {}
        self.asked: dict[int, tuple[Message, Callable[[Any], None]]] = {}
        self.slots: list[int] = []

    @property
    def now(self) -> Now:
        return Now((T0 + self.rig.ms + self.ahead_ms) * 1000, 5_000 + self.rig.ms)

    def begin(self) -> None:
        table = self.rig.table
        replay = Replay(self.id, table.slots_of(self.id), self.now, table if table.version > 1 else None)
        for lsn, frame in self.frames:
            replay.feed(lsn, _decode(frame))
        state = replay.finish()
        if not isinstance(state, State):
            raise Broken(f"the log can't be read: {state}")
        self.shard = Shard(state, 1_000)
        self.shard.own(self.now)
        self.inbox = [SetTypes(TYPES), SetTable(table), SetPull(0 if self.rig.lazy else 2_000)]
        self.turn()

    def turn(self) -> None:
        """One turn: decide, persist, act."""
        messages, self.inbox = self.inbox, []
        for message in messages:
            self.shard.step(self.now, message)
        self.shard.tick(self.now)
        turn = self.shard.take()
        if turn.records:
            self.frames.append((turn.lsn, _encode(turn.records)))
        for effect in turn.effects:
            if isinstance(effect, Reply):
                _, then = self.asked.pop(effect.token)
                then(effect.value)
            elif isinstance(effect, Send):
                self.rig.net.append((effect.to, type(effect.message), _encode(effect.message)))
            elif isinstance(effect, Taken):
                self.rig.taken(self, effect)
            elif isinstance(effect, Settled):
                self.flights.pop(effect.batch_no)
        check(self.shard)


class Rig:
    """A run of one seed."""

    def __init__(self, seed: int, shards: int = 3, start: int = 2) -> None:
        self.random = Random(seed)
        self.ms = 0
        self.net: list[tuple[int, type, bytes]] = []
        self.late: list[tuple[int, type, bytes]] = []
        self.ghosts = {id: Ghost() for id in IDS}
        self.counts: Counter[str] = Counter()
        self.numbers = 0
        owners = [n % start for n in range(SLOTS)]
        self.table = RingTable(1, tuple(owners))
        skew = self.random.choice([0, 5_000])
        self.lazy = self.random.random() < 0.5
        """Nothing is pulled for the present."""
        self.weights = {what: weight * self.random.choice([0.2, 1, 1, 4]) for what, weight in LUCK.items()}
        self.ids = IDS[: self.random.choice([2, 5, 9])]
        self.hosts = [Host(self, id, self.random.choice([0, skew])) for id in range(shards)]
        for host in self.hosts:
            host.begin()

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    # ---- callers

    def ask(self, host: Host, message: Any, then: Callable[[Any], None], about: list[str]) -> None:
        """`message(token)` to a shard; what bounces goes to the owner by the table of the moment."""
        token = self.number()
        made = message(about, token)
        host.asked[token] = (made, then)
        host.inbox.append(made)

    def call(self, verb: str, ids: list[str]) -> None:
        r = self.random
        id = ids[0]
        owner = self.hosts[self.table.shards[slot_of(id)]]
        host = owner if r.random() < 0.8 else r.choice(self.hosts)
        if host.shard.state.slots[slot_of(id)] is None and (self.table.version == 1 or host is not owner):
            host = owner
        self.counts[verb] += 1
        getattr(self, verb)(host, id)

    def arm(self, host: Host, id: str, mode: str = "replace", expect: int | None = None) -> None:
        r = self.random
        fire_at = T0 + self.ms + r.choice([-50, 0, 40, 400])
        wanted = (fire_at, r.choice(list(TYPES)), r.choice(PAYLOADS))
        condition = [Condition(mode, expect)] if mode != "replace" or expect is not None else None

        def made(_: Any, token: int) -> Message:
            return Arm([Timer(wanted[0], 0, id, wanted[1], wanted[2])], token, condition)

        def told(value: Any) -> None:
            if isinstance(value, Bounced):
                self.bounce(id, made, told)
                return
            assert isinstance(value, ArmDone)
            result: ArmResult = value.results[0]  # type: ignore[index]
            ghost = self.ghosts[id]
            if result.status in ("created", "moved"):
                if result.generation <= ghost.acked:
                    raise Broken(f"I4 {id}: {result.generation} acknowledged after {ghost.acked}")
                current = expect in (None, ghost.acked) and expect not in ghost.fired
                if expect and not (current and expect > ghost.dead):
                    raise Broken(f"I7 {id}: if_generation={expect}, and {ghost.acked} was, fired {ghost.fired}")
                ghost.acked = result.generation
                payload = _Anywhere(wanted[2]) if isinstance(wanted[2], BodyRef) else wanted[2]
                ghost.versions[result.generation] = (*wanted[:2], payload)
            elif result.status in ("kept", "unchanged"):
                if ghost.may_cancel <= result.generation:
                    ghost.may_cancel = 0  # the caller was told that it stands: a cancel that was lost is no excuse
                self.shown(id, result.generation, ghost.acked)

        self.ask(host, made, told, [id])

    def keep(self, host: Host, id: str) -> None:
        self.arm(host, id, self.random.choice(["keep", "earliest", "latest"]))

    def conditional(self, host: Host, id: str) -> None:
        self.arm(host, id, expect=self.ghosts[id].acked)

    def cancel(self, host: Host, id: str) -> None:
        base = self.ghosts[id].acked

        def made(_: Any, token: int) -> Message:
            return Cancel([id], token)

        def told(value: Any) -> None:
            if isinstance(value, Bounced):
                self.bounce(id, made, told)
                return
            ghost = self.ghosts[id]
            (result,) = value
            ghost.dead = max(ghost.dead, base, result.generation)
            if result.found and not result.in_flight and result.generation in ghost.open:
                raise Broken(f"{id}: {result.generation} was cancelled as not in flight, and is")

        self.ask(host, made, told, [id])

    def read(self, host: Host, id: str) -> None:
        base = self.ghosts[id].acked

        def made(_: Any, token: int) -> Message:
            return Get(id, token)

        def told(value: Any) -> None:
            if isinstance(value, Bounced):
                self.bounce(id, made, told)
            elif value is not None:
                assert isinstance(value, TimerView)
                self.shown(id, value.generation, base)
                wanted = self.ghosts[id].versions.get(value.generation)
                if wanted and wanted[:2] != (value.fire_at, value.type):
                    raise Broken(f"{id}: shown {value}, armed {wanted}")

        self.ask(host, made, told, [id])

    def shown(self, id: str, generation: int, base: int) -> None:
        ghost = self.ghosts[id]
        if generation < base or (generation <= ghost.dead and generation <= base):
            raise Broken(f"I2 {id}: shown {generation} after {base}, cancelled up to {ghost.dead}")

    def fire(self, host: Host, id: str) -> None:
        def made(_: Any, token: int) -> Message:
            return FireNow(id, token)

        def told(value: Any) -> None:
            if isinstance(value, Bounced):
                self.bounce(id, made, told)
            elif isinstance(value, ArmResult) and value.status == "moved":
                ghost = self.ghosts[id]
                if value.generation <= ghost.acked:
                    raise Broken(f"I4 {id}: {value.generation} acknowledged after {ghost.acked}")
                ghost.acked = value.generation

        self.ask(host, made, told, [id])

    def revive(self, host: Host, id: str, verb: Any = Revive) -> None:
        def made(_: Any, token: int) -> Message:
            message: Message = verb([id], None, token)
            return message

        def told(value: Any) -> None:
            if isinstance(value, Bounced):
                self.bounce(id, made, told)
                return
            count, _ = value
            if count and verb is Purge:
                self.ghosts[id].dead = max(self.ghosts[id].dead, self.ghosts[id].acked)

        self.ask(host, made, told, [id])

    def purge(self, host: Host, id: str) -> None:
        self.revive(host, id, Purge)

    def bounce(self, id: str, made: Any, told: Any) -> None:
        """It belongs elsewhere: ask there."""
        self.counts["bounced"] += 1
        self.ask(self.hosts[self.table.shards[slot_of(id)]], made, told, [id])

    # ---- deliveries

    def take(self, host: Host) -> None:
        type = self.random.choice(list(TYPES))
        limits = [0]
        if (lane := host.shard.state.lanes.get(type)) is not None:
            limits += list(lane._retries)
        host.inbox.append(Take(self.number(), type, self.random.choice(limits), 3))

    def taken(self, host: Host, taken: Taken) -> None:
        host.flights[taken.batch_no] = taken
        if not taken.timers:
            host.inbox.append(Settle(taken.batch_no))
        for timer in taken.timers:
            ghost, g = self.ghosts[timer.id], timer.generation
            where = f"{timer.id}: {g} starts at {host.id}"
            if timer.fire_at > host.now.wall_ms:
                raise Broken(f"{where} before its time")
            if g in ghost.fired:
                raise Broken(f"I3 {where} after it fired")
            if g <= ghost.dead:
                raise Broken(f"I2 {where} after its cancel was acknowledged")
            if g in ghost.open:
                raise Broken(f"I5 {where} while it is in flight elsewhere")
            if g in ghost.done:
                raise Broken(f"I5 {where} after an answer that was not lost")
            wanted = ghost.versions.get(g)
            if wanted and wanted != (timer.fire_at, timer.type, timer.payload):
                raise Broken(f"{where} as {timer}, armed {wanted}")
            if g in ghost.lost and timer.id not in taken.flagged:
                raise Broken(f"{where} again after a crash, and is not flagged")
            ghost.open.add(g)
            self.counts["starts"] += 1

    def settle(self, host: Host) -> None:
        r = self.random
        waiting = [no for no, taken in host.flights.items() if taken.timers]
        told = {m.batch_no for m in host.inbox if isinstance(m, Settle)}
        if not (waiting := [no for no in waiting if no not in told]):
            return
        taken = host.flights[r.choice(waiting)]
        if r.random() < 0.2:
            for timer in taken.timers:
                self.ghosts[timer.id].open.discard(timer.generation)
            failure = WholeFailure("HTTP 500", 10, 3, counted=r.random() < 0.5, unknown=r.random() < 0.5)
            host.inbox.append(Settle(taken.batch_no, failure=failure))
            return
        results = {}
        for timer in taken.timers:
            ghost, g = self.ghosts[timer.id], timer.generation
            ghost.open.discard(g)
            status = r.choice(["ok", "ok", "rearm", "rearm", "retry", "drop", "dead"])
            if status != "ok":
                results[timer.id] = ItemResult(status, T0 + self.ms + r.choice([-10, 60]), error="x")
            if status != "retry":
                ghost.done.add(g)
        batch_no = taken.batch_no
        host.inbox.append(Settle(batch_no, results=results))
        self.settling(host, taken, results)

    def settling(self, host: Host, taken: Taken, results: dict[str, ItemResult]) -> None:
        """The turn is taken at once, so that what it came to can be seen."""
        before = {timer.id: timer.generation for timer in taken.timers}
        state = host.shard.state
        by_ids = {id: state.slots[slot_of(id)] or {} for id in before}
        current = {id for id, g in before.items() if id in by_ids[id] and by_ids[id][id].generation == g}
        inbox = [m for m in host.inbox if not (isinstance(m, Settle) and m.batch_no == taken.batch_no)]
        host.inbox = [m for m in host.inbox if isinstance(m, Settle) and m.batch_no == taken.batch_no]
        host.turn()
        host.inbox = inbox + host.inbox
        for id in current:
            result = results.get(id)
            status = result.status if result else "ok"
            ghost = self.ghosts[id]
            if status in ("ok", "rearm", "drop"):
                ghost.fired.add(before[id])
            if status == "rearm":
                timer = host.shard.state.find(id)
                assert timer is not None
                if timer.generation <= ghost.acked:
                    raise Broken(f"I4 {id}: re-armed as {timer.generation} after {ghost.acked}")
                ghost.acked = timer.generation

    # ---- luck

    def crash(self, host: Host) -> None:
        self.counts["crashes"] += 1
        for message, _ in host.asked.values():
            ids = message.ids if isinstance(message, Cancel | Revive | Purge) else []
            for id in ids or ():
                self.ghosts[id].may_cancel = max(self.ghosts[id].may_cancel, self.ghosts[id].acked)
        for taken in host.flights.values():
            for timer in taken.timers:
                ghost = self.ghosts[timer.id]
                if timer.generation in ghost.open:
                    ghost.lost.add(timer.generation)
                ghost.open.discard(timer.generation)
        host.asked, host.flights, host.inbox = {}, {}, []
        for host_ghost in self.ghosts.values():
            host_ghost.done &= host_ghost.fired  # an answer may have been lost with the process
        host.begin()

    def trim(self, host: Host) -> None:
        needed = host.shard.needed_lsn()
        first = self.random.choice([needed, host.frames[0][0]])
        host.frames = [frame for frame in host.frames if frame[0] >= min(first, needed)]

    def relocate(self, host: Host) -> None:
        """A body is copied forward, at whoever bears it."""
        id = self.random.choice(IDS)
        timer = host.shard.state.bearer(id)
        if timer is None or not isinstance(timer.payload, BodyRef):
            return
        old = timer.payload
        new = BodyRef(old.segment + 2, old.offset, old.length, old.digest)
        token = self.number()
        message = Relocate([(id, timer.generation, old, new)], token)
        host.asked[token] = (message, lambda value: None)
        host.inbox.append(message)

    def deliver(self, *, double: bool = False) -> None:
        at = self.random.randrange(len(self.net))
        to, kind, data = self.net[at] if double else self.net.pop(at)
        if self.random.random() < 0.08:
            self.late.append((to, kind, data))  # a copy that turns up when nobody thinks of it any more
        self.hosts[to].inbox.append(msgspec.msgpack.decode(data, type=kind))

    def at_rest(self) -> bool:
        return all(not host.shard.state.moves for host in self.hosts) and all(
            host.shard.state.slots[slot] is not None for host in self.hosts for slot in self.table.slots_of(host.id)
        )

    def grow(self) -> None:
        """The controller publishes another table: when the last one has come to rest."""
        if not self.at_rest():
            return
        r = self.random
        members = r.sample(range(len(self.hosts)), r.randint(1, len(self.hosts)))
        placed = tuple(r.choice(members) if r.random() < 0.5 or owner not in members else owner
                       for owner in self.table.shards)  # fmt: skip
        self.table = RingTable(self.table.version + 1, placed, self.table.shards, len(self.hosts))
        self.counts["tables"] += 1
        for host in self.hosts:
            host.inbox.append(SetTable(self.table))

    def pass_time(self, ms: int) -> None:
        self.ms += ms
        for host in self.hosts:
            host.turn()

    # ---- a run

    def step(self) -> None:
        """Something happens; what is more likely than what is drawn for each run."""
        (what,) = self.random.choices(list(self.weights), list(self.weights.values()))
        host = self.random.choice(self.hosts)
        getattr(self, f"_{what}")(host)
        if self.random.random() < 0.5:
            host.turn()
        self.balance()

    def _operate(self, host: Host) -> None:
        verbs = ["arm", "arm", "arm", "keep", "conditional", "cancel", "read", "fire", "revive", "purge"]
        self.call(self.random.choice(verbs), [self.random.choice(self.ids)])

    def _carry(self, host: Host) -> None:
        if self.net:
            self.deliver(double=self.random.random() < 0.1)

    def _lose(self, host: Host) -> None:
        if self.net:
            self.net.pop(self.random.randrange(len(self.net)))
            self.counts["lost"] += 1

    def _come_late(self, host: Host) -> None:
        if self.late:
            self.net.append(self.late.pop(self.random.randrange(len(self.late))))

    def _take(self, host: Host) -> None:
        self.take(host)
        host.turn()

    def _settle(self, host: Host) -> None:
        self.settle(host)

    def _wait(self, host: Host) -> None:
        self.pass_time(self.random.choice([1, 10, 50, 200, 1_100]))

    def _die(self, host: Host) -> None:
        self.crash(host)

    def _publish(self, host: Host) -> None:
        self.grow()

    def _slice(self, host: Host) -> None:
        host.inbox.append(Slice())

    def _trim(self, host: Host) -> None:
        self.trim(host)

    def _relocate(self, host: Host) -> None:
        self.relocate(host)

    def _fill(self, host: Host) -> None:
        host.inbox.append(SetReserve(self.random.random() < 0.3))

    def _pace(self, host: Host) -> None:
        """Pulls begin everywhere, or stop."""
        self.lazy = self.random.random() < 0.5
        for one in self.hosts:
            one.inbox.append(SetPull(0 if self.lazy else 2_000))

    def balance(self) -> None:
        """Promise 8, over all shards: what is between two of them lives."""
        armed: Counter[str] = Counter()
        for host in self.hosts:
            for lane in host.shard.state.lanes.values():
                t = lane.totals
                armed["in"] += t.armed + t.revived
                armed["out"] += t.fired + t.cancelled + t.replaced + t.dead + sum(t.dropped.values())
                armed["live"] += lane.live
                armed["between"] += t.moved_out - t.moved_in
        if armed["between"] < 0 or armed["in"] != armed["out"] + armed["live"] + armed["between"]:
            raise Broken(f"the counts do not balance: {dict(armed)}")

    def finish(self) -> None:
        """Messages flow and nobody crashes: everything comes to rest, and is judged."""
        self.lazy = False
        for host in self.hosts:
            host.inbox += [SetReserve(False), SetPull(2_000)]
        for _ in range(400):
            self.pass_time(300)
            for host in self.hosts:
                for no in [no for no, taken in host.flights.items() if taken.timers]:
                    if not any(isinstance(m, Settle) and m.batch_no == no for m in host.inbox):
                        self.settle(host)
            while self.net:
                self.deliver()
            for host in self.hosts:
                host.turn()
            self.balance()
            quiet = not any(host.asked or host.flights or host.inbox for host in self.hosts)
            if self.at_rest() and quiet and not self.net:
                break
        else:
            moves = [(host.id, host.shard.state.moves.ceded, host.shard.state.moves.adopted) for host in self.hosts]
            raise Broken(f"I6 it does not come to rest: {moves}, {[host.asked for host in self.hosts]}")
        self.judge()
        for host in self.hosts:
            host.begin()
        self.judge()

    def judge(self) -> None:
        for host in self.hosts:
            had = {slot for slot in range(SLOTS) if host.shard.state.slots[slot] is not None}
            if had != set(self.table.slots_of(host.id)):
                raise Broken(f"shard {host.id} has {had}")
        for id, ghost in self.ghosts.items():
            held = [t for host in self.hosts for run in host.shard.state.runs if (t := run.by_id.get(id)) is not None]
            if len(held) > 1:
                raise Broken(f"I3 {id} lives on two shards: {held}")
            live = held[0].generation if held else 0
            if live in ghost.fired:
                raise Broken(f"I3 {id}: {live} lives again after it fired")
            if held and live <= ghost.dead:
                raise Broken(f"I2 {id}: {live} lives although its cancel was acknowledged")
            a = ghost.acked
            if not (live >= a or max(ghost.fired, default=0) >= a or ghost.dead >= a or ghost.may_cancel >= a):
                raise Broken(f"I1 {id}: {a} was acknowledged and is nowhere")
            if held and (wanted := ghost.versions.get(live)):
                timer = held[0]
                if wanted != (timer.fire_at, timer.type, timer.payload):
                    raise Broken(f"{id}: is {timer}, armed {wanted}")
                if timer.state == DEAD and not timer.failure:
                    raise Broken(f"{id}: dead of nothing")


class _Anywhere:
    """Equal to a body wherever it lies."""

    def __init__(self, body: BodyRef) -> None:
        self.digest = body.digest

    def __eq__(self, other: object) -> bool:
        return getattr(other, "digest", None) == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def run(seed: int, steps: int) -> Rig:
    """One history; raises `Broken`."""
    with few_slots():
        rig = Rig(seed, shards=2 + seed % 3, start=1 + seed % 2)
        for _ in range(steps):
            rig.step()
        rig.finish()
        return rig

"""What comes into a shard's state whole: slots, what a slice holds, timers of another shard; and the end of a replay.

Steps of `State.apply`, as those in state.py are, and called for records alone.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from timerd.engine.ring import slots_of
from timerd.engine.timer import DEAD, URGENT, WAITING, Timer

if TYPE_CHECKING:
    from timerd.engine.record import Checkpoint
    from timerd.engine.state import State

RUN_SLOTS: Final = 8  # a slice is of whole runs: with ten million timers in eight shards one holds about 5,000


class Run(NamedTuple):
    """Some slots of a shard, and their timers in one dict.

    A dict for each of 2,048 slots is a miss of the cache more at every look-up: 0.35 us an arm. Slices take whole runs.
    """

    slots: tuple[int, ...]
    by_id: dict[str, Timer]


def add_slots(state: "State", slots: list[int]) -> None:
    """Have these slots, empty."""
    for at in range(0, len(slots), RUN_SLOTS):
        run = Run(tuple(slots[at : at + RUN_SLOTS]), {})
        state.runs.append(run)
        for slot in run.slots:
            state.run_of[slot] = run
            state.slots[slot] = run.by_id
            state.covered[slot] = 0


def drop_slots(state: "State", slots: Iterable[int]) -> None:
    """Have them no more; nothing is left in them."""
    gone = set(slots)
    shrunk: dict[int, Run] = {}
    for run in {state.run_of[slot].slots: state.run_of[slot] for slot in gone}.values():
        assert gone.isdisjoint(slots_of(run.by_id)), "a slot is left with timers in it"
        left = shrunk[id(run.by_id)] = Run(tuple(slot for slot in run.slots if slot not in gone), run.by_id)
        state.run_of.update(dict.fromkeys(left.slots, left))
    state.runs = [run for run in (shrunk.get(id(run.by_id), run) for run in state.runs) if run.slots]
    for slot in gone:
        del state.run_of[slot], state.covered[slot]
        state.slots[slot] = None


def load_slice(state: "State", record: "Checkpoint") -> None:
    """Replace everything about these slots, and the shard's own state, by what the slice says."""
    gone = set(record.slots)
    for run in {state.run_of[slot].slots: state.run_of[slot] for slot in record.slots}.values():
        ids = list(run.by_id)
        if not gone.issuperset(run.slots):
            ids = [id for id, slot in zip(ids, slots_of(ids), strict=True) if slot in gone]
        for id in ids:
            old = run.by_id.pop(id)
            state.leave(old, state.lane(old.type))
    take_in(state, record.timers)
    state.moves.load(record.slots, record.moves)
    state.last = record.last
    state.epoch = record.epoch
    state.unclean_at = record.unclean_at
    state.unclean_generation = record.unclean_generation
    for lane in state.lanes.values():
        lane.totals = type(lane.totals)()
    for name, totals in record.totals.items():
        state.lane(name).totals = totals


def take_in(state: "State", timers: list[Timer]) -> None:
    """Timers come as they are, with their failures, dead ones too; of whose ids nothing is here."""
    live = [timer for timer in timers if timer.state != DEAD]
    for timer in live:
        urgent = state.filled and timer.failure is None and (timer.state == URGENT or timer.armed_for_now)
        timer.state = URGENT if urgent else WAITING
    for lane, _ in state.enter(live):
        if state.filled:
            lane.mix()
    boot_ms = state.now.boot_ms
    for timer in live:
        if (failure := timer.failure) is not None:
            lane = state.lane(timer.type)
            lane.leave(timer)
            # Of another machine, or of an earlier start of this one, it means nothing: the gap counts anew.
            since = min(failure.since, boot_ms) if state.filled else boot_ms
            lane.enter_retry(timer, replace(failure, since=since))
    dead = [timer for timer in timers if timer.state == DEAD]
    state.place(dead)
    state.count(dead, 1)
    for lane, group in [(state.lane(type), group) for type, group in by_type(dead)]:
        late = max(map(_died, lane.dead.values()), default=(0, 0)) if state.filled else (0, 0)
        lane.dead.update((timer.id, timer) for timer in group)
        if any(_died(timer) < late for timer in group):
            lane.dead = {timer.id: timer for timer in sorted(lane.dead.values(), key=_died)}


def fill(state: "State") -> None:
    """Replay has ended: put what it has left into queues, and dead letters in the order of their deaths."""
    state.filled = True
    waiting: dict[str, list[Timer]] = {name: [] for name in state.lanes}
    retrying: dict[str, list[Timer]] = {name: [] for name in state.lanes}
    for run in state.runs:
        for timer in run.by_id.values():
            timer.type = state.lanes[timer.type].name  # one string for all: each was decoded apart, at 60 bytes
            if timer.state == WAITING:
                if timer.armed_for_now:
                    timer.state = URGENT
                waiting[timer.type].append(timer)
            elif timer.state != DEAD:
                retrying[timer.type].append(timer)
    for name, lane in state.lanes.items():
        lane.fill(waiting[name], retrying[name])
        by_death = sorted(lane.dead.values(), key=_died)
        lane.dead = {timer.id: timer for timer in by_death}


def by_type(timers: list[Timer]) -> Iterable[tuple[str, list[Timer]]]:
    """In the order of their first timers. Mostly there is one."""
    types = {timer.type for timer in timers}
    if len(types) == 1:
        return [(timers[0].type, timers)]
    groups: dict[str, list[Timer]] = {}
    for timer in timers:
        groups.setdefault(timer.type, []).append(timer)
    return groups.items()


def _died(timer: Timer) -> tuple[int, int]:
    return timer.failure.died_at if timer.failure else 0, timer.generation

"""Reads: what a shard shows of its timers. Nothing here changes anything.

A read's answer is made at its step and leaves with its turn, so it never shows what could still be lost.
"""

from collections import Counter
from collections.abc import Iterable
from heapq import nsmallest

from timerd.engine.draft import Draft
from timerd.engine.message import (
    Filter,
    FindBodies,
    Get,
    List,
    ListDead,
    Next,
    Page,
    ShardTally,
    Tally,
    TimerView,
    TypeTally,
)
from timerd.engine.move_record import PULL
from timerd.engine.record import Totals
from timerd.engine.ring import slot_of, slots_of
from timerd.engine.timer import DEAD, IN_FLIGHT, PARKED, READY, RETRYING, Timer

SCAN_TIMERS = 4_000  # timers one message looks at, about 5 ms; the page ends there and says so
SCAN_SLOTS = 2_048
COUNT_DUE = 10_000  # due timers of a lane are counted up to here


def get(draft: Draft, message: Get) -> None:
    timer = draft.state.find(message.id)
    draft.reply(message.token, None if timer is None else view(draft, timer))


def list_timers(draft: Draft, message: List) -> None:
    """A page in the order (slot, id); stops at `count` or when enough was looked at."""
    draft.reply(
        message.token, _with_coming(draft, message.after, _page(draft, message.filter, message.after, message.count))
    )


def list_dead(draft: Draft, message: ListDead) -> None:
    page = _page(draft, Filter(message.type, "dead"), message.after, message.count)
    draft.reply(message.token, _with_coming(draft, message.after, page))


def next_due(draft: Draft, message: Next) -> None:
    state = draft.state
    lanes = [lane for name, lane in state.lanes.items() if message.type in (None, name)]
    held = [timer for timer in state.held.values() if message.type in (None, timer.type)]
    timers = nsmallest(message.count, held + [timer for lane in lanes for timer in lane.soonest(message.count)])
    draft.reply(message.token, [view(draft, timer) for timer in timers])


def tally(draft: Draft, message: Tally) -> None:
    state = draft.state
    wall_ms = state.now.wall_ms
    types: dict[str, TypeTally] = {}
    held_due = [timer for timer in state.held.values() if timer.fire_at <= wall_ms]
    held = Counter(timer.type for timer in held_due)
    oldest = min((min(timer.due_at, wall_ms) for timer in held_due), default=None)
    for name, lane in state.lanes.items():
        t: Totals = lane.totals
        types[name] = TypeTally(
            t.armed,
            t.revived,
            t.fired,
            t.cancelled,
            t.replaced,
            t.dead,
            t.purged,
            t.superseded,
            t.retried,
            dict(t.dropped),
            lane.live,
            lane.in_flight,
            lane.retrying,
            len(lane.dead),
            lane.count_due(wall_ms, COUNT_DUE) + held[name],
            lane.count_missed(),
            t.moved_in,
            t.moved_out,
        )
        waits = lane.oldest_due_at(wall_ms)
        if waits is not None and (oldest is None or waits < oldest):
            oldest = waits
    moves = state.moves
    pending = sum(len(slot.pending) for slot in moves.adopted.values())
    counts = (len(state.covered) - len(moves.ceded), len(moves.ceded), len(moves.adopted), pending)
    draft.reply(message.token, ShardTally(state.shard, state.epoch, types, oldest, *counts))


def find_bodies(draft: Draft, message: FindBodies) -> None:
    found = []
    for index, (id, place) in enumerate(message.bodies):
        timer = draft.state.bearer(id)
        if timer is not None and timer.payload == place:
            found.append((index, id, timer.generation))
    draft.reply(message.token, found)


def view(draft: Draft, timer: Timer) -> TimerView:
    """A timer as a reader sees it at this moment."""
    failure = timer.failure
    now = draft.state.now
    attempts = failure.attempts if failure else 0
    retry_at = None
    if timer.state == RETRYING and failure is not None:
        retry_at = max(timer.fire_at, now.wall_ms + max(0, failure.since + failure.gap_ms - now.boot_ms))
    return TimerView(
        timer.id,
        timer.type,
        state_name(draft, timer),
        timer.fire_at,
        timer.generation,
        attempts + (timer.state == IN_FLIGHT),
        timer.created_at or timer.armed_at,
        timer.armed_at,
        draft.state.shard,
        timer.payload,
        failure.error if failure else None,
        retry_at,
        failure.died_at if failure and failure.died_at else None,
        failure.attempts if failure else 0,
    )


def state_name(draft: Draft, timer: Timer) -> str:
    """armed | due | in_flight | retrying | paused | dead. A paused type's timers are paused, whatever they wait for."""
    if timer.state == DEAD:
        return "dead"
    if timer.state == IN_FLIGHT:
        return "in_flight"
    type = draft.types.get(timer.type)
    if type is not None and type.state == "paused":
        return "paused"
    if timer.state == RETRYING or (timer.state in (READY, PARKED) and timer.failure is not None):
        return "retrying"
    return "due" if timer.fire_at <= draft.state.now.wall_ms else "armed"


def _page(draft: Draft, filter: Filter, after: tuple[int, str], count: int) -> Page:
    slots = draft.state.slots
    views: list[tuple[int, TimerView]] = []
    looked_at = 0
    first = max(after[0], 0)
    of_runs: dict[int, dict[int, list[str]]] = {}  # runs of slots that have come from elsewhere lie among others
    for slot in range(first, len(slots)):
        by_id = slots[slot]
        if not by_id:
            continue
        if (of_slot := of_runs.get(id_of(by_id))) is None:
            of_slot = of_runs[id_of(by_id)] = _by_slot(by_id)
        for id in sorted(of_slot.get(slot, ())):
            if slot == after[0] and id <= after[1]:
                continue
            timer = by_id[id]
            looked_at += 1
            if _matches(draft, filter, timer):
                views.append((slot, view(draft, timer)))
                if len(views) == count:
                    return Page(views, (slot, id))
        if looked_at >= SCAN_TIMERS or slot - first >= SCAN_SLOTS:
            return Page(views, (slot, END_OF_SLOT))
    return Page(views, None)


def _with_coming(draft: Draft, after: tuple[int, str], page: Page) -> Page:
    """With what the page's slots are about to get from another shard, which may have let go of it already."""
    if not draft.state.moves.adopted:
        return page
    places = [(slot_of(pending.id), pending.id) for pending in draft.state.moves.all_pending() if pending.kind == PULL]
    coming = sorted(place for place in places if place > after and (page.upto is None or place <= page.upto))
    return Page(page.views, page.upto, coming)


id_of = id  # which the loop above has another use for


def _by_slot(run: Iterable[str]) -> dict[int, list[str]]:
    ids = list(run)
    found: dict[int, list[str]] = {}
    for id, slot in zip(ids, slots_of(ids), strict=True):
        found.setdefault(slot, []).append(id)
    return found


END_OF_SLOT = "\U0010ffff" * 65  # behind every id: ids have at most 64 characters of four bytes


def _matches(draft: Draft, filter: Filter, timer: Timer) -> bool:
    return (
        (filter.type is None or timer.type == filter.type)
        and (filter.fire_after is None or timer.fire_at > filter.fire_after)
        and (filter.fire_before is None or timer.fire_at < filter.fire_before)
        and (filter.id_prefix is None or timer.id.startswith(filter.id_prefix))
        and (filter.state is None or state_name(draft, timer) == filter.state)
    )

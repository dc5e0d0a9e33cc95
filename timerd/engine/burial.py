"""Decisions about dead letters: replay, purge, and how many are kept for how long."""

from typing import Final

from timerd.engine.draft import Draft
from timerd.engine.message import Purge, Revive
from timerd.engine.record import Purged, Revived
from timerd.engine.timer import DEAD

KEPT_MS: Final = 30 * 86_400_000
KEPT_A_TYPE: Final = 100_000  # over all shards
AT_ONCE: Final = 2_000  # dead letters one message or tick deals with


def revive(draft: Draft, message: Revive) -> None:
    ids, more = _chosen(draft, message.ids, message.type)
    if ids:
        generation = draft.next_generation()
        draft.write(Revived([(id, generation + n) for n, id in enumerate(ids)]))
    draft.reply(message.token, (len(ids), more))


def purge(draft: Draft, message: Purge) -> None:
    ids, more = _chosen(draft, message.ids, message.type)
    if ids:
        draft.write(Purged(ids))
    draft.reply(message.token, (len(ids), more))


def _chosen(draft: Draft, ids: list[str] | None, type: str | None) -> tuple[list[str], bool]:
    """The dead among `ids`, or the oldest dead of the type; and whether there are more."""
    if ids is not None:
        found = (draft.state.find(id) for id in dict.fromkeys(ids))
        return [timer.id for timer in found if timer is not None and timer.state == DEAD], False
    lane = draft.state.lanes.get(type or "")
    dead = lane.dead if lane else {}
    return [id for id, _ in zip(dead, range(AT_ONCE), strict=False)], len(dead) > AT_ONCE


def expire(draft: Draft, kept: int) -> bool:
    """Purge dead letters that are too old, and beyond `kept` a type the oldest; whether there is more to do."""
    left = AT_ONCE
    before = draft.state.now.wall_ms - KEPT_MS
    for lane in draft.state.lanes.values():
        if not lane.dead:
            continue
        surplus = max(0, len(lane.dead) - kept)
        ids: list[str] = []
        for timer in lane.dead.values():
            died_at = timer.failure.died_at if timer.failure else 0
            if len(ids) == left or (len(ids) >= surplus and died_at > before):
                break
            ids.append(timer.id)
        if ids:
            draft.write(Purged(ids))
            left -= len(ids)
            if not left:
                return True
    return False


def next_expiry_at(draft: Draft) -> int | None:
    """Unix ms at which the oldest dead letter has been kept long enough."""
    deaths = [
        timer.failure.died_at + KEPT_MS
        for lane in draft.state.lanes.values()
        for timer in [next(iter(lane.dead.values()), None)]
        if timer is not None and timer.failure is not None
    ]
    return min(deaths, default=None)

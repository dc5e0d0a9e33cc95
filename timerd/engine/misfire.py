"""Decisions about what is missed: first attempts that are overdue by more than their type's grace.

That they catch up under a rate is the dispatcher's business (catchup.py). Here are the two policies that end or move
timers, `drop` and `coalesce`, and the turn of a loop that is missed before it has begun: BEHIND.
"""

from typing import Final

from timerd.engine.draft import Draft
from timerd.engine.effect import Dropped
from timerd.engine.lane import Lane
from timerd.engine.record import Fired
from timerd.engine.timer import BEHIND, WAITING, TimerType

STEP_MS_MAX: Final = 366 * 86_400_000  # nothing repeats more seldom; and a turn skipped is to be within any horizon
AT_ONCE: Final = 200  # drops in one turn of a shard: a delivery takes some turns, and all shards are at it


def drop(draft: Draft, lane: Lane, most: int) -> int:
    """Drop up to so many of what is missed, if its type wants that; how many. `lane.wakes` says that there is more.

    It ends timers, so there is room in the log for it, on a full disk too.
    """
    if not lane.drops or not most:
        return 0
    ids = lane.pop_dropped(most, draft.state.held, draft.state.blocked)
    if ids:
        draft.write(Fired(lane.name, [], dropped=[("misfire", ids)]))
        draft.effects.append(Dropped(lane.name, len(ids)))
    return len(ids)


def coalesce(type: TimerType | None, delivered_at: int, fire_at: int, now_ms: int) -> tuple[int, int]:
    """Where a re-arm to `fire_at`, of a timer that was to fire at `delivered_at`, goes; and how many turns it skips.

    The step between the two is what the timer repeats by, so it keeps its phase. A step of more than a year is none.
    """
    if type is None or type.misfire.policy != "coalesce" or now_ms - fire_at <= type.grace_ms:
        return fire_at, 0
    step = fire_at - delivered_at
    if not 0 < step <= STEP_MS_MAX:
        return fire_at, 0
    skipped = -(-(now_ms - fire_at) // step)
    return fire_at + skipped * step, skipped


def place(type: TimerType | None, fire_at: int, now_ms: int) -> int:
    """The state of a timer that an answer re-arms to `fire_at`.

    Overdue by more than the grace, it is a turn that was missed. Taken for due at its acceptance, a loop that makes up
    for an outage step by step would go round past every rate. The log does not say it: after a start it ages from its
    acceptance, like any other.
    """
    return BEHIND if type is not None and now_ms - fire_at > type.grace_ms else WAITING

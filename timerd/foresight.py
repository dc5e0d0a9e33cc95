"""Foresight: which shards this node will probably be given, since whoever has them is not heard any more.

A taker has to wait a whole lease from the moment when it has read the end of a shard's log, and that somebody is dead
is known only after four beats. So the shards of one that has missed a beat are read beforehand, by the one to whom the
next plan would give them, and the lease runs while the others make sure. Nothing is taken before the plan says so.

To be wrong costs a reading, which is the last thing that machines need whose beats are late because they are busy. So
whoever was heard again is believed for a while, and longer each time.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from timerd.engine.plan import Plan, Seat, next_plan

BELIEVED_MS: Final = 10_000  # after the first false alarm, and twice as long after each that follows
BELIEVED_MAX_MS: Final = 600_000


class Foresight:
    """Of one node."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._doubted: set[Seat] = set()
        self._believed: dict[Seat, tuple[int, int]] = {}  # until when, and for how long
        self._asked: tuple[Plan | None, frozenset[Seat]] | None = None
        self._owners: tuple[Seat | None, ...] = ()

    def expected(
        self, plan: Plan, members: Sequence[Seat], silent: Iterable[Seat], me: Seat, now_ms: int
    ) -> frozenset[int]:
        """Shards that are another's by the plan, and would be this node's in one without whoever is silent or gone."""
        self._doubt(members, set(silent) - {me}, now_ms)
        here = frozenset(members) - self._doubted
        if me not in here or all(owner in here for owner in plan.owners):
            return frozenset()
        if self._asked != (plan, here):
            self._asked = plan, here
            self._owners = next_plan(plan, here, self._shards).owners
        return frozenset(
            shard
            for shard, (old, new) in enumerate(zip(plan.owners, self._owners, strict=False))
            if new == me and old != me and old not in here
        )

    def _doubt(self, members: Sequence[Seat], silent: set[Seat], now_ms: int) -> None:
        for seat in self._doubted.intersection(members) - silent:
            _, for_ms = self._believed.get(seat, (0, BELIEVED_MS // 2))
            for_ms = min(2 * for_ms, BELIEVED_MAX_MS)
            self._believed[seat] = now_ms + for_ms, for_ms
        self._believed = {seat: until for seat, until in self._believed.items() if seat in members}
        # Who is doubted already stays so: it is not heard less silent for having been believed once.
        self._doubted = {
            seat for seat in silent if seat in self._doubted or now_ms >= self._believed.get(seat, (0, 0))[0]
        }

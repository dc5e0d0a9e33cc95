"""Which member serves which shard: one published value, and the rule that makes the next one from it.

Nobody computes placement for itself: a plan is published, and everybody goes by it. It is a wish, not a right: what
gives a shard to a member is the first turn in the shard's own log, and what takes it away is another's. So a plan that
is old, or seen late, costs time and nothing else.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec


class Seat(NamedTuple):
    """One life of one node. A node that is back is not the one that went: what it held is not held by it."""

    name: str
    life: str


class Plan(msgspec.Struct, frozen=True):
    """Shard -> member."""

    version: int
    """From 1; none is published twice."""
    owners: tuple[Seat | None, ...]
    """By shard, from 0. None: nobody is to have it."""
    since: tuple[int, ...] = ()
    """By shard: the version from which its owner has been the same. Who was frozen, wakes up and finds itself in the
    plan sees by this that another was in between, and that what it still has in memory may be old."""

    def owner_of(self, shard: int) -> Seat | None:
        """Who is to serve a shard."""
        return self.owners[shard] if shard < len(self.owners) else None

    def since_of(self, shard: int) -> int:
        """The version from which a shard's owner has been the same."""
        return self.since[shard] if shard < len(self.since) else 0

    def shards_of(self, seat: Seat) -> list[int]:
        """What a member is to serve, ascending."""
        return [shard for shard, owner in enumerate(self.owners) if owner == seat]


def next_plan(plan: Plan | None, members: Iterable[Seat], shards: int) -> Plan:
    """The plan for these members: the same one if it is good, else its successor.

    Each member has the mean rounded down or up, and no more shards move than that needs. A node that is back in another
    life keeps what it had: nothing of a shard lies with a node, but its clients know it. The order of the members makes
    no difference.
    """
    seats = {seat.name: seat for seat in sorted(members)}
    before = (() if plan is None else plan.owners)[:shards]
    owners: list[Seat | None] = [None if seat is None else seats.get(seat.name) for seat in before]
    owners += [None] * (shards - len(owners))
    if seats:
        _even_out(owners, sorted(seats.values()))
    if plan is not None and tuple(owners) == plan.owners:
        return plan
    version = 1 if plan is None else plan.version + 1
    since = (
        plan.since_of(shard) if plan is not None and shard < len(before) and owner == before[shard] else version
        for shard, owner in enumerate(owners)
    )
    return Plan(version, tuple(owners), tuple(since))


def _even_out(owners: list[Seat | None], seats: list[Seat]) -> None:
    held: dict[Seat, list[int]] = {seat: [] for seat in seats}
    for shard, owner in enumerate(owners):
        if owner is not None:
            held[owner].append(shard)
    least, more = divmod(len(owners), len(seats))
    # One more than the mean goes to those who have the most anyway.
    fullest = sorted(seats, key=lambda seat: (-len(held[seat]), seat))
    room = {seat: least + (place < more) for place, seat in enumerate(fullest)}
    for seat in seats:
        for shard in held[seat][room[seat] :]:
            owners[shard] = None
        room[seat] -= min(room[seat], len(held[seat]))
    # Round by round, so that a node's shards are not neighbours: which of them are busy may go by number.
    free = [shard for shard, owner in enumerate(owners) if owner is None]
    while free:
        for seat in seats:
            if free and room[seat]:
                owners[free.pop(0)] = seat
                room[seat] -= 1

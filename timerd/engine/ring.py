"""Where an id lives: id -> slot by hash, slot -> shard by a published table.

The number of slots never changes, so an id's slot never changes. The table does: it is a value with a version, and
whoever needs a placement looks it up there. Nobody computes one from an id and a number of shards.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from xxhash import xxh3_64_intdigest

SLOTS: Final = 16_384  # a power of two, far above any shard count, so that load spreads within a few percent
_MASK: Final = SLOTS - 1
SHARDS_MAX: Final = 1_024
_POINTS_A_SHARD: Final = 128  # points of each on the circle: growth moves at most 2 percent more than it must
LOAD_FACTOR: Final = 1.1  # no shard gets more than this times the mean


def slot_of(id: str) -> int:
    """The slot of an id, the same on every machine and in every process."""
    return xxh3_64_intdigest(id.encode()) & _MASK


def slots_of(ids: Iterable[str]) -> list[int]:
    """`slot_of` for many, at two thirds of the cost."""
    return [hash & _MASK for hash in map(xxh3_64_intdigest, map(str.encode, ids))]


Shard = Annotated[int, Meta(ge=0, lt=SHARDS_MAX)]  # bounds are looked at where a table is decoded


class RingTable(msgspec.Struct, frozen=True, dict=True):
    """slot -> shard, as one published value. What follows from all its slots is made once, when first asked for."""

    version: Annotated[int, Meta(ge=1, lt=2**53)]
    shards: Annotated[tuple[Shard, ...], Meta(min_length=SLOTS, max_length=SLOTS)]
    """The shard of each slot; SLOTS entries."""
    previous: Annotated[tuple[Shard, ...], Meta(max_length=SLOTS)] = ()
    """The same in the version before, or empty: where it differs, the slot moves, or has moved, from there."""
    known: Annotated[int, Meta(ge=0, le=SHARDS_MAX)] = 0
    """One more than the highest shard that any version has named; 0 in a first table. Those have logs."""
    least: Annotated[int, Meta(ge=0, le=SHARDS_MAX)] = 0
    """How many shards were asked for by hand; 0: nobody has."""

    @cached_property
    def shard_ids(self) -> tuple[int, ...]:
        """The shards that the table names, ascending."""
        return tuple(sorted(set(self.shards)))

    @cached_property
    def known_ids(self) -> tuple[int, ...]:
        """All shards that have a log."""
        return tuple(sorted({*self.shards, *range(self.known)}))

    def source_of(self, slot: int) -> int | None:
        """The shard that a slot moves from by this table; None: it has not moved."""
        source = self.previous[slot] if self.previous else self.shards[slot]
        return None if source == self.shards[slot] else source

    def owners_of(self, slot: int) -> list[int]:
        """The shards that may hold timers of a slot: its owner, and whom it comes from."""
        source = self.source_of(slot)
        return [self.shards[slot]] if source is None else [self.shards[slot], source]

    def slots_of(self, shard: int) -> list[int]:
        """The slots of one shard, ascending."""
        return [slot for slot, owner in enumerate(self.shards) if owner == shard]


def table_fault(table: RingTable) -> str | None:
    """Why a decoded table is none that `build_table` or `next_table` makes; None: it may be one."""
    if table.previous and len(table.previous) != SLOTS:
        return f"previous has {len(table.previous)} slots; it is empty, or has {SLOTS}"
    highest = max(table.shards + table.previous)
    if (table.known or table.previous) and table.known <= highest:
        return f"known is {table.known}, and shard {highest} is named"
    if table.previous and table.version == 1:
        return "version 1 has a previous one"
    return None


def build_table(shards: Iterable[int], version: int = 1) -> RingTable:
    """Place all slots on these shards by consistent hashing with bounded loads.

    Each slot walks clockwise from its own point to the first shard with room (Mirrokni, Thorup, Zadimoghaddam:
    "Consistent Hashing with Bounded Loads", 2016). The result depends on the set of shards alone, not on their order.
    """
    members = sorted(set(shards))
    assert members, "a table needs a shard"
    bound = max(int(SLOTS * LOAD_FACTOR / len(members)), -(-SLOTS // len(members)))
    circle = sorted(
        (xxh3_64_intdigest(f"shard {shard} point {point}".encode()), shard)
        for shard in members
        for point in range(_POINTS_A_SHARD)
    )
    load = dict.fromkeys(members, 0)
    table = [0] * SLOTS
    # In the order of their points, so that which slot overflows does not depend on slot numbers.
    at = 0
    for point, slot in sorted((xxh3_64_intdigest(f"slot {slot}".encode()), slot) for slot in range(SLOTS)):
        while at < len(circle) and circle[at][0] < point:
            at += 1
        step = at
        while load[circle[step % len(circle)][1]] >= bound:
            step += 1
        owner = circle[step % len(circle)][1]
        table[slot] = owner
        load[owner] += 1
    return RingTable(version, tuple(table))


def next_table(table: RingTable, shards: Iterable[int]) -> RingTable:
    """The table that follows `table`, with these shards. To be published only when all of `table` has come to rest."""
    placed = build_table(shards, table.version + 1).shards
    known = max(table.known, max(table.shards) + 1, max(placed) + 1)
    return RingTable(table.version + 1, placed, table.shards, known, table.least)

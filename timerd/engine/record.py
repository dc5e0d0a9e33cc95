"""Records: what may enter the log, and the only things that change a shard (`state.State.apply`).

All records of one turn of one shard are one frame. They hold everything that replay needs and nothing that it could
work out: replaying them in order over an empty shard gives the same state, whatever the clock or the types say by then.

Tags and field order are the format (FORMAT.md). Add fields at the end, with a default; never reuse a tag.
Tag 12 is kept for `Released`.
"""

import msgspec

from timerd.engine.move_record import Adopted, Ceded, Drained, Left, Moved, Pended, Resolved, SlotMove
from timerd.engine.timer import BodyRef, Timer


class Totals(msgspec.Struct, array_like=True, gc=False):
    """One type's counts in one shard, since the shard began. `live` is what the others leave over."""

    armed: int = 0
    revived: int = 0
    fired: int = 0
    cancelled: int = 0
    replaced: int = 0
    dead: int = 0
    purged: int = 0
    superseded: int = 0
    retried: int = 0
    dropped: dict[str, int] = msgspec.field(default_factory=dict)
    moved_in: int = 0
    """Live timers that came from other shards."""
    moved_out: int = 0

    @property
    def live(self) -> int:
        """Timers that should be live by these counts (promise 8)."""
        gone = self.fired + self.cancelled + self.replaced + self.dead + sum(self.dropped.values()) + self.moved_out
        return self.armed + self.revived + self.moved_in - gone


class Armed(msgspec.Struct, array_like=True, tag_field="record", tag=1):
    """Timers that were armed or moved. No id twice in one record; generations are given, and ascend."""

    timers: list[Timer]


class Cancelled(msgspec.Struct, array_like=True, tag_field="record", tag=2):
    """Timers that are no more, at a caller's wish; dead ones count as purged."""

    ids: list[str]


class Fired(msgspec.Struct, array_like=True, tag_field="record", tag=3):
    """The part of a delivery's answer that ends generations, and what takes their place.

    `ids` fired; the timers in `rearmed` fired too, and are the new generations of their ids. `superseded` counts
    answers for generations that were no longer current.
    """

    type: str
    ids: list[str]
    rearmed: list[Timer] = []
    dropped: list[tuple[str, list[str]]] = []
    superseded: int = 0


class Retried(msgspec.Struct, array_like=True, tag_field="record", tag=4):
    """An attempt of these timers failed, and they will be tried again `gap_ms` after it."""

    ids: list[str]
    gap_ms: int
    limit: int
    counted: bool
    unknown: bool
    error: str


class Buried(msgspec.Struct, array_like=True, tag_field="record", tag=5):
    """Timers that are given up and kept as dead letters."""

    ids: list[str]
    at: int
    attempted: bool
    """The burial follows an attempt (and not, say, an unreadable body)."""
    unknown: bool
    error: str


class Revived(msgspec.Struct, array_like=True, tag_field="record", tag=6):
    """Dead letters that live again, each (id, new generation): with its old fire time, and no failure."""

    ids: list[tuple[str, int]]


class Purged(msgspec.Struct, array_like=True, tag_field="record", tag=7):
    """Dead letters that are no more."""

    ids: list[str]


class Relocated(msgspec.Struct, array_like=True, tag_field="record", tag=8):
    """Bodies that were copied forward: (id, generation, where it lies now)."""

    bodies: list[tuple[str, int, BodyRef]]


class Checkpoint(msgspec.Struct, array_like=True, tag_field="record", tag=9):
    """A slice: all timers of these slots, and the shard's own state, whole as of this frame.

    Replaces whatever replay had for these slots, and the shard's last generation, totals and epoch.
    """

    slots: list[int]
    timers: list[Timer]
    last: int
    epoch: int
    unclean_at: int
    unclean_generation: int
    totals: dict[str, Totals]
    moves: list[SlotMove] = []
    """Of these slots, those that are on the move (cluster/PROTOCOL.md)."""


class Owned(msgspec.Struct, array_like=True, tag_field="record", tag=10):
    """A process took the shard up, at `at` (Unix ms). `clean`: the one before had closed it."""

    epoch: int
    at: int
    clean: bool


class Closed(msgspec.Struct, array_like=True, tag_field="record", tag=11):
    """The process laid the shard down with nothing in flight."""

    at: int


Record = (
    Armed | Cancelled | Fired | Retried | Buried | Revived | Purged | Relocated | Checkpoint | Owned | Closed
    | Ceded | Adopted | Moved | Pended | Resolved | Drained | Left
)  # fmt: skip

"""Records of a slot on the move between shards: what the two owners may say in their logs (cluster/PROTOCOL.md).

As with all records, tags and field order are the format (FORMAT.md): add fields at the end, with a default.
"""

from typing import Final

import msgspec

from timerd.engine.timer import DEAD, BodyRef, Timer

# What becomes of a timer that the old owner lets go.
ARM: Final = 1  # a new generation takes its place
REVIVE: Final = 2  # the same, for a dead letter that lives again
PULL: Final = 3  # it goes on as it is
CANCEL: Final = 4  # nothing takes its place


class Seen(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Exactly which state of an id the old owner was seen to hold."""

    generation: int
    attempts: int
    dead: bool
    place: BodyRef | None = None
    """Where its body lies; bodies are copied forward now and then."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One timer that changes hands: in `Move`, in what the old owner remembers, and in its answer."""

    id: str
    kind: int
    seen: Seen
    generation: int
    """Of what takes its place; 0 if nothing does."""


class Pending(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The new owner's side of an `Entry`. Becomes so, or is dropped, with `Resolved`."""

    id: str
    kind: int
    seen: Seen
    type: str
    """Of what was seen."""
    timer: Timer | None
    """What takes its place."""

    @property
    def entry(self) -> Entry:
        """What is sent to the old owner."""
        return Entry(self.id, self.kind, self.seen, self.timer.generation if self.timer else 0)


class SlotMove(msgspec.Struct, array_like=True):
    """A slot's state in a checkpoint slice, when it is not plainly owned."""

    slot: int
    ceded: bool
    """Else adopted."""
    version: int
    other: int
    """The shard it goes to, or comes from."""
    remembered: list[tuple[Entry, bool]] = []
    """Ceded: what was let go, and whether it was in flight then."""
    pending: list[Pending] = []
    """Adopted."""


class Ceded(msgspec.Struct, array_like=True, tag_field="record", tag=13):
    """The old owner serves these slots no more, but for what it still holds. `last`: the generation it had given."""

    version: int
    to: int
    slots: list[int]
    last: int


class Adopted(msgspec.Struct, array_like=True, tag_field="record", tag=14):
    """The new owner serves these slots from here. A slice of them, empty, is in the same frame."""

    version: int
    source: int
    slots: list[int]
    last: int
    unclean_at: int = 0
    unclean_generation: int = 0


class Moved(msgspec.Struct, array_like=True, tag_field="record", tag=15):
    """The old owner has let these go, each (entry, was in flight), and remembers that."""

    version: int
    entries: list[tuple[Entry, bool]]


class Pended(msgspec.Struct, array_like=True, tag_field="record", tag=16):
    """The new owner intends this, and asks the old one to let go. The unclean marks are the old owner's."""

    version: int
    entries: list[Pending]
    unclean_at: int = 0
    unclean_generation: int = 0


class Resolved(msgspec.Struct, array_like=True, tag_field="record", tag=17):
    """Pending entries that have become so, since the old owner has let go; and those that are dropped."""

    moved: list[str]
    changed: list[str]


class Drained(msgspec.Struct, array_like=True, tag_field="record", tag=18):
    """Nothing of these slots is left with the old owner, and nothing is pending."""

    version: int
    slots: list[int]
    last: int


class Left(msgspec.Struct, array_like=True, tag_field="record", tag=19):
    """The old owner forgets these slots. Its totals, as a slice of no slots, are in the same frame."""

    version: int
    slots: list[int]


MoveRecord = Ceded | Adopted | Moved | Pended | Resolved | Drained | Left


def seen_of(timer: Timer) -> Seen:
    """What a timer is seen as."""
    failure = timer.failure
    place = timer.payload if isinstance(timer.payload, BodyRef) else None
    return Seen(timer.generation, failure.attempts if failure else 0, timer.state == DEAD, place)

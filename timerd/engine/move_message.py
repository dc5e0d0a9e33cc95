"""Messages between the two owners of a slot on the move (cluster/PROTOCOL.md), and what tells a shard of a table.

They are values, as all messages; their timers are copies. `sender` is the shard to answer. On one machine the runner
puts them into the other shard's inbox; each may come late, twice, in any order, or not at all.
"""

from typing import Final

import msgspec

from timerd.engine.move_record import Entry
from timerd.engine.ring import RingTable
from timerd.engine.timer import Timer

# What the old owner says of an entry.
MOVED: Final = 0  # it has let go, now or before
CHANGED: Final = 1  # it holds something else, or nothing, and has not let this go
BUSY: Final = 2  # it is in flight: ask again


class SetTable(msgspec.Struct, frozen=True):
    """The ring table as it is now, durable where it is published. Nothing else tells a shard what is its own.

    `dead_letters_kept`: of each type, in one shard, from now on; 0: as before. `waits`: what it gives to others is
    ceded when `MayCede` has come.
    """

    table: RingTable
    dead_letters_kept: int = 0
    waits: bool = False


class MayCede(msgspec.Struct, frozen=True):
    """The log has room for what the last table moves: cede a share of it."""


class SetPull(msgspec.Struct, frozen=True):
    """How many timers a second a shard may pull; 0 = none for the present."""

    per_second: int


class OfMove(msgspec.Struct, frozen=True):
    """What every message of a move says."""

    version: int
    sender: int


class Cede(OfMove, frozen=True):
    """O: these slots are yours. `unclean_*`: what was due by then may have been delivered before."""

    slots: list[int]
    last: int
    unclean_at: int
    unclean_generation: int


class Standing(OfMove, frozen=True):
    """N: these slots I have adopted; of those you need no more."""

    adopted: list[int]
    drained: list[int]


class Ask(OfMove, frozen=True):
    """N: what do you hold of these? (number, id)"""

    questions: list[tuple[int, str]]


class Told(OfMove, frozen=True):
    """O: (number, id, a copy of what I hold)."""

    answers: list[tuple[int, str, Timer | None]]
    last: int
    unclean_at: int
    unclean_generation: int


class Pull(OfMove, frozen=True):
    """N: show me up to `count` timers of these slots."""

    number: int
    slots: list[int]
    count: int


class Pulled(OfMove, frozen=True):
    """O: copies of timers that are not in flight; and those of the slots asked for of which nothing at all is left."""

    number: int
    timers: list[Timer]
    empty: list[int]
    last: int
    unclean_at: int
    unclean_generation: int


class Move(OfMove, frozen=True):
    """N: let go of these, if they are what I saw."""

    entries: list[Entry]


class MoveDone(OfMove, frozen=True):
    """O: (entry, MOVED | CHANGED | BUSY, whether it was in flight when it was let go)."""

    results: list[tuple[Entry, int, bool]]
    last: int


MoveMessage = SetTable | MayCede | SetPull | Cede | Standing | Ask | Told | Pull | Pulled | Move | MoveDone


def size_of(message: MoveMessage) -> int:
    """About the bytes that it makes in the receiver's log."""
    match message:
        case Told():
            return 64 + 160 * len(message.answers)
        case Pulled():
            return 64 + 160 * len(message.timers)
        case Move():
            return 64 + 80 * len(message.entries)
        case MoveDone():
            return 64 + 32 * len(message.results)
        case Cede() | Standing():
            return 512
        case _:
            return 64

"""The turn in the making: the state as decided so far, the records that made it so, and what will leave.

Writing a record applies it at once, so that later messages of the turn see it. That is safe because nothing leaves
before the frame is durable, and a frame that can't be written ends the process.
"""

from collections.abc import Mapping
from typing import Any

from timerd.engine.effect import Effect, Reply
from timerd.engine.message import Token
from timerd.engine.record import Record
from timerd.engine.state import State
from timerd.engine.timer import Timer, TimerType


class Draft:
    """One shard's turn in the making. `now` of the state is the moment of the step."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.records: list[Record] = []
        self.effects: list[Effect] = []
        self.types: Mapping[str, TimerType] = {}
        self.low = False  # the log lives on its reserve
        self.forgets = False  # something was applied that the log does not say
        self.flights: dict[int, list[Timer]] = {}  # batch_no -> what this shard handed out for it
        self.slices_wanted = 0
        self.floor = 0
        """The last generation that was given where slots of this shard come from: none is given at or below it."""

    def write(self, record: Record, id_slots: list[int] | None = None) -> None:
        """Let the record be so, and part of the turn's frame. `id_slots`: see State.apply."""
        self.state.apply(record, id_slots)
        self.records.append(record)

    def apply_unwritten(self, record: Record) -> None:
        """Let the record be so until the process ends: for what a full disk may forget."""
        self.forgets = True
        self.state.apply(record)

    def reply(self, token: Token, value: Any) -> None:
        """Answer a message when the turn is durable."""
        self.effects.append(Reply(token, value))

    def next_generation(self) -> int:
        """A hybrid clock: the wall's microseconds, or one more than the last if the wall is behind that."""
        return max(self.state.now.wall_us, max(self.state.last, self.floor) + 1)

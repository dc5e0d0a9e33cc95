"""The old owner of slots on the move: it cedes them, answers the new owner, lets go, and forgets (PROTOCOL.md, O).

What it still holds goes on here: it comes due, is delivered, and its answers act, re-arms included. Nothing else writes
about it. Everything that this object keeps beside the state may be lost.
"""

from typing import Final

from msgspec.structs import replace

from timerd.engine.draft import Draft
from timerd.engine.effect import Send
from timerd.engine.move_message import (
    BUSY,
    CHANGED,
    MOVED,
    Ask,
    Cede,
    Move,
    MoveDone,
    Pull,
    Pulled,
    Standing,
    Told,
)
from timerd.engine.move_record import PULL, Ceded, Entry, Left, Moved, seen_of
from timerd.engine.moves import CededSlot
from timerd.engine.now import Now
from timerd.engine.ring import RingTable, slot_of, slots_of
from timerd.engine.slicing import write_slice
from timerd.engine.timer import IN_FLIGHT, Timer

RESEND_MS: Final = 1_000  # until the new owner has been heard of
REMIND_MS: Final = 5_000  # until it has drained everything
CEDE_AT_ONCE: Final = 512  # slots: each takes some 20 bytes here and there, and nobody's turn may be long
SCAN_TIMERS: Final = 4_000  # timers one `Pull` makes the old owner look at


class Ceding:
    """One for each shard."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._state = draft.state
        self.to_cede = 0
        """How many slots the table gives to others that are not ceded yet."""
        self.waits = False
        """They are to be ceded, but not now."""
        self._table: RingTable | None = None  # as long as there are some
        self._remind_at: dict[tuple[int, int], int] = {}  # (version, to) -> boot ms of the next `Cede`

    def know(self, table: RingTable, waits: bool) -> None:
        """There is a new table. `waits`: nothing is ceded before it is said that it may."""
        state = self._state
        going = [slot for slot in state.covered if table.shards[slot] != state.shard]
        self.to_cede = sum(slot not in state.moves.ceded for slot in going)
        self.waits = waits
        self._table = table if self.to_cede else None

    def _may_cede(self) -> bool:
        """Not while the log lives on its reserve, which is for other things."""
        return self._table is not None and not self.waits and not self._draft.low

    def _give_up(self, table: RingTable) -> None:
        """Cede what the table gives to others, as much as a turn can bear."""
        state = self._state
        going: dict[int, list[int]] = {}
        count = 0
        for slot in state.covered:
            to = table.shards[slot]
            if to != state.shard and slot not in state.moves.ceded:
                going.setdefault(to, []).append(slot)
                count += 1
                if count == CEDE_AT_ONCE:
                    break
        for to, slots in going.items():
            self._draft.write(Ceded(table.version, to, sorted(slots), state.last))
            self._remind_at[table.version, to] = state.now.boot_ms
        self.to_cede = self.to_cede - count if count == CEDE_AT_ONCE else 0
        if not self.to_cede:
            self._table = None

    def tick(self, now: Now) -> None:
        """Announce what was ceded, again and again, until the new owner needs nothing more."""
        if self._table is not None and self._may_cede():
            self._give_up(self._table)
        ceded = self._state.moves.ceded
        if not ceded:
            self._remind_at.clear()
            return
        if not self._remind_at:  # a restart
            self._remind_at = {(slot.version, slot.to): now.boot_ms for slot in ceded.values()}
        for (version, to), at in list(self._remind_at.items()):
            if at > now.boot_ms:
                continue
            slots = [slot for slot, of in ceded.items() if of.version == version and of.to == to]
            if slots:
                state = self._state
                marks = (state.unclean_at, state.unclean_generation)
                self._send(to, Cede(version, state.shard, slots, state.last, *marks))
                self._remind_at[version, to] = now.boot_ms + RESEND_MS
            else:
                del self._remind_at[version, to]

    def wake_at(self) -> int | None:
        """Boot ms."""
        if self._may_cede():
            return self._state.now.boot_ms
        return min(self._remind_at.values(), default=None)

    def standing(self, message: Standing) -> None:
        """The new owner says where it is. What it has drained is forgotten, unless something is held here after all."""
        state = self._state
        if self._draft.low:
            return  # it will be told again
        key = (message.version, message.sender)
        if key in self._remind_at and message.adopted:
            self._remind_at[key] = state.now.boot_ms + REMIND_MS
        done = [slot for slot in message.drained if self._mine(slot, *key) is not None]
        runs = {state.run_of[slot].slots: state.run_of[slot] for slot in done}
        occupied = {slot for run in runs.values() for slot in slots_of(run.by_id)}
        if done := [slot for slot in done if slot not in occupied]:
            self._draft.write(Left(message.version, done))
            write_slice(self._draft, ())

    def ask(self, message: Ask) -> None:
        """Say what is held of some ids."""
        state = self._state
        answers = []
        for number, id in message.questions:
            slot = slot_of(id)
            if self._mine(slot, message.version, message.sender) is not None:
                timer = state.slots[slot].get(id)  # type: ignore[union-attr]  # a ceded slot is had
                answers.append((number, id, None if timer is None else replace(timer)))
        if answers:
            marks = (state.unclean_at, state.unclean_generation)
            self._send(message.sender, Told(message.version, state.shard, answers, state.last, *marks))

    def pull(self, message: Pull) -> None:
        """Show some timers of some slots, and which of these are empty."""
        state = self._state
        wanted = [slot for slot in message.slots if self._mine(slot, message.version, message.sender) is not None]
        if not wanted:
            return
        asked = set(wanted)
        shown: list[Timer] = []
        empty: list[int] = []
        looked = 0
        for run in {state.run_of[slot].slots: state.run_of[slot] for slot in wanted}.values():
            found = slots_of(run.by_id)
            looked += len(found)
            occupied = set(found)
            empty += [slot for slot in run.slots if slot in asked and slot not in occupied]
            for timer, slot in zip(run.by_id.values(), found, strict=True):
                if slot in asked and timer.state != IN_FLIGHT and len(shown) < message.count:
                    shown.append(replace(timer))
            if looked >= SCAN_TIMERS or len(shown) >= message.count:
                break
        marks = (state.unclean_at, state.unclean_generation)
        answer = Pulled(message.version, state.shard, message.number, shown, empty, state.last, *marks)
        self._send(message.sender, answer)

    def move(self, message: Move) -> None:
        """Let go of what is exactly what was seen."""
        state = self._state
        going: list[tuple[Entry, bool]] = []
        results: list[tuple[Entry, int, bool]] = []
        said: set[str] = set()
        for entry in message.entries:
            slot = slot_of(entry.id)
            ceded = self._mine(slot, message.version, message.sender)
            if ceded is None or entry.id in said:
                continue
            said.add(entry.id)
            timer = state.slots[slot].get(entry.id)  # type: ignore[union-attr]  # a ceded slot is had
            if timer is None or seen_of(timer) != entry.seen:
                let_go, in_flight = ceded.remembered.get(entry.id, (None, False))
                results.append((entry, MOVED, in_flight) if let_go == entry else (entry, CHANGED, False))
            elif entry.kind == PULL and timer.state == IN_FLIGHT:
                results.append((entry, BUSY, True))
            else:
                going.append((entry, timer.state == IN_FLIGHT))
                results.append((entry, MOVED, timer.state == IN_FLIGHT))
        if going:
            self._draft.write(Moved(message.version, going))
        if results:
            self._send(message.sender, MoveDone(message.version, state.shard, results, state.last))

    def _mine(self, slot: int, version: int, to: int) -> CededSlot | None:
        ceded = self._state.moves.ceded.get(slot)
        return ceded if ceded is not None and ceded.version == version and ceded.to == to else None

    def _send(self, to: int, message: Cede | Told | Pulled | MoveDone) -> None:
        self._draft.effects.append(Send(to, message))

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
CEDE_AT_ONCE: Final = 512  # slots, by all old owners: each takes some 20 bytes in both logs, and no turn may be long
SCAN_TIMERS: Final = 4_000  # timers one `Pull` makes the old owner look at


class Ceding:
    """One for each shard."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._state = draft.state
        self.waits = False
        """What is to be ceded goes share by share, each when it is said that it may."""
        self._to_cede: list[int] = []  # that the table gives to others and that are not ceded yet, the next one last
        self._table: RingTable | None = None
        self._share = CEDE_AT_ONCE
        self._heard: set[int] = set()  # ceded ones that their new owner has
        self._remind_at: dict[tuple[int, int], int] = {}  # (version, to) -> boot ms of the next `Cede`

    def know(self, table: RingTable, waits: bool) -> None:
        """There is a new table. `waits`: nothing is ceded but with `cede`."""
        state = self._state
        here, ceded = state.shard, state.moves.ceded
        self._to_cede = [slot for slot in state.covered if table.shards[slot] != here and slot not in ceded]
        self._to_cede.reverse()
        self.waits = waits
        self._table = table
        givers = {before for before, after in zip(table.previous, table.shards, strict=True) if before != after}
        self._share = max(1, CEDE_AT_ONCE // max(1, len(givers)))

    @property
    def to_cede(self) -> int:
        """How many slots the table gives to others that are not ceded yet."""
        return len(self._to_cede)

    def cede(self) -> None:
        """Cede of what the table gives to others as much as a turn can bear. It is no work of a tick: what comes due by
        the same tick would wait until it is durable."""
        if self._draft.low or self._table is None:
            return  # the log lives on its reserve, which is for other things
        state, table = self._state, self._table
        going: dict[int, list[int]] = {}
        for slot in self._to_cede[: -self._share - 1 : -1]:
            going.setdefault(table.shards[slot], []).append(slot)
        del self._to_cede[-self._share :]
        for to, slots in going.items():
            self._draft.write(Ceded(table.version, to, sorted(slots), state.last))
            self._remind_at[table.version, to] = state.now.boot_ms

    def tick(self, now: Now) -> None:
        """Announce what was ceded, again and again, until the new owner needs nothing more."""
        if self._to_cede and not self.waits:
            self.cede()
        ceded = self._state.moves.ceded
        if not ceded:
            self._remind_at.clear()
            self._heard.clear()
            return
        if not self._remind_at:  # a restart
            self._remind_at = {(slot.version, slot.to): now.boot_ms for slot in ceded.values()}
        for (version, to), at in list(self._remind_at.items()):
            if at > now.boot_ms:
                continue
            slots = [slot for slot, of in ceded.items() if of.version == version and of.to == to]
            # As many as it can bear to adopt in a turn, until it has them all.
            if new := [slot for slot in slots if slot not in self._heard]:
                slots = new[: self._share]
            if slots:
                state = self._state
                marks = (state.unclean_at, state.unclean_generation)
                self._send(to, Cede(version, state.shard, slots, state.last, *marks))
                self._remind_at[version, to] = now.boot_ms + RESEND_MS
            else:
                del self._remind_at[version, to]

    def wake_at(self) -> int | None:
        """Boot ms."""
        if self._to_cede and not self.waits and not self._draft.low:
            return self._state.now.boot_ms
        return min(self._remind_at.values(), default=None)

    def standing(self, message: Standing) -> None:
        """The new owner says where it is. What it has drained is forgotten, unless something is held here after all."""
        state = self._state
        key = (message.version, message.sender)
        if key in self._remind_at and message.adopted:
            heard = len(self._heard)
            self._heard.update(slot for slot in message.adopted if self._mine(slot, *key) is not None)
            if all(slot in self._heard for slot, of in state.moves.ceded.items() if (of.version, of.to) == key):
                self._remind_at[key] = state.now.boot_ms + REMIND_MS
            elif len(self._heard) > heard:
                self._remind_at[key] = state.now.boot_ms
        if self._draft.low:
            return  # it will be told again
        done = [slot for slot in message.drained if self._mine(slot, *key) is not None]
        runs = {state.run_of[slot].slots: state.run_of[slot] for slot in done}
        occupied = {slot for run in runs.values() for slot in slots_of(run.by_id)}
        if done := [slot for slot in done if slot not in occupied]:
            self._draft.write(Left(message.version, done))
            self._heard.difference_update(done)
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

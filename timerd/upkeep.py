"""Upkeep of the log: slices and trimming so that it stays small, and room kept for completions and for moves.

Runs in the pauses of the runner: `after_turn` is called when state and log say the same. It decides with
`engine.checkpointing` and asks the shards by messages; it never touches a shard's state.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle
from typing import Any

from timerd.engine.checkpointing import TURN_BYTES_PRESSED, LogState, Pace, is_pressing
from timerd.engine.message import SetReserve, Slice
from timerd.engine.move_message import MayCede
from timerd.engine.moves import SLOT_MOVE_BYTES
from timerd.engine.ring import SLOTS, RingTable
from timerd.engine.shard import SLICE_TIMERS, Shard
from timerd.engine.state import MOVING_FACTOR
from timerd.inbox import TURN_BYTES_MAX
from timerd.ports import Log
from timerd.relocating import Relocating
from timerd.runner import Runner

SLOT_BYTES = 3  # of a slot's number in a slice
MOVING_SLOT_BYTES = 40  # of a slot on the move, until both its shards have done with it: mostly its number
ADOPTED_SLOT_BYTES = 20  # and what is left of that when it has been adopted, where an empty slice was written of it
MOVING_TYPE_BYTES = 0.5  # and its share of the totals of a type, which go with it
RESERVE_PART = 0.75  # of the segment that is kept for slices, on a full disk: the rest is for what is only estimated
WAY_AGAIN_S = 0.5  # until room for a move is looked for again
BODY_LOOK = 8  # bodies count for looks by this part: they cost more to write than frames, and hold fewer timers
LOOK_BYTES = 32_768  # appended, or dead, before the log is looked at again: some hundred timers share what a look costs


class Upkeep:
    """One for each runner."""

    def __init__(self, runner: Runner, log: Log, table: RingTable, fail: Callable[[BaseException], None]) -> None:
        self.accepted_bytes = 0
        """Of bodies placed by arms and answers."""
        self.copied_bytes = 0
        """Of bodies copied forward: what bodies cost beyond being written once."""
        self._runner = runner
        self._log = log
        self.table: RingTable = table
        """The ring table of the moment; who publishes another sets it."""
        self._bodies = Relocating(runner, log, self.reserve_bytes, lambda: self.table, self._copied)
        self.placing = self._bodies.placing
        """Body segment -> bodies placed whose message is not stepped yet: it must not be dropped."""
        self.fail = fail
        """Told what goes wrong."""
        self._low = False
        self._ending = False
        # Appended, or dead, since the last look that found nothing to do. Each life begins with a look: it may be
        # shorter than what a look is worth, and the next one too.
        self._unseen_bytes = LOOK_BYTES
        self._lived = 0, 0  # what lived when the last turn ended: in frames, in bodies
        self._slices_asked = False  # by the last look: when they are written there may be something to trim
        self._unpaced_bytes = 0  # appended since the last look
        self._pace = Pace()
        self._reserve_spent = 0  # slices written on the reserve since a segment was last freed
        self._slice_bytes = self._largest_slice()
        self._task: asyncio.Task[None] | None = None
        self._finding: asyncio.Task[None] | None = None  # room for slots that are to be ceded
        self._told_moving: int | None = None  # when the log was last told of the reserve
        self._untold_bytes = 0  # appended, or dead, since
        self._asked_bytes = 0  # room for a move, which is being made
        self._way_slots = 0  # that are to be ceded, for which room was had
        self._way_version = 0  # of the table that says so
        self._told_to_cede: dict[int, int] = {}  # shard -> how many slots it had to cede when it was told to go on

    @property
    def live_bytes(self) -> int:
        """A full checkpoint, about; live bodies; and the room that is kept: completions, a slice, a segment. What was
        kept counts until it has been given back: needs end in a turn, files are deleted one after the other."""
        usage = self._log.usage()
        kept = self.reserve_bytes() + self._asked_bytes + usage.leaving_bytes + usage.segment_bytes
        return self._checkpoint_bytes() + kept + self._bodies.live_bytes()

    def reserve_bytes(self) -> int:
        """Room that must stay: completions of everything accepted, and the largest slice."""
        return self._completion_bytes() + self._slice_bytes + self._moving_bytes() + self._way_bytes()

    async def begin(self) -> None:
        """Before the first turn: let the log give back what an earlier life kept, if it is too much for this."""
        usage = self._log.usage()
        if usage.spare_bytes > 2 * self.reserve_bytes() + usage.segment_bytes:
            await self._log.grant(0, self.reserve_bytes(), 0)

    async def settle(self) -> None:
        """Begin nothing more, and wait for what is under way (for a clean stop: the log is about to be closed)."""
        self._ending = True
        tasks = [task for task in (self._task, self._finding) if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Begin nothing more, and break off what is under way: the log has ended."""
        self._ending = True
        for task in (self._task, self._finding):
            if task is not None:
                task.cancel()
        await self.settle()

    def placed(self, segments: Counter[int], size: int) -> None:
        """Bodies of `size` bytes were placed; their segments stay until they are taken off `placing`."""
        self.accepted_bytes += size
        self.placing.update(segments)
        self._unseen_bytes += size // BODY_LOOK

    def _copied(self, size: int) -> None:
        self.copied_bytes += size
        self._unseen_bytes += size // BODY_LOOK

    def want_room(self) -> None:
        """Something was refused for want of room: look at once whether there is something to reclaim."""
        self._unseen_bytes = max(self._unseen_bytes, LOOK_BYTES)
        self._runner.ring()

    def greet(self, shard: int) -> None:
        """Tell a new shard how the log stands."""
        self._runner.send(shard, SetReserve(self._low))

    def has_news(self) -> bool:
        """Whether a turn is wanted although nothing is asked: the log has more or less room, or work has ended."""
        if self._ending:
            return False
        return self._log.low() != self._low or self._is_to_look()

    def _is_to_look(self) -> bool:
        return self._unseen_bytes >= LOOK_BYTES and (self._task is None or self._task.done())

    def after_turn(self, appended: int) -> None:
        """Look at the log, and ask for what it needs."""
        low = self._log.low()
        if low != self._low:
            self._low = low
            self._told_to_cede.clear()
            for shard in self._shards():
                self._runner.send(shard.id, SetReserve(low))
        # What dies asks for looks as well: it may go with hardly a frame, and the log is to become small all the same.
        unseen = max(appended, self._died())
        self._unseen_bytes += unseen
        self._unpaced_bytes += appended
        self._untold_bytes += unseen
        looks = self._is_to_look()
        if looks:
            self._slice_bytes = self._largest_slice()
        self._tell_reserve()
        if self._ending or not looks:
            return
        self._slices_asked = False
        self._pace.appended(self._unpaced_bytes, self._checkpoint_bytes())
        self._unpaced_bytes = 0
        if (work := self._log_work() or self._bodies.work(self._low)) is not None:
            self._task = asyncio.get_running_loop().create_task(self._guarded(work))
        else:
            self._unseen_bytes = LOOK_BYTES if self._slices_asked else 0

    def _died(self) -> int:
        """How much less lives than in the turn before; bodies count as they do when they are placed."""
        frames, bodies = sum(shard.state.live_bytes for shard in self._shards()), self._bodies.live_bytes()
        died = max(0, self._lived[0] - frames) + max(0, self._lived[1] - bodies) // BODY_LOOK
        self._lived = frames, bodies
        return died

    async def make_way(self, slots: int, version: int) -> bool:
        """Have room for so many slots to be ceded by a table of that version; False: there is none now.

        Whatever moves takes log in both its shards, and nobody can be refused it then: it has to be in hand. It is kept
        until they are ceded, and after that for what is on the move.
        """
        self._asked_bytes = size = self._bytes_to_cede(slots)
        try:
            granted = await self._log.grant(size, self.reserve_bytes(), 0)
        finally:
            self._asked_bytes = 0
        if granted:
            self._way_slots, self._way_version = slots, version
            # What was granted goes with the append of the next turn. The log is told before that to keep it, or it
            # would begin to give it back; for that moment both count.
            self._log.keep(self.reserve_bytes())
            self._runner.ring()
        return granted

    def close_way(self) -> None:
        """They are ceded, or are not to be any more."""
        self._way_slots = 0
        self._told_to_cede.clear()
        if not self._ending:
            self._log.keep(self.reserve_bytes())

    def _way_bytes(self) -> int:
        """Kept for what is still to be ceded; what is ceded is on the move, and counts as that."""
        if not self._way_slots:
            return 0
        shards = self._shards()
        known = all(shard.table_version >= self._way_version for shard in shards)
        return self._bytes_to_cede(sum(shard.to_cede for shard in shards) if known else self._way_slots)

    def _bytes_to_cede(self, slots: int) -> int:
        """What it takes to cede so many more slots, with all that is on them."""
        shards = self._shards()
        types = max(len(shard.state.lanes) for shard in shards)
        slot_bytes = MOVING_SLOT_BYTES + types * MOVING_TYPE_BYTES + SLOT_BYTES + SLOT_MOVE_BYTES
        ending = sum(shard.state.ending_bytes for shard in shards)
        return int(slots * slot_bytes) + ending * MOVING_FACTOR - self._completion_bytes()

    def _tend_way(self) -> bool:
        """Let slots be ceded for which there is room, and keep it no longer than for that. Whether there is to be some
        made."""
        shards = self._shards()
        waiting = [shard for shard in shards if shard.to_cede]
        if not self._way_slots:
            return bool(waiting)
        for shard in waiting:
            if shard.waits_to_cede and not self._low and self._told_to_cede.get(shard.id) != shard.to_cede:
                self._told_to_cede[shard.id] = shard.to_cede
                self._runner.send(shard.id, MayCede())
        if not waiting and all(shard.table_version >= self._way_version for shard in shards):
            self.close_way()
        return False

    def _tell_reserve(self) -> None:
        """Let the log know what to keep. Who asks for room says it too; behind a burst, or a move, nobody may ask for
        long, and what was kept for it would stay. While slots move it changes with each turn."""
        if self._ending:
            return
        blocked = self._moved() and self._tend_way()
        moving = self._moving_bytes() + self._way_bytes() if self._moved() else 0
        if moving != self._told_moving or self._untold_bytes >= LOOK_BYTES:
            self._told_moving, self._untold_bytes = moving, 0
            self._log.keep(self.reserve_bytes())
        if blocked and (self._finding is None or self._finding.done()):
            self._finding = asyncio.get_running_loop().create_task(self._find_way())

    def _moved(self) -> bool:
        """Whether anything ever has, or is about to."""
        return self.table.version > 1 or self._way_slots > 0

    async def _find_way(self) -> None:
        try:
            while not self._way_slots and (slots := sum(shard.to_cede for shard in self._shards())):
                if self._ending or await self.make_way(slots, self.table.version):
                    return
                await asyncio.sleep(WAY_AGAIN_S)
        except Exception as error:
            self.fail(error)

    async def _guarded(self, work: Callable[[], Any]) -> None:
        """Then look again, unless nothing came of it: `_unseen_bytes` still says that there is something to see."""
        try:
            if await work() is False:
                self._unseen_bytes = 0
        except Exception as error:
            self.fail(error)
        self._runner.ring()

    # ---- frames

    def _log_work(self) -> Callable[[], Any] | None:
        oldest = self._log.oldest()
        if oldest is None:
            self._runner.turn_bytes = TURN_BYTES_MAX
            return None
        usage = self._log.usage()
        checkpoint = self._checkpoint_bytes()
        pinning = {
            shard.id: pinned
            for shard in self._shards()
            if (last := oldest.last_lsns.get(shard.id)) is not None and (pinned := shard.pinned(last))
        }
        if not pinning:
            self._reserve_spent = 0
            needed = {shard.id: shard.needed_lsn() for shard in self._shards()}
            return lambda: self._log.trim(needed)
        pinned_bytes = max(1, checkpoint * sum(pinning.values()) // SLOTS)
        in_use = usage.frame_bytes - usage.spare_bytes
        state = LogState(in_use, usage.segment_bytes, checkpoint, pinned_bytes)
        pressing = is_pressing(state)
        self._runner.turn_bytes = TURN_BYTES_PRESSED // len(self._runner.shards) if pressing else TURN_BYTES_MAX
        if pressing and self._low:
            kept = min(usage.beyond_bytes, usage.segment_bytes - self._reserve_spent)
            if self._slices_bytes(pinning) > RESERVE_PART * kept:
                return None  # it would take more than what is left of the segment for this, and perhaps free none
        if pressing:
            # The shard with most to write first; they come out level.
            shards = sorted(pinning, key=lambda id: -pinning[id])
            slices = self._pace.take(slice_bytes(self._runner.shards[id]) for id in cycle(shards))
            self._reserve_spent += sum(slices) if self._low else 0
            self._slices_asked = bool(slices)
            for id, size in zip(cycle(shards), slices, strict=False):  # in the order in which they were taken
                self._runner.send(id, Slice(partial(self._slice_written, size)))
        return None

    def _slices_bytes(self, pinning: Mapping[int, int]) -> int:
        """What slices take in all before the oldest segment can go. (shard -> slots that pin it): a slice of a small
        shard is of all that it has, however few of its slots pin."""
        total = 0
        for id, slots in pinning.items():
            shard = self._runner.shards[id]
            total += max(slice_bytes(shard), whole_bytes(shard) * slots // max(1, len(shard.state.covered)))
        return total

    def _slice_written(self, size: int, _: object) -> None:
        """The answer to `Slice`: it is durable, or its shard is gone."""
        self._pace.written(size)

    def _moving_bytes(self) -> int:
        """What the slots on the move may take to arrive."""
        moves = [moves for shard in self._shards() if (moves := shard.state.moves)]
        # Mostly both shards are here: one has ceded it before the other adopts it, and until that has drained it.
        ceded, adopted = sum(len(each.ceded) for each in moves), sum(len(each.adopted) for each in moves)
        if not (slots := max(ceded, adopted)):
            return 0
        types = max(len(shard.state.lanes) for shard in self._shards())
        coming = slots - adopted
        return int(coming * MOVING_SLOT_BYTES + adopted * ADOPTED_SLOT_BYTES + slots * types * MOVING_TYPE_BYTES)

    def _completion_bytes(self) -> int:
        return sum(shard.state.completion_bytes for shard in self._shards())

    def _largest_slice(self) -> int:
        return max((slice_bytes(shard) for shard in self._shards()), default=0)

    def _checkpoint_bytes(self) -> int:
        return SLOTS * SLOT_BYTES + sum(shard.state.live_bytes for shard in self._shards())

    def _shards(self) -> list[Shard]:
        return list(self._runner.shards.values())


def slice_bytes(shard: Shard) -> int:
    """About what the next slice of a shard takes: all of a small one, SLICE_TIMERS of a large one."""
    timers = max(1, shard.state.timers)
    return whole_bytes(shard) * min(timers, SLICE_TIMERS) // timers


def whole_bytes(shard: Shard) -> int:
    """About what slices of all that a shard has take."""
    return len(shard.state.covered) * SLOT_BYTES + shard.state.live_bytes

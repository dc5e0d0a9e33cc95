"""Parts: what this node does and says for the shards that are here, when another node asks, or its own front.

Every answer is made here and now: nothing is handed on, and no other node is asked. So a question between nodes waits
for no further one, and they can't wait for each other in a ring.

A shard that is not here is said so before anything is done about it (`Absent`, `NOT_HERE`). One that goes while it is
asked leaves its part's outcome unknown (`UNAVAILABLE`, `Unsure`).
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

import msgspec
import structlog

from timerd.engine.callback import is_request
from timerd.engine.message import (
    Gone,
    List,
    ListDead,
    Next,
    Refused,
    TimerView,
)
from timerd.engine.timer import Timer
from timerd.node import Node
from timerd.questions import (
    LEFT_ALONE,
    VERSION,
    Absent,
    Answer,
    Armed,
    ArmThese,
    Cancelled,
    CancelThese,
    CountAll,
    Counted,
    CountLive,
    DealWithDead,
    Done,
    Filled,
    FillIn,
    Fired,
    FireOne,
    GetOne,
    Got,
    Hello,
    HoldOff,
    Late,
    Number,
    OtherVersion,
    Pages,
    Question,
    ReadPages,
    Refusal,
    SoonestOf,
    Unsure,
    encode_answer,
    read_asked,
    read_question,
)

ANSWER_S: Final = 10.0  # whoever asks waits no longer
TELL_MS: Final = 200  # before its time is over a question is answered by what keeps it, if that is known
HELD_OFF_MAX: Final = 64
HOLD_MS_MAX: Final = 15_000  # a node that dies while it holds a type off must not hold it off for ever

log = structlog.get_logger()


class Parts:
    """Of one node."""

    def __init__(self, node: Node, life: str) -> None:
        self._node = node
        self._life = life
        self._held_off: dict[tuple[str, str], asyncio.Task[None]] = {}

    def why_silent(self, question: Question) -> str | None:
        """Why the shards that it is about do not answer, if it is that a log does not."""
        refused = self._node.standing.silent(self._shards_of(question))
        return None if refused is None else refused.detail

    def _shards_of(self, question: Question) -> Collection[int]:
        match question:
            case ArmThese(slots=slots) | CancelThese(slots=slots):
                return {self._shard(slot) for slot in slots}
            case FireOne(slot=slot) | GetOne(slot=slot):
                return {self._shard(slot)}
            case ReadPages(shards=shards) | SoonestOf(shards=shards) | CountLive(shards=shards):
                return shards
            case DealWithDead(shards=shards):
                return shards
            case FillIn(views=views):
                return {view.shard for view in views}
        return self._node.held

    def is_here(self, shard: int) -> bool:
        """Whether this node serves it now."""
        return self._node.holds(shard)

    # ---- as another node asks

    async def hear(self, data: bytes) -> bytes:
        """The answer to a question as it came. Raises msgspec.MsgspecError for what is none of ours."""
        asked = read_asked(data)
        answer = (
            OtherVersion()
            if asked.version != VERSION
            else await self._hear(read_question(asked), asked.until_ms, asked.life)
        )
        return encode_answer(self._node.clock.now().boot_ms, answer)

    async def _hear(self, question: Question, until_ms: int, life: str) -> Answer:
        left_ms = until_ms - self._node.clock.now().boot_ms
        if life != self._life or (left_ms <= 0 and not isinstance(question, Hello)):
            return Late()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_S) as limit:

                def look() -> None:
                    if self.why_silent(question) is not None:
                        limit.reschedule(loop.time())  # who asks is to hear of it before waiting is over

                looking = loop.call_later(max(left_ms - TELL_MS, left_ms // 2) / 1000, look)
                try:
                    return await self.answer(question, left_ms)
                finally:
                    looking.cancel()
        except TimeoutError:
            return Unsure(self.why_silent(question) or "it was not answered in time")

    # ---- as anybody asks

    async def answer(self, question: Question, left_ms: int) -> Answer:
        """What it asks for may begin within `left_ms`."""
        expires_at = self._node.clock.now().wall_ms + left_ms
        match question:
            case ArmThese():
                return await self._arm(question, expires_at)
            case CancelThese():
                return await self._cancel(question, expires_at)
            case FireOne():
                return await self._fire(question, expires_at)
            case GetOne(id, slot):
                if absent := self._absent([self._shard(slot)]):
                    return absent
                view = await self._node.get(id)
                if isinstance(view, Refused):
                    return Absent([self._shard(slot)])
                return self._absent([self._shard(slot)]) or Got(view)  # else a payload that lies apart may be missing
            case ReadPages():
                return await self._pages(question)
            case SoonestOf(shards, type, count):
                return await self._soonest(shards, type, count)
            case FillIn(views, as_they_were):
                theirs = {view.shard for view in views}
                if absent := self._absent(theirs):
                    return absent
                filled = await self._node.reading.with_bodies(views, as_they_were=as_they_were)
                return self._absent(theirs) or Filled(filled)  # one that has gone meanwhile has given no payload
            case CountAll():
                tally = await self._node.tally()
                here = [shard for shard in tally.shards if self.is_here(shard.shard)]
                return Counted(msgspec.structs.replace(tally, shards=here))
            case CountLive(shards, type):
                number = await self._node.live(type)
                return self._absent(shards) or Number(number)  # asked behind it: it counts what is here all the time
            case HoldOff(type, by, for_ms):
                return await self._hold_off(type, by, for_ms)
            case DealWithDead():
                return await self._deal_with_dead(question, expires_at)
            case Hello():
                return Done()

    # ---- writes

    async def _arm(self, asked: ArmThese, expires_at: int) -> Answer:
        timers, slots, conditions = asked.timers, asked.slots, asked.conditions
        shards = self._node.table.shards
        away = {shard for shard in {shards[slot] for slot in slots} if not self.is_here(shard)}
        if away:
            here = [index for index, slot in enumerate(slots) if shards[slot] not in away]
            timers, slots = [timers[index] for index in here], [slots[index] for index in here]
            conditions = None if conditions is None else [conditions[index] for index in here]
        if not timers:
            return Armed(0, 0, [LEFT_ALONE] * len(asked.timers))
        if not {timer.type for timer in timers} <= self._node.types.keys():
            await self._relearn()
        if refused := self._adopt(timers):
            return Refusal(refused)
        done = await self._node.arm(timers, conditions, True, expires_at, slots)
        if isinstance(done, Refused):
            return Refusal(done)
        results = done.results or []
        if away:
            found = iter(results)
            results = [LEFT_ALONE if shards[slot] in away else next(found) for slot in asked.slots]
        return Armed(done.armed, done.conflicts, results)

    def _adopt(self, timers: Sequence[Timer]) -> Refused | None:
        """Give each the one string of its type's name that the type holds; it was checked elsewhere, by other types
        perhaps."""
        known = self._node.types
        for timer in timers:
            type = known.get(timer.type)
            if type is None:
                return Refused("unknown-type", f"there is no type {timer.type!r}")
            if (type.kind == "callback") != is_request(timer.payload):
                return Refused("overloaded", f"type {type.name} is being changed", retry_after_s=1)
            timer.type = type.name
        return None

    async def _relearn(self) -> None:
        try:
            await self._node.catalogue.refresh()
        except Exception as error:  # of whatever the catalogue is kept in
            log.warning("catalogue_unread", reason=str(error))

    async def _cancel(self, asked: CancelThese, expires_at: int) -> Answer:
        shards = self._node.table.shards
        held = self._node.held
        left = [index for index, slot in enumerate(asked.slots) if shards[slot] not in held]
        apart = set(left)
        ids = asked.ids if not left else [id for index, id in enumerate(asked.ids) if index not in apart]
        done = await self._node.cancel(ids, expires_at)
        if isinstance(done, Refused):
            return Refusal(done)
        return Cancelled(done, left)

    async def _fire(self, asked: FireOne, expires_at: int) -> Answer:
        if absent := self._absent([self._shard(asked.slot)]):
            return absent
        result = await self._node.fire(asked.id, expires_at)
        if isinstance(result, Gone):
            return Unsure()
        return Refusal(result) if isinstance(result, Refused) else Fired(result)

    async def _deal_with_dead(self, asked: DealWithDead, expires_at: int) -> Answer:
        if absent := self._absent(asked.shards):
            return absent
        verb = self._node.purge_dead if asked.purge else self._node.replay_dead
        number = await verb(asked.ids, asked.type, expires_at)
        if isinstance(number, Gone):
            return Unsure()
        return Refusal(number) if isinstance(number, Refused) else Number(number)

    async def _hold_off(self, type: str, by: str, for_ms: int) -> Answer:
        if for_ms <= 0:
            await self._relearn()
        if (holding := self._held_off.pop((type, by), None)) is not None:
            holding.cancel()
        if for_ms > 0:
            if len(self._held_off) >= HELD_OFF_MAX:
                return Refusal(Refused("overloaded", "too many types are being changed", retry_after_s=1))
            closed = self._node.catalogue.closed(type)

            async def hold() -> None:
                with closed:
                    begun.set()
                    await asyncio.sleep(min(for_ms, HOLD_MS_MAX) / 1000)
                self._held_off.pop((type, by), None)

            begun = asyncio.Event()
            self._held_off[type, by] = asyncio.get_running_loop().create_task(hold())
            await begun.wait()
        return Done()

    # ---- reads

    async def _pages(self, asked: ReadPages) -> Answer:
        wanted, after, count = asked.filter, asked.after, asked.count
        if absent := self._absent(asked.shards):
            return absent
        if asked.dead:
            pages = await self._node.ask_all(lambda token: ListDead(wanted.type, after, count, token), asked.shards)
        else:
            pages = await self._node.ask_all(lambda token: List(wanted, after, count, token), asked.shards)
        gone = [shard for shard, page in zip(asked.shards, pages, strict=True) if isinstance(page, Gone)]
        return Absent(gone) if gone else Pages(pages)

    async def _soonest(self, shards: list[int], type: str | None, count: int) -> Answer:
        if absent := self._absent(shards):
            return absent
        found = await self._node.ask_all(lambda token: Next(type, count, token), shards)
        if any(isinstance(views, Gone) for views in found):
            return Absent(shards)
        return Filled(soonest([view for views in found for view in views], count))

    def _shard(self, slot: int) -> int:
        return self._node.table.shards[slot]

    def _absent(self, shards: Collection[int]) -> Absent | None:
        away = [shard for shard in shards if not self.is_here(shard)]
        return Absent(away) if away else None


def soonest(views: list[TimerView], count: int) -> list[TimerView]:
    """The first `count` of these, by when they are due."""
    return sorted(views, key=lambda view: (view.fire_at, view.generation, view.shard))[:count]

"""The node: all shards of one process behind one door, for callers.

A request is checked against the clock (`Timerd-Expires`), and granted log and inbox room, once, as a whole, before any
shard gets its part; a refusal (`Refused`) means that nothing of it was done. Values (ids, times, types) have been
checked by the API. Whatever is answered rests on durable records.

The node knows placement (the ring table) and types; it does not know HTTP, files, or how a timer is decided on.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from timerd.catalogue import Types
from timerd.clock import refused_if_late
from timerd.dead_letters import DeadLetters
from timerd.dispatch import Dispatch
from timerd.engine.message import (
    GONE,
    TIMER_DEAD,
    ArmDone,
    ArmResult,
    CancelResult,
    Close,
    Condition,
    Filter,
    FireNow,
    List,
    ListDead,
    Message,
    Purge,
    Refused,
    Revive,
    SetTypes,
    ShardTally,
    Tally,
    TimerView,
)
from timerd.engine.ring import RingTable, slot_of
from timerd.engine.settings import Settings
from timerd.engine.shard import Shard
from timerd.engine.timer import INLINE_PAYLOAD_BYTES, Timer, TimerType
from timerd.gathering import Gathering, large_payloads, merge_arm, split_arm
from timerd.group import Group
from timerd.holding import Holding
from timerd.inbox import MEMORY_MAX
from timerd.keys import Keys
from timerd.logs import Wanted
from timerd.ports import Catalog, Clock, Deliver, Log
from timerd.reading import Reading
from timerd.report import NodeTally, Scaled, ShardReport, StatusReport
from timerd.rerouting import Rerouting
from timerd.runners import Runners
from timerd.scaling import Scaling
from timerd.standing import Standing
from timerd.tallies import node_tally, shard_reports, status_report
from timerd.turner import Turner
from timerd.virtual_clock import VirtualClock

Views = list[TimerView]

CLOSE_S = 5

log = structlog.get_logger()


class Node:
    """Everything a caller may ask of timerd. Made by `boot.start`."""

    def __init__(
        self,
        settings: Settings,
        groups: Sequence[tuple[Log, Sequence[Shard]]],
        table: RingTable,
        types: Sequence[TimerType],
        keys: Keys,
        catalog: Catalog,
        clock: Clock,
        deliver: Deliver,
        random: Callable[[], float],
    ) -> None:
        """`groups`: logs with their shards. One is a data directory, and what there will ever be; else they come and
        go (`take`, `release`, `on_lost`)."""
        self.settings = settings
        self.clock = clock
        self.keys = keys
        """Who may call. Nothing of the node's own; it holds them for the API, as it does the types."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Never resolves; raises what ended the runner. The process must then end without another word."""
        self.on_lost: Callable[[int, str], None] = lambda shard, why: None
        """Told (shard, why) when a shard of a cluster has ended here without `release`."""
        self.not_yet: Callable[[], str | None] = lambda: None
        """Why a node of a cluster is not ready although nothing is wrong with it."""
        self._started_at = clock.now()
        self._draining = False
        self.catalogue = self._types = Types(catalog, types, self._types_changed)
        self._runners = runners = Runners(clock, table)
        self.standing = Standing(runners, clock)
        self._dispatch = Dispatch(runners, deliver, clock, table, settings, random, self._pause, self._fail)
        runners.on_failed = self._fail
        runners.on_effects = self._dispatch.on_effects
        self._dispatch.shutting.hear(runners)
        runners.on_lost = lambda shard, why: self.on_lost(shard, why)
        for log, shards in groups:
            runners.hold(runners.add(log, shards, sole=len(groups) == 1))
        self.scaling = Scaling(settings, table, runners, catalog, clock, lambda: self._types.known, self._ask_all)
        self.scaling.on_table = self._table_changed
        self._rerouting = Rerouting(runners, lambda: self.scaling.table)
        self.reading = Reading(runners, self._ask_about, self._ask_all)
        self._dead = DeadLetters(runners, self._ask, self._split_ids, self.scaling.at_rest)
        self.confirm = runners.logs.confirm
        self._holding = Holding(settings, runners, self._dispatch, clock, lambda: self.scaling.table, self._greet)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._asking_bytes = 0  # of requests that wait for room in the log

    # ---- life

    async def start(self) -> None:
        """Take turns; return when the first, which says that the shards are owned, is durable. Raises LogFailed."""
        for group in self._runners.groups:
            await group.upkeep.begin()
        self._types_changed(self._types.known)
        self.scaling.tell()
        for group in list(self._runners.groups):
            self._runners.run(group)
        first = asyncio.get_running_loop().create_task(self._ask_all(lambda token: Tally(token)))
        either: list[asyncio.Future[Any]] = [first, self.failed]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            first.cancel()
            self.failed.result()
        keeper = asyncio.get_running_loop().create_task(self.scaling.run())
        keeper.add_done_callback(self._ended)
        self._tasks.add(keeper)

    def turner(self, clock: VirtualClock) -> Turner:
        """What turns `clock`, which the node was made with."""
        return Turner(self._runners, self._dispatch, clock, self.tally, lambda: self._tell_types(self._types.known))

    def drain(self) -> None:
        """Begin no more deliveries; the node is no longer ready."""
        self._draining = self.scaling.stopped = True
        self._dispatch.begin_drain()

    async def stop(self, grace_ms: int) -> bool:
        """Let open deliveries end and be recorded, then close the shards. False: they took longer than allowed."""
        self.drain()
        drained = await self._dispatch.drain(grace_ms)
        try:
            async with asyncio.timeout(max(CLOSE_S, grace_ms / 1000)):  # a log whose servers are away may take for ever
                await self._runners.settle()
                if drained:
                    await self._ask_all(lambda token: Close(token))
        except TimeoutError:
            drained = False
        for task in self._tasks:
            task.cancel()
        await self._dispatch.close()
        await self._runners.close()
        return drained

    # ---- the shards of a cluster that are here

    @property
    def held(self) -> Mapping[int, int]:
        """Shard -> epoch."""
        return self._holding.held

    def holds(self, shard: int) -> bool:
        """Whether a shard is here."""
        return shard in self._runners.shards

    async def take(self, shard: int, log: Log) -> bool:
        """Recover a shard from a log of it alone, and own it. True once that is durable; False: another writer has it.

        The log is the node's from now on, which closes it whatever comes. Raises CorruptLog, LogFailed, and what the
        log raises when it is read.
        """
        return await self._holding.take(shard, log)

    async def release(self, shard: int, grace_ms: int) -> bool:
        """Let a shard go: begin no more deliveries of it, let open ones end and be recorded, and close it.

        False: it was not clean, since that took longer than allowed, or the shard was lost meanwhile.
        """
        return await self._holding.release(shard, grace_ms)

    def set_share(self, mine: int, all: int) -> None:
        """This node holds so many of all shards, and as large a part of each type's limits is its own."""
        self._dispatch.set_share(mine, all)

    def _greet(self, group: Group, shard: int) -> None:
        group.runner.send(shard, SetTypes(self._types.known))
        group.upkeep.greet(shard)

    def unready(self) -> str | None:
        """Why this node should get no requests; None if it should."""
        if self._draining:
            return "stopping"
        if self.failed.done():
            return "the log has failed"
        return self.not_yet() or self._dispatch.stuck(self.clock.now())

    async def refresh(self) -> None:
        """Go by the keys and types that the catalogue has now. Raises what a read of it raises; either is read though
        the other can't be, so that no key that was revoked opens anything for want of a type."""
        ends = await asyncio.gather(self.keys.refresh(), self._types.refresh(), return_exceptions=True)
        for error in ends:
            if isinstance(error, BaseException):
                raise error

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    # ---- timers

    def busy(self) -> Refused | None:
        """Why many timers would be refused, wherever they belong: known before they are read."""
        return self.standing.full(self._runners.shards) if self._runners.is_full() else None

    async def arm(
        self,
        timers: list[Timer],
        conditions: list[Condition] | None,
        want_results: bool,
        expires_at: int | None,
        slots: Sequence[int] | None = None,
    ) -> ArmDone | Refused:
        """Arm checked timers (generation 0), all or none of them; conflicts are results, not refusals."""
        known = self._types.known  # what they were checked against: nothing has been awaited since
        parts = split_arm(self.scaling.table, timers, conditions, slots)
        size = sum(part.bytes for part in parts)
        large = large_payloads(parts) if size > INLINE_PAYLOAD_BYTES else []
        apart = {shard: sum(len(payload) for _, payload in bodies) for shard, bodies in large}
        wanted = [(part.shard, part.bytes, apart.get(part.shard, 0)) for part in parts]
        if refused := await self._full(expires_at, wanted) or self._types.refuse(timers, known):
            return refused
        gathering = Gathering(len(parts), self._place_bodies(large) if large else None)
        for index, part in enumerate(parts):
            self._rerouting.arm(part, gathering.token(index), want_results)
        answers = await gathering.future
        return merge_arm(parts, answers, len(timers))

    async def cancel(self, ids: list[str], expires_at: int | None) -> list[CancelResult] | Refused:
        """Cancel ids; results in their order."""
        if refused := self._expired(expires_at):
            return refused
        parts = self._split_ids(ids)
        if not self._runners.has_room(parts):
            return self.standing.full(parts)
        gathering = Gathering(len(parts))
        for index, (shard, part) in enumerate(parts.items()):
            self._rerouting.cancel(shard, [id for id, _ in part], gathering.token(index))
        answers = await gathering.future
        results: list[CancelResult] = [CancelResult(False)] * len(ids)
        for part, answer in zip(parts.values(), answers, strict=True):
            for (_, index), result in zip(part, answer, strict=True):
                results[index] = result
        return results

    async def fire(self, id: str, expires_at: int | None) -> ArmResult | Refused | None:
        """Re-arm to now; None: not there."""
        shard = self._shard_of(id)
        if refused := await self._full(expires_at, [(shard, len(id) + 64, 0)]):
            return refused
        result = await self._ask_about(id, lambda token: FireNow(id, token))
        if result == TIMER_DEAD:
            return Refused("timer-dead", "the timer is a dead letter; replay it or arm it again")
        answer: ArmResult | None = result
        return answer

    async def get(self, id: str) -> TimerView | Refused | None:
        """One timer, its payload in full."""
        return await self.reading.get(id)

    async def next(self, type: str | None, limit: int) -> Views | Refused:
        """The soonest due timers of the shards that are here."""
        return await self.reading.next(type, limit)

    # ---- types

    @property
    def types(self) -> Mapping[str, TimerType]:
        """The types there are, by name."""
        return self._types.known

    async def put_type(
        self, type: TimerType, keep_secrets: bool, expires_at: int | None
    ) -> tuple[TimerType, bool] | Refused:
        """Put a type; (what stands now, whether it is new)."""
        return self._expired(expires_at) or await self._types.put(type, keep_secrets, partial(self._live, type.name))

    async def set_type_state(self, name: str, state: str, expires_at: int | None) -> TimerType | Refused:
        """Pause or resume."""
        return self._expired(expires_at) or await self._types.set_state(name, state)

    async def delete_type(self, name: str, expires_at: int | None) -> Refused | None:
        """Delete a type that no timer lives of."""
        return self._expired(expires_at) or await self._types.delete(name, partial(self._live, name))

    async def _live(self, type: str) -> int:
        tallies = await self.count()
        counts = [tally.types[type] for tally in tallies if type in tally.types]
        coming = sum(shard.coming(type) for shard in self._runners.shards.values())
        return coming + sum(count.live + count.moved_out - count.moved_in for count in counts)

    def _types_changed(self, types: Mapping[str, TimerType]) -> None:
        self._tell_types(types)
        self._dispatch.set_types(types)

    def _tell_types(self, types: Mapping[str, TimerType]) -> None:
        for shard in list(self._runners.shards):
            self._runners.send(shard, SetTypes(types))

    def _table_changed(self, table: RingTable) -> None:
        self._runners.table = self._dispatch.table = table

    def _pause(self, name: str, reason: str) -> None:
        """A target is gone (410): its type waits until someone resumes it."""
        log.warning("type_paused", type=name, reason=reason)
        task = asyncio.get_running_loop().create_task(self._types.pause_durably(name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- dead letters

    async def list_dead(
        self, type: str | None, page_size: int, page_token: str | None
    ) -> tuple[Views, str | None] | Refused:
        """A page of dead letters."""
        wanted = Filter(type, "dead")
        return await self.reading.pages(
            page_size, page_token, lambda after, count, token: ListDead(type, after, count, token), wanted
        )

    async def replay_dead(self, ids: list[str] | None, type: str | None, expires_at: int | None) -> int | Refused:
        """Let dead letters live again; how many."""
        if refused := await self._full(expires_at, [(shard, 64, 0) for shard in self._runners.shards]):
            return refused
        return await self._dead.each(ids, type, Revive)

    async def purge_dead(self, ids: list[str] | None, type: str | None, expires_at: int | None) -> int | Refused:
        """Forget dead letters; how many."""
        return self._expired(expires_at) or await self._dead.each(ids, type, Purge)

    # ---- what the node says of itself

    @property
    def table(self) -> RingTable:
        """Where ids live."""
        return self.scaling.table

    async def tally(self) -> NodeTally:
        """All counts of one moment: every shard of a log answers in the same turn."""
        return self.tally_of(await self.count())

    def tally_of(self, shards: Sequence[ShardTally]) -> NodeTally:
        """What these have counted, and the rest as it is now."""
        return node_tally(shards, self._types.known, self._dispatch.delivered(), self._runners)

    async def status(self) -> StatusReport:
        """For /v1/status."""
        uptime_s = (self.clock.now().boot_ms - self._started_at.boot_ms) / 1000
        tally = await self.tally()
        return status_report(tally, self.settings, self._runners, uptime_s, self.scaling.table.version)

    async def shards(self) -> list[ShardReport]:
        """For /v1/shards."""
        return shard_reports(await self.count(), self.settings)

    async def scale(self, shards: int, expires_at: int | None) -> Scaled | Refused:
        return self._expired(expires_at) or await self.scaling.scale(shards)

    # ---- the steps that requests are made of

    def _shard_of(self, id: str) -> int:
        return self.scaling.table.shards[slot_of(id)]

    def _split_ids(self, ids: Sequence[str]) -> dict[int, list[tuple[str, int]]]:
        parts: dict[int, list[tuple[str, int]]] = {}
        for index, id in enumerate(ids):
            parts.setdefault(self._shard_of(id), []).append((id, index))
        return parts

    def _expired(self, expires_at: int | None) -> Refused | None:
        return refused_if_late(self.clock.now(), expires_at) if expires_at is not None else None

    async def _full(self, expires_at: int | None, wanted: Wanted) -> Refused | None:
        """Why a whole request is not accepted, which is decided here; None: it has log and inbox room."""
        if refused := self._expired(expires_at):
            return refused
        shards = [shard for shard, _, _ in wanted]
        if not self._runners.has_room(shards) or self._asking_bytes > MEMORY_MAX:
            return self.standing.full(shards)
        self._asking_bytes += (size := sum(bytes for _, bytes, _ in wanted))
        try:
            lacking = await self._runners.logs.grant(wanted)
        finally:
            self._asking_bytes -= size
        if lacking:
            return Refused("storage-full", "the disk has no room for more timers; due timers go on firing")
        # It may have taken time. Room in the log that is not used after all comes back with the next append.
        return self._expired(expires_at) or (None if self._runners.has_room(shards) else self.standing.full(shards))

    def _place_bodies(self, large: Sequence[tuple[int, list[tuple[Timer, bytes]]]]) -> Callable[[], None]:
        """Put large payloads apart. Their segments must stay until what is returned is called: the arm is stepped."""
        by_shard = [(shard, [(timer.id, payload) for timer, payload in bodies]) for shard, bodies in large]
        found, release = self._runners.logs.place(by_shard)
        for (_, bodies), places in zip(large, found, strict=True):
            if places is not None:  # else the arm is answered without being looked at
                for (timer, _), place in zip(bodies, places, strict=True):
                    timer.payload = place
        return release

    async def _ask(self, shard: int, message: Callable[[Any], Message]) -> Any:
        gathering = Gathering(1)
        self._runners.send(shard, message(gathering.token(0)))
        return (await gathering.future)[0]

    async def _ask_about(self, id: str, message: Callable[[Any], Message]) -> Any:
        gathering = Gathering(1)
        self._rerouting.about(id, message, gathering.token(0))
        return (await gathering.future)[0]

    async def count(self, some: Sequence[int] | None = None) -> list[ShardTally]:
        """What shards have counted that are here, and still are when they answer."""
        return [tally for tally in await self._ask_all(lambda token: Tally(token), some) if tally is not GONE]

    async def _ask_all(self, message: Callable[[Any], Message], some: Sequence[int] | None = None) -> Any:
        shards = tuple(self._runners.shards) if some is None else some
        gathering = Gathering(len(shards))
        for index, shard in enumerate(shards):
            self._runners.send(shard, message(gathering.token(index)))
        return await gathering.future

    ask_all, live = _ask_all, _live  # for `parts`, which answers other nodes

    # Last, since its name hides the builtin in annotations behind it.
    async def list(self, filter: Filter, page_size: int, page_token: str | None) -> tuple[Views, str | None] | Refused:
        """A page of timers in the order of (slot, id): stable whatever fires meanwhile."""
        return await self.reading.pages(
            page_size, page_token, lambda after, count, token: List(filter, after, count, token), filter
        )

"""Runners: all shards held by this node, a runner and its upkeep for each log.

A data directory has one log for all shards, and everything goes straight to its runner; when that log fails, so does
the process. In a cluster each shard has a log of its own, so that one whose append stands still holds up no other, and
whose end is the end of that shard here and of nothing else. What is asked of a shard that is not here is answered
`Gone`, at once.

With several runners the dispatcher's alarm is here: one that is in the middle of an append can't be it. So is the look
at the clock, one for all of them, which wakes those that have something to do, and points out the shards whose append
takes long: at first they are not to be asked, then not to be waited for (engine/absent.py).

It knows shards, logs and who waits for them; it does not know why a shard is held, or by whom else.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import structlog

from timerd.bodies import Bodies
from timerd.engine.effect import Effect, Taken
from timerd.engine.errors import LogFailed
from timerd.engine.message import Message, Take
from timerd.engine.now import Now
from timerd.engine.ring import RingTable
from timerd.engine.shard import Shard
from timerd.group import SLOW_MS, STILL_MS, Group
from timerd.logs import Logs
from timerd.ports import Clock, Log, LogUsage
from timerd.runner import SLEEP_MS_MAX, gone
from timerd.upkeep import Upkeep

LOOK_MS: Final = 100  # while an append is under way
CLOSE_S: Final = 5.0

log = structlog.get_logger()


class Runners:
    """Of one node."""

    def __init__(self, clock: Clock, table: RingTable) -> None:
        self.shards: dict[int, Shard] = {}
        """Those that are held."""
        self.on_effects: Callable[[Now, list[Effect]], int | None] = lambda now, effects: None
        """As a runner's, for all of them."""
        self.on_failed: Callable[[BaseException], None] = lambda error: None
        """Told what must end the process."""
        self.on_gone: Callable[[int], None] = lambda shard: None
        """Told of each shard that has ended here, before anybody who waits for it."""
        self.on_lost: Callable[[int, str], None] = lambda shard, why: None
        """Told after it, unless the shard was let go of."""
        self.on_slow: Callable[[int], None] = lambda shard: None
        self.on_still: Callable[[int], None] = lambda shard: None
        self.on_moving: Callable[[int], None] = lambda shard: None
        """What a shard's append has come to: it takes long, very long, has ended."""
        self._clock = clock
        self._table = table
        self._of: dict[int, Group] = {}
        self._groups: list[Group] = []
        self._sole: Group | None = None
        self.logs = Logs(self._of, self._groups, self._failed, self._fenced)
        """What is asked of the logs themselves."""
        self.bodies = Bodies(self._of, self._groups, self._failed)
        """Payloads that lie apart."""
        self._alarm: asyncio.Handle | None = None  # for what the dispatcher wants
        self._watch: asyncio.Handle | None = None  # for the next look
        self._rung = False
        self._closed = False
        self._closing: set[asyncio.Task[None]] = set()
        self._past = Counter[str]()  # what groups counted that have ended
        self._kind = ("quorum", 0, "unknown")  # of the logs

    # ---- which there are

    def add(self, log_port: Log, shards: Sequence[Shard], *, sole: bool = False) -> Group:
        """A log with its shards. They are not held before `hold`. `sole`: there is no other, now or later."""
        group = Group(log_port, shards, self._clock, self._table)
        self._kind = (log_port.durability, log_port.replicas, log_port.sync)
        self._groups.append(group)
        runner, upkeep = group.runner, group.upkeep
        upkeep.fail = partial(self._failed, group)
        runner.on_durable = upkeep.after_turn
        runner.on_fenced = partial(self._fenced, group)
        if sole:
            self._sole = self.logs.sole = self.bodies.sole = group
        else:
            runner.on_effects = partial(self._heard, group)
            runner.looked_after = True
            self._share()
        return group

    def hold(self, group: Group) -> None:
        """Its shards are asked from now on."""
        group.held = True
        for id, shard in group.runner.shards.items():
            self._of[id], self.shards[id] = group, shard
        if group is self._sole:
            group.runner.on_effects = self.on_effects

    def run(self, group: Group) -> None:
        """Begin to take turns."""
        task = group.task = asyncio.get_running_loop().create_task(group.runner.run())
        task.add_done_callback(partial(self._run_ended, group))
        if group is not self._sole and self._watch is None:
            self._watch = asyncio.get_running_loop().call_later(LOOK_MS / 1000, self._look)

    def let_go(self, shard: int) -> Group:
        """The shard is asked for nothing more, from now on; what it has been asked before is done."""
        group = self._of.pop(shard)
        del self.shards[shard]
        assert len(group.runner.shards) == 1, "a shard is let go of with its log"
        group.leaving, group.held = True, False
        return group

    async def end(self, group: Group, why: str) -> None:
        """End a group whose shards are let go of, or were never held."""
        group.leaving = True
        self._end(group, why)
        await self._closed_logs()

    def group_of(self, shard: int) -> Group:
        return self._of[shard]

    @property
    def upkeep(self) -> Upkeep:
        """Of the only log."""
        assert self._sole is not None, "each log of a cluster has its own"
        return self._sole.upkeep

    @property
    def groups(self) -> Sequence[Group]:
        return self._groups

    async def settle(self) -> None:
        """Let upkeep end what is under way, and begin nothing more."""
        await asyncio.gather(*(group.upkeep.settle() for group in self._groups))

    async def close(self) -> None:
        """Take no more turns, and let go of all logs."""
        self._closed = True
        for handle in (self._alarm, self._watch):
            if handle is not None:
                handle.cancel()
        if self._sole is not None:
            if self._sole.task is not None:
                self._sole.task.cancel()
            await self._sole.log.close()
            return
        for group in list(self._groups):
            group.leaving = True
            self._end(group, "the node stops")
        await self._closed_logs()

    def add_shard(self, shard: Shard) -> None:
        """One more of the only log."""
        assert self._sole is not None, "a shard of a cluster comes with its log"
        self._sole.runner.add(shard)
        self._of[shard.id], self.shards[shard.id] = self._sole, shard
        self._sole.upkeep.greet(shard.id)

    @property
    def shares_bodies(self) -> bool:
        """Whether timers may move between shards."""
        return self._sole is not None and self._sole.log.shares_bodies

    # ---- messages

    def send(self, shard: int, message: Message, size: int = 64, timers: int = 1) -> None:
        """As `Runner.send`; a shard that is not here is gone."""
        group = self._of.get(shard)
        if group is None:
            gone(message)
        else:
            group.runner.send(shard, message, size, timers)

    def send_ahead(self, shard: int, message: Message, size: int = 64) -> None:
        """As `Runner.send_ahead`."""
        group = self._of.get(shard)
        if group is None:
            gone(message)
        else:
            group.runner.send_ahead(shard, message, size)

    def hand_out(self, shard: int, take: Take) -> list[Effect]:
        """As `Runner.hand_out`."""
        group = self._of.get(shard)
        return [Taken(take.batch_no, shard, [])] if group is None else group.runner.hand_out(shard, take)

    def has_room(self, shards: Iterable[int]) -> bool:
        """Whether messages for these shards may come in, all together."""
        if self._sole is not None:
            return self._sole.runner.has_room(shards)
        return all(self._of[shard].runner.has_room((shard,)) for shard in shards if shard in self._of)

    def is_full(self) -> bool:
        """Whether no shard has room for more."""
        if self._sole is not None:
            return self._sole.runner.is_full()
        return bool(self._of) and all(group.runner.is_full() for group in self._of.values())

    def ring(self) -> None:
        """Let `on_effects` be called soon."""
        if self._sole is not None:
            self._sole.runner.ring()
        elif not self._rung and not self._closed:
            self._rung = True
            asyncio.get_running_loop().call_soon(self._call)

    def on_quiet(self, told: Callable[[int | None], None]) -> None:
        """Who is told when nothing is left to do now, of the only log."""
        assert self._sole is not None, "a clock that is turned has no cluster"
        self._sole.runner.on_quiet = told

    # ---- sums

    @property
    def turns(self) -> int:
        return self._past["turns"] + sum(group.runner.turns for group in self._groups)

    @property
    def appended_bytes(self) -> int:
        return self._past["appended"] + sum(group.runner.appended_bytes for group in self._groups)

    @property
    def live_bytes(self) -> int:
        return sum(group.upkeep.live_bytes for group in self._groups)

    @property
    def accepted_bytes(self) -> int:
        return self._past["accepted"] + sum(group.upkeep.accepted_bytes for group in self._groups)

    @property
    def copied_bytes(self) -> int:
        return self._past["copied"] + sum(group.upkeep.copied_bytes for group in self._groups)

    def usage(self) -> LogUsage:
        """Of all logs."""
        return LogUsage(*(sum(each) for each in zip((0,) * 6, *(g.log.usage() for g in self._groups), strict=True)))

    @property
    def durability(self) -> str:
        return self._kind[0]

    @property
    def replicas(self) -> int:
        return self._kind[1]

    @property
    def sync(self) -> str:
        return self._kind[2]

    @property
    def table(self) -> RingTable:
        """The ring table that upkeep goes by."""
        return self._table

    @table.setter
    def table(self, table: RingTable) -> None:
        self._table = table
        for group in self._groups:
            group.upkeep.table = table

    # ---- how groups end

    def _run_ended(self, group: Group, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(group, error)

    def _failed(self, group: Group, error: BaseException) -> None:
        """Something of it has failed: if that is its log, its shards end; anything else is a fault of ours."""
        if self._closed or group.ended.done():
            return
        if group is self._sole or not isinstance(error, LogFailed):
            self.on_failed(error)
            return
        group.error = error
        self._end(group, f"its log failed: {error}")

    def _fenced(self, group: Group, shard: int) -> bool:
        """Another writer has a shard. Whether those who wait for it are to be told."""
        if group is self._sole:
            self.on_failed(LogFailed(f"another process has taken shard {shard}"))
            return False
        group.runner.shards.pop(shard, None)
        why = "another process has taken it"
        if not group.runner.shards:
            self._end(group, why)
        elif self._of.get(shard) is group:
            self._drop(shard)
            self.on_lost(shard, why)
        return True

    def _end(self, group: Group, why: str) -> None:
        if group.ended.done():
            return
        group.ended.set_result(why)
        group.held = False
        lost = [shard for shard, of in self._of.items() if of is group]
        for shard in lost:
            self._drop(shard)
        if group in self._groups:
            self._groups.remove(group)
        self._past["turns"] += group.runner.turns
        self._past["appended"] += group.runner.appended_bytes
        self._past["accepted"] += group.upkeep.accepted_bytes
        self._past["copied"] += group.upkeep.copied_bytes
        if group.task is not None:
            group.task.cancel()
        group.runner.end()
        self._close(group)
        self._share()
        if not group.leaving:
            for shard in lost:
                log.warning("shard_lost", shard=shard, reason=why)
                self.on_lost(shard, why)

    def _drop(self, shard: int) -> None:
        del self._of[shard], self.shards[shard]
        self.on_gone(shard)

    def _close(self, group: Group) -> None:
        async def close() -> None:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await group.upkeep.stop()
                    await group.log.close()
            except (TimeoutError, LogFailed) as error:
                log.warning("log_not_closed", reason=str(error) or type(error).__name__)

        task = asyncio.get_running_loop().create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _closed_logs(self) -> None:
        if self._closing:
            await asyncio.wait(list(self._closing))

    def _share(self) -> None:
        """What waits in all inboxes together is bounded."""
        for group in self._groups:
            group.runner.share(max(1, len(self._groups)))

    # ---- the dispatcher's alarm and the look at the clock, with several runners

    def _heard(self, group: Group, now: Now, effects: list[Effect]) -> None:
        if not group.held:
            return  # the dispatcher knows nothing of its shards, or not any more
        if group.slow:
            group.slow = group.still = False
            for shard in group.runner.shards:
                self.on_moving(shard)
        self._tell(now, effects)

    def _tell(self, now: Now, effects: list[Effect]) -> None:
        wants_ms = self.on_effects(now, effects)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if wants_ms is not None and wants_ms < SLEEP_MS_MAX and not self._closed:  # else the next look is soon enough
            self._alarm = asyncio.get_running_loop().call_later(max(1, wants_ms) / 1000, self._call)

    def _call(self) -> None:
        self._rung = False
        if not self._closed:
            try:
                self._tell(self._clock.now(), [])
            except Exception as error:
                self.on_failed(error)

    def _look(self) -> None:
        """See who has something to do, and whose append takes long. What turns want does not put it off."""
        if self._closed:
            return
        try:
            now = self._clock.now()
            appending = [group for group in self._groups if group.runner.appending_since is not None]
            for group in self._groups:
                group.runner.look(now)
                if group.upkeep.has_news():
                    group.runner.ring()
            for group in appending:
                if group.held:  # one that waits to be owned may take seconds
                    self._point_out(group, now)
            self._tell(now, [])
        except Exception as error:
            self.on_failed(error)
            return
        delay_ms = LOOK_MS if appending else SLEEP_MS_MAX
        self._watch = asyncio.get_running_loop().call_later(delay_ms / 1000, self._look)

    def _point_out(self, group: Group, now: Now) -> None:
        assert group.runner.appending_since is not None
        took_ms = now.boot_ms - group.runner.appending_since
        if took_ms > SLOW_MS and not group.slow:
            group.slow = True
            for shard in group.runner.shards:
                self.on_slow(shard)
        if took_ms > STILL_MS and not group.still:
            group.still = True
            for shard in group.runner.shards:
                self.on_still(shard)

"""Ownership: this node holds the shards that the plan gives it, and lets go of the others.

The plan is what should be, and `node.held` is what is; this brings one to the other, shard by shard, and tries again
what did not work. A shard that can't be taken (its log is damaged, its servers are away) is a matter of that shard:
nothing in here ends the process, nor may any exception end the loop.

The first of the members, by name, publishes the next plan when members have come or gone; the others do so if it does
not, each later than the one before it. Two at once do no harm: the servers take one (`Ensemble.publish`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

import structlog

from timerd.engine.errors import CorruptLog
from timerd.engine.plan import Plan, Seat, next_plan
from timerd.foresight import Foresight
from timerd.handing import WARM_MS, Handing
from timerd.ports import Clock, Ensemble, FollowedLog, Log, Member

SETTLE_MS: Final = 500  # who comes may not come alone: several at once are one plan
DEPUTY_MS: Final = 2_000  # of a plan that is not the right one, before the next in line publishes it
READS_AT_ONCE: Final = 32  # each may hold a batch of messages; the wait for a lease that follows holds none
LOOK_S: Final = 0.5
PAUSE_MS: Final = 200  # before a second try, and twice as long each time
PAUSE_MAX_MS: Final = 2_000
DAMAGED_PAUSE_MS: Final = 30_000  # a damaged log is read whole at each try
SURE_MS: Final = 2_000  # between two looks whether a shard that is held is still ours
WARM_PART: Final = 2  # of the grace: the rest is for open deliveries
RENEW_S: Final = 0.5  # while open deliveries of a shard end, its lease must not
TAKING_MS: Final = 30_000  # a node that was ready stays so for so long while it takes what the plan has given it since
PUBLISH_S: Final = 2.0  # who stops waits no longer for servers that may be away

log = structlog.get_logger()


class Holder(Protocol):
    """What it needs of the node."""

    on_lost: Callable[[int, str], None]
    """Told (shard, why) when a shard has ended here without a release."""

    @property
    def held(self) -> Mapping[int, int]:
        """Shard -> epoch."""
        ...

    async def take(self, shard: int, log: Log) -> bool:
        """Recover a shard from its log and own it; False: another writer has it."""
        ...

    @property
    def confirm(self) -> Callable[..., Awaitable[Collection[int]]]:
        """Of these shards, which are not this node's any more: those are lost then. As `logs.Logs.confirm`."""
        ...

    async def release(self, shard: int, grace_ms: int) -> bool:
        """Let open deliveries of it end, close it, let go of it; True: it was clean."""
        ...

    def set_share(self, mine: int, all: int) -> None:
        """It holds so many of all shards."""
        ...


class Trial:
    """What became of the tries to take one shard."""

    def __init__(self) -> None:
        self.pause_ms = PAUSE_MS
        self.again_ms = 0
        """Not before."""
        self.damaged = False


class Ownership:
    """Of one node. `run` it; ends with `stop`."""

    def __init__(
        self,
        ensemble: Ensemble,
        node: Holder,
        open_log: Callable[[int], Awaitable[FollowedLog]],
        shards: Iterable[int],
        clock: Clock,
        grace_ms: int,
    ) -> None:
        """`open_log` gives a log of one shard, not yet replayed, for one try at it."""
        self.displaced = asyncio.Event()
        """Another process has this node's name: this one has to end."""
        self._ensemble = ensemble
        self._node = node
        self._open_log = open_log
        self._shards = sorted(shards)
        self._count = self._shards[-1] + 1
        self._clock = clock
        self._grace_ms = grace_ms
        self._bell = asyncio.Event()
        self._round = asyncio.Event()  # the loop has gone round once more
        self._jobs: dict[int, asyncio.Task[None]] = {}
        self._takes: set[int] = set()
        self._reads: set[int] = set()  # takes that have not come to the end of their log yet
        self._trials: dict[int, Trial] = {}
        self._logs: dict[int, Log] = {}
        self._under: dict[int, int] = {}  # shard held -> the version from which the plan that it was taken by gave it
        self._looks: dict[int, asyncio.Task[None]] = {}
        self._sure_ms: dict[int, int] = {}
        self._share = -1
        self._stopping = False
        self._loop: asyncio.Task[None] | None = None
        self._whole_ms: int | None = None  # when it last held all that it should
        self._wrong_since_ms: int | None = None
        self._seats: list[Seat] = []
        self._came_ms = self._now_ms()  # when members last came, or the plan was another
        self._planned = 0
        self._handing = Handing(ensemble, self._count, self._now_ms)
        self._foresight = Foresight(self._count)
        ensemble.on_change = self._changed
        node.on_lost = self._lost

    # ---- what is asked of it

    def members(self) -> list[Member]:
        """Who is there, this node included."""
        return self._ensemble.members()

    def owner_of(self, shard: int) -> Member | None:
        """Who serves a shard, by the plan or by what is heard of a hand-over; None: nobody who is there."""
        if (holder := self._handing.holder(shard)) is not None:
            return holder
        plan = self._ensemble.plan()
        seat = None if plan is None else plan.owner_of(shard)
        if seat is None:
            return None
        if seat == self._ensemble.me.seat:
            return self._ensemble.me
        return next((member for member in self._ensemble.members() if member.seat == seat), None)

    def not_there(self, shard: int, member: Member) -> None:
        """A member has been asked for a shard, and does not have it."""
        self._handing.not_there(shard, member)

    def is_here(self, shard: int) -> bool:
        """Whether this node serves it, whatever the plan says."""
        return shard in self._node.held

    def seen_at(self, name: str) -> int | None:
        """When a member was heard last, in Unix ms."""
        return self._ensemble.seen_at(name)

    def unready(self) -> str | None:
        """Why this node should get no requests; None if it should.

        One that held all that it should stays ready for a while when the plan gives it more: where a node has died, all
        who are left take some of its shards at once, and each can answer for the others or pass a request on.
        """
        if self._whole_ms is not None and self._now_ms() - self._whole_ms < TAKING_MS and not self._stopping:
            return None
        return self._lacks()

    def _lacks(self) -> str | None:
        """What it should have, and has not. A shard that is damaged does not count."""
        if self._stopping:
            return "it leaves the cluster"
        plan = self._ensemble.plan()
        if plan is None:
            return "there is no plan of the shards yet"
        mine = self._mine(plan)
        if not mine and self._next_plan() != plan:
            return "the plan does not know this node yet"
        waiting = [shard for shard in mine - self._node.held.keys() if not self._trial(shard).damaged]
        return f"{len(waiting)} of its shards are not taken yet" if waiting else None

    # ---- life

    def start(self) -> None:
        """Begin to take and to let go."""
        self._loop = asyncio.get_running_loop().create_task(self._run())

    async def until_ready(self, timeout_s: float) -> None:
        """Return when it holds what it should, or after so long."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.unready() is not None and not self.displaced.is_set():
                    self._round.clear()
                    await self._round.wait()
        except TimeoutError:
            log.warning("not_ready", reason=self.unready())

    async def stop(self, grace_ms: int) -> bool:
        """Give all shards away: this node leaves, and lets go of them by a plan without it. True: all clean."""
        self._stopping = True
        self._bell.set()
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait([self._loop])
        for look in self._looks.values():
            look.cancel()
        takes = [self._jobs[shard] for shard in self._takes]
        for take in takes:
            take.cancel()
        await self._ensemble.leave()  # first: whoever hears of it yet gives it back what the plan has taken from it
        if not self.displaced.is_set():
            try:
                async with asyncio.timeout(PUBLISH_S):
                    await self._publish_without_me()
            except Exception as error:  # then they have to notice
                log.warning("plan_not_published", reason=str(error) or type(error).__name__)
        await asyncio.gather(*takes, return_exceptions=True)
        under_way = list(self._jobs.values())
        released = await asyncio.gather(
            *(self._let_go(shard, grace_ms) for shard in list(self._node.held) if shard not in self._jobs)
        )
        await asyncio.gather(*under_way, return_exceptions=True)
        return all(released)

    async def _publish_without_me(self) -> None:
        me = self._ensemble.me.seat
        while True:
            plan = self._ensemble.plan()
            if plan is None or not plan.shards_of(me):
                return
            others = [member.seat for member in self._ensemble.members() if member.seat != me]
            if await self._ensemble.publish(next_plan(plan, others, self._count)):
                return

    # ---- the loop

    def _changed(self) -> None:
        self._handing.look()
        self._bell.set()

    async def _run(self) -> None:
        while True:
            try:
                self._bell.clear()
                if self._ensemble.displaced:
                    self.displaced.set()
                    self._round.set()
                    return
                await self._plan()
                self._reconcile()
                if self._lacks() is None:
                    self._whole_ms = self._now_ms()
            except Exception as error:
                log.error("ownership_failed", exc_info=error)
            self._round.set()
            await self._wait()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        alarm = loop.call_later(LOOK_S, self._bell.set)
        await self._bell.wait()
        alarm.cancel()

    async def _plan(self) -> None:
        """Publish the next plan, if there should be another, and it is this node's turn to."""
        now_ms = self._now_ms()
        seats = [member.seat for member in self._ensemble.members()]
        if set(seats) - set(self._seats):
            self._came_ms = now_ms
        self._seats = seats
        wanted = self._next_plan()
        plan = self._ensemble.plan()
        if plan is not None and plan.version != self._planned:
            self._came_ms, self._planned = now_ms, plan.version  # who is not in it may be about to leave
            self._trials = {}  # a damaged one too: whoever has come may have begun it anew
            for shard in self._takes:
                self._handing.look_soon(shard)  # it may be given by now
        if wanted is None or wanted == plan:
            self._wrong_since_ms = None
            return
        if self._wrong_since_ms is None:
            self._wrong_since_ms = now_ms
        rank = seats.index(self._ensemble.me.seat)
        if now_ms - self._wrong_since_ms < rank * DEPUTY_MS:
            return
        known = () if plan is None else plan.owners
        comes = any(seat not in known for seat in seats)
        if comes and now_ms - self._came_ms < SETTLE_MS:
            return
        if await self._ensemble.publish(wanted):
            self._handing.look()
            log.info("plan_published", version=wanted.version, members=len(seats))

    def _next_plan(self) -> Plan | None:
        """What the plan should be by who is there; None: that can't be told yet."""
        members = self._ensemble.members()
        if self._ensemble.me not in members or not self._ensemble.is_settled():
            return None
        return next_plan(self._ensemble.plan(), [member.seat for member in members], self._count)

    def _reconcile(self) -> None:
        """Begin what takes this node from what it holds to what it should hold."""
        plan = self._ensemble.plan()
        if plan is None:
            return
        mine, held, now_ms = self._mine(plan), self._node.held, self._now_ms()
        to_take = mine | self._expected(plan, now_ms)
        for shard in list(self._takes):
            if shard not in to_take and shard not in held:
                self._jobs[shard].cancel()
        for shard in self._shards:
            if shard in self._jobs:
                continue
            if shard in held and (shard not in mine or self._under.get(shard) != plan.since_of(shard)):
                # Another's, or it was meanwhile: then what this node knows of it may be old, and is read anew.
                self._begin(shard, self._release(shard))
            elif shard in held:
                self._look_after(shard, now_ms)
            elif shard in to_take and self._may_try(shard, now_ms):
                self._takes.add(shard)
                self._reads.add(shard)
                self._begin(shard, self._take(shard))
        if len(held) != self._share:
            self._share = len(held)
            self._node.set_share(len(held), len(self._shards))

    def _may_try(self, shard: int, now_ms: int) -> bool:
        return len(self._reads) < READS_AT_ONCE and self._trial(shard).again_ms <= now_ms

    def _expected(self, plan: Plan, now_ms: int) -> frozenset[int]:
        """What is another's still, and may soon be ours."""
        if self._stopping or not self._ensemble.is_settled():
            return frozenset()
        members = [member.seat for member in self._ensemble.members()]
        silent = [member.seat for member in self._ensemble.silent()]
        return self._foresight.expected(plan, members, silent, self._ensemble.me.seat, now_ms)

    def _begin(self, shard: int, job: "Awaitable[None]") -> None:
        task = asyncio.ensure_future(job)
        self._jobs[shard] = task

        def ended(task: "asyncio.Future[None]") -> None:
            del self._jobs[shard]
            self._takes.discard(shard)
            self._reads.discard(shard)
            self._bell.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("shard_job_failed", shard=shard, exc_info=error)

        task.add_done_callback(ended)

    async def _take(self, shard: int) -> None:
        """One try. What it comes to is in the shard's trial."""
        trial = self._trial(shard)
        try:
            # By what is known first: who was frozen must not take back what was given to another meanwhile.
            if not await self._ensemble.refresh():
                self._again(trial, PAUSE_MAX_MS)
                return
            plan = self._ensemble.plan()
            if plan is None or shard not in self._mine(plan) | self._expected(plan, self._now_ms()):
                return
            opened = await self._open_log(shard)
            opened.is_wanted = lambda: self._is_given(shard)
            self._handing.follow(shard, opened, lambda: self._reads.discard(shard))
            if await self._node.take(shard, opened):
                self._logs[shard] = opened
                self._trials.pop(shard, None)
                return
            log.warning("shard_not_taken", shard=shard, reason="another process has taken it")
            self._again(trial, PAUSE_MAX_MS)
        except CorruptLog as error:
            trial.damaged = True
            log.critical("shard_damaged", shard=shard, reason=str(error))
            self._again(trial, DAMAGED_PAUSE_MS)
        except Exception as error:
            log.warning("shard_not_taken", shard=shard, reason=f"{type(error).__name__}: {error}")
            self._again(trial, PAUSE_MAX_MS)
        finally:
            self._handing.followed(shard)

    def _is_given(self, shard: int) -> bool:
        """Whether the plan gives it to this node, and from which plan on. To be asked before the shard's log is owned:
        any plan that is heard of later, and has had it with another in between, is one more reason to read it anew."""
        plan = self._ensemble.plan()
        if plan is None or shard not in self._mine(plan):
            return False
        self._under[shard] = plan.since_of(shard)
        return True

    def _again(self, trial: Trial, most_ms: int) -> None:
        pause_ms = most_ms if trial.damaged else trial.pause_ms
        trial.again_ms = self._now_ms() + pause_ms
        trial.pause_ms = min(most_ms, 2 * trial.pause_ms)

    def _look_after(self, shard: int, now_ms: int) -> None:
        """See now and then that it is still ours."""
        if shard not in self._looks and now_ms - self._sure_ms.get(shard, 0) >= SURE_MS:
            self._sure_ms[shard] = now_ms
            task = self._looks[shard] = asyncio.ensure_future(self._make_sure(shard))
            task.add_done_callback(lambda _: self._looks.pop(shard, None))

    async def _make_sure(self, shard: int) -> None:
        """Whoever was taken for dead, and has nothing to store or to deliver, hears of it in no other way."""
        opened = self._logs.get(shard)
        try:
            if opened is not None and not await opened.is_current():
                await self._node.confirm([shard])
        except Exception as error:
            log.warning("shard_not_looked_after", shard=shard, reason=f"{type(error).__name__}: {error}")

    async def _release(self, shard: int) -> None:
        await self._let_go(shard, self._grace_ms)

    async def _let_go(self, shard: int, grace_ms: int) -> bool:
        """Release a shard, once the next owner is warm. Its lease is kept alive meanwhile: that one is waiting for it
        to run out."""
        opened = self._logs.pop(shard, None)
        began_ms = self._now_ms()
        renewing = None if opened is None else asyncio.ensure_future(self._renew(shard, opened))
        try:
            if not self.displaced.is_set():
                most_ms = min(WARM_MS, grace_ms // WARM_PART)
                await self._handing.until_warm(shard, lambda: shard in self._node.held, most_ms)
            clean = await self._node.release(shard, max(0, grace_ms - (self._now_ms() - began_ms)))
        except Exception as error:
            log.warning("shard_not_released", shard=shard, reason=f"{type(error).__name__}: {error}")
            clean = False
        finally:
            if renewing is not None:
                renewing.cancel()
        await self._handing.gone(shard)
        return clean

    async def _renew(self, shard: int, opened: Log) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await opened.confirm()
            except Exception as error:  # the log has ended, and with it the release
                log.info("shard_not_renewed", shard=shard, reason=str(error))
                return

    def _lost(self, shard: int, why: str) -> None:
        log.error("shard_not_served", shard=shard, reason=why)
        self._logs.pop(shard, None)
        self._again(self._trial(shard), PAUSE_MAX_MS)
        self._bell.set()

    # ----

    def _mine(self, plan: Plan) -> set[int]:
        return set() if self._stopping else set(plan.shards_of(self._ensemble.me.seat)).intersection(self._shards)

    def _trial(self, shard: int) -> Trial:
        return self._trials.setdefault(shard, Trial())

    def _now_ms(self) -> int:
        return self._clock.now().boot_ms

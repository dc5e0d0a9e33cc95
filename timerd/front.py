"""The front: one service made of all nodes, at whichever of them a request comes in.

It implements what the API asks for (`Service`) over `Spread`: a request is split by the owners of its shards, each
owner is asked once, and the answers are put together. What one node can't know alone (lists, counts, whether a type
lives) is asked of all. Types and keys are the catalogue's, which every node reads.

A whole request is refused only while nothing of it was stored; after that the items of an owner that refused, or is
away, are unavailable, and the others stand. Everything ends within `PATIENCE_MS`, whoever is away.
"""

import asyncio
import builtins
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar

from msgspec import structs

from timerd.asking import Asker, Unanswered
from timerd.browsing import Browse
from timerd.clock import refused_if_late
from timerd.engine.errors import UnreadableCatalog
from timerd.engine.message import (
    ArmDone,
    ArmResult,
    CancelResult,
    Condition,
    Filter,
    Refused,
    TimerView,
)
from timerd.engine.ring import RingTable, slot_of, slots_of
from timerd.engine.timer import Timer, TimerType
from timerd.keys import Keys
from timerd.merging import merged
from timerd.node import Node
from timerd.parts import HOLD_MS_MAX, Parts
from timerd.ports import Clock, Ensemble, Link, Member, Peers
from timerd.questions import (
    NOT_HERE,
    UNAVAILABLE,
    Armed,
    ArmThese,
    Cancelled,
    CancelThese,
    CountAll,
    Counted,
    CountLive,
    DealWithDead,
    Fired,
    FireOne,
    HoldOff,
    Number,
)
from timerd.report import NodeReport, NodeTally, RingReport, Scaled, ShardReport, StatusReport, Vitals
from timerd.spreading import LONG_MS, MOMENT_MS, PATIENCE_MS, Away, Fellows, Spread, unavailable
from timerd.tallies import oldest_due, shard_report, timers_by_state
from timerd.vitals import OwnCounts, vitals

Views = builtins.list[TimerView]
T = TypeVar("T")

NOT_STORED: Final = ArmResult(UNAVAILABLE, 0, 0)
NOT_CANCELLED: Final = CancelResult(False, unavailable=True)


class Front:
    """Of one node of a cluster."""

    def __init__(
        self,
        node: Node,
        me: Member,
        parts: Parts,
        peers: Peers,
        fellows: Fellows,
        beyond: tuple[type[Exception], ...] = (),
    ) -> None:
        """`beyond`: what the catalogue raises when it can't be reached."""
        self._node = node
        self._me = me
        self._fellows = fellows
        self._spread = Spread(Asker(me, parts, peers, node.clock), fellows, lambda: self.table.shards, node.clock)
        self._browse = Browse(self._spread, lambda: self.table)
        self._counts = OwnCounts(node)
        self._beyond = beyond
        self.ensemble: Ensemble | None = None
        """What `vitals` are told by."""
        self._learning = asyncio.Lock()
        self._reads = 0  # of the catalogue, begun for types that were not known
        self._told: dict[str, set[Member]] = {}  # type that is held off -> by whom
        node.catalogue.shared = True
        node.catalogue.elsewhere = self._held_off
        node.keys.patience_s = PATIENCE_MS / 1000

    @property
    def types(self) -> Mapping[str, TimerType]:
        """The types there are, as far as this node has heard."""
        return self._node.types

    @property
    def keys(self) -> Keys:
        """Who may call."""
        return self._node.keys

    @property
    def clock(self) -> Clock:
        return self._node.clock

    @property
    def table(self) -> RingTable:
        """Where ids live."""
        return self._node.table

    # ---- timers

    def busy(self) -> Refused | None:
        """Why many timers would be refused here, wherever they belong."""
        return self._node.busy()

    async def arm(
        self,
        timers: builtins.list[Timer],
        conditions: builtins.list[Condition] | None,
        want_results: bool,
        expires_at: int | None,
    ) -> ArmDone | Refused:
        """Arm checked timers; those whose owner can't be had are unavailable, unless nothing at all was stored."""
        if refused := self._expired(expires_at):
            return refused
        slots = slots_of([timer.id for timer in timers])
        results: builtins.list[ArmResult] = [NOT_STORED] * len(timers)
        armed = conflicts = stored = 0

        def question(numbers: Sequence[int]) -> ArmThese:
            if len(numbers) == len(timers):
                return ArmThese(timers, slots, conditions)
            given = None if conditions is None else [conditions[number] for number in numbers]
            return ArmThese([timers[number] for number in numbers], [slots[number] for number in numbers], given)

        def take(numbers: Sequence[int], answer: Armed) -> builtins.list[int]:
            nonlocal armed, conflicts, stored
            armed += answer.armed
            conflicts += answer.conflicts
            again = []
            for number, result in zip(numbers, answer.results, strict=True):
                if result.status == NOT_HERE:
                    again.append(number)
                elif result.status != UNAVAILABLE:
                    results[number] = result
                    stored += 1
            return again

        left = await self._spread.write(slots, expires_at, question, take)
        if stored == len(timers):
            return ArmDone(armed, conflicts, results if want_results else None)
        if not stored and left.refusals and not left.unsure:
            return left.refusals[0]
        away = [number for number, result in enumerate(results) if result is NOT_STORED]
        why = left.refusals[0].detail if left.refusals else left.why
        return ArmDone(armed, conflicts, results, away, why)

    async def cancel(self, ids: builtins.list[str], expires_at: int | None) -> builtins.list[CancelResult] | Refused:
        """Cancel ids; those whose owner can't be had are `unavailable`, unless nothing at all was cancelled."""
        if refused := self._expired(expires_at):
            return refused
        slots = slots_of(ids)
        results: builtins.list[CancelResult] = [NOT_CANCELLED] * len(ids)

        def question(numbers: Sequence[int]) -> CancelThese:
            return CancelThese([ids[number] for number in numbers], [slots[number] for number in numbers])

        def take(numbers: Sequence[int], answer: Cancelled) -> builtins.list[int]:
            left = [numbers[index] for index in answer.left]
            apart = set(left)
            for number, result in zip((n for n in numbers if n not in apart), answer.results, strict=True):
                results[number] = NOT_CANCELLED if result.unavailable else result
            return left

        # What was cancelled and is asked for again would be said not to be there, so that is left to the caller.
        left = await self._spread.write(slots, expires_at, question, take)
        if left.refusals and not left.unsure and all(result.unavailable for result in results):
            return left.refusals[0]
        return results

    async def fire(self, id: str, expires_at: int | None) -> ArmResult | Refused | None:
        """Re-arm to now; None: not there."""
        if refused := self._expired(expires_at):
            return refused
        slot = slot_of(id)
        answer = await self._spread.one(self.table.shards[slot], FireOne(id, slot), write=True, expires_at=expires_at)
        if isinstance(answer, Refused):
            return answer
        assert isinstance(answer, Fired)
        return answer.result

    async def get(self, id: str) -> TimerView | Refused | None:
        """One timer, its payload in full."""
        return await self._browse.get(id)

    async def next(self, type: str | None, limit: int) -> Views | Refused:
        """The soonest due of the whole service."""

        return await self._bounded(partial(self._browse.soonest, type, limit))

    # ---- types

    async def learn_types(self) -> Refused | None:
        """Read the types again, since one that is not known here may have been put elsewhere a moment ago."""
        asked = self._reads
        async with self._learning:
            if self._reads != asked:
                return None  # a read has begun after we asked
            self._reads += 1
            done = await self._bounded(self._node.catalogue.refresh)
            return done if isinstance(done, Refused) else None

    async def put_type(
        self, type: TimerType, keep_secrets: bool, expires_at: int | None
    ) -> tuple[TimerType, bool] | Refused:
        """Put a type; (what stands now, whether it is new)."""
        put = partial(self._node.catalogue.put, type, keep_secrets, partial(self._live, type.name))
        if refused := self._expired(expires_at):
            return refused
        return await self._bounded(put)

    async def set_type_state(self, name: str, state: str, expires_at: int | None) -> TimerType | Refused:
        """Pause or resume."""
        if refused := self._expired(expires_at):
            return refused
        return await self._bounded(partial(self._node.catalogue.set_state, name, state))

    async def delete_type(self, name: str, expires_at: int | None) -> Refused | None:
        """Delete a type that no timer lives of, on any node."""
        delete = partial(self._node.catalogue.delete, name, partial(self._live, name))
        if refused := self._expired(expires_at):
            return refused
        return await self._bounded(delete)

    async def _live(self, type: str) -> int:
        heard = await self._spread.read(self._all(), lambda mine: CountLive(mine, type))
        if isinstance(heard, Refused):
            raise Away(heard)
        for one in heard:
            if type in self._told and one.member not in self._told[type]:
                raise Away(unavailable(f"node {one.member.name} has just joined"))  # it may take arms of the type
        return sum(one.answer.number for one in heard if isinstance(one.answer, Number))

    @asynccontextmanager
    async def _held_off(self, type: str) -> AsyncIterator[None]:
        """No node takes arms of this type meanwhile."""
        try:
            holding = await self._spread.everyone(HoldOff(type, self._me.life, HOLD_MS_MAX), but_me=True)
            for member, answer in holding.items():
                if isinstance(answer, Unanswered):
                    raise Away(unavailable(f"node {member.name}: {answer.reason}"))
            self._told[type] = {self._me, *holding}
            yield
        finally:
            self._told.pop(type, None)
            await self._spread.everyone(HoldOff(type, self._me.life, 0), but_me=True)

    # ---- dead letters

    async def list_dead(
        self, type: str | None, page_size: int, page_token: str | None
    ) -> tuple[Views, str | None] | Refused:
        """A page of dead letters."""
        return await self._bounded(partial(self._browse.page, True, Filter(type, "dead"), page_size, page_token))

    async def replay_dead(
        self, ids: builtins.list[str] | None, type: str | None, expires_at: int | None
    ) -> int | Refused:
        """Let dead letters live again; how many."""
        return await self._deal_with_dead(False, ids, type, expires_at)

    async def purge_dead(
        self, ids: builtins.list[str] | None, type: str | None, expires_at: int | None
    ) -> int | Refused:
        """Forget dead letters; how many."""
        return await self._deal_with_dead(True, ids, type, expires_at)

    async def _deal_with_dead(
        self, purge: bool, ids: builtins.list[str] | None, type: str | None, expires_at: int | None
    ) -> int | Refused:
        if refused := self._expired(expires_at):
            return refused
        by_shard: dict[int, builtins.list[str]] = {}
        for id in ids or ():
            by_shard.setdefault(self.table.shards[slot_of(id)], []).append(id)

        def question(mine: Sequence[int]) -> DealWithDead:
            theirs = None if ids is None else [id for shard in mine for id in by_shard[shard]]
            return DealWithDead(purge, [*mine], theirs, type)

        shards = self._all() if ids is None else list(by_shard)
        heard = await self._spread.read(shards, question, wait_ms=LONG_MS, write=True, expires_at=expires_at)
        return heard if isinstance(heard, Refused) else sum(one.answer.number for one in heard)

    # ---- what the service says of itself

    async def own_tally(self) -> NodeTally:
        """This node's counts alone: of what was stored, also while nothing can be."""
        return await self._counts.tally()

    def vitals(self) -> Vitals:
        """How this node does."""
        link, plan = (self.ensemble.link(), self.ensemble.plan()) if self.ensemble else (Link(), None)
        return vitals(self._node, link, 0 if plan is None else plan.version, self._spread.forwarded)

    async def tally(self) -> NodeTally | Refused:
        """All counts, unless some shard can't be counted: half of them would be wrong."""
        wanted = set(self._all())
        for attempt in range(2):
            if attempt:
                await asyncio.sleep(MOMENT_MS / 1000)
            answers = (await self._spread.everyone(CountAll())).values()
            tally = merged([answer.tally for answer in answers if isinstance(answer, Counted)], self.types)
            if wanted <= {shard.shard for shard in tally.shards}:
                return tally
        missing = min(wanted - {shard.shard for shard in tally.shards})
        return unavailable(f"shard {missing} is served by nobody just now")

    async def status(self) -> StatusReport | Refused:
        """For /v1/status: this node, and the timers of all."""
        tally = await self.tally()
        if isinstance(tally, Refused):
            return tally
        return structs.replace(
            await self._node.status(),
            timers=timers_by_state(tally),
            oldest_due_at=oldest_due(tally),
            log_live_bytes=tally.log_live_bytes,
            log_disk_bytes=tally.log_disk_bytes,
        )

    async def shards(self) -> builtins.list[ShardReport]:
        """For /v1/shards. A shard that nobody tells of has no owner, and epoch 0."""
        capacity = self._node.settings.shard_capacity
        found: dict[int, ShardReport] = {}
        for member, answer in (await self._spread.everyone(CountAll())).items():
            for tally in answer.tally.shards if isinstance(answer, Counted) else ():
                report = shard_report(tally, member.name, capacity)
                if tally.shard not in found or report.epoch > found[tally.shard].epoch:
                    found[tally.shard] = report
        for shard in self._all():
            if shard not in found:
                found[shard] = ShardReport(shard, "", 0, 0, capacity, 0.0, 0, self.table.shards.count(shard))
        return [found[shard] for shard in sorted(found)]

    async def scale(self, shards: int, expires_at: int | None) -> Scaled | Refused:
        return await self._node.scale(shards, expires_at)

    def unready(self) -> str | None:
        """Why this node should get no requests; None if it should."""
        return self._node.unready()

    def nodes(self) -> builtins.list[NodeReport]:
        """For /v1/nodes."""
        owners = self._owners()
        return [
            NodeReport(
                member.name,
                member.url,
                [shard for shard, owner in owners.items() if owner == member],
                self._fellows.seen_at(member.name),
            )
            for member in self._fellows.members()
        ]

    def ring(self) -> RingReport:
        """For /v1/ring."""
        owners = {shard: (owner.name, owner.url) for shard, owner in self._owners().items()}
        return RingReport(self.table.version, self.table.shards, owners)

    # ---- the steps that requests are made of

    def _all(self) -> tuple[int, ...]:
        return self.table.shard_ids

    def _owners(self) -> dict[int, Member]:
        owners = {shard: self._spread.owner(shard) for shard in self._all()}
        return {shard: owner for shard, owner in owners.items() if owner is not None}

    def _expired(self, expires_at: int | None) -> Refused | None:
        return refused_if_late(self.clock.now(), expires_at)

    async def _bounded(self, work: Callable[[], Awaitable[T]]) -> T | Refused:
        """What comes of it within the patience; a refusal, if not, or if it needs somebody who is away."""
        try:
            async with asyncio.timeout(PATIENCE_MS / 1000):
                return await work()
        except Away as away:
            return away.refused
        except TimeoutError:
            return unavailable("it took too long; what became of it is not known")
        except UnreadableCatalog as error:
            return unavailable(f"the catalogue can't be read: {error}")
        except self._beyond as error:
            return unavailable(f"the catalogue does not answer: {error}")

    # Last, since its name hides the builtin in annotations behind it.
    async def list(self, filter: Filter, page_size: int, page_token: str | None) -> tuple[Views, str | None] | Refused:
        """A page of timers in the order of (slot, id)."""
        return await self._bounded(partial(self._browse.page, False, filter, page_size, page_token))

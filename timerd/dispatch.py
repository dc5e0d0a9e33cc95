"""Dispatch: carries out what the dispatcher decides. Takes and settlements go to the shards, batches to their targets.

It adds what the pure part must not have: the HTTP attempt, bodies read from disk, randomness, signatures.
A delivery is one task; its outcome comes back as an event of the dispatcher and leaves as a message to the shards, so
that there is one way in which anything is ever decided.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from timerd import __version__
from timerd.callbacks import CallbackDeliveries
from timerd.engine.answer import Accepted, Failed, Limits, read_answer
from timerd.engine.backoff import backoff_ms
from timerd.engine.batch import Batch, answer_bytes_max, batch_id, encode_body, plain_headers
from timerd.engine.callback import is_request
from timerd.engine.command import PauseType, Post, SendSettle, SendTake, Sort, TargetTurned
from timerd.engine.condition import Condition, HostsCondition
from timerd.engine.dispatcher import Dispatcher
from timerd.engine.effect import Dropped, Effect, Ready, Settled, Taken
from timerd.engine.message import BodyLost, Message, Settle
from timerd.engine.now import Now
from timerd.engine.ring import RingTable, slot_of
from timerd.engine.settings import Settings
from timerd.engine.share import share_of
from timerd.engine.timer import BodyRef, Timer, TimerType
from timerd.group import STILL_MS
from timerd.lag import LagSamples
from timerd.ports import Clock, Deliver, Request
from timerd.rearms import SETTLE_BYTES, Rearms, settle_bytes
from timerd.references import References, Unresolved, names_any
from timerd.report import LagWindow
from timerd.room import Room
from timerd.runners import Runners
from timerd.shutting import Shutting
from timerd.signing import sign
from timerd.tallies import Delivered
from timerd.targets import hosts_report, target_report
from timerd.troubles import Troubles

TURN_TIMERS: Final = 500  # so mostly one batch between two renewals, of which a turn has up to two
STUCK_MS: Final = 60_000  # batches that could leave and don't for so long are a fault of ours
# While a batch of it was being put together.
REMOVED: Final = Failed("the type was removed", sent=False, retry_after_ms=1_000, ours=True)

log = structlog.get_logger()


class _Prepared(NamedTuple):
    """What can be sent."""

    batch: Batch
    request: Request


class Dispatch:
    """The deliveries of one node."""

    def __init__(
        self,
        runners: Runners,
        deliver: Deliver,
        clock: Clock,
        table: RingTable,
        settings: Settings,
        random: Callable[[], float],
        pause: Callable[[str, str], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.on_drain: Callable[[], None] = lambda: None
        """Told when nothing new begins any more."""
        self._runners = runners
        self._deliver = deliver
        self._clock = clock
        self.table = table
        """The ring table of the moment; who publishes another sets it."""
        self._random = random
        self._pause = pause
        self._fail = fail
        self._limits = Limits(settings.max_payload_bytes, settings.max_horizon_ms, settings.max_retry_after_ms)
        self._dispatcher = Dispatcher(TURN_TIMERS)
        self._types: Mapping[str, TimerType] = {}
        self._lags: dict[str, LagSamples] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._rearms = Rearms(runners.logs, lambda id: self.table.shards[slot_of(id)])
        self.shutting = Shutting(
            self._dispatcher.absent, lambda: self._rearms.look(self._dispatcher.is_open), runners.ring
        )
        """Shards that are not to be asked."""
        self._share = (1, 1)
        self._idle = asyncio.Event()
        self._overdue_since: int | None = None
        self._room = Room()
        self._troubles = Troubles()
        self._references = References()
        self._callbacks = CallbackDeliveries(
            self._dispatcher,
            runners,
            deliver,
            clock,
            self._limits,
            random,
            self._troubles,
            self._lags,
            self._references,
            self._pump,
        )

    # ---- what the runner calls

    def on_effects(self, now: Now, effects: Sequence[Effect]) -> int | None:
        """Tell the dispatcher what has become durable, and do what it wants now. The ms until it wants to go on."""
        self._dispatcher.renew()
        self._hear(now, effects)
        self._pump(now)
        self._troubles.look(now.boot_ms)
        if self._dispatcher.idle():
            self._idle.set()
        self.shutting.look()
        wall, boot = self._dispatcher.wake_at()
        delays = [at - clock for at, clock in ((wall, now.wall_ms), (boot, now.boot_ms)) if at is not None]
        return max(0, min(delays)) if delays else None

    def _hear(self, now: Now, effects: Sequence[Effect]) -> None:
        dispatcher = self._dispatcher
        for effect in effects:
            if isinstance(effect, Ready):
                dispatcher.ready(effect)
            elif isinstance(effect, Taken):
                dispatcher.taken(effect)
            elif isinstance(effect, Settled):
                dispatcher.settled(effect)
                if effect.buried:
                    self._troubles.buried(now.boot_ms, effect.type, effect.buried)
                self._rearms.settled(effect.batch_no, dispatcher.is_open)
            elif isinstance(effect, Dropped):
                self._troubles.dropped(now.boot_ms, effect.type, effect.timers)

    def set_types(self, types: Mapping[str, TimerType]) -> None:
        """Types have changed."""
        for name, type in types.items():
            old = self._types.get(name)
            if (old is None or old.signing_secrets != type.signing_secrets) and names_any(type):
                self._start(self._check_secrets(type))
        self._references.keep(types.values())
        self._types = self._callbacks.types = types
        self._tell_types()

    def set_share(self, mine: int, all: int) -> None:
        """This node has so many of all shards, and as large a part of each type's limits."""
        self._share = mine, all
        self._tell_types()

    def _tell_types(self) -> None:
        mine, all = self._share
        self._dispatcher.set_types({name: share_of(type, mine, all) for name, type in self._types.items()})
        self._runners.ring()

    def hurry(self, hurried: bool) -> None:
        """Whether batches leave without waiting for more."""
        self._dispatcher.hurry(hurried)
        self._runners.ring()

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return self._dispatcher.idle()

    def begin_drain(self) -> None:
        """Begin nothing new."""
        self.on_drain()
        self._dispatcher.drain()
        self._runners.ring()

    async def drain(self, grace_ms: int) -> bool:
        """Wait until everything under way is durable. False: it took longer than allowed."""
        self._idle.clear()
        self._runners.ring()
        try:
            await asyncio.wait_for(self._idle.wait(), grace_ms / 1000)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Break off what is still open, and let go of connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._troubles.end()
        self._references.close()
        await self._deliver.close()

    def delivered(self) -> dict[str, Delivered]:
        """What is counted here, by type."""
        now = self._clock.now()
        conditions = self._dispatcher.conditions(now.boot_ms)
        found = {}
        for name, stats in self._dispatcher.stats().items():
            lags, how = self._lags.get(name), conditions.get(name)
            found[name] = Delivered(
                stats.batches,
                stats.batch_timers,
                stats.unnamed,
                stats.coalesced,
                "open" if how is not None and how.is_down else "closed",
                lags.report(now.boot_ms // 1000) if lags else LagWindow(),
                target_report(now, how) if isinstance(how, Condition) else None,
                hosts_report(now, how) if isinstance(how, HostsCondition) else None,
            )
        return found

    def stuck(self, now: Now) -> str | None:
        """What has been due for long and is not delivered although nothing stands in its way."""
        late = self._dispatcher.overdue(now)
        if late is None:
            self._overdue_since = None
        elif self._overdue_since is None:
            self._overdue_since = now.boot_ms
        elif now.boot_ms - self._overdue_since > STUCK_MS:
            return f"timers of type {late} are due and nothing is delivered"
        return None

    # ---- one batch

    def _pump(self, now: Now) -> None:
        sizes: dict[int, int] = {}  # by batch: all its shards get the same settlement
        while commands := self._dispatcher.commands(now):
            for command in commands:
                match command:
                    case SendTake(shard, take):
                        self._hear(now, self._runners.hand_out(shard, take))
                    case SendSettle(shard, settle):
                        if not isinstance(settle, Settle):
                            self._runners.send_ahead(shard, settle, 64 + SETTLE_BYTES * len(settle.fired))
                            continue
                        if settle.batch_no not in sizes:
                            sizes[settle.batch_no] = settle_bytes(settle.results)
                        self._runners.send_ahead(shard, settle, sizes[settle.batch_no])
                    case Post(batch):
                        self._start(self._attempt(batch))
                    case Sort(batch):
                        self._start(self._sort(batch))
                    case PauseType(name, reason):
                        self._pause(name, reason)
                    case TargetTurned():
                        self._troubles.turned(now.boot_ms, command)
        if self._dispatcher.has_more:
            self._runners.ring()  # there may be no message to a shard that would bring the next turn

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Nothing a target does raises here: this is a fault of ours, and what was delivered has no known outcome.
            self._fail(error)

    async def _sort(self, batch: Batch) -> None:
        for type, timer, request in await self._callbacks.sort(batch):
            self._start(self._callbacks.send(type, batch, timer, request))

    async def _attempt(self, batch: Batch) -> None:
        if (known := self._types.get(batch.type)) is not None:
            await self._references.resolve(known)  # a disk that hangs is waited for before there is room
        apart = [timer for timer in batch.timers if timer.payload.__class__ is BodyRef]
        if not apart:
            await self._exchange(await self._prepare(batch, None))
            return
        size = sum([timer.payload.length for timer in apart if isinstance(timer.payload, BodyRef)])
        await self._room.enter(batch.type, size)
        try:
            await self._exchange(await self._prepare(*await self._with_bodies(batch, apart)))
        finally:
            self._room.leave(batch.type, size)

    async def _prepare(self, batch: Batch, bodies: dict[str, bytes] | None) -> _Prepared | None:
        """The request of a batch. None: it is not to be sent, and the dispatcher knows."""
        known = self._types.get(batch.type)
        type = None if known is None else await self._references.resolve(known)
        known = self._types.get(batch.type)
        if known is None or known.kind != "processor" or type is None:
            # It may have gone, or changed kind, while payloads and secrets were read.
            self._dispatcher.answered(self._clock.now(), batch.batch_no, REMOVED, self._random())
            self._runners.ring()
            return None
        if isinstance(type, Unresolved):
            self._hold(known, batch, type)
            return None
        if unsure := self._runners.logs.unconfirmed(self._dispatcher.shards_of(batch.batch_no)):
            batch = await self._confirm(batch, unsure)
            if self._types.get(batch.type) is not known:
                return await self._prepare(batch, bodies)
        batch = self._without_left(batch)
        request = build_request(type, batch, self._clock.now(), bodies) if batch.timers else None
        # A request's first byte is in no ASCII, so most batches need no closer look.
        if request is not None and not request.body.isascii() and (misfits := _requests(batch, bodies)):
            return await self._prepare(await self._without(batch, misfits, "it holds a request and no payload"), bodies)
        if request is None:
            self._dispatcher.emptied(batch.batch_no)
            self._runners.ring()
            return None
        return _Prepared(batch, request)

    async def _exchange(self, prepared: _Prepared | None) -> None:
        """Send it, and let what comes of it be judged."""
        if prepared is None:
            return
        batch, request = prepared
        now = self._clock.now()
        if not batch.tried_at:
            self._lags.setdefault(batch.type, LagSamples()).add(now.boot_ms // 1000, now.wall_ms, batch.timers)
        if self._dispatcher.leaves(batch.batch_no):
            self._pump(now)
        answer = await self._deliver.post(request)
        now = self._clock.now()
        outcome = read_answer(
            now,
            {timer.id for timer in batch.timers} if answer.body else (),
            self._limits,
            status=answer.status,
            headers=answer.headers,
            body=answer.body,
            overlong=answer.overlong,
            error=answer.error,
            detail=answer.detail,
        )
        if isinstance(outcome, Accepted):
            self._troubles.taken(now.boot_ms, batch.type)
            outcome = await self._rearms.store(batch, outcome)
            now = self._clock.now()
        else:
            self._troubles.failed(now.boot_ms, batch.type, request.url, outcome.error, len(batch.timers))
        self._dispatcher.answered(now, batch.batch_no, outcome, self._random())
        self._pump(now)

    def _hold(self, type: TimerType, batch: Batch, unresolved: Unresolved) -> None:
        """A secret is missing: the type's trouble, and none of its target's. All of it waits, and nothing counts."""
        now = self._clock.now()
        tries = max((timer.failure.attempts for timer in batch.timers if timer.failure), default=0)
        self._troubles.failed(now.boot_ms, batch.type, type.url, unresolved.error, len(batch.timers))
        pause_ms = backoff_ms(type.retry, tries + 1)
        failed = Failed(unresolved.error, sent=False, retry_after_ms=pause_ms, ours=True)
        self._dispatcher.answered(now, batch.batch_no, failed, self._random())
        self._runners.ring()

    async def _check_secrets(self, type: TimerType) -> None:
        """Say at once what is missing, and not when the first timer is due."""
        if isinstance(found := await self._references.resolve(type), Unresolved):
            log.warning("signing_secret_missing", type=type.name, secret=found.reference, reason=found.reason)

    async def _with_bodies(self, batch: Batch, apart: Sequence[Timer]) -> tuple[Batch, dict[str, bytes]]:
        """Read the payloads that lie apart. Timers whose payload is lost are buried and leave the batch; those of
        shards that stand still are put back."""
        places = [timer.payload for timer in apart if isinstance(timer.payload, BodyRef)]
        try:
            data, _, still = await self._runners.bodies.fetch(places)
        finally:
            self._room.fetched()  # other batches' turns wait for no shard's log
        bodies = {timer.id: body for timer, body in zip(apart, data, strict=True) if body is not None}
        batch = self._without_left(batch, still)
        if len(bodies) == len(apart) or not (lost := _members(batch, apart, bodies)):
            return batch, bodies
        # Who was paused may have lost the shard and not know it: then another has moved these, and none is lost.
        unsure = self._runners.logs.unconfirmed(self._dispatcher.shards_of(batch.batch_no))
        if unsure:
            batch = self._without_left(batch, await self._runners.logs.confirm(unsure))
            lost = _members(batch, apart, bodies)
        return (await self._without(batch, lost, "its payload can't be read") if lost else batch), bodies

    async def _confirm(self, batch: Batch, unsure: Sequence[int]) -> Batch:
        """Make sure that the shards are ours whose timers are about to leave. Those of others, and of shards that are
        not confirmed in time, are put back."""
        while unsure:
            refused = await self._runners.logs.confirm(unsure)
            batch = self._without_left(batch, refused)
            if not refused:
                break
            # The right of the others may have run out while that was waited for.
            unsure = self._runners.logs.unconfirmed(self._dispatcher.shards_of(batch.batch_no))
        return batch

    def _without_left(self, batch: Batch, refused: Collection[int] = ()) -> Batch:
        """Without the timers of shards that are not here any more, or not for sure."""
        left = self._dispatcher.leave_out(batch.batch_no, refused)
        if not left:
            return batch
        gone = {timer.id for timer in left}
        return msgspec.structs.replace(batch, timers=[t for t in batch.timers if t.id not in gone])

    async def _without(self, batch: Batch, lost: Sequence[Timer], why: str) -> Batch:
        """Bury members of a batch that can't be sent; the rest of it, without what a shard that stands still gave."""
        log.error("timers_not_sent", type=batch.type, timers=len(lost), reason=why)
        by_shard: dict[int, list[tuple[str, int]]] = {}
        for timer in lost:
            for shard in self.table.owners_of(slot_of(timer.id)):  # one of them has handed it out
                by_shard.setdefault(shard, []).append((timer.id, timer.generation))
        told: dict[int, asyncio.Future[None]] = {}
        for shard, timers in by_shard.items():
            told[shard] = future = asyncio.get_running_loop().create_future()
            message: Message = BodyLost(batch.batch_no, timers, why, future.set_result)
            self._runners.send_ahead(shard, message)
        timeout = None if self._runners.logs.sole is not None else STILL_MS / 1000
        _, rest = await asyncio.wait(told.values(), timeout=timeout)
        gone = {timer.id for timer in lost}
        batch = msgspec.structs.replace(batch, timers=[t for t in batch.timers if t.id not in gone])
        return self._without_left(batch, [shard for shard, future in told.items() if future in rest])


def _members(batch: Batch, timers: Sequence[Timer], but: Collection[str]) -> list[Timer]:
    """Those of these, but for some, that are in the batch."""
    here = {timer.id for timer in batch.timers}
    return [timer for timer in timers if timer.id in here and timer.id not in but]


def _requests(batch: Batch, bodies: Mapping[str, bytes] | None) -> list[Timer]:
    """Members that carry a callback's request: dead letters of a type that was one of callbacks when they died."""
    return [t for t in batch.timers if is_request(bodies[t.id] if bodies and t.id in bodies else t.payload)]


def build_request(type: TimerType, batch: Batch, now: Now, bodies: Mapping[str, bytes] | None) -> Request:
    """The POST of a batch, signed with all secrets of its type."""
    id = batch_id(batch.timers)
    body = encode_body(batch, id, now.wall_ms, bodies)
    seconds = now.wall_ms // 1000
    headers = plain_headers(id, seconds, __version__, type.headers)
    if type.signing_secrets:
        headers["webhook-signature"] = sign(type.signing_secrets, id, seconds, body)
    return Request(type.url, headers, body, type.request_timeout_ms, answer_bytes_max(batch.timers))

"""A service of dicts: what the API's tests stand on in place of a node. It keeps every promise of `Service`."""

import msgspec

from timerd.engine.message import (
    ArmDone,
    ArmResult,
    CancelResult,
    Condition,
    Filter,
    Refused,
    ShardTally,
    TimerView,
    TypeTally,
)
from timerd.engine.now import Now
from timerd.engine.ring import build_table
from timerd.engine.timer import MAX_GENERATION, Timer, TimerType
from timerd.keys import Keys
from timerd.report import LagWindow, NodeTally, Scaled, ShardReport, StatusReport, TypeReport
from timerd_storage.memory_catalog import MemoryCatalog

NOW_MS = 1_796_025_600_000  # 2026-11-30T08:00:00Z


class FakeClock:
    def __init__(self) -> None:
        self.wall_us = NOW_MS * 1000 + 250  # a quarter of a millisecond past, so that rounding shows
        self.waited_ms = 0  # boot time that went by while the wall clock stood

    def now(self) -> Now:
        return Now(self.wall_us, self.wall_us // 1000 + self.waited_ms)


class FakeService:
    def __init__(self) -> None:
        self.types: dict[str, TimerType] = {"poll": TimerType("poll", url="http://127.0.0.1:9000/poll")}
        self.clock = FakeClock()
        self.catalog = MemoryCatalog()
        self.keys = Keys([], self.catalog, self.clock)
        self.table = build_table(range(4))
        self.timers: dict[str, Timer] = {}
        self.in_flight: set[str] = set()
        self.dead: dict[str, Timer] = {}
        self.refusal: Refused | None = None
        self.busy_with: Refused | None = None
        self.failure: Exception | None = None
        self.reason: str | None = None
        self.last = 0
        self.asked: list[tuple[object, ...]] = []

    def _refused(self, expires_at: int | None) -> Refused | None:
        if self.failure is not None:
            raise self.failure
        if expires_at is not None and self.clock.now().wall_ms > expires_at:
            return Refused("expired", "the request has expired")
        return self.refusal

    def _generation(self) -> int:
        self.last = max(self.last + 1, self.clock.wall_us)
        assert self.last < MAX_GENERATION
        return self.last

    def busy(self) -> Refused | None:
        return self.busy_with

    async def arm(
        self, timers: list[Timer], conditions: list[Condition] | None, want_results: bool, expires_at: int | None
    ) -> ArmDone | Refused:
        self.asked.append(("arm", timers, conditions, want_results, expires_at))
        if refusal := self._refused(expires_at):
            return refusal
        results = []
        for timer, condition in zip(timers, conditions or [Condition()] * len(timers), strict=True):
            assert type(timer.fire_at) is int
            assert timer.generation == 0
            assert timer.payload is None or type(timer.payload) is bytes
            old = self.timers.get(timer.id)
            current = old.generation if old else 0
            if condition.if_generation is not None and condition.if_generation != current:
                results.append(ArmResult("conflict", current, old.fire_at if old else 0))
            elif old and condition.mode == "keep":
                results.append(ArmResult("kept", current, old.fire_at))
            elif old and (old.type, old.fire_at, old.payload) == (timer.type, timer.fire_at, timer.payload):
                results.append(ArmResult("unchanged", current, old.fire_at))
            else:
                self.timers[timer.id] = msgspec.structs.replace(timer, generation=self._generation())
                generation = self.timers[timer.id].generation
                status = "moved" if old else "created"
                results.append(ArmResult(status, generation, timer.fire_at, old.fire_at if old else None))
        armed = sum(r.status in ("created", "moved") for r in results)
        conflicts = sum(r.status == "conflict" for r in results)
        return ArmDone(armed, conflicts, results if want_results else None)

    async def cancel(self, ids: list[str], expires_at: int | None) -> list[CancelResult] | Refused:
        self.asked.append(("cancel", ids, expires_at))
        if refusal := self._refused(expires_at):
            return refusal
        results = []
        for id in ids:
            old = self.timers.pop(id, None)
            results.append(
                CancelResult(True, id in self.in_flight, old.generation) if old is not None else CancelResult(False)
            )
        return results

    async def fire(self, id: str, expires_at: int | None) -> ArmResult | Refused | None:
        self.asked.append(("fire", id, expires_at))
        if refusal := self._refused(expires_at):
            return refusal
        if id in self.dead:
            return Refused("timer-dead", "the timer is dead")
        old = self.timers.get(id)
        if old is None:
            return None
        if id in self.in_flight:
            return ArmResult("unchanged", old.generation, old.fire_at)
        now_ms, generation = self.clock.now().wall_ms, self._generation()
        self.timers[id] = msgspec.structs.replace(old, fire_at=now_ms, generation=generation)
        return ArmResult("moved", generation, now_ms, old.fire_at)

    def _view(self, timer: Timer) -> TimerView:
        return TimerView(
            timer.id, timer.type, "in_flight" if timer.id in self.in_flight else "armed", timer.fire_at,
            timer.generation, 0, timer.generation // 1000, timer.generation // 1000, 3, timer.payload,
        )  # fmt: skip

    async def get(self, id: str) -> TimerView | None:
        if self.failure is not None:
            raise self.failure
        return self._view(self.timers[id]) if id in self.timers else None

    async def next(self, type: str | None, limit: int) -> list[TimerView]:
        self.asked.append(("next", type, limit))
        return [self._view(t) for t in sorted(self.timers.values()) if type in (None, t.type)][:limit]

    async def put_type(
        self, type: TimerType, keep_secrets: bool, expires_at: int | None
    ) -> tuple[TimerType, bool] | Refused:
        self.asked.append(("put_type", type, keep_secrets, expires_at))
        if refusal := self._refused(expires_at):
            return refusal
        old = self.types.get(type.name)
        if old is not None and keep_secrets:
            type = msgspec.structs.replace(type, signing_secrets=old.signing_secrets)
        self.types[type.name] = type
        return type, old is None

    async def delete_type(self, name: str, expires_at: int | None) -> Refused | None:
        if refusal := self._refused(expires_at):
            return refusal
        if name not in self.types:
            return Refused("type-not-found", f"there is no type {name!r}")
        if any(t.type == name for t in self.timers.values()):
            return Refused("type-in-use", "timers of it are live")
        del self.types[name]
        return None

    async def set_type_state(self, name: str, state: str, expires_at: int | None) -> TimerType | Refused:
        if refusal := self._refused(expires_at):
            return refusal
        if name not in self.types:
            return Refused("type-not-found", f"there is no type {name!r}")
        self.types[name] = msgspec.structs.replace(self.types[name], state=state)
        return self.types[name]

    async def list_dead(
        self, type: str | None, page_size: int, page_token: str | None
    ) -> tuple[list[TimerView], str | None] | Refused:
        self.asked.append(("list_dead", type, page_size, page_token))
        if self.refusal:
            return self.refusal
        views = [
            msgspec.structs.replace(self._view(t), state="dead", attempt=4, last_error="500", died_at=NOW_MS)
            for t in self.dead.values()
        ]
        return views[:page_size], "more" if len(views) > page_size else None

    async def replay_dead(self, ids: list[str] | None, type: str | None, expires_at: int | None) -> int | Refused:
        self.asked.append(("replay", ids, type, expires_at))
        return self._refused(expires_at) or len(self.dead)

    async def purge_dead(self, ids: list[str] | None, type: str | None, expires_at: int | None) -> int | Refused:
        self.asked.append(("purge", ids, type, expires_at))
        return self._refused(expires_at) or len(self.dead)

    async def tally(self) -> NodeTally:
        shard = ShardTally(0, 1, {"poll": TypeTally(9, 1, 3, 1, 1, 1, 1, 2, 4, {"misfire": 1}, 3, 1, 1, 0, 0)}, NOW_MS)
        report = TypeReport(
            armed=9, revived=1, fired=3, cancelled=1, replaced=1, dead=1, purged=1, superseded=2, retried=4,
            dropped={"misfire": 1}, live=3, in_flight=1, retrying=1, batches=2, batch_timers=7,
            lag=LagWindow(1.5, 20.0, 40.0),
        )  # fmt: skip
        return NodeTally([shard], {"poll": report}, 1_000, 4_096, 12, 3_000, 900, 450)

    async def status(self) -> StatusReport:
        counts = {"armed": 3, "due": 0, "in_flight": 1, "retrying": 1, "dead": 0}
        return StatusReport("0.1.0", "fsync", 1, "always", 12.5, "here", counts, NOW_MS, 1_000, 4_096, 1)

    async def shards(self) -> list[ShardReport]:
        return [ShardReport(0, "here", 1, 3, 100_000, 0.00003, 1, 16_384, 0, 12)]

    async def scale(self, shards: int, expires_at: int | None) -> Scaled | Refused:
        self.asked.append(("scale", shards, expires_at))
        return self.refusal or Scaled(shards, 2, True)

    def unready(self) -> str | None:
        return self.reason

    async def list(
        self, filter: Filter, page_size: int, page_token: str | None
    ) -> tuple[list[TimerView], str | None] | Refused:
        self.asked.append(("list", filter, page_size, page_token))
        if self.refusal:
            return self.refusal
        views = [self._view(t) for t in self.timers.values()]
        return views[:page_size], "more" if len(views) > page_size else None

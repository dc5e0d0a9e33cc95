"""One run: a seed, a machine, a node that dies and comes back, its callers and its targets; then health, and the end.

What runs here is what is shipped: API, boot, node, runner, dispatch, upkeep, engine, file log. Replaced are the loop's
time, the clock, the disk's verbs, the thread that calls them, the HTTP attempt and the catalogue's SQLite.

A run has three parts. While clients call, the nemesis does what the swarm has for it. Then everything is healed, and
whatever is due must be delivered within a bounded time. Last, the node is stopped and started once more, and everything
that it shows must be what the ledger has.
"""

import asyncio
import hashlib
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

from tests.sim import knobs
from tests.sim import swarm as swarms
from tests.sim.checker import Checker
from tests.sim.clock import SimClock
from tests.sim.http_target import HttpTargets, NetDeliver
from tests.sim.ledger import Ledger, Violation
from tests.sim.loop import VirtualLoop
from tests.sim.machine import Pace, Process, SimDisk, SimWorker
from tests.sim.network import Network
from tests.sim.target import Targets
from tests.sim.watched_log import WatchedLog
from tests.sim.wire import Wire
from tests.sim.workload import Client, Operator
from timerd import boot
from timerd.engine.errors import LogFailed
from timerd.engine.message import Refused, Slice, TimerView
from timerd.engine.settings import Settings
from timerd.engine.timer import TimerType
from timerd.node import Node
from timerd.ports import Deliver
from timerd_storage.memory_catalog import MemoryCatalog

T = TypeVar("T")

DIRECTORY: Final = Path("/data")
CALL_S: Final = 120.0  # a call that takes longer than this has been forgotten
HEAL_S: Final = 900.0  # by then, with healthy targets, nothing may be left that is due
NEAR_MS: Final = 130_000  # what is due within this of the end is waited for


class Report(NamedTuple):
    """What a run came to."""

    seed: int
    counts: Counter[str]
    seconds: float
    """Virtual ones."""
    worst_late_ms: int
    """Over max_lag, where judged."""
    worst_disk: float
    """Of what promise 9 allows."""
    trace: str
    failure: str | None

    @property
    def counted(self) -> bool:
        """Whether it had enough in it to say something."""
        crashes = self.counts["power cuts"] + self.counts["kills"]
        return self.counts["arms"] + self.counts["rearms"] >= 200 and self.counts["fired"] >= 100 and crashes >= 1


class World:
    """Everything of one run."""

    def __init__(self, seed: int, loop: VirtualLoop, show: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.swarm = swarms.draw(seed)
        self.counts: Counter[str] = Counter()
        self._loop = loop
        self._show = show
        self._hash = hashlib.blake2b(digest_size=8)
        self._random = Random(f"{seed} world")
        self.clock = SimClock(loop)
        self.ledger = Ledger(self.swarm.shards)
        table = knobs.table(range(self.swarm.shards))
        self.checker = Checker(loop, self.clock, self.ledger, table)
        self.checker.dead_kept_all = self.swarm.dead_kept >= 100_000
        self.checker.calm = {name: habits.calm for name, habits in self.swarm.habits.items()}
        self.targets = Targets(self.swarm, Random(f"{seed} targets"), self.clock, self.checker, self._note)
        self._hosts = HttpTargets(loop, self.swarm, self.targets, Random(f"{seed} hosts"), self.clock, self.checker)
        self.network = loop.network = Network(loop, seed, self._hosts, self.swarm.latency_s)
        self._deliver: Deliver = self.targets
        self._disk = SimDisk(self.swarm.disk_bytes)
        self._pace = Pace(self.swarm.usual_s)
        self._catalog = MemoryCatalog()
        self._wire = Wire(self.clock, Random(f"{seed} wire"))
        self._settings = Settings(
            node="sim",
            shards=self.swarm.shards,
            max_retry_after_ms=20_000,
            dead_letters_kept=self.swarm.dead_kept,
        )
        self._node: Node | None = None
        self._log: WatchedLog | None = None
        self._process: Process | None = None
        self._up = asyncio.Event()
        self._calls = 0
        self._finished = False

    # ---- for the workload

    async def ready(self) -> None:
        """Return when there is a node to call."""
        await self._up.wait()

    def node_types(self) -> Mapping[str, TimerType]:
        """The types that may be armed, as the API asks for them."""
        return self._node.types if self._node else {}

    def type_of(self, name: str) -> TimerType:
        """The type as it is, or was at first."""
        known = self.node_types().get(name)
        return known or next(type for type in self.swarm.types if type.name == name)

    async def call(self, ask: Callable[[Wire], Coroutine[Any, Any, T]], nothing: Any = None) -> T | Any:
        """Call the API; `nothing` if the process ends before the answer is there."""
        process = self._process
        if self._node is None or process is None:
            return nothing
        task = process.begin(ask(self._wire))
        self._calls += 1
        try:
            await asyncio.wait([task], timeout=CALL_S)
        finally:
            self._calls -= 1
        if not task.done():
            raise Violation(f"a call has not returned within {CALL_S} s: {task}")
        if task.cancelled() or not process.alive:
            return nothing
        return task.result()

    def refused(self, refusal: Refused) -> None:
        """Count it."""
        self.counts[f"refused {refusal.name}"] += 1

    # ---- the run

    async def run(self) -> None:
        """All of it. Raises what went wrong."""
        tasks = [asyncio.ensure_future(self._supervise()), asyncio.ensure_future(self._play())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        if self._loop.errors:
            raise self._loop.errors[0]

    async def sweep(self) -> None:
        """End whatever is left. Nothing of it counts any more."""
        if self._process is not None:
            self._process.end()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def report(self, failure: str | None) -> Report:
        """What it has come to so far."""
        self.counts.update(self.checker.counts)
        for counts in (self.targets.counts, self._hosts.counts, self.network.counts):
            self.counts.update(counts)
        late, disk = self.checker.worst_late_ms, self.checker.worst_disk
        trace = self._hash.hexdigest()
        return Report(self.seed, self.counts, self._loop.time(), late, disk, trace, failure)

    async def _play(self) -> None:
        for type in self.swarm.types:
            self.checker.typed(type)
            await self._catalog.put_type(type)
        clients = [asyncio.ensure_future(Client(self, n).run()) for n in range(self.swarm.clients)]
        operator = asyncio.ensure_future(Operator(self).run())
        nemesis = asyncio.ensure_future(self._torment())
        await asyncio.gather(*clients, nemesis)
        if operator.done():
            operator.result()
        operator.cancel()
        await self._heal()
        await self._settle()
        await self._audit()
        await self._list_all()
        await self.ready()
        await self._stop()
        if self._random.random() < 0.5:
            self._disk.crash(self._random)
        await self.ready()
        await self._audit()
        await self._list_all()
        self._finished = True

    # ---- life and death

    async def _supervise(self) -> None:
        number = 0
        while not self._finished:
            number += 1
            process = self._process = Process(self._loop, number)
            life = process.begin(self._live(process))
            await process.ended
            await process.buried()
            await self._deliver.close()  # nothing of it reaches the network any more
            if not life.cancelled() and (error := life.exception()) is not None:
                raise error
            await asyncio.sleep(self._random.random() ** 2 * 3)
            if self._random.random() < 0.3 and self.counts["power cuts"] and not self.targets.healthy:
                self._disk.cut_in = self._random.randint(1, 40)  # in the middle of recovery, perhaps

    async def _live(self, process: Process) -> None:
        """One process, until its log fails."""
        try:
            await self._boot(process)
            assert self._node is not None
            await self._node.failed
        except BaseException as error:
            if not self._is_expected(error):
                process.end()
                raise
            self._disk.failed = False
            self._note(f"failed {type(error).__name__}")
            self._end("log failures")

    def _is_expected(self, error: BaseException) -> bool:
        """A disk that fails ends the process; a full one may keep it from starting, and nothing else."""
        starting = self._node is None
        return isinstance(error, LogFailed | OSError) and (self._disk.failed or (starting and self._disk.ballast > 0))

    async def _boot(self, process: Process) -> None:
        on_cut = partial(self._end, "power cuts")
        worker = SimWorker(self._loop, process, Random(f"{self.seed} worker {process.number}"), self._pace, on_cut)
        log = await WatchedLog.open(DIRECTORY, self._disk, worker, self.swarm.segment_bytes)
        assert isinstance(log, WatchedLog)
        log.watch(self.ledger, self.checker)
        random = Random(f"{self.seed} node {process.number}").random
        self._deliver = NetDeliver(self._hosts, self._loop) if self.swarm.network else self.targets
        node = await boot.recover(self._settings, log, self._catalog, self.clock, self._deliver, random)
        shards = list(node._runner.shards.values())
        returned = self.ledger.recovered(shards, log.lsns)
        self.counts["recoveries"] += process.number > 1
        self.counts["frames that came back"] += returned
        self._note(f"up {process.number} {returned}")
        self.checker.started()
        await node.start()
        self._node, self._log = node, log
        self._wire.front.node = node
        self._up.set()

    def _end(self, how: str) -> None:
        """The process is no more, from this instant on."""
        process = self._process
        if process is None or not process.alive:
            return
        self._up.clear()
        self._node = None
        process.end()
        if how == "power cuts":
            self._disk.crash(self._random)
            self.clock.reboot()
        else:
            self._disk.kill()
        self.network.cut_off(silent=how == "power cuts")
        self.counts[how] += 1
        self.checker.crashed()
        self.targets.forget()
        self._note(f"end {how}")

    async def _stop(self) -> None:
        """A clean stop: no new calls, the old ones end, deliveries end, `Closed`."""
        node, process = self._node, self._process
        if node is None or process is None:
            return
        self._up.clear()
        self._node = None
        while self._calls and process.alive:
            await asyncio.sleep(0.05)
        task = process.begin(node.stop(30_000))
        await asyncio.wait([task], timeout=CALL_S)
        if not task.done():
            raise Violation("a stop has not returned")
        if process.alive:
            drained = task.result()
            self._note(f"stopped {drained}")
            if drained:
                self.checker.settled_all()
            self._end("stops")

    # ---- the nemesis

    async def _torment(self) -> None:
        r, swarm = self._random, self.swarm
        span_s = swarm.horizon_ms / 1000 * 1.5
        deeds: list[Callable[[], Awaitable[None]]] = []
        deeds += [self._cut_power] * swarm.power_cuts + [self._kill] * swarm.kills + [self._stop] * swarm.stops
        deeds += [self._step_wall] * swarm.wall_steps + [self._suspend] * swarm.suspends
        deeds += [self._fill_disk] * swarm.disk_full + [self._stall_disk] * swarm.disk_stalls
        deeds += [self._break_disk] * swarm.disk_errors + [self._audit] * 4
        deeds += [self._write_slices] * (10 if swarm.slices else 0)
        deeds += [self._drift] * swarm.drifts
        for name, habits in swarm.habits.items():
            deeds += [partial(self._take_down, name)] * habits.outages
        r.shuffle(deeds)
        moments = sorted(span_s * (0.1 + 0.9 * r.random()) for _ in deeds)
        for moment, deed in zip(moments, deeds, strict=True):
            await asyncio.sleep(max(0.0, moment - self._loop.time()))
            await deed()

    async def _cut_power(self) -> None:
        await self.ready()
        if self._random.random() < 0.3:
            self._end("power cuts")
            return
        before = self.counts["power cuts"]
        self._disk.cut_in = self._random.randint(1, 12)
        await asyncio.sleep(1.0)
        if self.counts["power cuts"] == before:
            self._disk.cut_in = None
            self._end("power cuts")

    async def _kill(self) -> None:
        await self.ready()
        await asyncio.sleep(self._random.random() * self._pace.usual_s * 4)
        self._end("kills")

    async def _step_wall(self) -> None:
        r = self._random
        ms = r.choice([-1, 1]) * r.choice([40, 900, 20_000])
        if r.random() < 0.1:
            ms = 86_400_000
        self.clock.step(ms)
        self.counts["wall steps"] += 1
        self._note(f"step {ms}")
        self.checker.disturb()

    async def _suspend(self) -> None:
        ms = self._random.choice([300, 5_000, 3_600_000])
        self.clock.suspend(ms)
        self.network.slept(ms / 1000)
        self.counts["suspends"] += 1
        self._note(f"suspend {ms}")
        self.checker.disturb()

    async def _drift(self) -> None:
        self.clock.drift(self._random.choice([0.9998, 1.0002]))
        self.checker.disturb()

    async def _fill_disk(self) -> None:
        r = self._random
        self._disk.ballast = self._disk.limit - self._disk.used - r.choice([0, 3_000, 50_000])
        self._catalog.full = r.random() < 0.5
        self.counts["disk full"] += 1
        self._note("disk full")
        self._loop.call_later(r.random() * 6, self._empty_disk)

    def _empty_disk(self) -> None:
        self._disk.ballast = 0
        self._catalog.full = False

    async def _stall_disk(self) -> None:
        self._pace.stall_s = self._random.choice([0.05, 0.5, 2.0])
        self.counts["disk stalls"] += 1
        self._note("disk stalls")
        lasts_s = self._random.random() * 4
        self._excuse(lasts_s + 3.0)
        self._loop.call_later(lasts_s, self._hurry_disk)

    def _hurry_disk(self) -> None:
        self._pace.stall_s = 0.0

    def _excuse(self, lasts_s: float) -> None:
        """Nothing due in this time is judged late."""
        self.checker.excused += 1
        self._loop.call_later(lasts_s, self._judge_again)

    def _judge_again(self) -> None:
        self.checker.excused -= 1
        self.checker.disturb()

    async def _break_disk(self) -> None:
        self._disk.fail_next = self._random.choice(["sync", "sync", "write"])
        await asyncio.sleep(3.0)
        self._disk.fail_next = None
        self.counts["disk errors"] += 1

    async def _take_down(self, name: str) -> None:
        r = self._random
        self.targets.down[name] = r.choice(["refused", "hang", "proxy", "retry-after", "error", "lost"])
        self.counts["outages"] += 1
        self._loop.call_later(0.5 + r.random() * 6, self.targets.down.pop, name, None)

    async def _write_slices(self) -> None:
        """Checkpoint slices at a moment of no meaning."""
        if self._node is not None:
            self._excuse(2.0)  # some hundred jobs of a slow disk
            runner = self._node._runner
            for id in self._random.choices(list(runner.shards), k=self._random.randint(1, 3)):
                runner.send(id, Slice())
                self.counts["slices"] += 1

    # ---- health, and what must be so then

    async def _heal(self) -> None:
        self.targets.healthy = True
        self.targets.down.clear()
        self._empty_disk()
        self._disk.cut_in = self._disk.fail_next = None
        self._note("heal")
        await self.ready()
        for type in self.swarm.types:
            if type.name not in self.node_types():
                self.checker.typed(type)
                await self.call(lambda wire, type=type: wire.put_type(type))
            await self.call(lambda wire, name=type.name: wire.set_type_state(name, "active"))
            self.checker.disturb(type.name)

    async def _settle(self) -> None:
        """Whatever is due must be delivered now."""
        deadline = self._loop.time() + HEAL_S
        while True:
            near = self.clock.wall_ms + NEAR_MS
            waiting = [
                entry
                for account in self.ledger.durable
                for entry in account.entries.values()
                if not entry.dead and entry.version.fire_at <= near
            ]
            if not waiting:
                break
            if self._loop.time() > deadline:
                raise Violation(f"{len(waiting)} timers are due and are not delivered, {waiting[0]}")
            await asyncio.sleep(2.0)
            for name, type in list(self.node_types().items()):
                if type.state == "paused":  # a 410 from before may have been under way
                    await self.call(lambda wire, name=name: wire.set_type_state(name, "active"))
        await asyncio.sleep(1.0)
        self.checker.settled_all()

    async def _audit(self) -> None:
        await self.ready()
        before = self.checker.sums()
        tally = await self.call(lambda wire: wire.front.tally())
        if tally is not None:
            assert self._log is not None
            # A segment grows to hold a frame that is larger than it.
            segment = max(self.swarm.segment_bytes, *(held.size for held in self._log._segments))
            self.checker.tallied(tally, before, segment, judge_disk=not self.swarm.slices)
            self.counts["audits"] += 1
        stats = await self.call(lambda wire: wire.stats())
        self.checker.balanced(stats or {})

    async def _list_all(self) -> None:
        views: list[TimerView] = []
        token = None
        while True:
            page = await self.call(lambda wire, token=token: wire.page(None, 1000, token))
            if page is None:
                raise Violation("a page was not answered")
            views += page[0]
            token = page[1]
            if token is None:
                break
        self.checker.listed_all(views)

    def _note(self, what: str) -> None:
        line = f"{self._loop.time():.6f} {what}\n"
        self._hash.update(line.encode())
        if self._show is not None:
            self._show(line)


def run(seed: int, show: Callable[[str], None] | None = None) -> Report:
    """Run a seed from beginning to end."""
    with knobs.virtual_loop() as loop:
        world = World(seed, loop, show)
        failure: str | None = None
        with knobs.turned(world.swarm, loop):
            try:
                loop.run_until_complete(world.run())
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
                if show is not None:
                    show("".join(traceback.format_exception(error)))
            report = world.report(failure)
            loop.run_until_complete(world.sweep())
        return report

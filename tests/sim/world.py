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
from collections.abc import Callable, Coroutine, Mapping
from contextvars import copy_context
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

from tests.sim import knobs
from tests.sim import swarm as swarms
from tests.sim.account import Violation
from tests.sim.checker import Checker
from tests.sim.clock import SimClock
from tests.sim.http_target import HttpTargets, NetDeliver
from tests.sim.ledger import Ledger
from tests.sim.loop import VirtualLoop
from tests.sim.machine import Pace, Process, SimDisk, SimWorker
from tests.sim.nemesis import Nemesis
from tests.sim.network import Network
from tests.sim.target import Targets
from tests.sim.watched_log import WatchedLog
from tests.sim.wire import Wire
from tests.sim.workload import Client, Operator
from timerd import boot
from timerd.engine.callback import host_of
from timerd.engine.errors import LogFailed
from timerd.engine.message import Refused, TimerView
from timerd.engine.settings import Settings
from timerd.engine.timer import TimerType
from timerd.node import Node
from timerd.ports import Deliver
from timerd_storage.memory_catalog import MemoryCatalog
from timerd_storage.recover import Unreadable

T = TypeVar("T")

DIRECTORY: Final = Path("/data")
CALL_S: Final = 120.0  # a call that takes longer than this has been forgotten
HEAL_S: Final = 900.0  # by then, with healthy targets, nothing may be left that is due
ARMS_MIN: Final = 200  # a run with less in it says too little
FIRES_MIN: Final = 100
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
        enough = self.counts["arms"] >= ARMS_MIN and self.counts["fired"] >= FIRES_MIN
        return enough and crashes >= 1 and len(self.kinds) >= swarms.KINDS_MIN

    @property
    def kinds(self) -> list[str]:
        """The kinds of fault that it has had."""
        return [kind for kind in swarms.FAULTS if self.counts[kind]]


class World:
    """Everything of one run."""

    def __init__(self, seed: int, loop: VirtualLoop, show: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.swarm = swarms.draw(seed)
        self.counts: Counter[str] = Counter()
        self.loop = loop
        self._show = show
        self._hash = hashlib.blake2b(digest_size=8)
        self._random = Random(f"{seed} world")
        self.clock = SimClock(loop)
        self.ledger = Ledger(max(self.swarm.shards, swarms.SHARDS_MAX) if self.swarm.scales else self.swarm.shards)
        self.checker = Checker(loop, self.clock, self.ledger)
        self.checker.scaled = self.swarm.scales > 0
        self.checker.dead_kept_all = self.swarm.dead_kept >= 100_000
        self.checker.calm = {name: habits.calm for name, habits in self.swarm.habits.items()}
        for host in swarms.HOSTS:
            lane = f"{swarms.HOOKS} {host_of(f'http://{host}/')}"
            self.checker.calm[lane] = lane == swarms.CALM
        self.targets = Targets(self.swarm, Random(f"{seed} targets"), self.clock, self.checker, self.note)
        self.hosts = HttpTargets(loop, self.swarm, self.targets, Random(f"{seed} hosts"), self.clock, self.checker)
        self.network = loop.network = Network(loop, seed, self.hosts, self.swarm.latency_s)
        self._deliver: Deliver = self.targets
        self.disk = SimDisk(self.swarm.disk_bytes)
        self.pace = Pace(self.swarm.usual_s)
        self.catalog = MemoryCatalog()
        self._wire = Wire(self.clock, Random(f"{seed} wire"))
        self._settings = Settings(
            node="sim",
            shards=self.swarm.shards,
            max_retry_after_ms=20_000,
            dead_letters_kept=self.swarm.dead_kept,
        )
        self.node: Node | None = None
        self._log: WatchedLog | None = None
        self.process: Process | None = None
        self.nemesis = Nemesis(self)
        self._meddler = Client(self, -1)
        self._meddling: list[asyncio.Task[None]] = []
        self._outside = copy_context()
        self.targets.meddle = self.meddle
        self._up = asyncio.Event()
        self._calls = 0
        self._finished = False

    # ---- for the workload

    async def ready(self) -> None:
        """Return when there is a node to call."""
        await self._up.wait()

    def node_types(self) -> Mapping[str, TimerType]:
        """The types that may be armed, as the API asks for them."""
        return self.node.types if self.node else {}

    def type_of(self, name: str) -> TimerType:
        """The type as it is, or was at first."""
        known = self.node_types().get(name)
        return known or next(type for type in self.swarm.types if type.name == name)

    async def call(self, ask: Callable[[Wire], Coroutine[Any, Any, T]], nothing: Any = None) -> T | Any:
        """Call the API; `nothing` if the process ends before the answer is there."""
        process = self.process
        if self.node is None or process is None:
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

    def begin(self, work: Callable[[Node], Coroutine[Any, Any, Any]]) -> "asyncio.Task[Any] | None":
        """Let the node do something, for as long as it lives; None if there is none."""
        return None if self.node is None or self.process is None else self.process.begin(work(self.node))

    async def put(self, type: TimerType) -> None:
        """Put a type."""
        self.checker.typed(type)
        if await self.call(lambda wire: wire.put_type(type), nothing=False) is None:
            self.checker.type_done(type)
        else:
            self.checker.typed(type)

    def meddle(self, id: str) -> None:
        """A target calls back, before it answers."""
        if self.node is not None:
            self.counts["meddled"] += 1
            # By the world, whoever's task has brought the call here.
            task = self._outside.run(self.loop.create_task, self._meddler.meddle(id))
            self._meddling.append(task)

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
        if self.loop.errors:
            raise self.loop.errors[0]

    async def sweep(self) -> None:
        """End whatever is left. Nothing of it counts any more."""
        if self.process is not None:
            self.process.end()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def report(self, failure: str | None) -> Report:
        """What it has come to so far."""
        self.counts.update(self.checker.counts)
        for counts in (self.targets.counts, self.hosts.counts, self.network.counts):
            self.counts.update(counts)
        self.counts["requests"] = self._wire.requests
        late, disk = self.checker.worst_late_ms, self.checker.worst_disk
        trace = self._hash.hexdigest()
        return Report(self.seed, self.counts, self.loop.time(), late, disk, trace, failure)

    async def _play(self) -> None:
        for type in self.swarm.types:
            self.checker.typed(type)
            await self.catalog.put_type(type)
        clients = [asyncio.ensure_future(Client(self, n).run()) for n in range(self.swarm.clients)]
        operator = asyncio.ensure_future(Operator(self).run())
        nemesis = asyncio.ensure_future(self.nemesis.run())
        await asyncio.gather(*clients, nemesis)
        await asyncio.gather(*self._meddling)
        await self._fill_up()
        if operator.done():
            operator.result()
        operator.cancel()
        await self._heal()
        await self._settle()
        await self._rest()
        await self.audit()
        await self._list_all()
        await self.ready()
        await self.stop()
        if self._random.random() < 0.5:
            self.disk.crash(self._random)
        await self.ready()
        await self.audit()
        await self._list_all()
        await self._rest()
        self._finished = True

    # ---- life and death

    async def _supervise(self) -> None:
        number = 0
        while not self._finished:
            number += 1
            process = self.process = Process(self.loop, number)
            life = process.begin(self._live(process))
            await process.ended
            await process.buried()
            await self._deliver.close()  # nothing of it reaches the network any more
            if not life.cancelled() and (error := life.exception()) is not None:
                raise error
            await asyncio.sleep(self._random.random() ** 2 * 3)
            if self._random.random() < 0.3 and self.counts["power cuts"] and not self.targets.healthy:
                self.disk.cut_in = self._random.randint(1, 40)  # in the middle of recovery, perhaps

    async def _live(self, process: Process) -> None:
        """One process, until its log fails."""
        try:
            await self._boot(process)
            assert self.node is not None
            await self.node.failed
        except BaseException as error:
            if not self._is_expected(error):
                process.end()
                raise
            self.disk.failed = False
            self.note(f"failed {type(error).__name__}")
            self.end("log failures")

    def _is_expected(self, error: BaseException) -> bool:
        """A disk that fails ends the process; a full one may keep it from starting, and nothing else."""
        starting = self.node is None
        failed = isinstance(error, LogFailed | OSError | Unreadable) and self.disk.failed
        return failed or (isinstance(error, LogFailed | OSError) and starting and self.disk.ballast > 0)

    async def _boot(self, process: Process) -> None:
        on_cut = partial(self.end, "power cuts")
        worker = SimWorker(self.loop, process, Random(f"{self.seed} worker {process.number}"), self.pace, on_cut)
        log = await WatchedLog.open(DIRECTORY, self.disk, worker, self.swarm.segment_bytes)
        assert isinstance(log, WatchedLog)
        log.watch(self.ledger, self.checker)
        random = Random(f"{self.seed} node {process.number}").random
        self._deliver = NetDeliver(self.hosts, self.loop) if self.swarm.network else self.targets
        self.checker.starting()
        node = await boot.recover(self._settings, log, self.catalog, self.clock, self._deliver, random)
        shards = list(node._runners.shards.values())
        returned = self.ledger.recovered(shards, log.lsns)
        self.counts["recoveries"] += process.number > 1
        self.counts["frames that came back"] += returned
        self.note(f"up {process.number} {returned}")
        self.checker.started(node.types)
        await node.start()
        self.node, self._log = node, log
        self._wire.front.node = node
        self.disk.starting = False
        self.nemesis.started()
        self._up.set()

    def end(self, how: str) -> None:
        """The process is no more, from this instant on."""
        process = self.process
        if process is None or not process.alive:
            return
        self._up.clear()
        self.node = None
        self.disk.starting = True
        process.end()
        if how == "power cuts":
            self.disk.crash(self._random)
            self.clock.reboot()
        else:
            self.disk.kill()
        self.network.cut_off(silent=how == "power cuts")
        self.counts[how] += 1
        self.checker.crashed()
        self.targets.forget()
        self.note(f"end {how}")

    async def stop(self) -> None:
        """A clean stop: no new calls, the old ones end, deliveries end, `Closed`."""
        node, process = self.node, self.process
        if node is None or process is None:
            return
        self._up.clear()
        self.node = None
        while self._calls and process.alive:
            await asyncio.sleep(0.05)
        task = process.begin(node.stop(30_000))
        await asyncio.wait([task], timeout=CALL_S)
        if not task.done():
            raise Violation("a stop has not returned")
        if process.alive:
            drained = task.result()
            self.note(f"stopped {drained}")
            if drained:
                self.checker.settled_all()
            self.end("stops")

    # ---- health, and what must be so then

    async def _fill_up(self) -> None:
        """A run that has had too little to do, for whatever came between, has some more."""
        late = Client(self, len(self.swarm.habits) + 100)
        for _ in range(60):
            if self.checker.counts["arms"] >= ARMS_MIN and self.checker.counts["fired"] >= FIRES_MIN:
                return
            await self.ready()
            await late.arm()
            await asyncio.sleep(1.0)

    async def _heal(self) -> None:
        self.targets.healthy = True
        self.targets.down.clear()
        self.nemesis.relent()
        self.note("heal")
        await self.ready()
        for type in self.swarm.types:
            if type.name not in self.node_types():
                await self.put(type)
            self.checker.paused.pop(type.name, None)
            self.checker.disturb(type.name)  # what waited while it was paused leaves before the answer comes
            await self.call(lambda wire, name=type.name: wire.set_type_state(name, "active"))
            self.checker.disturb(type.name)

    async def _settle(self) -> None:
        """Whatever is due must be delivered now."""
        deadline = self.loop.time() + HEAL_S
        while True:
            near = self.clock.wall_ms + NEAR_MS
            waiting = [
                entry for entry in self.ledger.entries().values() if not entry.dead and entry.version.fire_at <= near
            ]
            if not waiting:
                break
            if self.loop.time() > deadline:
                raise Violation(f"{len(waiting)} timers are due and are not delivered, {waiting[0]}")
            await asyncio.sleep(2.0)
            for name, type in list(self.node_types().items()):
                if type.state == "paused":  # a 410 from before may have been under way
                    await self.call(lambda wire, name=name: wire.set_type_state(name, "active"))
        await asyncio.sleep(1.0)
        self.checker.settled_all()

    async def _rest(self) -> None:
        """Every slot must get drained, and then each id is on the shard that the table names."""
        if not self.swarm.scales:
            return
        deadline = self.loop.time() + HEAL_S
        while True:
            await self.ready()
            task = self.begin(lambda node: node.scaling.at_rest())
            if task is not None:
                await asyncio.wait([task])
                if not task.cancelled() and task.result():
                    break
            if self.loop.time() > deadline:
                raise Violation("slots are on the move, and do not arrive")
            await asyncio.sleep(1.0)
        self.ledger.at_rest(await self.catalog.ring())
        self.counts["rests"] += 1

    async def audit(self) -> None:
        await self.ready()
        before = self.checker.sums()
        tally = await self.call(lambda wire: wire.front.tally())
        if tally is not None:
            assert self._log is not None
            # A segment grows to hold a frame that is larger than it.
            segment = max(self.swarm.segment_bytes, *(held.size for held in self._log._segments))
            self.checker.tallied(tally, before, segment, judge_disk=not self.swarm.slices)
            self.counts["audits"] += 1
        before = self.checker.sums()
        by_metrics = self._random.random() < 0.5
        shown = await self.call(lambda wire: wire.metrics() if by_metrics else wire.stats())
        if shown is not None:
            self.checker.balanced(shown, before)

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

    def note(self, what: str) -> None:
        line = f"{self.loop.time():.6f} {what}\n"
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

"""The nemesis: what happens to the machine and to targets, at moments and in an order that the seed has drawn."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tests.sim.swarm import HOOKS, SHARDS_MAX
from timerd.engine.message import Slice

if TYPE_CHECKING:
    from tests.sim.world import World


class Nemesis:
    """One for each run."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._random = Random(f"{world.seed} nemesis")
        self._loads = Random(f"{world.seed} loads")
        self._starts = Random(f"{world.seed} starts")

    async def run(self) -> None:
        """Everything that the swarm has, each at its moment."""
        r, world = self._random, self._world
        swarm = world.swarm
        span_s = swarm.horizon_ms / 1000 * 1.5
        deeds: list[Callable[[], Awaitable[None]]] = []
        deeds += [self._cut_power] * swarm.power_cuts + [self._kill] * swarm.kills + [world.stop] * swarm.stops
        deeds += [self._step_wall] * swarm.wall_steps + [self._suspend] * swarm.suspends
        deeds += [self._fill_disk] * swarm.disk_full + [self._stall_disk] * swarm.disk_stalls
        deeds += [self._break_disk] * swarm.disk_errors + [world.audit] * 3
        deeds += [self._break_reads] * swarm.read_errors
        deeds += [self._write_slices] * (6 if swarm.slices else 0)
        deeds += [self._drift] * swarm.drifts
        deeds += [self._scale] * swarm.scales
        for name, habits in swarm.habits.items():
            deeds += [partial(self._take_down, name)] * habits.outages
        r.shuffle(deeds)
        moments = sorted(span_s * (0.1 + 0.9 * r.random()) for _ in deeds)
        for moment, deed in zip(moments, deeds, strict=True):
            await asyncio.sleep(max(0.0, moment - world.loop.time()))
            await deed()

    def relent(self) -> None:
        """Nothing is broken from now on."""
        self._empty_disk()
        disk = self._world.disk
        disk.cut_in = disk.fail_next = None
        disk.bad_bodies = False

    # ---- the process

    async def _cut_power(self) -> None:
        world = self._world
        await world.ready()
        if self._random.random() < 0.3:
            world.end("power cuts")
            return
        before = world.counts["power cuts"]
        world.disk.cut_in = self._random.randint(1, 12)
        await asyncio.sleep(1.0)
        if world.counts["power cuts"] == before:
            world.disk.cut_in = None
            world.end("power cuts")

    async def _kill(self) -> None:
        world = self._world
        await world.ready()
        await asyncio.sleep(self._random.random() * world.pace.usual_s * 4)
        world.end("kills")

    async def _scale(self) -> None:
        """Another number of shards; refused where the last one is not through."""
        world = self._world
        await world.ready()
        shards = self._random.randint(1, SHARDS_MAX)
        task = world.begin(lambda node: node.scale(shards, None))
        world.counts["scales"] += task is not None
        world.note(f"scale {shards}")

    # ---- the clocks

    async def _step_wall(self) -> None:
        r, world = self._random, self._world
        ms = r.choice([-1, 1]) * r.choice([40, 900, 20_000])
        if r.random() < 0.1:
            ms = 86_400_000
        world.clock.step(ms)
        world.counts["wall steps"] += 1
        world.note(f"step {ms}")
        world.checker.disturb()

    async def _suspend(self) -> None:
        world = self._world
        ms = self._random.choice([300, 5_000, 3_600_000])
        world.clock.suspend(ms)
        world.network.slept(ms / 1000)
        world.hosts.slept_at = world.loop.time()
        world.counts["suspends"] += 1
        world.note(f"suspend {ms}")
        world.checker.disturb()

    async def _drift(self) -> None:
        world = self._world
        rate = self._random.choice([0.97, 0.9998, 1.0002, 1.03])
        world.clock.drift(rate)
        world.counts["drifts"] += 1
        world.note(f"drift {rate}")
        world.checker.disturb()

    # ---- the disk

    def started(self) -> None:
        """A process is up, and has little room in hand: others fill the disk before it has made some."""
        for _ in range(3 if self._world.swarm.disk_full else 0):
            self._world.loop.call_later(self._starts.random() ** 3 * 6, self._fill_if_empty)

    def _fill_if_empty(self) -> None:
        if not self._world.disk.ballast and not self._world.targets.healthy:
            self._fill(self._starts, 2)

    async def _fill_disk(self) -> None:
        self._world.catalog.full = self._fill(self._random, 6)

    def _fill(self, r: Random, lasts_s: float) -> bool:
        world = self._world
        world.disk.ballast = world.disk.limit - world.disk.used - r.choice([0, 3_000, 50_000])
        catalog_too = r.random() < 0.5
        world.counts["disk full"] += 1
        world.note("disk full")
        world.loop.call_later(r.random() * lasts_s, self._empty_disk)
        return catalog_too

    def _empty_disk(self) -> None:
        self._world.disk.ballast = 0
        self._world.catalog.full = False

    async def _stall_disk(self) -> None:
        world = self._world
        world.pace.stall_s = self._random.choice([0.05, 0.5, 2.0])
        world.counts["disk stalls"] += 1
        world.note("disk stalls")
        lasts_s = self._random.random() * 4
        self._excuse(lasts_s + 3.0)
        world.loop.call_later(lasts_s, self._hurry_disk)

    def _hurry_disk(self) -> None:
        self._world.pace.stall_s = 0.0

    async def _break_disk(self) -> None:
        """A sync or a write that fails."""
        disk = self._world.disk
        disk.fail_next = self._random.choice(["sync", "sync", "write"])
        await asyncio.sleep(3.0)
        if disk.fail_next is None:
            self._world.counts["disk errors"] += 1
        disk.fail_next = None

    async def _break_reads(self) -> None:
        """Payloads that lie apart can't be read for a while; or the process ends, and its log can't be read at once."""
        r, world = self._random, self._world
        world.counts["read errors"] += 1
        world.note("read errors")
        if r.random() < 0.5:
            world.checker.lost_bodies = True
            world.disk.bad_bodies = True
            lasts_s = r.random() * max(3.0, world.swarm.horizon_ms / 2_000)
            world.loop.call_later(lasts_s, self._mend_bodies)
            return
        await world.ready()
        world.disk.fail_next = "read"
        world.end("kills")
        await asyncio.sleep(2.0)
        if world.disk.fail_next == "read":
            world.disk.fail_next = None

    def _mend_bodies(self) -> None:
        self._world.disk.bad_bodies = False

    async def _write_slices(self) -> None:
        """Checkpoint slices at a moment of no meaning."""
        world = self._world
        if world.node is not None:
            self._excuse(2.0)  # some hundred jobs of a slow disk
            runner = world.node._runners
            for id in self._random.choices(list(runner.shards), k=self._random.randint(1, 3)):
                runner.send(id, Slice())
                world.counts["slices"] += 1

    # ---- the targets

    async def _take_down(self, name: str) -> None:
        r, world = self._random, self._world
        if name == HOOKS and r.random() < 0.7:
            name = f"{HOOKS} http://{r.choice(['a.test:80', 'b.test:80'])}"  # one host of several
        how = r.choice(["refused", "hang", "proxy", "retry-after", "error", "lost"])
        world.targets.down[name] = "busy" if self._loads.random() < 0.2 else how
        world.counts["outages"] += 1
        world.loop.call_later(0.5 + r.random() * 6, world.targets.down.pop, name, None)

    # ---- what is not judged meanwhile

    def _excuse(self, lasts_s: float) -> None:
        """Nothing due in this time is judged late."""
        self._world.checker.excused += 1
        self._world.loop.call_later(lasts_s, self._judge_again)

    def _judge_again(self) -> None:
        self._world.checker.excused -= 1
        self._world.checker.disturb()

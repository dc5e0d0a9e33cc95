"""The nemesis of a cluster: what happens to machines, servers and ways, at moments that the seed has drawn."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tests.sim.cluster.deposing import Deposing
from tests.sim.cluster.loop import RATE_MAX, RATE_MIN

if TYPE_CHECKING:
    from tests.sim.cluster.host import Host
    from tests.sim.cluster.world import World


class Nemesis:
    """One for each run."""

    def __init__(self, world: "World") -> None:
        self.targets_cut_off: set[str] = set()
        self.split: set[frozenset[str]] = set()
        """Pairs of hosts that don't reach each other."""
        self._world = world
        self.deposing = Deposing(world, world.random("deposing"))
        self._random = world.random("nemesis")
        self._stopping: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Everything that the swarm has, each at its moment."""
        r, world = self._random, self._world
        swarm = world.swarm
        deeds: list[Callable[[], Awaitable[None]]] = []
        deeds += [self._kill] * swarm.kills + [self._pause] * swarm.pauses + [self._stop] * swarm.stops
        deeds += (
            [self._cut_off] * swarm.cuts + [self._unhear] * swarm.unheard + [self._cut_off_targets] * swarm.target_cuts
        )
        deeds += [self._split] * swarm.splits + [self._elect] * swarm.elections + [self._strand] * swarm.minorities
        deeds += [self._storm] * swarm.storms + [self._go_away] * swarm.absences + [self._fill] * swarm.full
        deeds += [self._drift] * swarm.drifts + [self._step_wall] * swarm.steps
        deeds += [self._depose] * swarm.depositions
        world.servers.lag_s = swarm.lag_s
        r.shuffle(deeds)
        moments = sorted(swarm.span_s * (0.1 + 0.9 * r.random()) for _ in deeds)
        for moment, deed in zip(moments, deeds, strict=True):
            await asyncio.sleep(max(0.0, moment - world.loop.time()))
            await deed()
        await asyncio.sleep(max(0.0, swarm.span_s - world.loop.time()))

    def relent(self) -> None:
        """Nothing is broken from now on."""
        self.targets_cut_off.clear()
        self.split.clear()
        self.deposing.relent()
        self._world.servers.calm()
        for host in self._world.hosts:
            self._thaw(host)

    # ---- machines

    async def _kill(self) -> None:
        host = self._host()
        host.kill()

    async def _stop(self) -> None:
        """A clean stop, while other things go on."""
        host = self._host()
        self._stopping.append(asyncio.ensure_future(self._stop_it(host)))

    async def _stop_it(self, host: "Host") -> None:
        try:
            await host.stop()
        except Exception as error:
            self._world.fail(error)

    async def _pause(self) -> None:
        """A loop stands still."""
        r, world = self._random, self._world
        host = self._host()
        process = host.process
        if process is None or not process.alive or process.frozen:
            return
        lasts_s = r.choice([0.1, 1.0, 4.0, 8.0, 20.0, 60.0]) * (0.5 + 0.5 * r.random())
        world.note(f"freeze {host.name} {lasts_s:.1f}")
        world.counts["pauses"] += 1
        process.freeze()
        world.loop.call_later(lasts_s, self._thaw, host)

    def _thaw(self, host: "Host") -> None:
        if host.process is not None and host.process.frozen:
            self._world.note(f"thaw {host.name}")
            host.process.thaw()

    async def _drift(self) -> None:
        self._host().drift(self._random.uniform(RATE_MIN, RATE_MAX))
        self._world.counts["drifts"] += 1

    async def _step_wall(self) -> None:
        ms = self._random.choice([-1, 1]) * self._random.choice([40, 900, 20_000])
        self._host().clock.step(ms)
        self._world.counts["wall steps"] += 1

    # ---- ways

    async def _cut_off(self) -> None:
        """A host reaches no server."""
        world, host = self._world, self._host()
        world.servers.cut_off.add(host.name)
        world.note(f"cut off {host.name}")
        world.counts["cut off"] += 1
        world.loop.call_later(self._lasts_s(), self._join, host.name)

    def _join(self, name: str) -> None:
        self._world.note(f"join {name}")
        self._world.servers.join(name)

    async def _unhear(self) -> None:
        """A host is alive and busy, and taken for dead."""
        world, name = self._world, self._host().name
        world.servers.unheard.add(name)
        world.note(f"unheard {name}")
        world.loop.call_later(3.0 + self._lasts_s(), world.servers.unheard.discard, name)

    async def _depose(self) -> None:
        self.deposing.begin(self._host())

    async def _cut_off_targets(self) -> None:
        host = self._host()
        self.targets_cut_off.add(host.name)
        self._world.counts["targets cut off"] += 1
        self._world.loop.call_later(self._lasts_s(), self.targets_cut_off.discard, host.name)

    async def _split(self) -> None:
        """Two hosts don't reach each other; each reaches the servers."""
        if len(self._world.hosts) < 2:
            return
        pair = frozenset(host.name for host in self._random.sample(self._world.hosts, 2))
        self.split.add(pair)
        self._world.counts["splits"] += 1
        self._world.loop.call_later(self._lasts_s(), self.split.discard, pair)

    # ---- servers

    async def _elect(self) -> None:
        names = sorted(self._world.servers.jetstream.streams)
        for name in self._random.sample(names, min(len(names), self._random.choice([1, 2, 100]))):
            self._world.servers.elect(name, self._random.choice([0.2, 2.0, 6.0]) * self._random.random())

    async def _strand(self) -> None:
        """A host's server has lost the others."""
        self._world.servers.strand(self._host().name, self._lasts_s())

    async def _storm(self) -> None:
        r, servers = self._random, self._world.servers
        servers.lose_requests = r.choice([0.0, 0.05, 0.3])
        servers.lose_answers = r.choice([0.0, 0.05, 0.3])
        servers.double = r.choice([0.0, 0.05, 0.3])
        self._world.loop.call_later(self._lasts_s(), self._end_storm)

    def _end_storm(self) -> None:
        servers = self._world.servers
        servers.lose_requests = servers.lose_answers = servers.double = 0.0

    async def _go_away(self) -> None:
        self._world.servers.away = True
        self._world.note("servers away")
        self._world.counts["servers away"] += 1
        self._world.loop.call_later(self._lasts_s(), self._come_back)

    def _come_back(self) -> None:
        if self._world.servers.away:
            self._world.note("servers back")
            self._world.servers.come_back()

    async def _fill(self) -> None:
        self._world.servers.full = True
        self._world.loop.call_later(self._lasts_s(), setattr, self._world.servers, "full", False)

    # ---- draws

    def _host(self) -> "Host":
        """Some machine; more often one that has something."""
        owners = {story.owner for story in self._world.streams.shards}
        busy = [host for host in self._world.hosts if host.process in owners]
        return self._random.choice(busy if busy and self._random.random() < 0.7 else self._world.hosts)

    def _lasts_s(self) -> float:
        return self._random.choice([0.5, 3.0, 8.0, 20.0]) * (0.2 + 0.8 * self._random.random())

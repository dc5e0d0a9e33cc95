"""A machine of the cluster, and the lives of timerd on it: begun, killed, stopped, begun again."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol

from tests.sim.account import Violation
from tests.sim.clock import SimClock
from tests.sim.cluster.loop import NodeProcess, Oscillator
from tests.sim.cluster.swarm import HostSwarm
from tests.sim.cluster.target import Target
from tests.sim.servers import FakeConnection

if TYPE_CHECKING:
    from tests.sim.cluster.world import World

STOP_S: Final = 60.0
"""A clean stop that takes longer than this, with the servers there, has hung."""


class Life(Protocol):
    """Timerd, from its start to its end."""

    service: Any
    """What the API asks."""

    def held(self) -> Mapping[int, int]:
        """The shards that are served here, and their epochs."""
        ...

    async def ended(self) -> str:
        """Why it is over, by itself."""
        ...

    async def stop(self, grace_ms: int) -> None:
        """A clean stop."""
        ...


class Host:
    """One of them."""

    def __init__(self, world: "World", drawn: HostSwarm) -> None:
        self.name = drawn.name
        self.world = world
        self.oscillator = Oscillator(world.loop, drawn.rate)
        self.clock = SimClock(self.oscillator)  # type: ignore[arg-type]
        self.clock.step(drawn.wall_ms)
        self.clock.went_back_at = -1e9
        self.clock.drift(1 / drawn.rate)  # somebody keeps the walls right, as far as they are; nobody boot time
        self.process: NodeProcess | None = None
        self.life: Life | None = None
        """None: it can't be called."""
        self.door: Callable[[bytes], Coroutine[Any, Any, bytes]] | None = None
        """What answers the other nodes."""
        self.connections: list[FakeConnection] = []
        self._random = Random(f"{world.seed} host {drawn.name}")
        self._joins_s = drawn.joins_s
        self._lives = 0

    async def run(self) -> None:
        """Live, and live again. Raises what no life may end with."""
        await asyncio.sleep(self._joins_s)
        self.world.counts["joins"] += self._joins_s > 0
        while True:
            self._lives += 1
            process = self.process = self.world.process(self.oscillator)
            self.world.note(f"begin {self.name} {process.number}")
            life = process.begin(self._live(process))
            await process.ended
            self.life = self.door = None
            for connection in self.connections:
                connection.line.close()
            self.connections.clear()
            self.world.checker.died(process)
            await process.buried()
            if not life.cancelled() and (error := life.exception()) is not None:
                raise error
            await asyncio.sleep(0.05 + self._random.random() ** 2 * 8)

    def connect(self, answer_s: float) -> FakeConnection:
        """A connection of this life."""
        connection = FakeConnection(self.world.servers, self.name, self.process, answer_s)
        self.connections.append(connection)
        return connection

    def target(self, process: NodeProcess) -> Target:
        """What delivers for a life."""
        random = Random(f"{self.world.seed} target {process.number}")
        return Target(self.world, self.name, process, self.clock, random)

    def drift(self, rate: float) -> None:
        """Its boot clock runs at another rate from now on."""
        self.oscillator.drift(rate)
        self.clock.drift(1 / rate)

    def kill(self) -> None:
        """At once."""
        if self.process is not None and self.process.alive:
            self.world.counts["kills"] += 1
            self.end("kill")

    def end(self, how: str) -> None:
        """The process is no more."""
        assert self.process is not None
        self.world.note(f"end {self.name} {how}")
        self.life = None
        self.process.end()

    async def stop(self) -> None:
        """A clean stop; with the servers away it may take as long as they do."""
        life, process = self.life, self.process
        if life is None or process is None or not process.alive:
            return
        self.life = None
        self.world.note(f"stop {self.name}")
        task = process.begin(life.stop(10_000))
        await asyncio.wait([task, process.ended], timeout=STOP_S, return_when=asyncio.FIRST_COMPLETED)
        if not process.alive:
            return
        if not task.done():
            raise Violation(f"a stop of {self.name} has not returned")
        task.result()
        self.world.counts["stops"] += 1
        self.end("stopped")

    async def _live(self, process: NodeProcess) -> None:
        try:
            await self._live_on(process)
        except BaseException:
            process.end()
            raise

    async def _live_on(self, process: NodeProcess) -> None:
        try:
            life = await self.world.begin(self, process)
        except self.world.may_fail as error:
            self.world.note(f"not begun {type(error).__name__} {error}")
            self.world.counts["starts that failed"] += 1
            self.end("not begun")
            return
        self.life = life
        self.world.note(f"up {self.name} {process.number}")
        why = await life.ended()
        self.world.note(f"over {why}")
        self.world.counts["lives ended by themselves"] += 1
        self.end(why)

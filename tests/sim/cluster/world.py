"""One run of a cluster: a seed, some machines, servers between them, callers and processors; then health, and the end.

What runs is what is shipped, from the streams to the service that the API asks. Replaced are the loop's time, the
machines' clocks, the NATS servers under the connection, the network between nodes, and the HTTP attempt.

A run has three parts. While clients call, the nemesis does what the swarm has for it. Then everything is healed, and
within a bounded time each shard has one owner and whatever is due is delivered. Last, all nodes are stopped and started
once more, and everything that they show must be what the streams hold.
"""

import asyncio
import hashlib
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

from tests.sim import knobs, ledger
from tests.sim.account import Violation
from tests.sim.clock import EPOCH_US
from tests.sim.cluster import joined
from tests.sim.cluster import swarm as swarms
from tests.sim.cluster.callers import Client
from tests.sim.cluster.checker import Checker
from tests.sim.cluster.host import Host
from tests.sim.cluster.loop import ClusterLoop, NodeProcess, Oscillator
from tests.sim.cluster.nemesis import Nemesis
from tests.sim.cluster.peers import Lines
from tests.sim.cluster.streams import ShardStory, Streams
from tests.sim.jetstream import Kept
from tests.sim.machine import _PROCESS
from tests.sim.servers import FakeConnection, FakeServers, Line
from timerd.engine.message import Filter, Refused, TimerView
from timerd.front import Front
from timerd_cluster.names import Names

T = TypeVar("T")

ASKED_MAX: Final = 10
HEAL_S: Final = 120.0
"""By then, with everything healthy, nothing may be left that is due."""
NEAR_MS: Final = 60_000
CALL_S: Final = 30.0
"""A caller waits no longer."""
ARMS_MIN: Final = 60
FIRES_MIN: Final = 40


class Report(NamedTuple):
    """What a run came to."""

    seed: int
    counts: Counter[str]
    seconds: float
    trace: str
    failure: str | None

    @property
    def counted(self) -> bool:
        """Whether it had enough in it to say something."""
        enough = self.counts["arms"] >= ARMS_MIN and self.counts["fired"] >= FIRES_MIN
        return enough and self.counts["takes"] >= 2 and len(self.kinds) >= swarms.KINDS_MIN

    @property
    def kinds(self) -> list[str]:
        """The kinds of fault that it has had."""
        return [kind for kind in swarms.FAULTS if self.counts[kind]]


class World:
    """Everything of one run."""

    may_fail = joined.MAY_FAIL

    def __init__(self, seed: int, loop: ClusterLoop, show: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.loop = loop
        self.swarm = swarms.draw(seed)
        self.counts: Counter[str] = Counter()
        self.names = Names("sim")
        self.healthy = False
        self._show = show
        self._hash = hashlib.blake2b(digest_size=8)
        self._numbers = 0
        self._calls: set[asyncio.Task[Any]] = set()
        self._violation: asyncio.Future[None] = loop.create_future()
        self.checker = Checker(knobs.table(range(self.swarm.shards)))
        self.streams = Streams(self.names.prefix, self.swarm.shards, self.checker)
        self.streams.on_owned = self._owned
        self.streams.on_closed = self.checker.closing
        self.checker.streams = self.streams
        self.checker.sure_walls = not self.swarm.steps and max(abs(host.wall_ms) for host in self.swarm.hosts) < 1_000
        self.servers = FakeServers(loop, self.random("servers"), latency_s=self.swarm.latency_s)
        self.servers.jetstream.on_stored = self._stored
        self.servers.on_told = self._told
        self.hosts = [Host(self, drawn) for drawn in self.swarm.hosts]
        self.nemesis = Nemesis(self)
        self._outside = Context()

    # ---- for everybody

    def random(self, name: str) -> Random:
        """A source of its own."""
        return Random(f"{self.seed} {name}")

    @property
    def wall_ms(self) -> int:
        """What a caller's wall shows."""
        return EPOCH_US // 1000 + round(self.loop.true_time() * 1000)

    def process(self, oscillator: Oscillator) -> NodeProcess:
        """A new one."""
        self._numbers += 1
        return NodeProcess(self.loop, self._numbers, oscillator)

    async def begin(self, host: Host, process: NodeProcess) -> Any:
        """Let timerd start."""
        return await joined.begin(self, host, process)

    async def connect(self, servers: Sequence[str], name: str) -> FakeConnection:
        """What a node connects by."""
        host = next(host for host in self.hosts if servers == [f"fake://{host.name}"])
        return host.connect(self.swarm.answer_s)

    def peers(self, secret: str, *tls: Any) -> Lines:
        """How a node that begins asks the others."""
        host = next(host for host in self.hosts if host.process is _PROCESS.get())
        assert host.process is not None
        return Lines(self, host, host.process)

    def later(self, seconds: float, callback: Callable[..., Any], *args: Any) -> None:
        """Call back, whoever lives then."""
        self.loop.call_later(seconds, callback, *args, context=self._outside)

    def targets_cut_off(self, host: str) -> bool:
        """Whether no processor is reached from there."""
        return host in self.nemesis.targets_cut_off

    async def call(self, r: Random, ask: Callable[[Any], Awaitable[Any]], done: Callable[[Any], None]) -> None:
        """Ask some node that is up; `done` is told the answer, unless nobody hears it."""
        cut_off = self.nemesis.deposing.cut_off
        up = [host for host in self.hosts if host.life is not None and host.name not in cut_off]
        if not up:
            self.counts["nobody to call"] += 1
            await asyncio.sleep(0.5)
            return
        host = r.choice(up)
        process, service = host.process, host.life.service  # type: ignore[union-attr]
        assert process is not None

        async def asking() -> Any:
            return await ask(service)

        task = process.begin(asking())
        await asyncio.wait([task], timeout=CALL_S)
        if task.done() and not task.cancelled() and process.alive:
            done(task.result())
        else:
            self.counts["calls that nobody heard of"] += 1

    def refused(self, refusal: Refused) -> None:
        """Count it."""
        self.counts[f"refused {refusal.name}"] += 1

    # ---- what is stored

    def _stored(self, stream: str, kept: Kept, by: Line) -> None:
        try:
            if "-log-" in stream:
                self.note(f"stored {stream} {kept.sequence} {kept.headers['Timerd-Turn']} by {by.by.number}")
            self.streams.stored(stream, kept, by.by)
            self.nemesis.deposing.stored(stream, kept, by.host)
        except Violation as error:
            self.fail(error)

    def _told(self, subject: str, by: NodeProcess) -> None:
        _, word, shard = subject.rsplit(".", 2)
        if word == "gone":
            try:
                self.checker.gone(int(shard), by)
            except Violation as error:
                self.fail(error)

    def _owned(self, story: ShardStory) -> None:
        """Somebody has taken a shard: what it has made of the stream must be what the stream says."""
        self.counts["takes"] += 1
        self.checker.owned(story)
        self.nemesis.deposing.owned(story.shard, story.owner)
        shard = story.owner.shards(story.shard) if story.owner.alive else None
        if shard is not None:
            ledger._compare(story.account, shard, False)
            self.counts["takes compared"] += 1

    def fail(self, error: BaseException) -> None:
        """End the run: a promise is broken."""
        if not self._violation.done():
            self._violation.set_exception(error)

    # ---- the run

    async def run(self) -> None:
        """All of it. Raises what went wrong."""
        hosts = [asyncio.ensure_future(host.run()) for host in self.hosts]
        play = asyncio.ensure_future(self._play())
        await asyncio.wait([*hosts, play, self._violation], return_when=asyncio.FIRST_COMPLETED)
        for task in (self._violation, *hosts, play):
            if task.done():
                task.result()
        if self.loop.errors:
            raise self.loop.errors[0]

    async def sweep(self) -> None:
        """End whatever is left. Nothing of it counts any more."""
        for host in self.hosts:
            if host.process is not None:
                host.process.end()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if self._violation.done():
            self._violation.exception()

    def report(self, failure: str | None) -> Report:
        """What it has come to so far."""
        self.counts.update(self.checker.counts)
        self.counts.update(self.servers.counts)
        return Report(self.seed, self.counts, self.loop.true_time(), self._hash.hexdigest(), failure)

    def note(self, what: str) -> None:
        """A line of the trace."""
        line = f"{self.loop.true_time():.6f} {what}\n"
        self._hash.update(line.encode())
        if self._show is not None:
            self._show(line)

    async def _play(self) -> None:
        clients = [asyncio.ensure_future(Client(self, n).run()) for n in range(self.swarm.clients)]
        await asyncio.gather(*clients, self.nemesis.run())
        self.healthy = True
        self.nemesis.relent()
        self.note("heal")
        await self._settle()
        for host in self.hosts:
            await host.stop()
        await self._settle()
        await self._list_all()

    async def _settle(self) -> None:
        """Whatever is due must be delivered, and each shard has one owner."""
        deadline = self.loop.true_time() + HEAL_S
        while True:
            near = self.wall_ms + NEAR_MS
            waiting = [e for e in self.streams.entries().values() if not e.dead and e.version.fire_at <= near]
            odd = self._odd()
            if not waiting and odd is None:
                return
            if self.loop.true_time() > deadline + NEAR_MS / 1000:
                raise Violation(f"{odd or f'{len(waiting)} timers are due and are not delivered: {waiting[0]}'}")
            await asyncio.sleep(1.0)

    def _odd(self) -> str | None:
        """What is not as it should be when nothing is broken."""
        holders: dict[int, list[tuple[str, int]]] = {}
        for host in self.hosts:
            for shard, epoch in host.life.held().items() if host.life is not None else ():
                holders.setdefault(shard, []).append((host.name, epoch))
        for story in self.streams.shards:
            held = holders.get(story.shard, [])
            if [epoch for _, epoch in held] != [story.epoch] or story.owner is None or not story.owner.alive:
                return f"shard {story.shard} is held by {held}, and its stream has {story.owner}, epoch {story.epoch}"
        return None

    async def _list_all(self) -> None:
        """What any node shows of all."""
        host = self.random("last").choice([host for host in self.hosts if host.life is not None])
        views: list[TimerView] = []
        token: str | None = None
        while True:
            page = await self._asked(host, partial(_page, token))
            views += page[0]
            token = page[1]
            if token is None:
                break
        self.checker.listed_all(views)
        self.checker.balanced([await self._asked(host, lambda service: service.tally())])

    async def _asked(self, host: Host, question: Callable[[Front], Awaitable[T | Refused]]) -> T:
        """As a caller does who comes again: a shard that is handed over just then is away for a moment."""
        assert host.life is not None
        assert host.process is not None
        for _ in range(ASKED_MAX):
            answer: T | Refused = await host.process.begin(_await(question(host.life.service)))
            if not isinstance(answer, Refused):
                return answer
            await asyncio.sleep(1.0)
        raise Violation(f"refused {ASKED_MAX} times: {answer}")


def _page(token: str | None, front: Front) -> Awaitable[tuple[list[TimerView], str | None] | Refused]:
    return front.list(Filter(), 50, token)


async def _await(work: Awaitable[Any]) -> Any:
    return await work


def run(seed: int, show: Callable[[str], None] | None = None) -> Report:
    """Run a seed from beginning to end."""
    with knobs.virtual_loop(ClusterLoop) as loop:
        world = World(seed, loop, show)
        failure: str | None = None
        with knobs.turned_for_cluster(world.swarm, world.connect, world.peers, world.random("writers")):
            try:
                loop.run_until_complete(world.run())
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
                if show is not None:
                    show("".join(traceback.format_exception(error)))
            report = world.report(failure)
            loop.run_until_complete(world.sweep())
        return report

"""The lines between nodes: `timerd.ports.Peers`, in memory, with latency, splits and ends in the middle."""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from tests.sim.cluster.loop import NodeProcess
from timerd.ports import Member, NoReply

if TYPE_CHECKING:
    from tests.sim.cluster.host import Host
    from tests.sim.cluster.world import World


class Lines:
    """Those of one process."""

    def __init__(self, world: "World", host: "Host", process: NodeProcess) -> None:
        self._world = world
        self._host = host
        self._random: Random = world.random(f"lines {process.number}")

    async def ask(self, member: Member, question: bytes, timeout_s: float) -> bytes | NoReply:
        """See the port. A question may arrive and its answer be lost."""
        future: asyncio.Future[bytes | NoReply] = asyncio.get_running_loop().create_future()
        other = next(host for host in self._world.hosts if host.name == member.name)
        self._world.later(self._way_s(), self._arrive, other, question, future)
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return NoReply(True, "no answer in time")

    async def close(self) -> None:
        """Nothing to let go of."""

    def _way_s(self) -> float:
        return self._world.swarm.peer_latency_s * (0.2 + 0.8 * self._random.random())

    def _is_cut(self, other: "Host") -> bool:
        nemesis, pair = self._world.nemesis, frozenset((self._host.name, other.name))
        return pair in nemesis.split or not pair.isdisjoint(nemesis.deposing.cut_off)

    def _arrive(self, other: "Host", question: bytes, future: "asyncio.Future[bytes | NoReply]") -> None:
        if self._is_cut(other):
            draw = self._random.random()
            if draw < 0.4:
                self._world.later(self._way_s(), _settle, future, NoReply(False, "no route"))
            elif draw < 0.7:  # it has left, and comes when it can
                self._world.later(0.5, self._arrive, other, question, future)
            return
        process = other.process
        if other.door is None or process is None or not process.alive:
            self._world.later(self._way_s(), _settle, future, NoReply(False, "connection refused"))
            return
        self._world.counts["questions"] += 1
        self._world.counts["questions that came late"] += future.done()
        task = process.begin(other.door(question))
        task.add_done_callback(lambda task: self._answered(other, process, task, future))

    def _answered(
        self, other: "Host", process: NodeProcess, task: "asyncio.Task[bytes]", future: "asyncio.Future[Any]"
    ) -> None:
        if self._is_cut(other):
            self._world.counts["answers of nodes lost"] += 1
        elif task.cancelled() or not process.alive:
            self._world.later(self._way_s(), _settle, future, NoReply(True, "connection reset"))
        elif (error := task.exception()) is not None:
            self._world.fail(error)
        else:
            self._world.later(self._way_s(), _settle, future, task.result())


def _settle(future: "asyncio.Future[Any]", answer: bytes | NoReply) -> None:
    if not future.done():
        future.set_result(answer)

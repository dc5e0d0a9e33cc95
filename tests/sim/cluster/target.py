"""The processors of a cluster: what they answer, and what of it a node hears. Implements `timerd.ports.Deliver`, a
process's own, under whatever fence that process has.
"""

import asyncio
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tests.sim.account import Violation
from tests.sim.clock import SimClock
from tests.sim.cluster.loop import NodeProcess
from tests.sim.deliveries import Said, Sent
from timerd.ports import Answer, Request

if TYPE_CHECKING:
    from tests.sim.cluster.world import World

JSON: Final = {"content-type": "application/json"}


class _Timer(msgspec.Struct):
    id: str
    generation: int
    fire_at: str
    attempt: int
    possible_duplicate: bool = False
    payload: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    type: str
    batch_id: str
    timers: list[_Timer]


_decode: Final = msgspec.json.Decoder(_Body).decode


class Target:
    """Deliveries of one process."""

    def __init__(self, world: "World", host: str, process: NodeProcess, clock: SimClock, random: Random) -> None:
        self._world = world
        self._host = host
        self._process = process
        self._clock = clock
        self._random = random

    async def post(self, request: Request) -> Answer:
        """One attempt."""
        world, r = self._world, self._random
        body = _decode(request.body)
        sent = [
            Sent(t.id, t.generation, _ms(t.fire_at), t.attempt, t.possible_duplicate, bytes(t.payload) or None)
            for t in body.timers
        ]
        world.note(f"post {self._process.number} {body.type} {[(t.id, t.generation, t.attempt) for t in sent]}")
        try:
            number = world.checker.posted(self._process, self._clock, body.type, sent)
        except Violation as error:
            world.fail(error)
            raise
        answer, said = self._answer(sent)
        wait_s = 0.001 + (0.01 if world.healthy else world.swarm.slow_s) * r.random() ** 2
        if answer.error == "timeout" or wait_s * 1000 >= request.timeout_ms:
            wait_s = request.timeout_ms / 1000
            answer, said = Answer(error="timeout"), [Said("fail")] * len(sent)
        await asyncio.sleep(wait_s)
        now_ms = self._clock.wall_ms_up
        said = [what._replace(fire_at=now_ms - what.fire_at) if what.fire_at < 0 else what for what in said]
        world.note(f"answer {self._process.number} {number} {answer.status} {answer.error}")
        world.checker.answered(number, said, answer.error in ("timeout", "lost"))
        return answer

    async def close(self) -> None:
        """Nothing to let go of."""

    def _answer(self, sent: list[Sent]) -> tuple[Answer, list[Said]]:
        world, r = self._world, self._random
        fail = [Said("fail")] * len(sent)
        if world.targets_cut_off(self._host):
            return Answer(error=r.choice(["connect", "timeout", "lost"])), fail
        if not world.healthy and r.random() < world.swarm.trouble:
            how = r.choice(["timeout", "lost", "error", "mixed", "mixed"])
            if how == "error":
                return Answer(500, {}, b"no"), fail
            if how != "mixed":
                return Answer(error=how), fail
        elif world.healthy or r.random() >= world.swarm.rearms:
            return Answer(204), [Said("ok")] * len(sent)
        results: list[dict[str, Any]] = []
        said: list[Said] = []
        for timer in sent:
            draw = r.random()
            if draw < 0.5:
                said.append(Said("ok"))
            elif draw < 0.75:
                delay_s = r.randint(1, 5)
                results.append({"id": timer.id, "status": "rearm", "delay": delay_s})
                said.append(Said("rearm", -delay_s * 1000))
            elif draw < 0.85:
                results.append({"id": timer.id, "status": "drop"})
                said.append(Said("drop"))
            else:
                results.append({"id": timer.id, "status": "retry", "error": "later"})
                said.append(Said("retry"))
        return Answer(200, JSON, msgspec.json.encode({"results": results})), said


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)

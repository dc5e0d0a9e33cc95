"""Callers of a cluster: each asks whichever node it likes, and another one the next time."""

import asyncio
from random import Random
from typing import TYPE_CHECKING

from tests.sim.cluster.checker import Item
from timerd.engine.message import Gone, Refused
from timerd.engine.timer import Timer

if TYPE_CHECKING:
    from tests.sim.cluster.world import World


class Client:
    """A pause, a call, a pause, a call."""

    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self._random = Random(f"{world.seed} client {number}")

    async def run(self) -> None:
        """All calls."""
        r, world = self._random, self._world
        count = world.swarm.calls // world.swarm.clients
        calls = [self.arm] * 6 + [self.cancel] * 2 + [self.get, self.fire]
        for _ in range(count):
            await asyncio.sleep(r.random() * world.swarm.horizon_ms / 1000 / count * 2)
            await r.choice(calls)()

    async def arm(self) -> None:
        """Arm some timers."""
        r, world = self._random, self._world
        items = [self._item() for _ in range(r.randint(1, world.swarm.batch))]
        ids = [item.id for item in items]
        if len(set(ids)) < len(ids):
            items = list({item.id: item for item in items}.values())
            ids = [item.id for item in items]
        timers = [Timer(item.fire_at, 0, item.id, item.type, item.payload) for item in items]
        before = world.checker.top(ids)
        number = world.checker.arming(items)

        def done(result: object) -> None:
            world.note(f"armed {number} {result}")
            if isinstance(result, Refused):
                world.refused(result)
                if result.name != "shard-unavailable":
                    world.checker.arm_refused(number)
            else:
                world.checker.arm_done(number, items, before, result)  # type: ignore[arg-type]

        await world.call(r, lambda service: service.arm(timers, None, True, None), done)

    async def cancel(self) -> None:
        """Cancel some ids."""
        r, world = self._random, self._world
        ids = sorted({self._id() for _ in range(r.randint(1, 4))})
        before = world.checker.top(ids)
        number = world.checker.cancelling(ids)

        def done(result: object) -> None:
            world.note(f"cancelled {number} {result}")
            if isinstance(result, Refused):
                world.refused(result)
                if result.name != "shard-unavailable":
                    world.checker.cancel_refused(number)
            else:
                world.checker.cancel_done(number, ids, before, result)  # type: ignore[arg-type]

        await world.call(r, lambda service: service.cancel(ids, None), done)

    async def fire(self) -> None:
        """Fire one now."""
        r, world = self._random, self._world
        id = self._id()
        number = world.checker.firing(id)

        def done(result: object) -> None:
            if isinstance(result, Gone):
                return
            if isinstance(result, Refused):
                world.refused(result)
                if result.name == "shard-unavailable":
                    return
            world.checker.fire_done(number, id, result)  # type: ignore[arg-type]

        await world.call(r, lambda service: service.fire(id, None), done)

    async def get(self) -> None:
        """Read one."""
        r, world = self._random, self._world
        id = self._id()
        was = world.checker.top([id])[0]

        def done(result: object) -> None:
            if isinstance(result, Refused):
                world.refused(result)
            elif not isinstance(result, Gone):
                world.checker.seen(id, was, result)  # type: ignore[arg-type]

        await world.call(r, lambda service: service.get(id), done)

    def _id(self) -> str:
        return f"t{self._random.randrange(self._world.swarm.ids)}"

    def _item(self) -> Item:
        r, swarm = self._random, self._world.swarm
        draw = r.random()
        in_ms = r.randint(0, 1_000) if draw < 0.3 else r.randint(0, swarm.horizon_ms)
        if draw > 0.95:
            in_ms = 30 * 86_400_000
        payload: bytes | None = r.choice([None, b"{}", b'{"feed":%d}' % r.randrange(1_000)])
        if r.random() < swarm.bodies:
            payload = b'"' + b"x" * r.randint(511, 3_000) + b'"'
        return Item(self._id(), r.choice(swarm.types).name, self._world.wall_ms + in_ms, payload)

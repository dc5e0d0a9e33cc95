"""The callers: clients that arm, move, cancel, fire and read timers, and an operator who minds types and dead letters.

All of them speak to the API (`wire`), as it is served.

A call whose process ends under it never returns, and its caller knows nothing; `World.call` then gives None for the
whole result, and the checker has nothing to hold against anybody.
"""

import asyncio
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Final

from tests.sim.checker import Item, timers_of
from tests.sim.swarm import HOSTS, changed
from timerd.engine.callback import BASE64, TEXT, CallbackRequest, encode_request
from timerd.engine.message import Condition, Refused

if TYPE_CHECKING:
    from tests.sim.world import World

LONG_ID: Final = "l/" + "ö%2F" * 50


class Client:
    """A pause, a call, a pause, a call."""

    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self._number = number
        self._random = Random(f"{world.seed} client {number}")
        self._fresh = 0

    async def run(self) -> None:
        """All calls."""
        r = self._random
        swarm = self._world.swarm
        calls = [self.arm] * 8 + [self.cancel] * 2 + [self.fire, self.get, self.read_pages]
        count = swarm.calls // swarm.clients
        for _ in range(count):
            await asyncio.sleep(r.random() ** 2 * swarm.horizon_ms / 1000 / count * 4)
            await self._world.ready()
            await r.choice(calls)()

    async def arm(self, id: str | None = None) -> None:
        """Arm some timers, in one of the modes or in none; or this one."""
        r, world = self._random, self._world
        names = [name for name in world.node_types() if name in world.swarm.habits]
        if not names:
            return
        count = 1 if r.random() < 0.1 else r.randint(1, world.swarm.batch)
        minimal = id is None and r.random() < 0.25
        items = [self._item(r.choice(names), fresh=minimal) for _ in range(count)]
        if id is not None:
            items = [items[0]._replace(id=id)]
        ids = [item.id for item in items]
        if r.random() < 0.03:
            await world.call(lambda wire: wire.arm_badly(timers_of(items)))
            return
        before = world.checker.top(ids)
        conditions = None
        if not minimal and r.random() < 0.3:
            conditions = [self._condition(was) for was in before]
        expires_at = world.clock.wall_ms + r.choice([-1_000, 30_000]) if r.random() < 0.05 else None
        world.checker.arming(items)
        result = await world.call(lambda wire: wire.arm(timers_of(items), conditions, minimal, expires_at))
        if isinstance(result, Refused):
            world.refused(result)
            world.checker.arm_refused(items)
        elif result is not None:
            # An id twice in one request: what was there before says nothing of the second.
            seen = Counter(ids)
            told = [was if seen[id] == 1 else 0 for id, was in zip(ids, before, strict=True)]
            world.checker.arm_done(items, conditions, told, result.results)

    async def meddle(self, id: str) -> None:
        """Do something about one that is being delivered."""
        r = self._random
        if r.random() < 0.6:
            await self.arm(id)
        elif r.random() < 0.8:
            await self.cancel([id])
        else:
            await self.fire(id)

    async def cancel(self, ids: list[str] | None = None) -> None:
        """Cancel some ids."""
        r, world = self._random, self._world
        ids = ids or [self._id() for _ in range(r.randint(1, 6))]
        before = world.checker.top(ids)
        world.checker.cancelling(ids)
        result = await world.call(lambda wire: wire.cancel(ids, None))
        if isinstance(result, Refused):
            world.refused(result)
        elif result is not None:
            world.checker.cancel_done(ids, before, result)

    async def fire(self, id: str | None = None) -> None:
        """Fire one now."""
        world = self._world
        id = id or self._id()
        world.checker.firing(id)
        result = await world.call(lambda wire: wire.fire(id), nothing=False)
        if isinstance(result, Refused):
            world.refused(result)
            world.checker.fire_done(id, None)
        elif result is not False:
            world.checker.fire_done(id, result)

    async def get(self) -> None:
        """Read one."""
        world = self._world
        id = self._id()
        was = world.checker.top([id])[0]
        view = await world.call(lambda wire: wire.get(id), nothing=False)
        if view is not False:
            world.checker.seen(id, was, view)

    async def read_pages(self) -> None:
        """Look at what is soonest, or at a page."""
        r, world = self._random, self._world
        if r.random() < 0.8:
            views = await world.call(lambda wire: wire.next(r.randint(1, 20)))
            world.checker.listed(views or [])
            return
        state = r.choice([None, "armed", "due", "retrying", "in_flight"])
        page = await world.call(lambda wire: wire.page(state, 20, None))
        if page is not None:
            world.checker.listed(page[0])

    def _id(self) -> str:
        r = self._random
        number = r.randrange(self._world.swarm.ids)
        if r.random() < 0.3:
            number //= 10  # some ids are asked for more often
        return LONG_ID if number == 3 else f"t{number}"

    def _item(self, type: str, *, fresh: bool) -> Item:
        if fresh:
            self._fresh += 1
        id = f"c{self._number}/{self._fresh}" if fresh else self._id()
        callback = self._world.type_of(type).kind == "callback"
        return Item(id, type, self._fire_at(), self._request() if callback else self._payload())

    def _fire_at(self) -> int:
        r = self._random
        now_ms = self._world.clock.wall_ms
        draw = r.random()
        if draw < 0.1:
            return now_ms - r.randint(0, 5_000)
        if draw < 0.15:
            return now_ms + r.choice([3_600_000, 86_400_000, 30 * 86_400_000, 9 * 365 * 86_400_000])
        if draw < 0.4:
            return now_ms + r.randint(0, 1_500)
        return now_ms + r.randint(0, self._world.swarm.horizon_ms)

    def _payload(self) -> bytes | None:
        r = self._random
        if r.random() < self._world.swarm.bodies:
            return b'"' + b"x" * r.randint(511, 3_000) + b'"'
        return r.choice([None, b"{}", b'{"feed":%d}' % r.randrange(1_000), b'"' + b"p" * r.randint(0, 400) + b'"'])

    def _request(self) -> bytes:
        """What a callback sends, as it is kept."""
        r = self._random
        large = r.random() < self._world.swarm.bodies
        body = b"x" * r.randint(511, 3_000) if large else r.choice([b"", b"{}", b"feed %d" % r.randrange(1_000)])
        headers = r.choice([(), (("X-Own", "1"),)])
        method = r.choice(["POST", "POST", "PUT", "DELETE"])
        form = r.choice([TEXT, TEXT, BASE64])
        return encode_request(CallbackRequest(method, f"http://{r.choice(HOSTS)}/hook?n=1", headers, form, body))

    def _condition(self, was: int) -> Condition:
        r = self._random
        if_generation = r.choice([was, 0, was + 1]) if r.random() < 0.3 else None
        return Condition(r.choice(["replace", "earliest", "latest", "keep"]), if_generation)


class Operator:
    """Minds types, and dead letters."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._random = Random(f"{world.seed} operator")

    async def run(self) -> None:
        """Until cancelled."""
        world, r = self._world, self._random
        swarm = world.swarm
        deeds = [self.dead, self.resume, self.resume]
        if swarm.type_changes:
            deeds += [self.change, self.delete]
        if swarm.pauses:
            deeds.append(self.pause)
        while True:
            await asyncio.sleep(r.random() * swarm.horizon_ms / 1000 / 4)
            await world.ready()
            await r.choice(deeds)()

    async def change(self) -> None:
        """Put a type anew."""
        world = self._world
        name = self._random.choice(sorted(world.swarm.habits))
        type = changed(self._random, world.type_of(name))
        await world.put(type)

    async def delete(self) -> None:
        """Try to delete a type, and put it again when that has worked."""
        world = self._world
        name = self._random.choice(sorted(world.swarm.habits))
        type = world.type_of(name)
        await world.call(lambda wire: wire.delete_type(name))
        await asyncio.sleep(self._random.random())
        if name not in world.node_types():
            await world.put(type)

    async def pause(self) -> None:
        """Pause a type; somebody will resume it."""
        await self._set_state(self._random.choice(sorted(self._world.swarm.habits)), "paused")

    async def resume(self) -> None:
        """Resume what is paused."""
        for name, type in list(self._world.node_types().items()):
            if type.state == "paused":
                await self._set_state(name, "active")

    async def dead(self) -> None:
        """Look at dead letters, and let them live again or forget them."""
        world, r = self._world, self._random
        dead = await world.call(lambda wire: wire.list_dead(50))
        if not dead:
            return
        world.checker.listed(dead)
        ids = [view.id for view in dead[: r.randint(1, 5)]]
        type = dead[0].type
        named: list[str] | None = ids if r.random() < 0.7 else None
        keys = ids if named else [type]
        if r.random() < 0.6:
            world.checker.reviving(keys)
            if await world.call(lambda wire: wire.act_on_dead("replay", named, type)) is not None:
                world.checker.revive_done(keys)
        else:
            world.checker.purging(keys)
            if await world.call(lambda wire: wire.act_on_dead("purge", named, type)) is not None:
                world.checker.purge_done(keys)

    async def _set_state(self, name: str, state: str) -> None:
        world = self._world
        world.checker.disturb(name)
        world.checker.paused.pop(name, None)
        done = await world.call(lambda wire: wire.set_type_state(name, state), nothing=False)
        if done is None and state == "paused":
            world.checker.paused[name] = world.loop.time()
        world.checker.disturb(name)

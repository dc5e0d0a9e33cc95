"""Nodes hand shards to and fro, lose them and stand still at any moment: no timer is lost, and every one is delivered.

What was acknowledged is in the ledger. In the end every shard is held somewhere, and each timer of the ledger has been
delivered; twice only if its shard was lost or let go of uncleanly.
"""

import asyncio
import os
import random

import pytest

from tests.shards.rig import CALLBACKS, PROCESSOR, Rig, play
from timerd.engine.errors import LogFailed
from timerd.engine.message import ArmDone
from timerd.engine.timer import TimerType
from timerd.node import Node

SEEDS = int(os.environ.get("TIMERD_SHARD_SEEDS", "4"))
STEPS = 60
SHARDS = 4
LARGE = b'"' + b"x" * 9_000 + b'"'


class Story:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.armed: set[str] = set()
        self.count = 0
        self.unclean = False
        self.asking: set[asyncio.Task[None]] = set()

    async def play(self, rig: Rig) -> None:
        self.rig = rig
        nodes = [await rig.node(0, 1), await rig.node(2, 3)]
        busy: set[int] = set()
        moves: set[asyncio.Task[None]] = set()

        def start(task: asyncio.Task[None], into: set[asyncio.Task[None]]) -> None:
            into.add(task)
            task.add_done_callback(into.discard)

        for _ in range(STEPS):
            await asyncio.sleep(self.random.random() * 0.5)
            what = self.random.random()
            free = [shard for shard in range(SHARDS) if shard not in busy]
            if what < 0.5:
                start(asyncio.ensure_future(self.arm(self.random.choice(nodes))), self.asking)
            elif what < 0.7 and free:
                shard = self.random.choice(free)
                busy.add(shard)
                task = asyncio.ensure_future(self.move(nodes, shard))
                task.add_done_callback(lambda _, shard=shard: busy.discard(shard))
                start(task, moves)
            elif what < 0.78:
                log = rig.shelf.logs[self.random.randrange(SHARDS)]
                log.free.clear()
                rig.loop.call_later(self.random.choice([0.1, 0.5, 3.0]), log.free.set)
            elif what < 0.84:
                self.unclean = True
                rig.shelf.logs[self.random.randrange(SHARDS)].fails = True
            elif what < 0.9:
                rig.target.free.clear()
                rig.loop.call_later(self.random.random(), rig.target.free.set)
            elif what < 0.96:
                log = rig.shelf.logs[self.random.randrange(SHARDS)]
                log.unsure = not log.unsure
            else:
                nodes[0].set_share(self.random.randint(0, 4), 4)
            for node in nodes:
                assert not node.failed.done(), node.failed.exception()
        rig.target.free.set()
        for log in rig.shelf.logs.values():
            log.free.set()
            log.unsure = False
        while moves or self.asking:
            await asyncio.sleep(0.1)
        for node in nodes:  # one that has failed and was not asked since says so now
            await asyncio.wait_for(node.tally(), 10)
        for shard in range(SHARDS):
            await self.settle(nodes, shard)
        await rig.until(lambda: rig.delivered(sorted(self.armed)), 200)
        await asyncio.sleep(10)
        tallies = [(await node.tally()).types["t"] for node in nodes]
        assert sum(tally.live for tally in tallies) == 0
        assert sum(tally.in_flight for tally in tallies) == 0
        if not self.unclean:
            repeated = {key for key, count in rig.target.seen.items() if count > 1}
            assert not repeated, f"a clean hand-over repeats nothing: {repeated}"

    async def arm(self, node: Node) -> None:
        ids = [f"s{self.count + n}" for n in range(self.random.randint(1, 12))]
        self.count += len(ids)
        payload = LARGE if self.random.random() < 0.3 else b"1"
        done = await node.arm(self.rig.timers(ids, self.random.randint(0, 4_000), payload), None, True, None)
        if isinstance(done, ArmDone):
            assert len(done.results) == len(ids)
            self.armed.update(id for n, id in enumerate(ids) if n not in set(done.unavailable))

    async def move(self, nodes: list[Node], shard: int) -> None:
        """From whoever has it to either; sometimes taken by force."""
        owners = [node for node in nodes if shard in node.held]
        taker = self.random.choice(nodes)
        if owners and (self.random.random() < 0.7 or owners[0] is taker):
            if not await owners[0].release(shard, 2_000):
                self.unclean = True
        elif owners:
            self.unclean = True
        if shard not in taker.held:
            await self.take(taker, shard)

    async def take(self, node: Node, shard: int) -> None:
        try:
            await self.rig.take(node, shard)
        except LogFailed:
            self.unclean = True

    async def settle(self, nodes: list[Node], shard: int) -> None:
        """Whoever thinks it has it has it, or it is taken anew."""
        if not any(shard in node.held and not self.rig.shelf.logs[shard].fails for node in nodes):
            self.unclean = True
        current = [node for node in nodes if shard in node.held]
        for node in current:
            if not await node.release(shard, 2_000):
                self.unclean = True
        assert await self.rig.take(self.random.choice(nodes), shard)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("type", [PROCESSOR, CALLBACKS], ids=["processor", "callbacks"])
def test_no_timer_is_lost(seed: int, type: TimerType) -> None:
    play(Story(seed).play, shards=SHARDS, type=type)

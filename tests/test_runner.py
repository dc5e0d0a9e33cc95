"""The runner: room that waits for its turn, shards that have much to do, shards that another writer has taken."""

import asyncio

from tests.test_upkeep import NOW, StillClock
from timerd.engine.message import Cancel, Tally
from timerd.engine.ring import SLOTS
from timerd.engine.shard import Shard
from timerd.engine.state import State
from timerd.inbox import MEMORY_MAX, TURN_BYTES_MAX
from timerd.runner import Runner
from timerd_storage.memory_log import MemoryLog


async def test_what_does_not_come_into_a_turn_keeps_its_room():
    log = MemoryLog()
    async for _ in log.replay():
        pass
    runner = Runner([Shard(State(0, list(range(SLOTS)), NOW))], log, StillClock())
    told = []

    async def append(frames, waiting_bytes=0):
        told.append(waiting_bytes)
        return 0

    log.append = append
    assert await log.grant(3 * TURN_BYTES_MAX, 0)
    for _ in range(3):
        runner.send(0, Cancel(["a"], lambda answer: None), TURN_BYTES_MAX)
    running = asyncio.ensure_future(runner.run())
    while len(told) < 3:
        assert not running.done()
        await asyncio.sleep(0)
    running.cancel()
    assert told == [2 * TURN_BYTES_MAX, TURN_BYTES_MAX, 0]


def test_a_shard_with_much_to_do_is_no_reason_to_refuse_what_is_for_others():
    half = SLOTS // 2
    shards = [Shard(State(0, list(range(half)), NOW)), Shard(State(1, list(range(half, SLOTS)), NOW))]
    runner = Runner(shards, MemoryLog(), StillClock())
    runner.send(0, Cancel(["a"], lambda answer: None), MEMORY_MAX)
    assert not runner.has_room([0])
    assert not runner.has_room([0, 1])
    assert runner.has_room([1])
    assert not runner.is_full()
    runner.send(1, Cancel(["b"], lambda answer: None), MEMORY_MAX)
    assert runner.is_full()


async def test_a_fenced_shard_lets_nothing_out_and_takes_no_more_turns_while_the_others_go_on():
    half = SLOTS // 2
    shards = [Shard(State(0, list(range(half)), NOW)), Shard(State(1, list(range(half, SLOTS)), NOW))]
    log = MemoryLog()
    runner = Runner(shards, log, StillClock())
    told, heard = [], []
    runner.on_fenced = told.append

    async def append(frames, waiting_bytes=0):
        log.fenced = (0,)
        return 0

    log.append = append
    log.unsettled = lambda: True
    runner.send(0, Tally(lambda answer: heard.append(0)))
    runner.send(1, Tally(lambda answer: heard.append(1)))
    running = asyncio.ensure_future(runner.run())
    while 1 not in heard:
        assert not running.done()
        await asyncio.sleep(0)
    runner.send(0, Tally(lambda answer: heard.append(0)))
    runner.send(1, Tally(lambda answer: heard.append(2)))
    while 2 not in heard:
        assert not running.done()
        await asyncio.sleep(0)
    running.cancel()
    assert heard == [1, 2]
    assert told == [0]
    assert list(runner.shards) == [1]

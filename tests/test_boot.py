"""A start has everything that was acknowledged, or refuses."""

import random

import pytest

from timerd import boot
from timerd.engine.errors import CorruptLog, IncompleteDirectory
from timerd.engine.message import ArmDone
from timerd.engine.now import Now
from timerd.engine.settings import Settings
from timerd.engine.timer import Timer, TimerType
from timerd.ports import Answer, Request
from timerd_storage.memory_catalog import MemoryCatalog
from timerd_storage.memory_log import MemoryLog

T0 = 1_796_000_000_000


class StillClock:
    def __init__(self, wall_ms: int = T0) -> None:
        self.wall_ms = wall_ms

    def now(self) -> Now:
        return Now(self.wall_ms * 1000, 5_000)


class Nobody:
    async def post(self, request: Request) -> Answer:
        return Answer(error="connect")

    async def close(self) -> None:
        pass


async def start(log, catalog, clock=None, **settings):
    return await boot.start(
        Settings(**settings), log, catalog, clock or StillClock(), Nobody(), random.Random(1).random
    )


async def used():
    """A log and a catalogue with one timer in them."""
    log, catalog = MemoryLog(), MemoryCatalog()
    node = await start(log, catalog, shards=2)
    await node.put_type(TimerType("t", url="http://127.0.0.1:9/"), False, None)
    assert isinstance(await node.arm([Timer(T0 + 10**6, 0, "a", "t")], None, True, None), ArmDone)
    await node.stop(1_000)
    return log, catalog


async def test_a_restart_has_the_timer():
    log, catalog = await used()
    node = await start(log.reopen(), catalog)
    assert (await node.get("a")).type == "t"
    assert len(await node.shards()) == 2
    await node.stop(1_000)


async def test_a_catalogue_without_its_log_is_refused():
    _, catalog = await used()
    with pytest.raises(IncompleteDirectory, match="no log"):
        await start(MemoryLog(), catalog)


async def test_a_log_without_its_catalogue_is_refused_unless_the_shards_are_told():
    log, _ = await used()
    with pytest.raises(IncompleteDirectory, match="no catalogue"):
        await start(log.reopen(), MemoryCatalog())
    node = await start(log.reopen(), MemoryCatalog(), shards=2)
    assert (await node.get("a")).type == "t"
    await node.stop(1_000)


async def test_a_log_without_its_catalogue_is_not_taken_for_one_of_other_shards():
    log, _ = await used()
    catalog = MemoryCatalog()
    with pytest.raises((boot.WrongShards, CorruptLog)):
        await start(log.reopen(), catalog, shards=1)
    with pytest.raises(boot.WrongShards):
        await start(log.reopen(), catalog, shards=16)
    node = await start(log.reopen(), catalog, shards=2)  # nothing was written by the others
    assert (await node.get("a")).type == "t"
    await node.stop(1_000)


async def test_a_crash_in_the_first_start_is_no_lost_log():
    log, catalog = MemoryLog(), MemoryCatalog()
    assert [frame async for frame in log.replay()] == []  # as far as a first start gets before it stores the table
    node = await start(log.reopen(), catalog)
    await node.stop(1_000)


async def test_another_number_of_shards_is_refused():
    log, catalog = await used()
    with pytest.raises(boot.WrongShards, match="2 shards"):
        await start(log.reopen(), catalog, shards=3)


async def test_a_clock_beyond_2200_is_refused():
    with pytest.raises(boot.WrongClock):
        await start(MemoryLog(), MemoryCatalog(), StillClock(7_300_000_000_000))

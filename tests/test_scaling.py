"""A node changes the number of its shards while it is used, and loses nothing."""

import asyncio
import random
from collections import Counter

import msgspec
import pytest

from timerd import boot, scaling
from timerd.clock import SystemClock
from timerd.engine.ceding import CEDE_AT_ONCE
from timerd.engine.message import Filter, Refused
from timerd.engine.move_record import Adopted, Ceded
from timerd.engine.ring import SLOTS
from timerd.engine.settings import Settings
from timerd.engine.timer import Timer, TimerType
from timerd.node import Node
from timerd.ports import Answer, Request, Utilisation
from timerd.report import Scaled
from timerd_storage.memory_catalog import MemoryCatalog
from timerd_storage.memory_log import MemoryLog

FAR = 10**9


class Target:
    """Takes everything, and counts it."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, int]] = Counter()

    async def post(self, request: Request) -> Answer:
        for timer in msgspec.json.decode(request.body)["timers"]:
            self.seen[timer["id"], timer["generation"]] += 1
        return Answer(200)

    async def close(self) -> None:
        pass


async def start(log: MemoryLog, catalog: MemoryCatalog, target: Target, shards: int | None = None) -> Node:
    settings = Settings(shards=shards, shard_capacity=1_000)
    return await boot.start(settings, log, catalog, SystemClock(), target, random.Random(1).random)


async def scaled(node: Node, shards: int) -> None:
    """Scale, and wait until everything has come to rest."""
    done = await node.scale(shards, None)
    assert isinstance(done, Scaled), done
    await rest(node)
    assert sum(report.slots for report in await node.shards()) == SLOTS


async def rest(node: Node) -> None:
    async with asyncio.timeout(30):
        while not await node.scaling.at_rest():
            await asyncio.sleep(0.01)


async def listed(node: Node, size: int = 100) -> list[str]:
    ids: list[str] = []
    token = None
    while True:
        page = await node.list(Filter(), size, token)
        assert not isinstance(page, Refused)
        ids += [view.id for view in page[0]]
        token = page[1]
        if token is None:
            return ids


def now_ms() -> int:
    return SystemClock().now().wall_ms


async def arm(node: Node, ids: list[str], at: int, payload: bytes | None = None) -> None:
    done = await node.arm([Timer(at, 0, id, "t", payload) for id in ids], None, True, None)
    assert not isinstance(done, Refused)
    assert all(result.generation for result in done.results or ())


@pytest.fixture
def target() -> Target:
    return Target()


async def used(target: Target, shards: int, timers: int) -> tuple[Node, MemoryLog, MemoryCatalog]:
    log, catalog = MemoryLog(), MemoryCatalog()
    node = await start(log, catalog, target, shards)
    await node.put_type(TimerType("t", url="http://127.0.0.1:9/", max_lag_ms=100), False, None)
    if timers:
        await arm(node, [f"id{n}" for n in range(timers)], now_ms() + FAR)
    return node, log, catalog


async def test_timers_are_where_they_belong_after_growth_and_shrinking(target: Target) -> None:
    node, log, catalog = await used(target, 2, 700)
    for shards in (5, 1, 8):
        await scaled(node, shards)
        assert len(await node.shards()) == shards
        assert sorted(await listed(node)) == sorted(f"id{n}" for n in range(700))
        tally = await node.tally()
        assert (tally.types["t"].armed, tally.types["t"].live) == (700, 700)
    assert (await node.status()).ring_version == 4
    await node.stop(1_000)
    node = await start(log.reopen(), catalog, target, shards=2)  # the number is the directory's, not the option's
    assert len(await node.shards()) == 8
    assert sorted(await listed(node)) == sorted(f"id{n}" for n in range(700))
    await node.stop(1_000)


async def test_everything_goes_on_in_the_middle_of_a_move(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "PULL_PER_SECOND", 20)
    node, log, catalog = await used(target, 2, 1_500)
    mine = random.Random(3)
    live = {f"id{n}" for n in range(1_500)}
    done = await node.scale(6, None)
    assert isinstance(done, Scaled)
    assert done.moving
    refused = await node.scale(3, None)
    assert isinstance(refused, Refused)
    assert (refused.name, refused.retry_after_s) == ("shards-moving", 5)
    for n in range(60):
        some = mine.sample(sorted(live), 20)
        await arm(node, some[:10], now_ms() + FAR + n, b'"x"' * 300 if n % 3 else None)
        gone = await node.cancel(some[10:12], None)
        assert not isinstance(gone, Refused)
        assert all(result.found for result in gone)
        live -= set(some[10:12])
        view = await node.get(some[12])
        assert view is not None
        assert await node.get(some[10]) is None
        await arm(node, [f"new{n}"], now_ms())
        if n % 10 == 0:
            assert set(await listed(node)) >= live
    if await node.scaling.at_rest():
        pytest.fail("the move was over before it was tried out")
    monkeypatch.setattr(scaling, "PULL_PER_SECOND", 50_000)
    node.scaling.tell()
    await rest(node)
    async with asyncio.timeout(10):
        while sum(target.seen.values()) < 60:
            await asyncio.sleep(0.02)
    assert max(target.seen.values()) == 1
    assert sorted(await listed(node)) == sorted(live)
    await node.stop(1_000)
    node = await start(log.reopen(), catalog, target)
    assert sorted(await listed(node)) == sorted(live)
    await node.stop(1_000)


async def test_a_move_that_was_cut_off_goes_on_after_a_restart(target: Target) -> None:
    node, log, catalog = await used(target, 2, 900)
    await node.scale(7, None)
    await asyncio.sleep(0.05)
    await node.stop(1_000)
    node = await start(log.reopen(), catalog, target)
    await rest(node)
    assert sorted(await listed(node)) == sorted(f"id{n}" for n in range(900))
    assert len(await node.shards()) == 7
    await node.stop(1_000)


async def test_dead_letters_of_a_type_are_all_found(target: Target) -> None:
    node, _, _ = await used(target, 1, 0)
    type = msgspec.structs.replace(node.types["t"], url="http://127.0.0.1:9/", max_lag_ms=0)
    await node.put_type(type, False, None)

    async def refuse(request: Request) -> Answer:
        results = [{"id": t["id"], "status": "dead"} for t in msgspec.json.decode(request.body)["timers"]]
        headers = {"content-type": "application/json"}
        return Answer(200, headers, msgspec.json.encode({"results": results}))

    target.post = refuse  # type: ignore[method-assign]
    await arm(node, [f"dead{n}" for n in range(300)], now_ms())
    async with asyncio.timeout(10):
        while (await node.tally()).types["t"].dead_letters < 300:
            await asyncio.sleep(0.02)
    await node.scale(4, None)
    assert await node.purge_dead(None, "t", None) == 300
    assert (await node.tally()).types["t"].purged == 300
    await rest(node)
    await node.stop(1_000)


async def test_dead_letters_that_move_are_not_taken_for_too_many(target: Target) -> None:
    node, _, _ = await used(target, 8, 1)

    def kept() -> set[int]:
        return {shard._kept for shard in node._runners.shards.values()}

    assert kept() == {12_500}
    await scaled(node, 2)
    assert kept() == {50_000}
    await scaled(node, 4)
    assert kept() == {50_000}, "those of two shards are still to be spread over four"
    await node.scaling.look()
    await node.tally()
    assert kept() == {25_000}
    await node.stop(1_000)


async def test_the_controller(target: Target) -> None:
    node, _, catalog = await used(target, 2, 0)
    controller = node.scaling

    def rows(timers: int) -> list[Utilisation]:
        return [Utilisation(0, "n", timers, 1_000, 0)]

    assert controller.wanted(rows(1_600)) == 2, "80 % is not above 80 %"
    assert controller.wanted(rows(1_601)) == 3
    assert controller.wanted(rows(6_000)) == 10, "so that the mean is 60 %"
    assert controller.wanted(rows(10**9)) == 1_024
    await scaled(node, 6)
    for _ in range(30):
        assert controller.wanted(rows(0)) == 6, "what was asked for by hand stays"
    controller.table = msgspec.structs.replace(controller.table, least=2)
    controller.wanted(rows(3_000))
    assert [controller.wanted(rows(1_700)) for _ in range(10)] == [6] * 9 + [3]
    assert controller.wanted(rows(1_700)) == 6
    controller.wanted(rows(3_000))
    assert [controller.wanted(rows(0)) for _ in range(10)] == [6] * 9 + [2]
    controller.table = msgspec.structs.replace(controller.table, least=6)
    await arm(node, [f"id{n}" for n in range(5_000)], now_ms() + FAR)
    await controller.look()
    assert len(controller.table.shard_ids) == 9
    assert sum(row.timers for row in await catalog.utilisation()) == 5_000
    await rest(node)
    await node.stop(1_000)


async def test_the_log_keeps_for_a_move_what_it_takes_and_nothing_afterwards(target: Target) -> None:
    node, log, _ = await used(target, 2, 100)
    for shards in (5, 2, 6):
        before = log._reserve
        done = await node.scale(shards, None)
        assert isinstance(done, Scaled)
        assert log._reserve + log._granted > before + 10_000, "for thousands of slots on the move"
        await rest(node)
        async with asyncio.timeout(10):  # and nobody asks for anything
            while log._reserve != node._runners.upkeep.reserve_bytes():
                await asyncio.sleep(0.01)
        assert log._reserve < 100_000
    await node.stop(1_000)


async def test_a_log_without_room_for_a_move_refuses_it_or_lets_it_wait(target: Target) -> None:
    node, log, catalog = await used(target, 2, 100)
    tight = sum(len(payload) for segment in log._segments for _, _, payload in segment) + (1 << 20) + 200_000
    log.capacity = tight
    refused = await node.scale(6, None)
    assert isinstance(refused, Refused)
    assert refused.name == "storage-full"
    log.capacity = None
    await catalog.put_ring(await scaling.work_out(node.scaling.table, 6))  # and then the process ended
    await node.stop(1_000)
    log = log.reopen()
    log.capacity = tight
    node = await start(log, catalog, target)
    await asyncio.sleep(0.1)
    assert sum(shard.to_cede for shard in node._runners.shards.values()) > SLOTS // 2
    await arm(node, ["what the table does not move"], now_ms() + FAR)
    log.capacity = None
    await rest(node)
    assert len(await listed(node)) == 101
    await node.stop(1_000)


async def test_a_turn_gives_away_so_many_slots_and_no_more(target: Target) -> None:
    node, log, _ = await used(target, 1, 10)
    await scaled(node, 3)
    await node.stop(1_000)
    frames = [frame.records async for frame in log.reopen().replay()]
    ceded = [sum(len(record.slots) for record in frame if isinstance(record, Ceded)) for frame in frames]
    assert sum(ceded) > SLOTS // 2
    assert max(ceded) <= CEDE_AT_ONCE
    adopted = [sum(len(record.slots) for record in frame if isinstance(record, Adopted)) for frame in frames]
    assert sum(adopted) == sum(ceded)
    assert max(adopted) <= 2 * CEDE_AT_ONCE


async def test_a_table_that_can_not_be_stored_is_not_published(target: Target) -> None:
    node, _, catalog = await used(target, 2, 10)
    catalog.full = True
    refused = await node.scale(4, None)
    assert isinstance(refused, Refused)
    assert refused.name == "storage-full"
    assert node.scaling.table.version == 1
    catalog.full = False
    expired = await node.scale(4, 1)
    assert isinstance(expired, Refused)
    assert expired.name == "expired"
    await node.stop(1_000)

"""The fence for deliveries: who may begin one, how long a taker waits, and what an owner does that was paused."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from tests.cluster.nats_server import NatsServer
from tests.cluster.open_log import Opener, opener_of
from tests.storage.laid import armed
from timerd.engine.errors import LogFailed
from timerd.engine.record import Closed, Owned
from timerd.ports import Frame
from timerd_cluster import stream_log
from timerd_cluster.lease import LEASE_MS, Lease
from timerd_cluster.message import OVERHEAD_BYTES
from timerd_cluster.stream_log import StreamLog

SHORT_MS = 400


class Clock:
    """Boot time that goes where it is put."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


@pytest_asyncio.fixture
async def opener(shared_server: NatsServer) -> AsyncIterator[Opener]:
    opener = opener_of(shared_server)
    yield opener
    await opener.close()


async def owner(opener: Opener, clock: Clock) -> StreamLog:
    """A log whose first append is behind it; it doesn't wait, since nobody had it before."""
    opener.lease_ms, opener.boot_ms = LEASE_MS, clock
    log, _ = await opener.replayed()
    await log.append([Frame(0, 1, [Owned(1, 0, True)])])
    return log


def test_a_right_ends_before_a_wait_begun_at_the_same_moment_whatever_the_clocks_rates() -> None:
    for owner_rate, taker_rate in ((0.9, 1.1), (1.0, 1.0), (1.1, 0.9)):
        owners, takers = Clock(), Clock()
        mine, theirs = Lease(LEASE_MS, owners), Lease(LEASE_MS, takers)
        mine.acknowledged(owners())
        theirs.read()
        start = 1_000_000
        while theirs.wait_ms():
            owners.ms = start + int((takers.ms - start) / taker_rate * owner_rate)
            takers.ms += 10
        assert not mine.holds()


def test_the_right_counts_from_the_first_sending_and_the_wait_from_the_arrival() -> None:
    clock = Clock()
    lease = Lease(1_000, clock)
    assert not lease.holds()
    assert lease.wait_ms() == 0, "nothing was read: a new stream"
    sent_ms = clock()
    clock.ms += 700
    lease.acknowledged(sent_ms)
    assert lease.holds()
    clock.ms += 50
    assert not lease.holds()
    lease.read()
    clock.ms += 999
    assert lease.wait_ms() == 1
    clock.ms += 1
    assert lease.wait_ms() == 0
    lease.read()
    lease.released()
    assert lease.wait_ms() == 0


async def test_an_owner_that_appends_has_its_right_and_an_idle_one_renews_when_it_wants_to_deliver(
    opener: Opener,
) -> None:
    clock = Clock()
    log = await owner(opener, clock)
    assert await log.confirm()
    assert log._streams[0].sequence == 1, "no renewal: the append was one"
    clock.ms += LEASE_MS
    assert all(await asyncio.gather(*(log.confirm() for _ in range(5))))
    assert log._streams[0].sequence == 2, "one renewal for all who ask"
    await log.append([armed(0, 2)])
    clock.ms += LEASE_MS
    assert await log.confirm()
    opener.boot_ms = itertools.count(0, LEASE_MS).__next__  # a lease goes by at each look
    again, frames = await opener.replayed()
    assert [frame.lsn for frame in frames] == [1, 2]
    assert again.usage() == log.usage(), "renewals take room, which a restart counts as well"
    assert await log.append([armed(0, 3)]) > 2 * OVERHEAD_BYTES, "and upkeep is told of them"


async def test_nothing_follows_closed(opener: Opener) -> None:
    clock = Clock()
    log = await owner(opener, clock)
    await log.append([Frame(0, 2, [Closed(0)])])
    clock.ms += LEASE_MS
    assert not log.is_confirmed()
    assert not await log.confirm()
    assert log._streams[0].sequence == 2
    assert not log.fenced


async def test_who_has_nothing_to_store_can_see_that_another_has_taken_the_stream(opener: Opener) -> None:
    clock = Clock()
    log = await owner(opener, clock)
    opener.boot_ms = itertools.count(0, LEASE_MS).__next__  # a lease goes by at each look
    other, _ = await opener.replayed()
    await other.append([armed(0, 2)])
    assert await log.is_current(), "while its right lasts nobody can have"
    clock.ms += LEASE_MS
    assert not await log.is_current()
    assert await other.is_current()
    assert not await log.confirm()
    assert list(log.fenced) == [0]


async def follow(log: StreamLog, seen: list[Frame]) -> None:
    async for frame in log.replay():
        seen += [frame]  # others look while it grows


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


async def test_an_owner_that_was_paused_through_a_take_over_delivers_nothing(opener: Opener) -> None:
    clock = Clock()
    log = await owner(opener, clock)
    assert await log.confirm()
    later = Clock()
    opener.boot_ms = later
    successor = await opener.open()
    seen: list[Frame] = []
    taking = asyncio.create_task(follow(successor, seen))
    await until(lambda: bool(seen))
    await until(lambda: successor._streams[0].lease.has_read)
    later.ms += LEASE_MS  # it has waited
    await taking
    await successor.append([Frame(0, 2, [Owned(2, 0, False)])])
    clock.ms += LEASE_MS  # and so long the owner stood still
    assert not log.is_confirmed()
    assert not await log.confirm()
    assert list(log.fenced) == [0]
    assert await successor.confirm()


async def test_a_taker_waits_a_lease_unless_the_one_before_has_let_go(opener: Opener) -> None:
    opener.lease_ms = SHORT_MS
    log, _ = await opener.replayed()
    began = time.monotonic()
    await log.append([Frame(0, 1, [Owned(1, 0, True)])])
    assert time.monotonic() - began < SHORT_MS / 1000, "nobody had it before"
    began = time.monotonic()
    crashed, _ = await opener.replayed()
    await crashed.append([Frame(0, 2, [Owned(2, 0, False)])])
    assert time.monotonic() - began >= 0.9 * SHORT_MS / 1000
    await crashed.append([Frame(0, 3, [Closed(0)])])
    began = time.monotonic()
    clean, _ = await opener.replayed()
    await clean.append([Frame(0, 4, [Owned(3, 0, True)])])
    assert time.monotonic() - began < 0.9 * SHORT_MS / 1000


async def test_what_an_owner_writes_while_a_taker_waits_is_read_and_the_wait_begins_anew(opener: Opener) -> None:
    clock, other = Clock(), Clock()
    log = await owner(opener, clock)
    opener.boot_ms = other
    taker = await opener.open()
    lease = taker._streams[0].lease
    seen: list[Frame] = []
    taking = asyncio.create_task(follow(taker, seen))
    await until(lambda: lease.has_read)
    [place] = log.place_bodies(0, [("a", b"a" * 600)])
    for lsn in (2, 3):
        other.ms += LEASE_MS - 1
        await log.append([armed(0, lsn)])
        await until(lambda lsn=lsn: len(seen) == lsn and lease.wait_ms() == LEASE_MS)  # type: ignore[misc]
    other.ms += LEASE_MS - 1
    clock.ms += LEASE_MS
    assert await log.confirm()  # a renewal
    await until(lambda: taker._streams[0].sequence == 4)
    assert lease.wait_ms() == LEASE_MS
    assert not taking.done()
    await log.append([Frame(0, 4, [Closed(0)])])
    await taking
    assert lease.wait_ms() == 0, "it has let go"
    assert [frame.lsn for frame in seen] == [1, 2, 3, 4]
    assert await taker.read_bodies([place]) == [b"a" * 600], "stored while it was followed"
    await taker.append([Frame(0, 5, [Owned(2, 0, True)])])
    assert not taker.fenced


async def test_a_taker_says_when_it_waits_and_looks_at_once_when_it_is_told_to(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_log, "FOLLOW_MS", 60_000)
    opener.lease_ms = 120_000
    log, _ = await opener.replayed()
    await log.append([Frame(0, 1, [Owned(1, 0, True)])])
    taker = await opener.open()
    seen: list[Frame] = []
    warm: list[int] = []

    async def at_end() -> None:
        warm.append(len(seen))

    taker.at_end = at_end
    taking = asyncio.create_task(follow(taker, seen))
    await until(lambda: bool(warm))
    await log.append([Frame(0, 2, [Closed(0)])])
    taker.look_soon()
    await asyncio.wait_for(taking, 10)
    assert warm == [1], "when all was read, and not more often than it takes"
    assert [frame.lsn for frame in seen] == [1, 2]


async def test_a_log_that_is_not_wanted_yet_is_followed_beyond_the_lease(opener: Opener) -> None:
    clock, other = Clock(), Clock()
    log = await owner(opener, clock)
    opener.boot_ms = other
    taker = await opener.open()
    lease = taker._streams[0].lease
    wanted = False
    taker.is_wanted = lambda: wanted
    seen: list[Frame] = []
    taking = asyncio.create_task(follow(taker, seen))
    await until(lambda: lease.has_read)
    other.ms += LEASE_MS
    for _ in range(2):  # it goes round once more, and so it has not ended
        taker.look_soon()
        await until(lambda: not taker._look.is_set())
    await log.append([armed(0, 2)])
    await until(lambda: len(seen) == 2 and lease.wait_ms() == LEASE_MS)  # it counts from what came last
    other.ms += LEASE_MS
    await log.append([armed(0, 3)])
    await until(lambda: len(seen) == 3 and lease.wait_ms() == LEASE_MS)
    other.ms += LEASE_MS
    assert not taking.done()
    wanted = True
    taker.look_soon()
    await asyncio.wait_for(taking, 10)
    await taker.append([Frame(0, 4, [Owned(2, 0, False)])])
    assert not taker.fenced, "no lease is waited for once more"


async def test_a_taker_that_is_overtaken_at_the_last_moment_is_refused(opener: Opener) -> None:
    clock, other = Clock(), Clock()
    log = await owner(opener, clock)
    opener.boot_ms = other
    taker = await opener.open()
    taking = asyncio.create_task(follow(taker, []))
    await until(lambda: taker._streams[0].lease.has_read)
    other.ms += LEASE_MS
    await taking
    await log.append([armed(0, 2)])
    assert await taker.append([Frame(0, 2, [Owned(2, 0, False)])]) == 0
    assert list(taker.fenced) == [0]
    assert await log.append([armed(0, 3)]) > 0


async def test_a_taker_that_is_closed_waits_no_longer(opener: Opener) -> None:
    await owner(opener, Clock())
    opener.boot_ms = Clock()
    taker = await opener.open()
    taking = asyncio.create_task(follow(taker, []))
    await until(lambda: taker._streams[0].lease.has_read)
    await taker.close()
    with pytest.raises(LogFailed, match="closed"):
        await taking


async def test_a_renewal_behind_a_clean_stop_makes_it_none(opener: Opener) -> None:
    """Nobody renews after it has let go; should it happen, the taker waits."""
    clock = Clock()
    log = await owner(opener, clock)
    await log.append([Frame(0, 2, [Closed(0)])])
    clock.ms += LEASE_MS
    log._streams[0].closed = False
    assert await log.confirm()
    other = Clock()
    opener.boot_ms = other
    taker = await opener.open()
    taking = asyncio.create_task(follow(taker, []))
    await until(lambda: taker._streams[0].lease.has_read)
    assert taker._streams[0].lease.wait_ms() == LEASE_MS
    other.ms += LEASE_MS
    await taking

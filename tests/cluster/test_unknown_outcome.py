"""Appends whose answer does not come: the shard stands still until it is known, and nothing is stored twice or lost."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from tests.cluster.fake_server import FakeProxy, FakeServer, proxy_before
from tests.cluster.nats_server import NatsServer
from tests.cluster.open_log import Opener, opener_of
from tests.cluster.proxy import Proxy
from tests.storage.laid import armed, plain
from timerd.bodies import READ_S
from timerd.engine.errors import LogFailed
from timerd.ports import Frame
from timerd_cluster import body_stream, missing, shard_stream
from timerd_cluster.connection import NoAnswer
from timerd_cluster.stream_log import StreamLog

ROUNDS = int(os.environ.get("TIMERD_CLUSTER_ROUNDS", "3"))
ANSWER_S = 0.4


class Distant:
    """A log behind a proxy, and a way to read what the server has."""

    def __init__(self, server: NatsServer | FakeServer, proxy: Proxy | FakeProxy) -> None:
        self.proxy = proxy
        self.near = opener_of(server)
        self._far = Opener(proxy.url)
        self._far.names = self.near.names

    async def open(self) -> StreamLog:
        self._far.answer_s = ANSWER_S
        log, _ = await self._far.replayed()
        return log

    async def stored(self) -> list[Frame]:
        _, frames = await self.near.replayed()
        return frames

    async def close(self) -> None:
        await self._far.close()
        await self.near.close()


@pytest_asyncio.fixture
async def distant(shared_server: NatsServer | FakeServer) -> AsyncIterator[Distant]:
    proxy = proxy_before(shared_server)
    await proxy.start()
    distant = Distant(shared_server, proxy)
    yield distant
    await distant.close()
    await proxy.stop()


@pytest.mark.parametrize("cut", [False, True])
async def test_a_lost_answer_is_found_in_the_stream(distant: Distant, cut: bool) -> None:
    log = await distant.open()
    await log.append([armed(0, 1)])
    distant.proxy.lose_answers = True
    appending = asyncio.ensure_future(log.append([armed(0, 2)]))
    await distant.proxy.held.wait()
    assert not appending.done()
    distant.proxy.heal()
    if cut:
        distant.proxy.cut()
    assert await appending > 0
    await log.append([armed(0, 3)])
    assert [frame.lsn for frame in await distant.stored()] == [1, 2, 3]
    assert log._streams[0].sequence == 3, "stored once"


async def test_a_lost_request_goes_out_again_with_the_same_sequence(distant: Distant) -> None:
    log = await distant.open()
    await log.append([armed(0, 1)])
    distant.proxy.lose_requests = True
    appending = asyncio.ensure_future(log.append([armed(0, 2)]))
    await distant.proxy.held.wait()
    assert [frame.lsn for frame in await distant.stored()] == [1]
    distant.proxy.heal()
    distant.proxy.cut()  # what follows a hole in the bytes makes no sense to the server
    assert await appending > 0
    assert [frame.lsn for frame in await distant.stored()] == [1, 2]
    assert log._streams[0].sequence == 2


async def test_a_request_that_arrives_after_its_copy_is_refused_and_found(distant: Distant) -> None:
    log = await distant.open()
    distant.proxy.hold_appends = True
    appending = asyncio.ensure_future(log.append([armed(0, 1)]))
    while len(distant.proxy.holding) < 2:
        assert not appending.done()
        await asyncio.sleep(0.01)
    assert distant.proxy.holding[0][1].split(b"Nats-")[1:] == distant.proxy.holding[1][1].split(b"Nats-")[1:]
    distant.proxy.heal()
    assert await appending > 0
    await log.append([armed(0, 2)])
    assert [frame.lsn for frame in await distant.stored()] == [1, 2]
    assert log._streams[0].sequence == 2


async def test_who_comes_back_from_silence_after_a_take_over_is_fenced(distant: Distant) -> None:
    log = await distant.open()
    await log.append([armed(0, 1)])
    distant.proxy.lose_requests = True
    appending = asyncio.ensure_future(log.append([armed(0, 2, 7)]))
    await distant.proxy.held.wait()
    other, _ = await distant.near.replayed()
    await other.append([armed(0, 2)])
    distant.proxy.heal()
    distant.proxy.cut()
    assert await appending == 0
    assert list(log.fenced) == [0]
    assert plain(await distant.stored()) == plain([armed(0, 1), armed(0, 2)])


async def test_fenced_also_when_the_successor_has_purged_the_place(distant: Distant) -> None:
    log = await distant.open()
    await log.append([armed(0, 1)])
    distant.proxy.lose_requests = True
    appending = asyncio.ensure_future(log.append([armed(0, 2, 7)]))
    await distant.proxy.held.wait()
    other, _ = await distant.near.replayed()
    for lsn in range(2, 80):
        await other.append([armed(0, lsn, 20)])
    assert await other.trim({0: 80}) > 1
    distant.proxy.heal()
    distant.proxy.cut()
    assert await appending == 0
    assert list(log.fenced) == [0]


async def test_lost_answers_in_the_middle_of_parts(distant: Distant) -> None:
    log = await distant.open()
    large = armed(0, 1, 5, b"z" * 900_000)
    appending = asyncio.ensure_future(log.append([large]))
    while log._streams[0].sequence < 2:
        await asyncio.sleep(0)
    distant.proxy.lose_answers = True
    distant.proxy.held.clear()
    await distant.proxy.held.wait()
    distant.proxy.heal()
    distant.proxy.cut()
    assert await appending > 0
    assert plain(await distant.stored()) == plain([large])


async def test_bodies_whose_answer_is_lost_are_stored_before_the_frame(distant: Distant) -> None:
    log = await distant.open()
    await log.append([armed(0, 1)])
    places = log.place_bodies(0, [("a", b"a" * 700_000), ("b", b"b" * 600)])
    distant.proxy.lose_answers = True
    appending = asyncio.ensure_future(log.append([armed(0, 2)]))
    await distant.proxy.held.wait()
    assert [frame.lsn for frame in await distant.stored()] == [1]
    assert await log.read_bodies(places[1:]) == [b"b" * 600]
    distant.proxy.heal()
    distant.proxy.cut()
    await appending
    reader, frames = await distant.near.replayed()
    assert len(frames) == 2
    await reader.check_bodies(places)
    assert await reader.read_bodies(places) == [b"a" * 700_000, b"b" * 600]


async def test_bodies_that_nobody_answers_for_are_asked_for_until_they_are_there_and_told_of_once(
    distant: Distant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_stream, "PAUSE_MAX_S", 0.05)
    log = await distant.open()
    places = log.place_bodies(0, [("a", b"a" * 700_000), ("b", b"b" * 600)])
    await log.append([armed(0, 1)])
    asked, before = 0, log.body_answers
    message = log._bodies[0]._connection.message

    async def count(*given: Any) -> Any:
        nonlocal asked
        asked += 1
        return await message(*given)

    monkeypatch.setattr(log._bodies[0]._connection, "message", count)
    distant.proxy.lose_answers = True
    with capture_logs() as logs:
        reading = asyncio.ensure_future(log.read_bodies(places))
        while asked < 6:  # an extent of each, three times
            await asyncio.sleep(0.01)
        assert log.body_answers == before
        distant.proxy.heal()
        distant.proxy.cut()
        assert await reading == [b"a" * 700_000, b"b" * 600]
    assert log.body_answers == before + 4  # the last extent for both
    assert [line["event"] for line in logs].count("bodies_unread") == 1


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_body_is_believed_to_be_missing_when_that_has_been_said_for_long(
    distant: Distant, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    """A leader that is cut off from the others, and does not know it yet, says so of what they have."""
    monkeypatch.setattr(body_stream, "AGAIN_S", 0.05)
    monkeypatch.setattr(missing, "MISSING_S", 60.0 if comes_back else 0.3)
    log = await distant.open()
    places = log.place_bodies(0, [("a", b"a" * 600)])
    await log.append([armed(0, 1)])
    connection, asked = log._bodies[0]._connection, 0
    message = connection.message

    async def nothing(*given: Any) -> Any:
        nonlocal asked
        asked += 1
        return await message(*given) if comes_back and asked > 5 else None

    async def none(*given: Any) -> Any:
        return None

    monkeypatch.setattr(connection, "message", nothing)
    monkeypatch.setattr(connection, "near_message", none)
    with capture_logs() as logs:
        assert await log.read_bodies(places) == [b"a" * 600 if comes_back else None]
        assert asked > 5
        before = asked
        assert await log.read_bodies(places) == [b"a" * 600 if comes_back else None]
        assert asked == before + 1, "what is known is not waited for again"
    assert [line["event"] for line in logs].count("body_not_found") == 1


async def test_that_a_body_is_missing_is_learnt_by_reads_that_do_not_wait_for_it(
    distant: Distant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_stream, "AGAIN_S", 0.05)
    monkeypatch.setattr(missing, "MISSING_S", 1.0)
    log = await distant.open()
    places = log.place_bodies(0, [("a", b"a" * 600)])
    await log.append([armed(0, 1)])
    await (await distant.near.connect()).api(f"STREAM.PURGE.{distant.near.names.bodies(0)}")
    answers, read = log.body_answers, None
    for _ in range(20):
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                read = await log.read_bodies(places)
                break
        assert log.body_answers > answers, "who waits hears that the servers are there"
        answers = log.body_answers
    assert read == [None]


def test_a_delivery_does_not_take_servers_that_say_so_for_silent_ones() -> None:
    assert body_stream.NEAR_S + body_stream.AGAIN_S < READ_S


def test_that_a_body_is_missing_is_believed_when_it_has_been_said_for_long_and_without_a_gap() -> None:
    lost = missing.Missing()
    assert [lost.said((1, 9), at) for at in (0.0, 4.0, 8.0, 12.0, 16.0)] == [False] * 4 + [True]
    assert lost.said((1, 9), 5_000.0), "and from then on"
    assert [lost.said((1, 8), at) for at in (0.0, 4.0, 16.0, 20.0, 24.0, 28.0)] == [False] * 6, "two leaders, perhaps"
    assert lost.said((1, 8), 31.0)
    lost.found((1, 8))
    assert not lost.said((1, 8), 32.0)
    lost.drop(1)
    assert lost.is_new((1, 9))


async def test_a_replica_that_does_not_answer_is_not_asked_each_time(
    distant: Distant, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await distant.open()
    places = log.place_bodies(0, [("a", b"a" * 700_000)])
    await log.append([armed(0, 1)])
    asked = 0

    async def silent(*given: Any) -> Any:
        nonlocal asked
        asked += 1
        raise NoAnswer("it stands still")

    monkeypatch.setattr(log._bodies[0]._connection, "near_message", silent)
    for _ in range(3):
        assert await log.read_bodies(places) == [b"a" * 700_000]
    assert asked == 1
    log._bodies[0]._near_from_s = 0.0  # that was long ago
    assert await log.read_bodies(places) == [b"a" * 700_000]
    assert asked == 2


async def test_a_server_that_is_killed_between_request_and_answer_loses_and_doubles_nothing(server: NatsServer) -> None:
    opener = opener_of(server)
    opener.answer_s = 1.0
    log, _ = await opener.replayed()
    lsn = 0
    for _ in range(ROUNDS):
        killed = asyncio.Event()

        async def append_until(killed: asyncio.Event = killed) -> None:
            nonlocal lsn
            while not killed.is_set():
                await log.append([armed(0, lsn + 1, 30)])
                lsn += 1

        appending = asyncio.ensure_future(append_until())
        before = lsn
        while lsn < before + 20:
            await asyncio.sleep(0)
        await server.kill()
        killed.set()
        await server.start()
        await appending
    assert log._streams[0].sequence == lsn
    _, frames = await opener.replayed()
    assert [frame.lsn for frame in frames] == list(range(1, lsn + 1))
    await opener.close()


async def test_a_server_that_has_lost_what_it_had_acknowledged_fails_the_log(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_stream, "SHRUNK_LOOKS", 3)
    opener = opener_of(server)
    opener.answer_s = 1.0
    log, _ = await opener.replayed()
    await log.append([armed(0, 1)])
    await server.stop()
    shutil.copytree(tmp_path / "one" / "store", tmp_path / "copy")
    await server.start()
    await log.append([armed(0, 2)])
    await server.kill()
    shutil.rmtree(tmp_path / "one" / "store")
    shutil.move(tmp_path / "copy", tmp_path / "one" / "store")
    await server.start()
    with pytest.raises(LogFailed, match="they have lost what they said was stored"):
        await log.append([armed(0, 3)])
    with pytest.raises(LogFailed):
        await log.append([armed(0, 3)])
    await opener.close()

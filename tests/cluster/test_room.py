"""Servers that are nearly full: arms are refused, what ends timers is stored, and room that comes back is used."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cluster.nats_server import NatsServer, free_ports, needed
from tests.cluster.open_log import Opener, opener_of
from tests.support.process import Process
from tests.support.processor import Processor

LIMITS = {
    "the server's": ("max_file_store: 4G", "max_file_store: 6M"),
    "the account's": ("jetstream: enabled", "jetstream: { max_file: 6M }"),
}


@pytest_asyncio.fixture(params=LIMITS)
async def small(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[NatsServer]:
    """A server with room for 6 MB."""
    needed()
    server = NatsServer(tmp_path / "small", free_ports(1)[0])
    config = tmp_path / "small" / "server.conf"
    config.write_text(config.read_text().replace(*LIMITS[request.param]))
    await server.start()
    yield server
    await server.kill()


async def test_what_is_granted_fits_and_a_reserve_stays(small: NatsServer) -> None:
    opener = opener_of(small)
    log, _ = await opener.replayed()
    granted = 0
    while await log.grant(100_000, 500_000):
        granted += 100_000
    assert 3_000_000 < granted < 4_500_000
    assert not log.low()
    await log.append([])
    log.place_bodies(0, [("a", b"a" * 5_000_000)])
    await log.append([])
    assert log.low()
    assert not await log.grant(100_000, 500_000)
    await opener.close()


async def test_room_that_comes_back_is_granted_again(small: NatsServer) -> None:
    opener = opener_of(small)
    log, _ = await opener.replayed()
    [place] = log.place_bodies(0, [("a", b"a" * 5_000_000)])
    await log.append([])
    assert not await log.grant(500_000, 0)
    log.place_bodies(0, [("b", b"b")])
    await log.append([])
    await log.drop_bodies(place.segment)
    async with asyncio.timeout(10):
        while not await log.grant(500_000, 0):
            await asyncio.sleep(0.02)
    await opener.close()


async def test_a_server_that_says_nothing_of_its_room_is_taken_for_endless(
    shared_server: NatsServer, tmp_path: Path
) -> None:
    server = NatsServer(tmp_path / "mute", free_ports(1)[0])
    config = tmp_path / "mute" / "server.conf"
    config.write_text(config.read_text().replace("$SYS.REQ.SERVER.PING.VARZ", "$SYS.REQ.SERVER.PING.STATSZ"))
    await server.start()
    opener = Opener(server.url)
    log, _ = await opener.replayed()
    assert await log.grant(1 << 50, 0)
    await opener.close()
    await server.kill()


@pytest.mark.parametrize("small", ["the server's"], indirect=True)
async def test_full_servers_refuse_arms_and_go_on_firing(small: NatsServer, tmp_path: Path) -> None:
    options = ("--cluster-replicas", "1", "--cluster-lease", "0.3", "--segment-bytes", "65536", "--shards", "8")
    timerd = Process(tmp_path / "data", "--cluster", small.url, *options)
    async with Processor() as processor, timerd:
        await timerd.put_type("t", url=processor.url)
        await timerd.arm([{"id": f"due-{n}", "type": "t", "delay": 3} for n in range(100)])
        status = 200
        count = 0
        while status == 200:
            many = [{"id": f"later-{count}-{n}", "type": "t", "delay": 3600, "payload": "x" * 400} for n in range(500)]
            status, answer = await timerd.request("POST", "/v1/timers", {"timers": many})
            count += 1
        assert (status, answer["type"].rsplit("/", 1)[1]) == (507, "storage-full")
        assert count > 3
        await processor.until(lambda: len(processor.ids) == 100)
        listed = await timerd.list()
        assert len(listed) >= 500 * (count - 1)
        status, _ = await timerd.request("POST", "/v1/timers:cancel", {"ids": [timer["id"] for timer in listed[:500]]})
        assert status == 200
        assert not [line for line in timerd.log if "append_refused" in line]

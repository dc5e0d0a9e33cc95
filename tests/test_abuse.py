"""What a hostile or careless caller, or a careless operator, must not be able to do to a running timerd."""

import asyncio
import shutil
import socket

import msgspec
import pytest

from tests.support.process import Process
from tests.support.processor import Answer, Processor

FAR = 2_050_000_000_000


@pytest.mark.parametrize("rate", [1e305, 0, -1, 1e-9])
async def test_a_rate_out_of_bounds_is_refused_before_anything_is_stored(tmp_path, rate):
    async with Process(tmp_path / "data") as timerd:
        status, problem = await timerd.request(
            "PUT", "/v1/types/t", {"url": "http://127.0.0.1:9/", "max_per_second": rate}
        )
        assert (status, problem["errors"][0]["pointer"]) == (422, "/max_per_second")
        infinite = msgspec.msgpack.encode({"url": "http://127.0.0.1:9/", "max_per_second": float("inf")})
        headers = {"Content-Type": "application/msgpack"}
        async with timerd.session.put(timerd.url + "/v1/types/t", data=infinite, headers=headers) as answer:
            assert answer.status == 422
        assert (await timerd.request("GET", "/v1/types/t"))[0] == 404


async def test_arms_that_change_nothing_take_no_memory_and_no_disk(tmp_path):
    async with Process(tmp_path / "data") as timerd:
        await timerd.put_type("t", url="http://127.0.0.1:9/")
        timers = [{"id": f"{n}", "type": "t", "fire_at": FAR, "payload": "x" * 60_000} for n in range(50)]
        await timerd.arm(timers)
        rss = timerd.rss_bytes()
        for _ in range(40):
            answer = await timerd.arm(timers)
            assert answer["armed"] == 0
        disk = sum(file.stat().st_blocks * 512 for file in (tmp_path / "data").iterdir())
        assert timerd.rss_bytes() - rss < 60 << 20
        assert disk < 3 * (3 << 20) + 6 * (16 << 20), f"{disk >> 20} MiB on disk for 3 MB of payloads"


async def test_idle_connections_leave_room_for_work(tmp_path):
    async with Process(tmp_path / "data") as timerd:
        host, port = timerd.url.removeprefix("http://").split(":")
        idle = [socket.create_connection((host, int(port))) for _ in range(900)]
        try:
            await timerd.put_type("t", url="http://127.0.0.1:9/")  # not before: it may be let go while these connect
            for n in range(30):
                await timerd.arm([{"id": f"{n}", "type": "t", "fire_at": FAR, "payload": "x" * 2_000}])
        finally:
            for connection in idle:
                connection.close()
        assert timerd.process is not None
        assert timerd.process.returncode is None


async def test_a_directory_that_lost_its_catalogue_or_its_log_is_refused(tmp_path):
    async with Process(tmp_path / "data", "--shards", "4") as timerd:
        await timerd.put_type("t", url="http://127.0.0.1:9/")
        await timerd.arm([{"id": "a", "type": "t", "fire_at": FAR}])
        assert await timerd.stop() == 0
        for lost in ("catalog.sqlite", "*.log"):
            copy = tmp_path / f"without {lost[-3:]}"
            shutil.copytree(tmp_path / "data", copy)
            for file in copy.glob(lost):
                file.unlink()
            start = Process(copy)
            assert not await (await start.spawn())
            assert await start.wait() == 4
        copy = tmp_path / "without ite"
        async with Process(copy, "--shards", "4") as again:
            assert (await again.get("a"))["type"] == "t"
        (copy / "catalog.sqlite").write_bytes(b"no database" * 1000)
        start = Process(copy)
        assert not await (await start.spawn())
        assert await start.wait() == 4
        assert "catalog.sqlite" in "".join(start.stderr)


@pytest.mark.parametrize("file", ["/nonexistent", "/etc/passwd"])
async def test_a_bad_certificate_is_refused_and_named(tmp_path, file):
    timerd = Process(tmp_path / "data", "--tls-cert", file, "--tls-key", file)
    assert not await asyncio.wait_for(await timerd.spawn(), 20)
    assert await timerd.wait() == 2
    assert "--tls-cert" in "".join(timerd.stderr)


async def test_a_scrape_of_many_types_holds_nobody_up(tmp_path):
    async with Processor(lambda delivery: Answer()) as processor, Process(tmp_path / "data") as timerd:
        for start in range(0, 600, 100):
            await asyncio.gather(*(timerd.put_type(f"t{n}", url=processor.url) for n in range(start, start + 100)))
        status, text = await timerd.request("GET", "/metrics")
        assert status == 200
        assert text.count("timerd_armed_total{") == 600

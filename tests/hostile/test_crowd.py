"""Many connections, and connections that take more than they give: what is left over for everybody else."""

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.wire import JSON, Wire, head, request
from tests.support import certificates
from tests.support.process import Process
from tests.support.processor import Processor
from timerd_api.connection import HEAD_S

FAR = 2_050_000_000_000
IDLE = int(os.environ.get("TIMERD_IDLE_CONNECTIONS", "4000"))
FEW = ("prlimit", "--nofile=512:512")


@contextlib.contextmanager
def many_descriptors() -> Iterator[int]:
    """As many descriptors for this process as the system lets it have; gives their number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
    except BlockingIOError:
        return False


def descriptors(timerd: Process) -> int:
    return len(os.listdir(f"/proc/{timerd.pid}/fd"))


async def test_a_crowd_leaves_descriptors_for_the_log_and_for_deliveries(tmp_path: Path) -> None:
    """With 512 descriptors: 256 connections, and however many more come, work goes on beside them."""
    async with (
        Processor() as processor,
        Process(tmp_path / "data", "--segment-bytes", "65536", inside=FEW) as timerd,
    ):
        await timerd.put_type("t", url=processor.url, batch_size=1, max_in_flight=20)
        host, port = timerd.url.removeprefix("http://").split(":")
        crowd: list[socket.socket] = []
        for round in range(6):
            crowd += [socket.create_connection((host, int(port))) for _ in range(200)]
            timers = [
                {"id": f"{round}:{n}", "type": "t", "delay": 0, "payload": "x" * 3_000} for n in range(40)
            ]  # with large payloads and small segments files are opened all the time
            async with await Wire.open(timerd.url) as wire:  # who asks something gets in, however full it is
                assert (await wire.ask(request("POST", "/v1/timers", {"timers": timers}))).status == 200
            assert descriptors(timerd) < 512
        await processor.until(lambda: len(processor.ids) == 240)

        async def let_go() -> bool:
            return sum(map(is_closed, crowd)) >= len(crowd) - 256

        await timerd.until(let_go)
        for connection in crowd:
            connection.close()
        assert await timerd.stop() == 0
        assert not [line for line in timerd.log if "request_failed" in line]


async def test_handshakes_that_never_begin_leave_room_for_those_that_do(tmp_path: Path) -> None:
    """As many connections to a TLS port as there are descriptors, not one of which says a word."""
    ca = certificates.authority(tmp_path)
    made = certificates.server(tmp_path, ca)
    options = ("--tls-cert", str(made.cert), "--tls-key", str(made.key))
    async with (
        Processor() as processor,
        Process(tmp_path / "data", *options, inside=("prlimit", "--nofile=256:256")) as timerd,
    ):
        trusted = {"ssl": ca.trust(), "headers": {"Connection": "close"}}
        body = {"url": processor.url, "max_lag": 0}
        assert (await timerd.request("PUT", "/v1/types/t", body, **trusted))[0] == 201
        host, port = timerd.url.removeprefix("https://").split(":")
        before = descriptors(timerd)
        crowd: list[socket.socket] = []
        for round in range(3):
            crowd += [socket.create_connection((host, int(port))) for _ in range(100)]
            for n in range(5):
                timer = {"id": f"{round}:{n}", "type": "t", "delay": 0}
                async with asyncio.timeout(HEAD_S / 2):  # at once, and not when handshakes have timed out
                    assert (await timerd.request("POST", "/v1/timers", {"timers": [timer]}, **trusted))[0] == 200
            assert descriptors(timerd) < 256
        await processor.until(lambda: len(processor.ids) == 15)

        async def are_let_go() -> bool:
            return all(map(is_closed, crowd))

        await timerd.until(are_let_go, timeout_s=HEAD_S + 20)
        await timerd.until(lambda: asyncio.sleep(0, descriptors(timerd) <= before + 10))
        crowd += [socket.create_connection((host, int(port))) for _ in range(20)]
        assert await timerd.stop(HEAD_S) == 0, "and a stop does not wait for them"
        for connection in crowd:
            connection.close()
        assert not [line for line in timerd.log if "request_failed" in line]
        assert not timerd.complaints()


async def test_thousands_of_idle_connections(tmp_path: Path) -> None:
    """Who is beside them is served; each of them gets in and is let go again, as nothing comes from it.

    How many are in at once depends on how fast this machine connects: a full accept queue drops handshakes, which are
    said again a second or more later, and the first may be let go before the last is in.
    """
    with many_descriptors() as limit:
        count = min(IDLE, (limit - 200) // 2)
        async with Process(tmp_path / "data") as timerd:
            host, port = timerd.url.removeprefix("http://").split(":")
            began = time.monotonic()
            idle = [socket.create_connection((host, int(port))) for _ in range(count)]
            at_once = time.monotonic() - began < HEAD_S / 2
            try:
                await timerd.put_type("t", url="http://127.0.0.1:9/")  # not before: it may be let go meanwhile
                for n in range(30):
                    await timerd.arm([{"id": f"{n}", "type": "t", "fire_at": FAR}])
                most = descriptors(timerd)

                async def are_let_go() -> bool:
                    nonlocal most
                    most = max(most, descriptors(timerd))
                    return all(map(is_closed, idle))

                await timerd.until(are_let_go, timeout_s=60)
                assert most > count * 0.9 or not at_once
            finally:
                for connection in idle:
                    connection.close()
            await timerd.until(lambda: gone(timerd))


async def gone(timerd: Process) -> bool:
    return descriptors(timerd) < 200


@pytest.mark.parametrize("bait", ["head", "pipeline", "answers"])
async def test_memory_does_not_grow_with_what_is_sent(tmp_path: Path, bait: str) -> None:
    async with Process(tmp_path / "data") as timerd:
        await timerd.put_type("t", url="http://127.0.0.1:9/")
        await timerd.arm([{"id": f"{n}", "type": "t", "fire_at": FAR, "payload": "x" * 60_000} for n in range(100)])
        before = timerd.rss_bytes()
        async with await Wire.open(timerd.url) as wire:
            sent = 0

            async def flood() -> None:
                nonlocal sent
                start, part = {
                    "head": (head("GET", "/healthz")[:-2] + b"X: ", b"x" * (1 << 16)),
                    "pipeline": (b"", request("GET", "/healthz") * 2_000),
                    "answers": (b"", request("GET", "/v1/timers?page_size=100") * 100),
                }[bait]
                await wire.send(start)
                while True:
                    await wire.send(part)
                    sent += len(part)

            flooding = asyncio.create_task(flood())
            while not flooding.done() and sent < 50 << 20:  # until it is refused, takes no more, or took very much
                taken = sent
                await asyncio.sleep(0.3)
                if taken == sent:
                    break
            assert timerd.rss_bytes() - before < 40 << 20
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)
        assert (await timerd.request("GET", "/healthz"))[0] == 200


async def test_chunks_of_one_byte_are_a_body_like_any_other(tmp_path: Path) -> None:
    async with Process(tmp_path / "data") as timerd:
        await timerd.put_type("t", url="http://127.0.0.1:9/")
        body = b'{"type":"t","delay":"1h","payload":"' + b"x" * 10_000 + b'"}'
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
        async with await Wire.open(timerd.url) as wire:
            start = head("PUT", "/v1/timers/a", JSON, "Transfer-Encoding: chunked")
            assert (await wire.ask(start + chunks)).status == 201

"""A05: one long-lived entry pins the whole log.

Log files were freed oldest first, so a job that stayed for weeks kept every later file: hundreds of GB for ten
thousand jobs (beanstalkd/beanstalkd #570, #246, #359).
"""

import time
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from tests.support.cases import each, millis, seeded, sized
from tests.support.process import Process
from tests.support.processor import Processor

IDS = 2_000
REARMS = sized(500_000, 20_000)
SAMPLES = sized(200, 40)
REQUEST = 100  # its bodies fill the smallest segment
SMALLEST_BYTES = 65_536
SMALL_SEGMENTS = 8
"""Allowed beyond what promise 9 says of segments when they are the smallest: a second's worth of spares, and what
arrives between two looks at the log, is several of them then, not a part of one."""


class Churn(NamedTuple):
    payload_bytes: int
    segment_bytes: int
    share: float
    """Of the re-arms."""


CHURNS = {
    "no payload": Churn(0, SMALLEST_BYTES, 1),
    "bodies apart": Churn(700, SMALLEST_BYTES, 1 / 3),
    "segments of a MiB": Churn(0, 1 << 20, 1),
}


def on_disk(directory: Path) -> tuple[int, int]:
    """Bytes and files, without the catalogue."""
    sizes = []
    for file in directory.iterdir():
        if file.suffix != ".sqlite":
            try:
                sizes.append(file.stat().st_size)
            except FileNotFoundError:
                continue
    return sum(sizes), len(sizes)


def written(directory: Path) -> int:
    """Bytes of the log that are not filler."""
    return sum(len(file.read_bytes().rstrip(b"\0")) for file in directory.iterdir() if file.suffix != ".sqlite")


@pytest.mark.slow
async def test_the_log_stays_small_under_churn(tmp_path: Path) -> None:
    rng = seeded()

    async def run(name: str) -> None:
        await stays_small(tmp_path / name.replace(" ", "-"), CHURNS[name], rng)

    await each(run, CHURNS)


async def stays_small(directory: Path, churn: Churn, rng: Random) -> None:
    payload_bytes, segment_bytes, share = churn
    rearms = round(REARMS * share)
    directory.mkdir()

    def timer(id: str) -> dict[str, Any]:
        fields = {"id": id, "type": "t", "fire_at": millis(time.time() + 3600 + rng.random() * 86_400 * 30)}
        return {**fields, "payload": rng.randbytes(payload_bytes // 2).hex()} if payload_bytes else fields

    async with Processor() as processor:
        ids = [f"id-{n}" for n in range(IDS)]
        async with Process(directory / "fresh", "--segment-bytes", str(segment_bytes)) as fresh:
            await fresh.put_type("t", url=processor.url)
            await fresh.arm([timer(id) for id in ["far", *ids]])
            assert await fresh.stop() == 0
        snapshot = written(directory / "fresh")

        data = directory / "data"
        async with Process(data, "--segment-bytes", str(segment_bytes)) as timerd:
            await timerd.put_type("t", url=processor.url)
            await timerd.arm([{"id": "far", "type": "t", "delay": "60d"}, *(timer(id) for id in ids)])
            samples: list[tuple[int, int, int, int]] = []
            for n in range(rearms // REQUEST):
                await timerd.arm([timer(id) for id in rng.sample(ids, REQUEST)])
                if n % (rearms // REQUEST // SAMPLES) == 0:
                    _, status = await timerd.request("GET", "/v1/status")
                    samples.append((*on_disk(data), status["log_live_bytes"], status["log_disk_bytes"]))
            largest, files = max(size for size, *_ in samples), max(count for _, count, *_ in samples)
            worst = max((disk - 3 * live) / segment_bytes for _, _, live, disk in samples[1:])
            timerd.kill()
            started = time.monotonic()
            await timerd.start()
            ready_s = time.monotonic() - started
            print(
                f"{directory.name}: {rearms} re-arms, {len(samples)} samples: at most {largest} bytes in {files} "
                f"files, a snapshot is {snapshot}; at worst 3 x live + {worst:.1f} segments; ready in {ready_s:.2f} s"
            )
            assert largest < 20 * snapshot + 4 * segment_bytes
            sizes = [size for size, *_ in samples]
            half = len(sizes) // 2
            assert max(sizes[half:]) < 1.5 * max(sizes[:half]), "it climbs"
            # The promise is 3 x live data + 2 segments of each kind: frames, and bodies where there are some.
            assert worst < (4 if payload_bytes else 2) + (SMALL_SEGMENTS if segment_bytes == SMALLEST_BYTES else 0)
            assert ready_s < 10
            assert await timerd.get("far") is not None
            assert len(await timerd.list()) == IDS + 1
            assert not timerd.complaints()

"""A01: a half-written last record stops the start.

Nodes that had been killed refused to start, because an unfinished write at the end of a log that was grown ahead of
its data was taken for corruption (etcd-io/etcd #5230, #14093).
"""

import asyncio
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from tests.support.cases import seeded, sized, stamp
from tests.support.process import Process
from tests.support.processor import Processor

TIMERS = sized(2_000, 1_000)
LATER = 600
TAILS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "half a record": lambda record, _: record[: len(record) // 2],
    "a byte": lambda _, rng: bytes([rng.randrange(1, 256)]),
    "seven random bytes": lambda _, rng: rng.randbytes(6) + b"\x01",
    "a record with its last byte changed": lambda record, _: record[:-1] + bytes([record[-1] ^ 0xFF]),
}


class Tail:
    """Where the log ends, found by watching a segment grow over three arms of equal size."""

    def __init__(self, images: list[dict[Path, bytes]]) -> None:
        grown = [name for name in images[0] if images[0][name][4096:] != images[1][name][4096:]]
        assert len(grown) == 1, grown
        self.file = grown[0]
        before, *_, last = (image[self.file] for image in images)
        starts = [
            next(at for at in range(4096, len(a)) if a[at] != b[at])
            for a, b in zip((i[self.file] for i in images), (i[self.file] for i in images[1:]), strict=False)
        ]
        length = starts[1] - starts[0]
        assert starts[2] - starts[1] == length, starts
        self.end = starts[2] + length
        self.record = last[starts[2] : self.end]
        assert not any(last[self.end :])
        assert len(before) == len(last)


def segments(directory: Path) -> dict[Path, bytes]:
    return {file.relative_to(directory): file.read_bytes() for file in sorted(directory.glob("*.log"))}


async def armed_until_killed(timerd: Process) -> set[str]:
    """Ids acknowledged while arms were being sent and the process died."""
    acknowledged: set[str] = set()

    async def send(worker: int) -> None:
        for n in range(1_000_000):
            ids = [f"w{worker}-{n}-{k}" for k in range(10 if worker else 1)]
            try:
                await timerd.arm([{"id": id, "type": "t", "delay": LATER} for id in ids])
            except (aiohttp.ClientError, OSError):
                return
            acknowledged.update(ids)
            if len(acknowledged) >= TIMERS:
                timerd.kill()

    await asyncio.gather(*(send(worker) for worker in range(4)))
    return acknowledged


@pytest.mark.slow
async def test_a_start_cuts_a_torn_tail_and_goes_on_behind_it(tmp_path: Path) -> None:
    rng = seeded()
    async with Processor() as processor:
        original = tmp_path / "data"
        async with Process(original, "--shards", "1") as timerd:
            await timerd.put_type("t", url=processor.url)
            acknowledged = await armed_until_killed(timerd)
            assert len(acknowledged) >= TIMERS
            await timerd.start()
            images = [segments(original)]
            for n in range(3):
                await timerd.arm([{"id": f"last-{n}", "type": "t", "delay": LATER}])
                acknowledged.add(f"last-{n}")
                images.append(segments(original))
            timerd.kill()
            await timerd.wait()
        tail = Tail(images)

    async def one(name: str) -> None:
        copy = tmp_path / name.replace(" ", "-")
        shutil.copytree(original, copy)
        with (copy / tail.file).open("r+b") as file:
            file.seek(tail.end)
            file.write(TAILS[name](tail.record, rng))
        await starts_and_keeps(copy, tail, acknowledged)

    await asyncio.gather(*map(one, TAILS))


async def starts_and_keeps(data: Path, tail: Tail, acknowledged: set[str]) -> None:
    more = {f"more-{n}" for n in range(100)}
    async with Processor() as processor, Process(data) as timerd:
        warnings = [line for line in timerd.stderr + timerd.log if "warning" in line]
        assert len(warnings) == 1, warnings
        assert tail.file.name in warnings[0]
        assert str(tail.end) in warnings[0]
        await timerd.put_type("t", url=processor.url, max_lag="1s")
        await timerd.arm([{"id": id, "type": "t", "delay": LATER} for id in more])
        await timerd.kill_and_start()
        assert not [line for line in timerd.log if "warning" in line and line not in warnings]
        listed = {timer["id"] for timer in await timerd.list()}
        assert not acknowledged - listed, "lost"
        assert not more - listed, "lost although armed behind the cut"
        # What the four senders had under way at the kill may be there, and nothing else.
        assert all(id.startswith("w") and id.count("-") == 2 for id in listed - acknowledged - more)
        assert len(listed - acknowledged - more) <= 40
        due = stamp(time.time() + 2)
        await timerd.arm([{"id": id, "type": "t", "fire_at": due} for id in listed])
        await processor.until(lambda: processor.ids >= listed)
        assert processor.ids == listed

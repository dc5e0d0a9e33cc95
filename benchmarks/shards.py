"""What a shard costs with nothing in it: memory, and CPU while nothing happens. And a process without timers."""

import asyncio
from typing import Final

from benchmarks.figure import Round, Stopwatch
from benchmarks.server import Place, serving

FEW: Final = 8
MANY: Final = 264
SETTLE_S: Final = 2
MEASURE_S: Final = 8


async def run(place: Place) -> Round:
    """One round."""
    memory, cpu, others = [], [], 0.0
    for shards in (FEW, MANY):
        async with serving(place, "--shards", str(shards)) as server:
            await asyncio.sleep(SETTLE_S)
            watch = Stopwatch(server)
            await asyncio.sleep(MEASURE_S)
            watch.stop()
            memory.append(server.rss_bytes())
            cpu.append(watch.cpu_s / watch.took_s * 1e6)
            others = watch.others
    more = MANY - FEW
    return {
        "memory of a process without timers": (memory[0] / 1e6, "MB", 0.0),
        "memory of a shard": ((memory[1] - memory[0]) / more, "bytes", 0.0),
        "idle CPU of a shard, on files": (max(0.0, cpu[1] - cpu[0]) / more, "us a second", others),
    }

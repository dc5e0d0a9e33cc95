"""Restart after kill -9 with a million pending: from the start of the process to its ready line."""

from typing import Final

from benchmarks import wire
from benchmarks.figure import Figure
from benchmarks.server import Place, serving

TIMERS: Final = 1_000_000


async def run(place: Place, rounds: int) -> list[Figure]:
    """Every start replays what the one before left."""
    took, cpu = [], []
    async with serving(place) as server:
        await wire.put_type(server.port)
        await wire.send_all(server.port, wire.arms(wire.ids(TIMERS), wire.far(TIMERS), 1_000), 8)
        for _ in range(rounds):
            await server.kill()
            took.append(await server.start())
            cpu.append(server.cpu_s())
        counts = await wire.stats(server.port)
        assert counts["live"] == TIMERS, counts
    return [Figure("restart with 1 M pending", "s", took), Figure("restart with 1 M pending: CPU", "s", cpu)]

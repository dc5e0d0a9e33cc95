"""`timerd bench`: a first number for this machine, in a minute. The careful ones are in benchmarks/."""

import asyncio
import time
from typing import Annotated

import typer

from timerd.cli.rig import Rig, rig

BATCH = 1_000
CONNECTIONS = 4


def bench_command(
    timers: Annotated[int, typer.Option(help="How many.", min=1_000, max=5_000_000)] = 200_000,
) -> None:
    """Arm timers on a server of its own, let all be due at once, and print both rates."""
    asyncio.run(_bench(timers))


async def _bench(timers: int) -> None:
    async with rig() as made:
        await made.put_type("bench", max_lag=0, batch_size=800)
        due_at = int(time.time() * 1000) + 3_600_000
        took = await _arm_all(made, timers, due_at)
        typer.echo(f"armed {timers:,} timers in batches of {BATCH:,}, durable: {timers / took:,.0f}/s")
        due_at = int(time.time() * 1000) + 1_000 + timers // 50
        await _arm_all(made, timers, due_at)
        await asyncio.sleep(max(0.0, due_at / 1000 - time.time()))
        begin = time.time()
        await made.until_received(timers)
        took = time.time() - begin
        typer.echo(f"fired {timers:,} timers due at one instant, recorded: {timers / took:,.0f}/s")
        typer.echo("client, processor and server share this machine; benchmarks/ pins and separates them")


async def _arm_all(made: Rig, timers: int, due_at: int) -> float:
    parts = iter(range(0, timers, BATCH))

    async def arm() -> None:
        for at in parts:
            await made.arm("bench", {f"bench:{n:07d}": due_at for n in range(at, min(at + BATCH, timers))})

    begin = time.time()
    await asyncio.gather(*(arm() for _ in range(CONNECTIONS)))
    return time.time() - begin

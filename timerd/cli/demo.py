"""`timerd demo`: some ten thousand timers, armed, due and delivered before your eyes, on a server of its own."""

import asyncio
import random
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from timerd.cli.rig import Rig, rig

BATCH = 500
LAG_ALLOWED_MS = 1_250  # max_lag and the 250 ms of the promise


def demo_command(
    timers: Annotated[int, typer.Option(help="How many.", min=1, max=1_000_000)] = 20_000,
    seconds: Annotated[int, typer.Option(help="They become due over so many seconds.", min=1, max=600)] = 10,
) -> None:
    """Arm timers on a server of its own and watch them fire in batches. Exit 0 if all came, in their windows."""
    raise typer.Exit(asyncio.run(_demo(timers, seconds)))


async def _demo(timers: int, seconds: int) -> int:
    console = Console()
    async with rig() as made:
        await made.put_type("demo", max_lag="1s", batch_size=800)
        console.print(f"a timerd of its own listens on {made.url}; arming {timers:,} timers over {seconds} s")
        begin = time.time()
        first = int(begin * 1000) + 1_500
        ids = [f"demo:{n:07d}" for n in range(timers)]
        for at in range(0, timers, BATCH):
            due = {id: first + random.randrange(seconds * 1000) for id in ids[at : at + BATCH]}  # noqa: S311 - no secret
            await made.arm("demo", due)
        console.print(f"armed and on disk after {time.time() - begin:.2f} s")
        deadline = time.time() + seconds + 10
        with Live(_table(made, timers), console=console, refresh_per_second=4) as live:
            while made.received < timers and time.time() < deadline:
                await asyncio.sleep(0.25)
                live.update(_table(made, timers))
        worst = max(made.lags_ms, default=0)
        good = made.received == timers and not made.early and worst <= LAG_ALLOWED_MS
        console.print(
            f"{made.received:,} of {timers:,} received, {made.early} early, in {made.batches} POSTs; "
            f"largest lag {worst:,.0f} ms (max_lag 1 s): {'as promised' if good else 'NOT as promised'}"
        )
        return 0 if good else 1


def _table(made: Rig, timers: int) -> Table:
    lags = sorted(made.lags_ms[-5_000:]) or [0]
    table = Table()
    for title in ("received", "to come", "POSTs", "mean batch", "lag p50", "lag p99"):
        table.add_column(title, justify="right")
    table.add_row(
        f"{made.received:,}",
        f"{timers - made.received:,}",
        f"{made.batches:,}",
        f"{made.received / max(1, made.batches):.0f}",
        f"{lags[len(lags) // 2]:.0f} ms",
        f"{lags[len(lags) * 99 // 100]:.0f} ms",
    )
    return table

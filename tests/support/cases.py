"""What the acceptance cases share: their sizes, and the window that a delivery must fall into.

`TIMERD_CASES=full` runs them at the sizes of the reports; the sizes of every day keep the ratios.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from .processor import Delivery, Processor

FULL = os.environ.get("TIMERD_CASES") == "full"
BUSY = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
"""How much slower this machine is than one that has nothing else to do, for which the bounds of the cases are meant."""
SLACK_S = 2.0 * BUSY

T = TypeVar("T")


def sized(full: T, everyday: T) -> T:
    """One of two sizes."""
    return full if FULL else everyday


async def each(run: Callable[[T], Awaitable[None]], variants: Iterable[T]) -> None:
    """Run the variants of a case: those that mostly wait do it together, but at full size each has the machine."""

    async def named(variant: T) -> None:
        try:
            await run(variant)
        except BaseException as error:
            error.add_note(f"variant: {variant}")
            raise

    if FULL:
        for variant in variants:
            await named(variant)
    else:
        async with asyncio.TaskGroup() as group:
            for variant in variants:
                group.create_task(named(variant))


def seeded() -> random.Random:
    """A generator whose seed is printed; `TIMERD_SEED` gives it again."""
    seed = int(os.environ.get("TIMERD_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"seed: TIMERD_SEED={seed}")
    return random.Random(seed)


def stamp(unix_s: float) -> str:
    """RFC 3339 in UTC, with microseconds."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="microseconds")


def instant(text: str) -> float:
    """Unix seconds of an RFC 3339 time."""
    return datetime.fromisoformat(text).timestamp()


def millis(unix_s: float) -> int:
    """Unix milliseconds, as an arm may give them."""
    return round(unix_s * 1000)


def chunks(items: list[T], size: int) -> Iterator[list[T]]:
    """Lists of at most `size`."""
    return (items[start : start + size] for start in range(0, len(items), size))


def receipts(processor: Processor) -> dict[str, list[tuple[Delivery, dict[str, Any]]]]:
    """Every receipt of every id, in order."""
    found: dict[str, list[tuple[Delivery, dict[str, Any]]]] = {}
    for delivery, timer in processor.timers():
        found.setdefault(timer["id"], []).append((delivery, timer))
    return found


def outside(
    processor: Processor, due: Mapping[str, float], *, max_lag_s: float, since: float = 0, slack_s: float = SLACK_S
) -> list[str]:
    """Ids whose first receipt is not in [due, max(due, since) + max_lag + slack], and by how much.

    `since`: from when the service was able to deliver.
    """
    first: dict[str, float] = {}
    for delivery in processor.deliveries:
        for id in delivery.ids:
            first.setdefault(id, delivery.at)
    wrong = []
    for id, at in due.items():
        if id not in first:
            wrong.append(f"{id}: never received")
        elif first[id] < at:
            wrong.append(f"{id}: {at - first[id]:.4f} s early")
        elif (late := first[id] - max(at, since) - max_lag_s) > slack_s:
            wrong.append(f"{id}: {late:.3f} s behind its window")
    return wrong


def repeated(processor: Processor, ids: Iterable[str]) -> dict[str, int]:
    """Those of `ids` that were received more than once."""
    counts = processor.counts
    return {id: counts[id] for id in ids if counts[id] > 1}

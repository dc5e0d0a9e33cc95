"""Arm one by one from many tasks (or threads) through the client: arms a second, and the client's CPU for each.

    python clients/python/benchmarks/arm_one_by_one.py --url http://127.0.0.1:8470 [--tasks 64] [--seconds 5] [--sync]

Needs a type `bench`, which it puts. What is measured is the client's process alone; run the server on another core.
"""

import argparse
import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta

from timerd_client import AsyncTimerd, Timerd

FIRE_AT = datetime.now(UTC) + timedelta(days=30)


async def with_tasks(url: str, tasks: int, seconds: float) -> int:
    counts = [0] * tasks
    async with AsyncTimerd(url) as client:
        await client.put_type("bench", url="http://127.0.0.1:9/")
        end = time.monotonic() + seconds

        async def work(number: int) -> None:
            while time.monotonic() < end:
                await client.arm(f"bench-{number}-{counts[number]}", "bench", fire_at=FIRE_AT)
                counts[number] += 1

        await asyncio.gather(*[work(number) for number in range(tasks)])
    return sum(counts)


def with_threads(url: str, tasks: int, seconds: float) -> int:
    counts = [0] * tasks
    with Timerd(url) as client:
        client.put_type("bench", url="http://127.0.0.1:9/")
        end = time.monotonic() + seconds

        def work(number: int) -> None:
            while time.monotonic() < end:
                client.arm(f"bench-{number}-{counts[number]}", "bench", fire_at=FIRE_AT)
                counts[number] += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(tasks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(counts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--sync", action="store_true")
    given = parser.parse_args()
    cpu, wall = time.process_time(), time.monotonic()
    if given.sync:
        count = with_threads(given.url, given.tasks, given.seconds)
    else:
        count = asyncio.run(with_tasks(given.url, given.tasks, given.seconds))
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    print(f"{count} arms, {count / wall:,.0f} a second, {cpu / count * 1e6:.1f} us of CPU each")


if __name__ == "__main__":
    main()

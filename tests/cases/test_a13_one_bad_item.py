"""A13: one bad item makes the whole batch repeat.

Success was kept a batch, not an item, so a single failure had all its neighbours written or delivered again, in the
worst case for ever (apache/rocketmq #6984, dotnet/orleans #2983).
"""

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cases import each, outside, receipts, repeated, seeded, sized, stamp
from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor

ITEMS = 50
BAD = "bad-7"
ATTEMPTS = 4
MAX_LAG_S = 0.2
RETRY = {"max_attempts": ATTEMPTS, "min_backoff": "150ms", "max_backoff": "2s", "multiplier": 2, "jitter": 0.1}
UNRELATED_A_SECOND = 20
UNRELATED_S = sized(10, 3)


def named(delivery: Delivery) -> Answer:
    if BAD not in delivery.ids:
        return Answer()
    return Answer(body={"results": [{"id": BAD, "status": "retry", "error": "spoilt"}]})


def whole(delivery: Delivery) -> Answer:
    return Answer(500 if BAD in delivery.ids else 200)


def foreign(delivery: Delivery) -> Answer:
    return Answer(body={"results": [{"id": "nobody", "status": "retry"}]})


class NotJson:
    """Twice something that claims to be JSON and is not, for a batch with these items."""

    def __init__(self) -> None:
        self.left = 2

    def __call__(self, delivery: Delivery) -> Answer:
        if self.left and BAD in delivery.ids:
            self.left -= 1
            return Answer(headers={"Content-Type": "application/json"}, text='{"results": [')
        return Answer()


SCRIPTS: dict[str, Callable[[Delivery], Answer]] = {
    "named": named, "whole": whole, "foreign": foreign, "not-json": NotJson(),
}  # fmt: skip


@pytest.mark.slow
async def test_neighbours_of_a_bad_item_are_delivered(tmp_path: Path) -> None:
    seeded()

    async def run(name: str) -> None:
        await neighbours_are_delivered(tmp_path / name, SCRIPTS[name])

    await each(run, SCRIPTS)


async def neighbours_are_delivered(data: Path, script: Callable[[Delivery], Answer]) -> None:
    async with Processor(script) as processor, Process(data) as timerd:
        await timerd.put_type("t", url=processor.url, batch_size=ITEMS, max_lag=MAX_LAG_S, retry=RETRY)
        begin = time.time() + 0.5
        items = {f"ok-{n}" for n in range(ITEMS - 1)}
        await timerd.arm([{"id": id, "type": "t", "fire_at": stamp(begin + 1)} for id in [*items, BAD]])
        count = UNRELATED_A_SECOND * UNRELATED_S
        unrelated = {f"other-{n}": begin + n / UNRELATED_A_SECOND for n in range(count)}
        await timerd.arm([{"id": id, "type": "t", "fire_at": stamp(at)} for id, at in unrelated.items()])
        bad_is_dead = script in (named, whole)

        async def settled() -> bool:
            stats = await timerd.stats("t")
            return (stats["live"], stats["dead"]) == (0, int(bad_is_dead))

        await processor.until(lambda: processor.ids >= items | unrelated.keys())
        await timerd.until(settled)
        assert not outside(processor, unrelated, max_lag_s=MAX_LAG_S)
        dead = await timerd.dead_letters()
        assert [letter["id"] for letter in dead] == [BAD] * bad_is_dead
        if script is named:
            assert not repeated(processor, items)
            times = [delivery.at for delivery, _ in receipts(processor)[BAD]]
            assert [timer["attempt"] for _, timer in receipts(processor)[BAD]] == [1, 2, 3, 4]
            gaps = [b - a for a, b in itertools.pairwise(times)]
            print(f"gaps: {gaps}")
            assert gaps == sorted(gaps), "the gaps don't grow"
            assert dead[0]["attempts"] == ATTEMPTS
            assert "spoilt" in dead[0]["last_error"]
        elif script is whole:
            # Halved until it is alone: at most log2(50) + 1 attempts in company, then its own four.
            assert processor.counts[BAD] <= 7 + ATTEMPTS
            assert max(processor.counts[id] for id in items) <= 7
            assert "500" in dead[0]["last_error"]
        elif script is foreign:
            assert set(processor.counts.values()) == {1}
            assert (await timerd.stats("t"))["fired"] == ITEMS + count
        else:
            assert max(processor.counts[id] for id in [*items, BAD]) <= 3
        assert [timer["id"] for timer in await timerd.list()] == [BAD] * bad_is_dead
        assert not timerd.complaints()
        assert (await timerd.request("GET", "/readyz"))[0] == 200

"""A27: a late retry puts an old time back.

A request that had timed out at its sender had been applied, and was sent again by the library; elsewhere a delayed
worker laid an outdated plan over a newer one (apify/apify-client-python #990, AWS DynamoDB in us-east-1, Oct 2025).
A call that re-arms has both ingredients.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.cases import BUSY, each, instant, millis, outside, seeded, sized
from tests.support.process import Process
from tests.support.processor import Processor
from tests.support.request_proxy import RequestProxy
from timerd_client import AsyncTimerd, OutcomeUnknown, Timerd

TIMEOUT_S = sized(10.0, 2.5)
HELD_S = sized(5.0, 1.2)
T1_S = sized(40, 6) + math.ceil(BUSY)
T2_S = T1_S + sized(15, 1)
"""An hour and two of the case: far enough for all that goes before, near enough to see what really fires."""
MAX_LAG_S = 0.5
LONG_S = 30


class Rig(NamedTuple):
    """Of one story: its id, its times, and a proxy that only client 1 goes through."""

    timerd: Process
    processor: Processor
    proxy: RequestProxy
    id: str
    t1: datetime
    t2: datetime


async def stands_and_fires(rig: Rig, at: datetime) -> None:
    """Read-back and firing agree: it stands at this time, and is delivered then and only then."""
    shown = await rig.timerd.get(rig.id)
    assert shown is not None
    assert instant(shown["fire_at"]) == at.timestamp()
    assert time.time() < rig.t1.timestamp(), "too slow for its own due time"
    watch, due = f"watch-{rig.id}", rig.t2.timestamp() + 0.5  # whatever stood at either time has gone by then
    await rig.timerd.arm([{"id": watch, "type": "t", "fire_at": millis(due)}])
    await rig.processor.until(lambda: {rig.id, watch} <= rig.processor.ids, timeout_s=T2_S + 20)
    assert not outside(rig.processor, {rig.id: at.timestamp(), watch: due}, max_lag_s=MAX_LAG_S)
    assert rig.processor.counts[rig.id] == 1


class Caller:
    """The same calls on either client."""

    def __init__(self, kind: str, url: str) -> None:
        self._sync = Timerd(url, timeout=TIMEOUT_S) if kind == "sync" else None
        self._async = AsyncTimerd(url, timeout=TIMEOUT_S) if kind == "async" else None

    async def arm(self, id: str, at: datetime, **options: Any) -> Any:
        if self._sync is not None:
            return await asyncio.to_thread(self._sync.arm, id, "t", fire_at=at, **options)
        assert self._async is not None
        return await self._async.arm(id, "t", fire_at=at, **options)

    async def close(self) -> None:
        if self._sync is not None:
            await asyncio.to_thread(self._sync.close)
        if self._async is not None:
            await self._async.close()


Story = Callable[[Rig, Caller], Awaitable[None]]


async def two_clients(rig: Rig, first: Caller) -> None:
    """No guard: the documentation says that the last arrival wins, and that is what is read and what fires."""
    rig.proxy.next(drop_answer=True)
    retry = rig.proxy.next(hold=True)
    late = asyncio.create_task(first.arm(rig.id, rig.t1))
    await asyncio.wait_for(retry.arrived.wait(), LONG_S)
    async with AsyncTimerd(rig.timerd.url) as second:
        assert (await second.arm(rig.id, "t", fire_at=rig.t2)).fire_at == rig.t2
        await asyncio.sleep(HELD_S)  # the case
        await retry.let_go()
        print(f"the retry that was held {HELD_S} s was answered {retry.status}")
        # A repeat that outlived its attempt is refused, and its sender, who still wants t1, arrives once more.
        assert retry.status in (200, 409)
        assert (await late).fire_at == rig.t1
        await stands_and_fires(rig, rig.t1)


async def two_clients_guarded(rig: Rig, first: Caller) -> None:
    """The way to guard that the documentation offers: `if_generation`."""
    async with AsyncTimerd(rig.timerd.url) as second:
        seen = await second.arm(rig.id, "t", delay=3_600)
        rig.proxy.next(drop_answer=True)
        retry = rig.proxy.next(hold=True)
        late = asyncio.create_task(first.arm(rig.id, rig.t1, if_generation=seen.generation))
        await asyncio.wait_for(retry.arrived.wait(), LONG_S)
        shown = await second.get(rig.id)
        assert shown is not None
        assert shown.fire_at == rig.t1, "the first attempt was applied"
        newest = await second.arm(rig.id, "t", fire_at=rig.t2, if_generation=shown.generation)
        assert newest.status == "moved"
        await asyncio.sleep(HELD_S)  # the case
        await retry.let_go()
        with pytest.raises(OutcomeUnknown):  # its own conflict can't be told from another's
            await late
        await stands_and_fires(rig, rig.t2)


async def a_time_out_raised_to_the_caller(rig: Rig, client: Caller) -> None:
    """Every attempt of t1 is held until after t2 has been acknowledged."""
    lost = [rig.proxy.next(hold=True) for _ in range(3)]
    with pytest.raises(OutcomeUnknown):
        await client.arm(rig.id, rig.t1)
    reached = [attempt for attempt in lost if attempt.arrived.is_set()]
    assert len(reached) >= 2, "the library did not try again"
    rig.proxy.forget()
    assert (await client.arm(rig.id, rig.t2)).fire_at == rig.t2
    for attempt in reached:
        await attempt.let_go()
        assert attempt.status == 409, "an attempt that was given up was applied"
    await stands_and_fires(rig, rig.t2)


async def two_overlapping_arms(rig: Rig, client: Caller) -> None:
    """Called one after the other, both open; the first is held up on its way, and tried again meanwhile."""
    slow = rig.proxy.next(hold=True)
    first = asyncio.create_task(client.arm(rig.id, rig.t1))
    await asyncio.wait_for(slow.arrived.wait(), LONG_S)
    second = asyncio.create_task(client.arm(rig.id, rig.t2))
    assert (await client.arm(f"other-{rig.id}", rig.t2 + timedelta(days=1))).status == "created"
    assert not second.done(), "the second overtook the first"
    assert ((await first).fire_at, (await second).fire_at) == (rig.t1, rig.t2)
    await slow.let_go()
    assert slow.status == 409
    await stands_and_fires(rig, rig.t2)


STORIES: tuple[Story, ...] = (
    two_clients, two_clients_guarded, a_time_out_raised_to_the_caller, two_overlapping_arms,
)  # fmt: skip


@pytest.mark.slow
async def test_a_late_retry_puts_no_old_time_back(tmp_path: Path) -> None:
    seeded()
    async with Processor() as processor, Process(tmp_path / "data") as timerd:
        await timerd.put_type("t", url=processor.url, max_lag=MAX_LAG_S)

        async def run(variant: tuple[Story, str]) -> None:
            story, kind = variant
            now = math.ceil(time.time())
            at = [datetime.fromtimestamp(now + delay_s, UTC) for delay_s in (T1_S, T2_S)]
            async with RequestProxy(timerd.url) as proxy:
                client = Caller(kind, proxy.url)
                await story(Rig(timerd, processor, proxy, f"{story.__name__}-{kind}", *at), client)
                await client.close()

        await each(run, [(story, kind) for story in STORIES for kind in ("sync", "async")])
        assert not timerd.complaints()

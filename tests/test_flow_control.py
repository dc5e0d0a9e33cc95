"""Flow control with the real process: an overloaded target, one that is away, large payloads; and what is shown."""

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor
from timerd.cli.condition import lines

CAPACITY = 3


async def test_a_target_with_too_much_to_do_is_spared_and_everything_arrives(tmp_path: Path) -> None:
    async with Processor() as busy, Processor() as fine, Process(tmp_path / "data") as timerd:
        refused: list[str] = []

        async def answer(delivery: Delivery) -> Answer:
            if busy.open > CAPACITY:
                refused.append(delivery.ids[0])
                return Answer(503)
            await asyncio.sleep(0.01)  # the case: its work
            return Answer()

        busy.answer = answer
        retry = {"min_backoff": "50ms", "max_backoff": "200ms"}
        await timerd.put_type("busy", url=busy.url, batch_size=1, retry=retry)
        await timerd.put_type("fine", url=fine.url)
        due = round(time.time() * 1000) + 500
        await timerd.arm([{"id": f"b{n}", "type": "busy", "fire_at": due} for n in range(300)])
        await timerd.arm([{"id": f"f{n}", "type": "fine", "fire_at": due + 10 * n} for n in range(100)])
        await busy.until(lambda: len(busy.ids) == 300)
        await timerd.until(lambda: _fired(timerd, "busy", 300))
        await timerd.until(lambda: _fired(timerd, "fine", 100))
        assert refused
        assert len(busy.deliveries) < 900
        assert any("slow_down_began" in line and "HTTP 503" in line for line in timerd.stderr + timerd.log)
        assert not await timerd.dead_letters()
        assert not timerd.complaints()


async def test_a_target_that_is_away_is_shown_and_costs_nothing(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        async with Process(tmp_path / "data") as timerd:
            retry = {"min_backoff": "50ms", "max_backoff": "100ms", "max_attempts": 1}
            await timerd.put_type("away", url=f"http://127.0.0.1:{port}/", batch_size=10, retry=retry)
            await timerd.arm([{"id": f"a{n}", "type": "away", "delay": 0} for n in range(100)])

            async def down() -> bool:
                return (await timerd.stats("away"))["target"]["breaker"] != "closed"

            await timerd.until(down)
            stats = await timerd.stats("away")
            told = lines({"away": stats})
            assert told[0].startswith(f"away: its target, in trouble since {stats['target']['since']}, is down ")
            assert f"(connect: 127.0.0.1:{port} refused the connection)" in told[0]
            assert any("breaker_opened" in line for line in timerd.stderr + timerd.log)
            timer = await timerd.get("a0")
            assert timer is not None
            assert "ssl" not in timer.get("last_error", "")
            async with Processor() as back:
                await timerd.put_type("away", url=back.url, batch_size=10, retry=retry)
                await back.until(lambda: len(back.ids) == 100)
                await timerd.until(lambda: _fired(timerd, "away", 100))
            stats = await timerd.stats("away")
            assert (stats["dead"], stats["target"]["breaker"], stats["target"]["window"]) == (0, "closed", 16)
            assert not timerd.complaints()


@pytest.mark.parametrize("kind", ["processor", "callback"])
async def test_a_target_that_nothing_waits_for_any_more_is_not_in_trouble(tmp_path: Path, kind: str) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
        where: dict[str, Any] = {"kind": "callback"} if kind == "callback" else {"url": url, "batch_size": 10}
        what = {"type": "t"} | ({"request": {"url": url}} if kind == "callback" else {})
        async with Process(tmp_path / "data", "--callback-allow", "127.0.0.0/8") as timerd:
            await timerd.put_type(
                "t", **where, retry={"min_backoff": "50ms", "max_backoff": "100ms", "max_attempts": 0}
            )
            ids = [f"a{n}" for n in range(6)]
            await timerd.arm([{"id": id, "delay": 0, **what} for id in ids])
            await timerd.arm([{"id": "later", "delay": "45d", **what}])
            await timerd.until(lambda: _shows(timerd, "open", 1, 1))
            await timerd.request("POST", "/v1/timers:cancel", {"ids": ids})
            await timerd.until(lambda: _shows(timerd, "closed", 0, 0))
            assert not any("breaker_closed" in line for line in timerd.stderr + timerd.log), "nobody has heard of it"
            assert not timerd.complaints()


async def test_large_payloads_of_a_slow_type_leave_room_for_another(tmp_path: Path) -> None:
    payload = "x" * 60_000
    async with Processor() as slow, Processor() as other, Process(tmp_path / "data") as timerd:
        release = asyncio.Event()

        async def hold(delivery: Delivery) -> Answer:
            await release.wait()
            return Answer()

        slow.answer = hold
        await timerd.put_type("slow", url=slow.url, batch_size=100)
        await timerd.put_type("other", url=other.url, batch_size=100)
        for first in range(0, 1_200, 100):
            items = [{"id": f"s{first + n}", "type": "slow", "delay": 0, "payload": payload} for n in range(100)]
            await timerd.arm(items)
        await slow.until(lambda: slow.open >= 3)
        await timerd.arm([{"id": f"o{n}", "type": "other", "delay": 0, "payload": payload} for n in range(100)])
        await other.until(lambda: len(other.ids) == 100)
        assert slow.open <= 5, "half of the room, at 6 MB a batch"
        release.set()
        await slow.until(lambda: len(slow.ids) == 1_200)
        assert not timerd.complaints()


async def _fired(timerd: Process, type: str, count: int) -> bool:
    return bool((await timerd.stats(type))["fired"] == count)


async def _shows(timerd: Process, breaker: str, metric: int, told: int) -> bool:
    stats = await timerd.stats("t")
    status, metrics = await timerd.request("GET", "/metrics")
    assert status == 200
    counted = f'timerd_breaker_open{{type="t"}} {metric}.0' in metrics.splitlines()
    return stats["breaker"] == breaker and counted and len(lines({"t": stats})) == told

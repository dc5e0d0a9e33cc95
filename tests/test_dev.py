"""`timerd dev`, the process: the service on a clock that is turned by request."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor


class Dev(Process):
    command = "dev"


async def advance(timerd: Process, **how: Any) -> tuple[int, Any]:
    return await timerd.request("POST", "/v1/clock:advance", how)


async def test_sixty_days_in_one_request(tmp_path: Path) -> None:
    async with Processor() as processor, Dev(tmp_path / "data") as timerd:
        await timerd.put_type("t", url=processor.url, max_lag="10s")
        _, began = await timerd.request("GET", "/v1/clock")
        await timerd.arm([{"id": "a", "type": "t", "delay": "60d"}, {"id": "b", "type": "t", "delay": "59d"}])
        status, answer = await advance(timerd, by="59d")
        assert (status, answer["fired"]) == (200, 1)
        assert list(processor.counts) == ["b"], "delivered before the answer"
        status, answer = await advance(timerd, by="1d")
        assert (status, answer["fired"]) == (200, 1)
        assert answer["now"] > began["now"]
        assert list(processor.counts) == ["b", "a"]
        status, answer = await advance(timerd, to=answer["now"])
        assert (status, answer["fired"]) == (200, 0)


async def test_the_clock_stands_still_and_goes_on_from_there_after_a_start(tmp_path: Path) -> None:
    async with Dev(tmp_path / "data") as timerd:
        await advance(timerd, by="400d")
        _, before = await timerd.request("GET", "/v1/clock")
        await timerd.put_type("t", url="http://127.0.0.1:9/none")
        await timerd.arm([{"id": "a", "type": "t", "delay": "1d"}])
        await timerd.kill_and_start()
        _, after = await timerd.request("GET", "/v1/clock")
        assert after == before
        timer = await timerd.get("a")
        assert timer is not None
        assert timer["state"] == "armed"


async def until_inside(processor: Processor, timerd: Dev) -> "asyncio.Task[tuple[int, Any]]":
    """Begin to turn the clock by ten hours, over ten timers; the third is with the processor when this returns."""
    await timerd.put_type("t", url=processor.url, max_lag=0)
    await timerd.arm([{"id": f"{n}", "type": "t", "delay": f"{n}h"} for n in range(1, 11)])
    turn = asyncio.create_task(advance(timerd, by="10h"))
    await processor.until(lambda: "3" in processor.ids)
    return turn


async def test_a_stop_ends_a_turn_where_the_clock_stands(tmp_path: Path) -> None:
    answered = asyncio.Event()

    async def answer(delivery: Delivery) -> Answer:
        if "3" in delivery.ids:
            await answered.wait()
        return Answer()

    async with Processor(answer) as processor, Dev(tmp_path / "data") as timerd:
        turn = await until_inside(processor, timerd)
        _, during = await timerd.request("GET", "/v1/clock")
        stop = asyncio.create_task(timerd.stop())
        status, problem = await turn
        assert (status, problem["type"].rpartition("/")[2]) == (503, "shard-unavailable")
        answered.set()
        assert await stop == 0
        await timerd.start()
        assert await timerd.request("GET", "/v1/clock") == (200, during)
        assert (await advance(timerd, by="10h"))[1]["fired"] == 7
        assert processor.counts == {f"{n}": 1 for n in range(1, 11)}


async def test_the_clock_does_not_go_back_when_a_turn_is_killed(tmp_path: Path) -> None:
    async def answer(delivery: Delivery) -> Answer:
        if "3" in delivery.ids:
            await asyncio.sleep(60)
        return Answer()

    async with Processor(answer) as processor, Dev(tmp_path / "data") as timerd:
        turn = await until_inside(processor, timerd)
        _, during = await timerd.request("GET", "/v1/clock")
        timerd.kill()
        with pytest.raises(aiohttp.ClientError):
            await turn
        await timerd.start()
        assert await timerd.request("GET", "/v1/clock") == (200, during)


async def test_a_limit_is_one_of_real_seconds(tmp_path: Path) -> None:
    owner = {"headers": {"Authorization": "Bearer owner"}}
    async with Dev(tmp_path / "data", env={"TIMERD_API_KEY": "owner"}) as timerd:
        wanted = {"name": "n", "scopes": ["read"], "max_per_second": 1}
        _, made = await timerd.request("POST", "/v1/keys", wanted, **owner)
        limited = {"headers": {"Authorization": f"Bearer {made['key']}"}}
        async with asyncio.timeout(30):
            seen: list[int] = []
            while seen[-2:] != [429, 200]:  # goes by without the clock being turned
                seen.append((await timerd.request("GET", "/v1/types", **limited))[0])


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "/by"),
    ({"by": "1d", "to": "2099-01-01T00:00:00Z"}, "/by"),
    ({"by": "-1d"}, "/by"),
    ({"by": -1}, "/by"),
    ({"by": "soon"}, "/by"),
    ({"by": "100000d"}, "/by"),
    ({"by": True}, "/by"),
    ({"to": "2001-01-01T00:00:00Z"}, "/to"),
    ({"to": "2099-01-01T00:00:00"}, "/to"),
    ({"to": 1e300}, "/to"),
    ({"to": None}, "/to"),
    ({"to": "2200-01-01T00:00:00Z"}, "/to"),
    ({"until": 1}, "/until"),
]


async def test_a_turn_that_can_not_be(tmp_path: Path) -> None:
    async with Dev(tmp_path / "data") as timerd:
        _, before = await timerd.request("GET", "/v1/clock")
        for body, pointer in WRONG:
            status, problem = await advance(timerd, **body)
            assert (status, problem["type"].rpartition("/")[2]) == (422, "validation"), body
            assert [error["pointer"] for error in problem["errors"]] == [pointer], body
        assert await timerd.request("GET", "/v1/clock") == (200, before)


async def test_the_two_kinds_of_clock_do_not_share_a_directory(tmp_path: Path) -> None:
    async with Dev(tmp_path / "virtual") as timerd:
        assert await timerd.stop() == 0
    async with Process(tmp_path / "real") as timerd:
        status, _ = await timerd.request("GET", "/v1/clock")
        assert status == 404
        assert await timerd.stop() == 0
    for kind, directory in ((Process, "virtual"), (Dev, "real")):
        timerd = kind(tmp_path / directory)
        assert not await (await timerd.spawn())
        assert timerd.process is not None
        assert await timerd.process.wait() == 2
        assert str(tmp_path / directory) in "".join(timerd.stderr)

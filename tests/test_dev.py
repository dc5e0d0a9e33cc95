"""`timerd dev`, the process: the service on a clock that is turned by request."""

from pathlib import Path
from typing import Any

from tests.support.process import Process
from tests.support.processor import Processor


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

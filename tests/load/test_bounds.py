"""What is beyond a bound is refused whole, with 503 and when to come back; what was accepted is done."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.process import Process
from tests.support.slow_disk import SlowDisk
from timerd.inbox import WAIT_MS_MAX
from timerd.pages import PAGE_BYTES_MAX

LARGE = "x" * 60_000
ITEMS = 100  # 6 MB a request: six are beyond one shard's inbox

Told = tuple[int, str | None, str]
"""(status, Retry-After, the problem's name)"""


def body(request: int, payload: str | None) -> bytes:
    timer = {"type": "t", "delay": "1h"} if payload is None else {"type": "t", "delay": "1h", "payload": payload}
    return msgspec.json.encode({"timers": [{"id": f"{request}-{n}", **timer} for n in range(ITEMS)]})


async def ask(timerd: Process, data: bytes) -> Told:
    headers = {"Content-Type": "application/json"}
    async with timerd.session.post(timerd.url + "/v1/timers", data=data, headers=headers) as answer:
        said: dict[str, Any] = msgspec.json.decode(await answer.read())
        return answer.status, answer.headers.get("Retry-After"), said.get("type", "").rpartition("/")[2]


async def ask_until_refused(timerd: Process, payload: str | None, pause_s: float) -> list["asyncio.Task[Told]"]:
    """One more after each pause, until one has its answer though no sync returns: that is a refusal."""
    asks: list[asyncio.Task[Told]] = []
    async with asyncio.timeout(60):
        while not any(task.done() for task in asks):
            asks.append(asyncio.create_task(ask(timerd, body(len(asks), payload))))
            await asyncio.wait(asks, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
    return asks


@pytest.mark.slow
@pytest.mark.parametrize(("bound", "payload", "pause_s"), [("bytes", LARGE, 0.05), ("time", None, WAIT_MS_MAX / 8_000)])
async def test_arms_beyond_an_inbox_are_refused_whole_and_those_before_are_stored(
    tmp_path: Path, bound: str, payload: str | None, pause_s: float
) -> None:
    if not SlowDisk.possible():
        pytest.skip("the disk that stalls is compiled when it is needed, and there is no C compiler")
    disk = SlowDisk(tmp_path)
    async with Process(tmp_path / "data", "--shards", "1", env=disk.env) as timerd:
        await timerd.put_type("t", url="http://127.0.0.1:9/")
        disk.stall(3600)
        asks = await ask_until_refused(timerd, payload, pause_s)
        refused = [task.result() for task in asks if task.done()]
        assert set(refused) == {(503, "1", "overloaded")}
        assert (await timerd.request("GET", "/healthz"))[0] == 200, "the process is well"
        disk.stall(0)
        answers = await asyncio.gather(*asks)
        stored = {n for n, (status, _, _) in enumerate(answers) if status == 200}
        assert stored, "what came before the bound was accepted"
        assert {told for n, told in enumerate(answers) if n not in stored} == set(refused)
        there = {timer["id"] for timer in await timerd.list()}
        assert there == {f"{n}-{item}" for n in stored for item in range(ITEMS)}
        assert (await ask(timerd, body(99, payload)))[0] == 200, "and when there is room again, it is taken"


@pytest.mark.slow
async def test_a_page_of_large_payloads_is_short_and_goes_on(tmp_path: Path) -> None:
    async with Process(tmp_path / "data") as timerd:
        await timerd.put_type("t", url="http://127.0.0.1:9/")
        assert (await ask(timerd, body(1, LARGE)))[0] == 200
        ids: list[str] = []
        token = ""
        while True:
            status, page = await timerd.request("GET", f"/v1/timers?page_size=1000{token}")
            assert status == 200
            assert page["timers"]
            assert sum(len(timer["payload"]) + 2 for timer in page["timers"]) <= PAGE_BYTES_MAX
            ids += [timer["id"] for timer in page["timers"]]
            if "next_page_token" not in page:
                break
            token = f"&page_token={page['next_page_token']}"
        assert sorted(ids) == sorted(f"1-{n}" for n in range(ITEMS))

"""A21: ids with reserved characters can be created but not reached.

An id travelled in the body when it was made and in the path afterwards, encoded one way and decoded another, so that
entities could be made and neither read nor deleted (molgenis/molgenis #4117, Azure/azure-cosmos-dotnet-v3 #2970,
eleboucher/memini #10).
"""

from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.cases import receipts, seeded
from tests.support.process import Process
from tests.support.processor import Processor
from timerd_client import AsyncTimerd, TimerdError

GOOD = [
    "a/b", "a%2Fb", "a%252Fb", "a b", "a+b", "a?b#c", "a;b", "a//b", "/a", "a/", "/", "//", "a:b", "a%", "%00", "%",
    "%zz", "a&b=c", "...", "./a", "../a", "a/../b", "a/./b", "'", '"', "\\", "a\\b", "{id}", "é", "e\u0301", "漢字",
    "🙂", "\u202e", "a,b", "*", "~", "a:fire", "b:cancel", "null", " ", " a ", "x" * 255, "x" * 256, "é" * 128,
    "http://a.example/?b=c#d",
]  # fmt: skip
REFUSED = [".", "..", "", "a\x00b", "a\nb", "a\x7f", "x" * 257, "x" * 4_096, "é" * 129]


@pytest.mark.slow
async def test_an_id_is_refused_or_fully_usable(tmp_path: Path) -> None:
    seeded()
    async with (
        Processor() as processor,
        Process(tmp_path / "data") as timerd,
        AsyncTimerd(timerd.url) as client,
    ):
        await timerd.put_type("t", url=processor.url)
        for id in GOOD:
            path = f"/v1/timers/{quote(id, safe='')}"
            fields = {"type": "t", "delay": "1h", "payload": {"id": id}}
            status, armed = await timerd.request("PUT", path, fields)
            assert (status, armed["id"], armed["status"]) == (201, id, "created"), id
            status, shown = await timerd.request("GET", path)
            assert (status, shown["id"], shown["payload"]) == (200, id, {"id": id}), id
            seen = await client.get(id)
            assert seen is not None
            assert (seen.id, seen.generation) == (id, armed["generation"]), id
            moved = await client.arm(id, "t", delay=7200, payload={"id": id})
            assert (moved.id, moved.status) == (id, "moved"), id
            again = await timerd.arm([{"id": id, "type": "t", "delay": "3h", "payload": {"id": id}}])
            assert again["results"][0]["status"] == "moved", id
            assert again["results"][0]["generation"] > moved.generation, id
        assert {timer["id"] for timer in await timerd.list()} == set(GOOD), "two ids became one, or one another"

        for n, id in enumerate(GOOD):  # delete, and find gone, by turns through the one and the other
            path = f"/v1/timers/{quote(id, safe='')}"
            if n % 2:
                status, gone = await timerd.request("DELETE", path)
                assert (status, gone["id"]) == (200, id)
                assert await client.get(id) is None
            else:
                assert (await client.cancel(id)).status == "cancelled", id
                assert (await timerd.request("GET", path))[0] == 404, id
            assert len(await timerd.list()) == len(GOOD) - 1, f"{id!r} took others with it"
            await client.arm(id, "t", delay=3600, payload={"id": id})

        for n, id in enumerate(GOOD):
            if n % 2:
                status, _ = await timerd.request("POST", f"/v1/timers/{quote(id, safe='')}:fire")
                assert status == 200, id
            else:
                await client.fire(id)
        await processor.until(lambda: processor.ids == set(GOOD))
        assert processor.counts == dict.fromkeys(GOOD, 1)
        for id, ((_, timer),) in receipts(processor).items():
            assert timer["payload"] == {"id": id}

        for id in REFUSED:
            body = {"timers": [{"id": id, "type": "t", "delay": 60}]}
            status, answer = await timerd.request("POST", "/v1/timers", body)
            assert status == 422, (id, status)
            assert answer["errors"][0]["pointer"] == "/timers/0/id", answer
            with pytest.raises((TimerdError, ValueError)):
                await client.arm(id, "t", delay=60)
            if id:
                path = f"/v1/timers/{quote(id, safe='').replace('.', '%2E')}"
                for method, sent in (("PUT", {"type": "t", "delay": 60}), ("GET", None), ("DELETE", None)):
                    status, _ = await timerd.request(method, path, sent)
                    assert 400 <= status < 500, (method, id, status)
        assert await timerd.list() == []
        assert not timerd.complaints()

"""A08: times without an offset mean different things on each side.

A date-time without an offset was stored as it came and read in whatever zone the reading process had, so jobs ran hours
off, and differently after a move (NousResearch/hermes-agent PR #1729, orchest/orchest #273).
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.cases import instant, outside, seeded, stamp
from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor

INDIA, NEW_YORK = "IST-5:30", "EST5EDT,M3.2.0,M11.1.0"
"""Asia/Kolkata and America/New_York as POSIX writes them: these need no zone database."""
NAIVE = ["2030-01-01T00:00:00", "2030-01-01T00:00:00.123", "2030-01-01 00:00:00", "2030-01-01", "2030-01-01T00:00"]
SPELLINGS = [
    "2030-06-01T12:00:00Z", "2030-06-01t12:00:00z", "2030-06-01T17:30:00+05:30", "2030-06-01T04:00:00-08:00",
    "2030-06-01T12:00:00-00:00", "2030-06-01T12:00:00+00:00", "2030-06-01T12:00:00.000Z",
    "2030-06-01T12:00:00.000000Z", "2030-06-02T02:00:00.000+14:00", "2030-06-01T11:59:59.999001Z",
]  # fmt: skip
NOON = "2030-06-01T12:00:00.000Z"
MAX_LAG_S = 0.5

CLIENT = """
import json, sys, time
from datetime import datetime, timedelta, tzinfo, UTC
from timerd_client import Timerd, TimerdError

class Berlin(tzinfo):  # of an hour that comes twice: first in summer time, then in winter time
    def utcoffset(self, at): return timedelta(hours=1 if at.fold else 2)
    def dst(self, at): return timedelta(hours=0 if at.fold else 1)
    def tzname(self, at): return "CET" if at.fold else "CEST"

assert time.localtime(1_780_000_000).tm_hour == 16, "this process is not in New York"
said = {"refused": [], "shown": {}}
with Timerd(sys.argv[1]) as client:
    soon = datetime.now() + timedelta(seconds=5)
    for call in (
        lambda: client.arm("naive", "t", fire_at=soon),
        lambda: client.arm("naive", "t", fire_at=datetime(2030, 1, 1)),
        lambda: list(client.list(fire_after=datetime(2030, 1, 1))),
    ):
        try:
            call()
        except Exception as error:
            said["refused"].append(type(error).__name__)
    for fold in (0, 1):
        for year, day in ((2026, 25), (2027, 31)):
            at = datetime(year, 10, day, 2, 30, tzinfo=Berlin(), fold=fold)
            client.arm(f"{year} fold {fold}", "waits", fire_at=at)
    client.arm("aware", "t", fire_at=datetime.now().astimezone() + timedelta(seconds=2))
    for timer in client.list():
        assert timer.fire_at.utcoffset() is not None
        said["shown"][timer.id] = timer.fire_at.astimezone(UTC).isoformat()
print(json.dumps(said))
"""


async def client_in_new_york(url: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, url, env={**os.environ, "TZ": NEW_YORK}, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(out)


@pytest.mark.slow
async def test_a_time_means_the_same_wherever_it_is_read(tmp_path: Path) -> None:
    seeded()

    def answer(delivery: Delivery) -> Answer:
        if "again" in delivery.ids:
            return Answer(body={"results": [{"id": "again", "status": "rearm", "fire_at": NAIVE[0]}]})
        return Answer()

    async with Processor(answer) as processor, Process(tmp_path / "data", env={"TZ": INDIA}) as timerd:
        await timerd.put_type("t", url=processor.url, max_lag=MAX_LAG_S)
        await timerd.put_type("waits", url=processor.url, state="paused")
        await timerd.put_type("calls", kind="callback")
        call = {"type": "calls", "request": {"url": "https://example.com/"}}

        for time_text in NAIVE:  # refused, wherever a time may stand
            for method, path, body in (
                ("POST", "/v1/timers", {"timers": [{"id": "naive", "type": "t", "fire_at": time_text}]}),
                ("PUT", "/v1/timers/naive", {"type": "t", "fire_at": time_text}),
                ("POST", "/v1/timers", {"timers": [{"id": "naive", "fire_at": time_text, **call}]}),
                ("GET", f"/v1/timers?fire_after={quote(time_text)}", None),
                ("GET", f"/v1/timers?fire_before={quote(time_text)}", None),
            ):
                status, said = await timerd.request(method, path, body)
                assert status == 422, (method, path, time_text, status)
                assert "offset" in str(said) or "RFC 3339" in str(said), said
            headers = {"Timerd-Expires": time_text}
            good = {"timers": [{"id": "naive", "type": "t", "delay": 60}]}
            status, said = await timerd.request("POST", "/v1/timers", good, headers=headers)
            assert 400 <= status < 500, (time_text, status, said)
        assert await timerd.list() == []

        for n, text in enumerate(SPELLINGS):
            await timerd.arm([{"id": f"spelt-{n}", "type": "t", "fire_at": text}])
            await timerd.arm([{"id": f"call-{n}", "fire_at": text, **call}])
        begin = time.time()
        said = await client_in_new_york(timerd.url)
        assert said["refused"] == ["ValueError"] * 3
        await timerd.arm([{"id": "again", "type": "t", "delay": 0}])

        shown = {
            timer["id"]: timer["fire_at"] for timer in await timerd.list() if timer["id"] not in ("again", "aware")
        }
        assert {shown[f"{kind}-{n}"] for kind in ("spelt", "call") for n in range(len(SPELLINGS))} == {NOON}
        assert shown["2026 fold 0"] == "2026-10-25T00:30:00.000Z"
        assert shown["2026 fold 1"] == "2026-10-25T01:30:00.000Z"
        assert shown["2027 fold 0"] == "2027-10-31T00:30:00.000Z"
        assert shown["2027 fold 1"] == "2027-10-31T01:30:00.000Z"
        assert {id: instant(at) for id, at in shown.items()} == {
            id: instant(at) for id, at in said["shown"].items() if id != "aware"
        }
        aware = instant(said["shown"]["aware"])
        assert begin + 2 <= aware < begin + 20
        await processor.until(lambda: "aware" in processor.ids)
        assert not outside(processor, {"aware": aware}, max_lag_s=MAX_LAG_S)

        # A re-arm in an answer is refused like any other: a failure of that timer, told with its reason.
        again = await timerd.get("again")
        assert again is not None
        assert again["attempt"] >= 1
        assert "offset" in again["last_error"], again
        await timerd.request("DELETE", "/v1/timers/again")

        assert await timerd.stop() == 0
        timerd.env["TZ"] = "UTC"
        await timerd.start()
        assert {timer["id"]: timer["fire_at"] for timer in await timerd.list()} == shown, "a time moved with the zone"
        armed = await timerd.arm([{"id": "soon", "type": "t", "fire_at": stamp(time.time() + 1)}])
        await processor.until(lambda: "soon" in processor.ids)
        assert not outside(processor, {"soon": instant(armed["results"][0]["fire_at"])}, max_lag_s=MAX_LAG_S)
        assert processor.ids == {"aware", "soon", "again"}
        assert not timerd.complaints()

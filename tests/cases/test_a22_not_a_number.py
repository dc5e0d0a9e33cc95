"""A22: NaN is accepted and then cannot be sent out.

A lenient reader took NaN in, a strict writer could not write it, and every later answer that held the value was a 500
(Kludex/starlette #548, fastapi/fastapi #459).
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.cases import seeded
from tests.support.process import Process
from tests.support.processor import Processor

BAD_TIMES = [
    "NaN", "Infinity", "-Infinity", "1e400", "-0.0", "-1", "true", "null", '""', "[]", "{}", '"NaN"', '"Infinity"',
    '"2030-01-01T00:00:00"', "1700000000", "12345678901234567890123", '"1800000000000"',
]  # fmt: skip
BAD_DELAYS = ["NaN", "Infinity", "-1", "1e400", "true", "null", '""', '"NaN"', '"-5s"', "[]", '"1e400s"']
BAD_PAYLOADS = ["NaN", '{"a": Infinity}', "[1, -Infinity]", '"\\ud800"', "{", ""]


@pytest.mark.slow
async def test_what_cant_be_written_is_never_taken_in(tmp_path: Path) -> None:
    seeded()
    async with Processor() as processor, Process(tmp_path / "data") as timerd:
        await timerd.put_type("t", url=processor.url)
        await timerd.arm([{"id": "good", "type": "t", "delay": "1h", "payload": 1.5}])

        async def send(method: str, path: str, text: str) -> tuple[int, Any]:
            headers = {"Content-Type": "application/json"}
            return await timerd.request(method, path, data=text.encode(), headers=headers)

        async def nothing_was_stored(what: str) -> None:
            assert [timer["id"] for timer in await timerd.list()] == ["good"], what

        bad = [f'"fire_at": {time}' for time in BAD_TIMES]
        bad += [f'"delay": {delay}' for delay in BAD_DELAYS]
        bad += [f'"delay": 60, "payload": {payload}' for payload in BAD_PAYLOADS]
        for fields in bad:
            item = f'{{"id": "bad", "type": "t", {fields}}}'
            fine = '{"id": "fine", "type": "t", "delay": 60}'
            for body in (f'{{"timers": [{item}]}}', f'{{"timers": [{fine}, {item}, {fine}]}}'):
                status, answer = await send("POST", "/v1/timers", body)
                assert status in (400, 422), (fields, status, answer)
                assert answer["detail"] or answer["errors"], answer
            status, answer = await send("PUT", "/v1/timers/bad", f'{{"type": "t", {fields}}}')
            assert status in (400, 422), (fields, status, answer)
            await nothing_was_stored(fields)

        for value in (float("nan"), float("inf"), float("-inf")):
            for extra in ({"fire_at": value}, {"delay": value}, {"delay": 60, "payload": {"a": [value]}}):
                packed = msgspec.msgpack.encode({"timers": [{"id": "bad", "type": "t", **extra}]})
                headers = {"Content-Type": "application/msgpack"}
                status, _ = await timerd.request("POST", "/v1/timers", data=packed, headers=headers)
                assert status in (400, 422), extra
                await nothing_was_stored(str(extra))
        for field in ("max_lag", "request_timeout"):
            status, _ = await send("PUT", "/v1/types/u", f'{{"url": "{processor.url}", "{field}": NaN}}')
            assert status in (400, 422)

        await timerd.kill_and_start()
        await nothing_was_stored("after a start")
        for path in ("/v1/timers/good", "/v1/stats", "/v1/status", "/metrics", "/v1/types", "/v1/dead-letters"):
            status, answer = await timerd.request("GET", path)
            assert status == 200, path
            assert path == "/metrics" or json.dumps(answer, allow_nan=False)
        await timerd.arm([{"id": f"fires-{n}", "type": "t", "delay": 0, "payload": 1e308} for n in range(3)])
        await timerd.request("POST", "/v1/timers/good:fire")
        await processor.until(lambda: len(processor.ids) == 4)
        assert not timerd.complaints()

"""Re-arms in answers on a full disk: only those whose payload has grown are held up."""

import asyncio
import random

import msgspec

from timerd import boot
from timerd.clock import SystemClock
from timerd.engine.message import ArmDone
from timerd.engine.settings import Settings
from timerd.engine.timer import Timer, TimerType
from timerd.ports import Answer, Request
from timerd_storage.memory_catalog import MemoryCatalog
from timerd_storage.memory_log import MemoryLog

SMALL, LARGE = '"' + "x" * 100 + '"', '"' + "x" * 900 + '"'
NEW_PAYLOADS = {"the same": SMALL, "smaller": "1", "none": None, "grown": SMALL.replace("x", "xx", 1), "apart": LARGE}


class Rearming:
    """Re-arms every timer an hour ahead, with its new payload."""

    def __init__(self) -> None:
        self.delivered: list[str] = []

    async def post(self, request: Request) -> Answer:
        ids = [timer["id"] for timer in msgspec.json.decode(request.body)["timers"]]
        self.delivered += ids
        items = [
            f'{{"id":"{id}","status":"rearm","delay":3600'
            + (f',"payload":{NEW_PAYLOADS[id]}' if NEW_PAYLOADS[id] else "")
            + "}"
            for id in ids
        ]
        body = f'{{"results":[{",".join(items)}]}}'.encode()
        return Answer(status=200, headers={"content-type": "application/json"}, body=body)

    async def close(self) -> None:
        pass


async def test_without_room_only_re_arms_that_have_grown_are_retries() -> None:
    log, target = MemoryLog(), Rearming()
    node = await boot.start(Settings(), log, MemoryCatalog(), SystemClock(), target, random.Random(1).random)
    await node.put_type(TimerType("t", url="http://127.0.0.1:9/", max_lag_ms=0), False, None)
    now_ms = SystemClock().now().wall_ms
    timers = [Timer(now_ms + 100, 0, id, "t", SMALL.encode()) for id in NEW_PAYLOADS]
    assert isinstance(await node.arm(timers, None, True, None), ArmDone)
    log.capacity = 0
    states: dict[str, str] = {}
    async with asyncio.timeout(20):
        while len(target.delivered) < len(NEW_PAYLOADS):
            await asyncio.sleep(0.01)
        while not states or {"due", "in_flight"} & set(states.values()):
            states = {id: view.state for id in NEW_PAYLOADS if (view := await node.get(id))}
            await asyncio.sleep(0.01)
    assert {id for id, state in states.items() if state == "retrying"} == {"grown", "apart"}
    log.capacity = None
    await node.stop(1_000)

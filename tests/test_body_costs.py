"""What bodies cost beyond being written once: counted, and below the bound, when long and short ones lie together.

The node and its upkeep on a log in memory and a clock that is turned; the figure for sixty days on real files is
`python -m benchmarks bodies-60-days`.
"""

import random

from timerd import boot
from timerd.engine.callback import CallbackRequest, encode_request
from timerd.engine.message import ArmDone
from timerd.engine.settings import Settings
from timerd.engine.timer import Timer, TimerType
from timerd.ports import Answer, Request
from timerd.relocating import BODY_FACTOR
from timerd.upkeep import BODY_LOOK, LOOK_BYTES
from timerd.virtual_clock import VirtualClock
from timerd_storage.memory_catalog import MemoryCatalog
from timerd_storage.memory_log import MemoryLog

HOUR_MS = 3_600_000
BEGIN_MS = 1_796_000_000_000
HOURS = 60
AN_HOUR = 12  # of 2 KB each; half of them are due in the next hour, half within the whole time
SEGMENT_BYTES = 6_000


class Taken:
    """Answers 200 at once."""

    async def post(self, request: Request) -> Answer:
        return Answer(200)

    async def close(self) -> None:
        pass


async def test_bodies_are_copied_less_than_once_each_and_the_metrics_say_so() -> None:
    rng = random.Random(1)
    clock = VirtualClock(BEGIN_MS)
    log = MemoryLog(SEGMENT_BYTES)
    node = await boot.start(Settings(shards=2), log, MemoryCatalog(), clock, Taken(), rng.random)
    turner = node.turner(clock)
    await node.put_type(TimerType("hook", kind="callback"), False, None)
    accepted = 0
    for hour in range(HOURS):
        now = clock.now().wall_ms
        timers = []
        for n in range(AN_HOUR):
            request = CallbackRequest("POST", "http://127.0.0.1:9/", (), "body_base64", rng.randbytes(2_000))
            payload = encode_request(request)
            accepted += len(payload)
            ahead = HOUR_MS if n % 2 else HOURS * HOUR_MS
            timers.append(Timer(now + 1 + int(rng.random() * ahead), 0, f"{hour}:{n}", "hook", payload))
        done = await node.arm(timers, None, False, None)
        assert isinstance(done, ArmDone)
        await turner.turn_to(now + HOUR_MS)
    tally = await node.tally()
    live = tally.types["hook"].live * len(payload)
    assert tally.types["hook"].fired > 0
    assert tally.bodies_accepted_bytes == accepted, "a copy counts as no arm"
    assert 0 < tally.bodies_copied_bytes < accepted, "written less than twice"
    assert log.usage().body_bytes <= BODY_FACTOR * live + SEGMENT_BYTES + BODY_LOOK * LOOK_BYTES
    await node.stop(0)

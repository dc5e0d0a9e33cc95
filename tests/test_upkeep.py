"""Upkeep deletes nothing that somebody still needs."""

from collections import Counter

from timerd.engine.now import Now
from timerd.engine.ring import SLOTS, build_table
from timerd.engine.shard import Shard
from timerd.engine.state import State
from timerd.runner import Runner
from timerd.upkeep import Upkeep
from timerd_storage.memory_log import MemoryLog

NOW = Now(1_796_000_000_000_000, 5_000)


class StillClock:
    def now(self) -> Now:
        return NOW


def fail(error: BaseException) -> None:
    raise error


async def segments_after_a_look(log: MemoryLog, placing: Counter[int]) -> list[int]:
    """The body segments that an upkeep leaves, while these bodies are on their way to a shard that has no timer."""
    runner = Runner([Shard(State(0, list(range(SLOTS)), NOW))], log, StillClock())
    upkeep = Upkeep(runner, log, build_table([0]), fail)
    upkeep.placed(placing, 1_000)
    upkeep.want_room()
    upkeep.after_turn(0)
    await upkeep.settle()
    return [segment.number for segment in log.body_segments()]


async def test_a_body_segment_stays_while_an_arm_that_refers_to_it_waits_for_its_turn():
    log = MemoryLog(segment_bytes=1_000)
    async for _ in log.replay():
        pass
    [first] = log.place_bodies(0, [("a", b"x" * 1_000)])
    [second] = log.place_bodies(0, [("b", b"y" * 1_000)])
    assert log.body_segments()[0].sealed
    assert await segments_after_a_look(log, Counter({first.segment: 1})) == [first.segment, second.segment]
    assert await segments_after_a_look(log, Counter()) == [second.segment], "nothing refers to it any more"

"""The runner: room that waits for its turn, shards that have much to do or are taken, deliveries between turns."""

import asyncio
from collections.abc import Callable, Sequence

from tests.test_upkeep import NOW, StillClock
from timerd.engine.effect import Effect, Ready, Taken
from timerd.engine.message import GONE, Arm, Cancel, SetTypes, Take, Tally
from timerd.engine.now import Now
from timerd.engine.ring import SLOTS
from timerd.engine.shard import Shard
from timerd.engine.state import State
from timerd.engine.timer import Misfire, Timer, TimerType
from timerd.inbox import MEMORY_MAX, TURN_BYTES_MAX
from timerd.ports import Frame
from timerd.runner import Runner
from timerd_storage.memory_log import MemoryLog


async def test_what_does_not_come_into_a_turn_keeps_its_room():
    log = MemoryLog()
    async for _ in log.replay():
        pass
    runner = Runner([Shard(State(0, list(range(SLOTS)), NOW))], log, StillClock())
    told = []

    async def append(frames, waiting_bytes=0):
        told.append(waiting_bytes)
        return 0

    log.append = append
    assert await log.grant(3 * TURN_BYTES_MAX, 0)
    for _ in range(3):
        runner.send(0, Cancel(["a"], lambda answer: None), TURN_BYTES_MAX)
    running = asyncio.ensure_future(runner.run())
    while len(told) < 3:
        assert not running.done()
        await asyncio.sleep(0)
    running.cancel()
    assert told == [2 * TURN_BYTES_MAX, TURN_BYTES_MAX, 0]


def test_a_shard_with_much_to_do_is_no_reason_to_refuse_what_is_for_others():
    half = SLOTS // 2
    shards = [Shard(State(0, list(range(half)), NOW)), Shard(State(1, list(range(half, SLOTS)), NOW))]
    runner = Runner(shards, MemoryLog(), StillClock())
    runner.send(0, Cancel(["a"], lambda answer: None), MEMORY_MAX)
    assert not runner.has_room([0])
    assert not runner.has_room([0, 1])
    assert runner.has_room([1])
    assert not runner.is_full()
    runner.send(1, Cancel(["b"], lambda answer: None), MEMORY_MAX)
    assert runner.is_full()


class Rig:
    """A runner of one shard with the types t (and d, which drops what it missed), whose log can be held."""

    def __init__(self) -> None:
        self.time = NOW
        self.free = asyncio.Event()
        self.free.set()
        self.appends = 0
        self.lost = False
        self.log = MemoryLog()
        self.heard: list[Effect] = []
        self.runner = Runner([Shard(State(0, list(range(SLOTS)), NOW))], self.log, self)
        self.runner.on_effects = self.on_effects
        self.batches = 0

    def now(self) -> Now:
        return self.time

    def on_effects(self, now: Now, effects: list[Effect]) -> None:
        self.heard += effects
        for effect in effects:
            if isinstance(effect, Ready) and effect.count:
                self.batches += 1
                self.heard += self.runner.hand_out(0, Take(self.batches, effect.type, effect.limit, effect.count))

    def arm(self, id: str, in_ms: int, type: str = "t") -> None:
        timer = Timer(self.time.wall_ms + in_ms, 0, id, type)
        self.runner.send(0, Arm([timer], lambda answer: None, None))

    def pass_ms(self, ms: int) -> None:
        self.time = Now(self.time.wall_us + ms * 1000, self.time.boot_ms + ms)
        self.runner.ring()

    @property
    def taken(self) -> list[str]:
        return [timer.id for effect in self.heard if isinstance(effect, Taken) for timer in effect.timers]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                assert not self.running.done()
                await asyncio.sleep(0)

    async def __aenter__(self) -> "Rig":
        async for _ in self.log.replay():
            pass
        append, unsettled = self.log.append, self.log.unsettled

        async def held(frames: Sequence[Frame], waiting_bytes: int = 0) -> int:
            self.appends += 1
            await self.free.wait()
            return await append(frames, waiting_bytes)

        self.log.append = held
        self.log.unsettled = lambda: self.lost or unsettled()
        drops = TimerType("d", url="http://t", max_lag_ms=0, misfire=Misfire("drop", grace_ms=0))
        self.runner.send(0, SetTypes({"t": TimerType("t", url="http://t", max_lag_ms=0), "d": drops}))
        self.running = asyncio.ensure_future(self.runner.run())
        return self

    async def __aexit__(self, *error: object) -> None:
        self.running.cancel()


async def test_what_is_due_begins_to_leave_before_a_turn_that_it_would_wait_for():
    async with Rig() as rig:
        rig.arm("a", 10)
        await rig.until(lambda: rig.runner.turns and rig.appends)
        rig.free.clear()
        rig.arm("other", 60_000)
        rig.pass_ms(10)
        await rig.until(lambda: rig.taken)
        assert rig.taken == ["a"]
        assert [effect.count for effect in rig.heard if isinstance(effect, Ready)] == [1, 0]
        await rig.until(lambda: rig.appends == 2)


async def test_nothing_is_handed_out_while_what_it_may_rest_on_is_written():
    async with Rig() as rig:
        await rig.until(lambda: rig.runner.turns)
        rig.free.clear()
        rig.arm("a", 0)
        await rig.until(lambda: rig.appends)
        assert rig.runner.hand_out(0, Take(99, "t", 0, 1)) == []
        assert not rig.heard
        rig.free.set()
        await rig.until(lambda: rig.taken)
        assert rig.taken == ["a"]


async def test_nothing_is_handed_out_of_a_shard_that_has_something_to_write():
    async with Rig() as rig:
        rig.arm("a", 10)
        rig.arm("b", 60_000)
        await rig.until(lambda: rig.appends)
        shard, answers = rig.runner.shards[0], []

        def on_effects(now: Now, effects: list[Effect]) -> None:
            shard.step(now, Cancel(["b"], lambda answer: None))
            answers.append(rig.runner.hand_out(0, Take(1, "t", 0, 1)))

        rig.runner.on_effects = on_effects
        rig.pass_ms(10)
        await rig.until(lambda: answers)
        assert answers[0] == []


async def test_a_process_that_has_lost_its_directory_begins_nothing():
    async with Rig() as rig:
        rig.arm("a", 10)
        await rig.until(lambda: rig.appends)
        rig.free.clear()
        rig.lost = True
        rig.pass_ms(10)
        await rig.until(lambda: rig.appends == 2)
        assert not rig.heard


async def test_a_shard_that_has_something_to_write_hands_out_after_it_is_written():
    async with Rig() as rig:
        rig.arm("a", 10)
        rig.arm("dropped", 5, "d")
        await rig.until(lambda: rig.appends)
        rig.free.clear()
        rig.pass_ms(2_000)
        await rig.until(lambda: rig.appends == 2)
        assert not rig.taken
        rig.free.set()
        await rig.until(lambda: rig.taken)
        assert rig.taken == ["a"]


async def test_a_backlog_comes_a_batch_a_shard_at_a_time():
    async with Rig() as rig:
        timers = [Timer(rig.time.wall_ms + 10, 0, f"a{n}", "t") for n in range(3_000)]
        rig.runner.send(0, Arm(timers, lambda answer: None, None))
        await rig.until(lambda: rig.appends)
        rig.pass_ms(10)
        await rig.until(lambda: len(rig.taken) == 3_000)
        assert [len(effect.timers) for effect in rig.heard if isinstance(effect, Taken)] == [800, 800, 800, 600]
        counts = [effect.count for effect in rig.heard if isinstance(effect, Ready)]
        assert counts == [800, 0, 800, 0, 800, 0, 600, 0], "more is ready when a turn has passed, and not at once"


async def test_a_fenced_shard_lets_nothing_out_and_takes_no_more_turns_while_the_others_go_on():
    half = SLOTS // 2
    shards = [Shard(State(0, list(range(half)), NOW)), Shard(State(1, list(range(half, SLOTS)), NOW))]
    log = MemoryLog()
    runner = Runner(shards, log, StillClock())
    told, heard = [], []
    runner.on_fenced = lambda shard: told.append(shard) is None

    async def append(frames, waiting_bytes=0):
        log.fenced = (0,)
        return 0

    log.append = append
    log.unsettled = lambda: True
    runner.send(0, Tally(lambda answer: heard.append(answer)))
    runner.send(1, Tally(lambda answer: heard.append(1)))
    running = asyncio.ensure_future(runner.run())
    while 1 not in heard:
        assert not running.done()
        await asyncio.sleep(0)
    runner.send(0, Tally(lambda answer: heard.append(answer)))
    runner.send(1, Tally(lambda answer: heard.append(2)))
    while 2 not in heard:
        assert not running.done()
        await asyncio.sleep(0)
    running.cancel()
    assert heard == [GONE, 1, 2], "whoever asked is told so"
    assert told == [0]
    assert list(runner.shards) == [1]

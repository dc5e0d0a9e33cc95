"""One request through several shards, and its answers in the order of the request."""

from timerd.engine.message import ArmDone, ArmResult, Condition
from timerd.engine.ring import build_table, slot_of
from timerd.engine.timer import Timer
from timerd.gathering import Gathering, merge_arm, split_arm

TABLE = build_table(range(4))
TIMERS = [Timer(10**12, 0, f"id {n}", "t", b"x" * n) for n in range(50)]


def test_each_timer_goes_to_the_shard_of_its_slot_with_its_condition():
    conditions = [Condition(if_generation=n) for n in range(50)]
    parts = split_arm(TABLE, TIMERS, conditions)
    assert sorted(index for part in parts for index in part.indexes) == list(range(50))
    for part in parts:
        for timer, condition, index in zip(part.timers, part.conditions, part.indexes, strict=True):
            assert timer is TIMERS[index]
            assert condition.if_generation == index
            assert TABLE.shards[slot_of(timer.id)] == part.shard
        assert part.bytes >= sum(len(t.id) + len(t.payload or b"") for t in part.timers)


def test_results_come_in_the_order_of_the_request():
    parts = split_arm(TABLE, TIMERS, None)
    answers = [
        ArmDone(len(part.timers), 1, [ArmResult("created", index, 0) for index in part.indexes]) for part in parts
    ]
    merged = merge_arm(parts, answers, 50)
    assert merged.armed == 50
    assert merged.conflicts == len(parts)
    assert [result.generation for result in merged.results or ()] == list(range(50))


async def test_a_gathering_ends_with_the_last_answer():
    gathering = Gathering(3)
    for index in (2, 0, 1):
        assert not gathering.future.done()
        gathering.token(index)(f"answer {index}")
    assert await gathering.future == ["answer 0", "answer 1", "answer 2"]


async def test_an_answer_to_a_caller_who_has_gone_is_no_error():
    done = []
    gathering = Gathering(1, lambda: done.append(True))
    gathering.future.cancel()
    gathering.token(0)("late")
    assert done == [True]


async def test_a_gathering_of_nothing_has_ended():
    done = []
    gathering = Gathering(0, lambda: done.append(True))
    assert gathering.future.done()
    assert await gathering.future == []
    assert done == [True]
    assert merge_arm(split_arm(TABLE, [], None), [], 0) == ArmDone(0, 0, [])

"""A question with the cluster's secret and nonsense in it is refused when it is read, and whoever is asked goes on."""

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.front.rig import Cluster, ids_of
from tests.sim.knobs import virtual_loop
from timerd import questions
from timerd.engine.message import Condition, Filter, TimerView
from timerd.engine.ring import SLOTS, slot_of
from timerd.engine.timer import BodyRef, Failure, Timer, TimerType
from timerd.pages import page_token_of, read_token
from timerd.parts import HOLD_MS_MAX, Parts
from timerd.questions import VERSION, Question, read_asked, read_question

FAR = TimerType("far", url="http://t/", state="paused")
AT = 1_896_025_600_000
SLOT = slot_of("a")
REF = BodyRef(5 << 20, 3, 700, b"d" * 16)
VIEW = TimerView("a", "far", "armed", AT, 7, 0, AT, AT, 0, REF)
SOUND: list[Question] = [
    questions.Hello(),
    questions.ArmThese([Timer(AT, 0, "a", "far", b"1")], [SLOT], [Condition()]),
    questions.CancelThese(["a"], [SLOT]),
    questions.FireOne("a", SLOT),
    questions.GetOne("a", SLOT),
    questions.ReadPages([0], False, Filter(), (-1, ""), 10),
    questions.ReadPages([0], True, Filter(), (-1, ""), 10),
    questions.FillIn([VIEW], False),
    questions.SoonestOf([0], None, 10),
    questions.CountAll(),
    questions.CountLive([0], "far"),
    questions.HoldOff("far", "life", 10),
    questions.DealWithDead(True, [0], None, "far"),
    questions.DealWithDead(False, [0], ["a"], None),
]
HOSTILE: list[Any] = [
    None, True, 0, -1, 1, SLOTS, 2**31, 2**53, 2**63, 2**64 - 1, -(2**63), math.nan, math.inf, -0.5, 1e300,
    "", "\0", "a", "x" * 100_000, b"", b"\xff" * 40, [], [[]], [None], [-1], [2**63], ["a", "a"],
    {}, {"a": 1}, [0] * 2_000,
]  # fmt: skip


def spots(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a question, by its path."""
    yield at
    if isinstance(value, list | dict):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from spots(value[key], (*at, key))


def with_other(value: Any, at: tuple[Any, ...], other: Any) -> Any:
    if not at:
        return other
    changed = value.copy()
    changed[at[0]] = with_other(value[at[0]], at[1:], other)
    return changed


def raw(question: Question) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(question))


SPOTS = [(raw(question), at) for question in SOUND for at in spots(raw(question))]


def envelope(question: Any, life: str = "life of a", until_ms: Any = 2**40) -> bytes:
    return msgspec.msgpack.encode([VERSION, life, until_ms, question])


def read(question: Any) -> Question:
    return read_question(read_asked(envelope(question)))


class Asked:
    """One node that is asked again and again, each time to the end."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._cluster = loop.run_until_complete(Cluster(loop, ("a",)).start())
        loop.run_until_complete(self._cluster.put(FAR))
        self.parts: Parts = self._cluster.parts["a"]

    def hear(self, data: bytes) -> Any:
        """The answer, as bytes say it; None: refused as malformed."""
        self._loop.run_until_complete(asyncio.sleep(0.001))
        try:
            return msgspec.msgpack.decode(self._loop.run_until_complete(asyncio.wait_for(self.parts.hear(data), 60)))[2]
        except (msgspec.MsgspecError, RecursionError):
            return None
        finally:
            for node in self._cluster.nodes.values():
                assert not node.failed.done(), node.failed.exception()
            assert len(self._cluster.nodes["a"].held) == 6

    def arms(self) -> bool:
        id = next(ids_of(self._cluster, "a"))
        timer = Timer(self._cluster.clock.now().wall_ms + 10**6, 0, id, "far")
        question = envelope(raw(questions.ArmThese([timer], [slot_of(id)], None)))
        if (answer := self.hear(question))[0] == "Refusal":  # its type may be held off
            self._loop.run_until_complete(asyncio.sleep(HOLD_MS_MAX / 1000))
            answer = self.hear(question)
        return bool(answer[0] == "Armed")

    def stop(self) -> None:
        self._loop.run_until_complete(self._cluster.stop())


@pytest.fixture(scope="module")
def asked() -> Iterator[Asked]:
    with virtual_loop() as loop:
        asked = Asked(loop)
        yield asked
        asked.stop()


def test_what_is_sound_is_read_as_it_was_and_answered(asked: Asked) -> None:
    for question in SOUND:
        assert read(raw(question)) == question
        assert asked.hear(envelope(raw(question)))[0] not in ("Late", "OtherVersion", "Unsure")


@given(st.sampled_from(SPOTS), st.sampled_from(HOSTILE))
@settings(max_examples=400, deadline=None)
def test_each_field_may_hold_anything(asked: Asked, spot: tuple[Any, Any], other: Any) -> None:
    question, at = spot
    asked.hear(envelope(with_other(question, at, other)))
    assert asked.arms()


@given(st.sampled_from(SOUND), st.sampled_from(HOSTILE), st.sampled_from(range(4)))
@settings(max_examples=100, deadline=None)
def test_so_may_the_envelope(asked: Asked, question: Question, other: Any, at: int) -> None:
    asked.hear(msgspec.msgpack.encode(with_other([VERSION, "life of a", 2**40, raw(question)], (at,), other)))
    assert asked.arms()


@given(st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_so_may_the_bytes(asked: Asked, data: bytes) -> None:
    asked.hear(data)
    assert asked.arms()


NEW = Timer(AT, 0, "a", "far", b"1")
FAILURE = Failure(1, 1, 1, 1, "e")


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (questions.CancelThese(["a"], [SLOTS]), "`int` <= 16383"),
        (questions.CancelThese(["a"], [-1]), "`int` >= 0"),
        (questions.CancelThese(["a", "b"], [SLOT]), "`slots` are not those of the ids"),
        (questions.CancelThese(["a"], [SLOT, SLOT]), "`slots` are not those of the ids"),
        (questions.ArmThese([NEW], [], None), "`slots` are not those of the ids"),
        (questions.ArmThese([NEW], [SLOT ^ 1], None), "`slots` are not those of the ids"),
        (questions.ArmThese([NEW], [SLOT], []), "`conditions` are not as many as timers"),
        (questions.ArmThese([NEW], [SLOT], [Condition("other")]), "a mode is one of"),
        (questions.FireOne("a", SLOTS), "`int` <= 16383"),
        (questions.GetOne("a", -1), "`int` >= 0"),
        (questions.SoonestOf([0], None, -1), "`int` >= 0"),
        (questions.SoonestOf([0], None, 10**9), "`int` <= 10000"),
        (questions.ReadPages([-1], False, Filter(), (-1, ""), 1), "`int` >= 0"),
        (questions.ReadPages([0], False, Filter(), (SLOTS, ""), 1), "`int` <= 16383"),
        (questions.HoldOff("x" * 300, "b", 1), "length <= 256"),
        (questions.CountLive([0, 1, 0], "far"), "`shards` has one more than once"),
    ],
)  # fmt: skip
def test_it_is_said_what_is_wrong(question: Question, said: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=said):
        read(raw(question))


@pytest.mark.parametrize(
    "unfit",
    [
        {"fire_at": -1}, {"fire_at": 5}, {"fire_at": 2**62}, {"generation": 5}, {"id": ""}, {"id": "x" * 257},
        {"payload": REF}, {"created_at": 5}, {"failure": FAILURE}, {"state": 7}, {"state": -1}, {"state": 2**40},
    ],
    ids=str,
)  # fmt: skip
def test_only_new_timers_are_armed(unfit: dict[str, Any]) -> None:
    timer = msgspec.structs.replace(NEW, **unfit)
    with pytest.raises(msgspec.ValidationError, match="can't be armed like this"):
        read(raw(questions.ArmThese([timer], [slot_of(timer.id)], None)))


def test_a_callers_page_token_of_no_slot_asks_nobody_for_it() -> None:
    for position in ((-1, ""), (0, "a"), (SLOTS - 1, "z")):
        assert read_token(page_token_of(position)) == position
    for slot in (-2, SLOTS, 2**63):
        assert read_token(page_token_of((slot, "a"))) is None

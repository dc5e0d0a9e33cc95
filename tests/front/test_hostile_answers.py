"""What comes back from another node and is no answer to what it was asked counts as none, and harms nothing."""

from typing import Any, Final

import msgspec
import pytest

from tests.front.rig import Cluster, ids_of, on_virtual_time
from timerd.browsing import Filter
from timerd.engine.message import ArmResult, CancelResult, Condition, Refused, TimerView
from timerd.engine.ring import slot_of
from timerd.engine.timer import BodyRef, Timer, TimerType
from timerd.questions import (
    Absent,
    Answer,
    Armed,
    ArmThese,
    Cancelled,
    CancelThese,
    CountAll,
    CountLive,
    DealWithDead,
    Done,
    Filled,
    FillIn,
    Fired,
    FireOne,
    GetOne,
    Got,
    Hello,
    HoldOff,
    Late,
    Number,
    OtherVersion,
    Pages,
    Question,
    ReadPages,
    Refusal,
    SoonestOf,
    Unsure,
    encode_answer,
    read_answer,
    read_asked,
    read_question,
    read_told,
)  # fmt: skip

FAR: Final = TimerType("far", url="http://t/", state="paused")
AT: Final = 1_896_025_600_000
DONE: Final = ArmResult("created", 7, AT)
ODD: Final = TimerView("other", "nope", "zzz", 10**18, 7, 0, 2**62, 2**62, 99, BodyRef(1, -5, 2**40, b""))
VIEW: Final = TimerView("a", "far", "armed", AT, 7, 0, AT, AT, 0, None)
ALWAYS: Final = (Late(), OtherVersion(), Unsure("why"))
REFUSAL: Final = Refusal(Refused("overloaded", "no", [], retry_after_s=1))
FITTING: Final[list[tuple[Question, list[Answer]]]] = [
    (Hello(), [Done()]),
    (ArmThese([Timer(AT, 0, "a", "far")], [slot_of("a")], [Condition()]), [Armed(1, 0, [DONE]), REFUSAL]),
    (CancelThese(["a"], [slot_of("a")]), [Cancelled([CancelResult(True)], []), Cancelled([], [0]), REFUSAL]),
    (FireOne("a", slot_of("a")), [Fired(None), Fired(DONE), Absent([1]), REFUSAL]),
    (GetOne("a", slot_of("a")), [Got(None), Got(VIEW), Absent([1])]),
    (ReadPages([], False, Filter(), (-1, ""), 10), [Pages([]), Absent([1])]),
    (FillIn([VIEW], False), [Filled([]), Filled([VIEW]), Absent([1])]),
    (SoonestOf([0], None, 10), [Filled([]), Filled([VIEW]), Absent([1])]),
    (CountAll(), []),
    (CountLive([0], "far"), [Number(0), Absent([1])]),
    (HoldOff("far", "life", 10), [Done(), REFUSAL]),
    (DealWithDead(True, [0], None, "far"), [Number(2), Absent([1]), REFUSAL]),
]
MISFITS: Final[list[Answer]] = [
    Absent([]), Armed(0, 0, []), Armed(-5, 2**62, [DONE] * 50), Armed(1, -1, [DONE]), Cancelled([], []),
    Cancelled([CancelResult(True)] * 50, []), Cancelled([], [99]), Cancelled([], [-1]), Cancelled([], [0, 0, 0]),
    Got(ODD), Filled([ODD]), Number(-1),
]  # fmt: skip
NESTED: Final = b"\x91" * 3_000 + b"\xc0"
BYTES: Final = {
    "nothing": b"",
    "deep": b"\x93\x01\x05" + NESTED,
    "deep, behind a word": b"\x93\x01\x05\x92\xa4Done" + NESTED,
    "no letters": msgspec.msgpack.encode([1, 5, ["Unsure", "x"]]).replace(b"\xa1x", b"\xa1\xff"),
    "a clock beyond all": msgspec.msgpack.encode([1, 2**64 - 1, ["Done"]]),
    "no clock": msgspec.msgpack.encode([1, -1, ["Done"]]),
    "another kind": encode_answer(5, Done()),
    "another number": encode_answer(5, Armed(3, 0, [DONE] * 3)),
}


def read(answer: Answer, question: Question) -> Answer:
    return read_answer(read_told(encode_answer(5, answer)), question)


@pytest.mark.parametrize(("question", "fitting"), FITTING, ids=lambda value: type(value).__name__)
def test_each_question_has_its_answers_and_no_others(question: Question, fitting: list[Answer]) -> None:
    for answer in (*fitting, *ALWAYS):
        assert read(answer, question) == answer
    others = [answer for _, answers in FITTING for answer in answers if type(answer) not in map(type, fitting)]
    for answer in (*others, *MISFITS):
        with pytest.raises(msgspec.MsgspecError, match=r"is no answer to|does not fit"):
            read(answer, question)


def test_pages_are_as_many_as_shards() -> None:
    with pytest.raises(msgspec.ValidationError, match="does not fit"):
        read(Pages([]), ReadPages([0], False, Filter(), (-1, ""), 10))


@pytest.mark.parametrize("hostile", BYTES)
def test_who_asks_raises_nothing_and_tells_which_items_are_not_known(hostile: str) -> None:
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        front, wire = cluster.fronts["a"], cluster.wires["a"]
        ask = wire.ask

        async def answered(member: Any, question: bytes, timeout_s: float) -> Any:
            if member.name != "b" or isinstance(read_question(read_asked(question)), Hello):
                return await ask(member, question, timeout_s)
            return BYTES[hostile]

        wire.ask = answered  # type: ignore[method-assign]
        ids = [next(ids_of(cluster, name)) for name in "abc"]
        done = await front.arm([Timer(cluster.clock.wall_ms + 10**7, 0, id, "far") for id in ids], None, True, None)
        assert not isinstance(done, Refused)
        assert list(done.unavailable) == [1], "the others are armed"
        assert isinstance(await front.get(ids[1]), Refused)
        assert isinstance(await front.fire(ids[1], None), Refused)
        assert isinstance(await front.list(Filter(), 10, None), Refused), "half of an answer would be wrong"
        assert isinstance(await front.tally(), Refused)
        wire.ask = ask  # type: ignore[method-assign]
        again = await front.arm([Timer(cluster.clock.wall_ms + 10**7, 0, id, "far") for id in ids], None, True, None)
        assert not isinstance(again, Refused)
        assert not again.unavailable, "nothing is held against it"

    on_virtual_time(work)

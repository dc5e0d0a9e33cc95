"""What nodes ask each other, and what they answer: the words of the wire between them.

A question and its answer are one MessagePack array each, in an envelope that names the version of these words. A node
of another version is refused by number: no half-understood question is ever carried out. Payloads go as the bytes they
are. Any change of a struct here, or of one that is part of it, is another version; but for one more field at an
answer's end, with a default, that may be missing, or be left out by who does not know it.

What is read here is sound: it can be carried out, whatever it asks for. Who asks is trusted to mean it, but a wrong
slot would be stored, and what can't be stepped would end the process of who was asked.

Values only. A question is for one member and is never handed on: who is asked answers for itself (`parts`).
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from timerd.engine.message import ArmResult, CancelResult, Condition, Filter, Page, Refused, TimerView
from timerd.engine.ring import SLOTS, slots_of
from timerd.engine.timer import MIN_FIRE_AT, WAITING, BodyRef, Timer
from timerd.report import NodeTally

VERSION: Final = 1
COUNT_MAX: Final = 10_000  # of what is asked for at once; callers get a tenth of it
NAME_MAX: Final = 256
FIRE_AT_END: Final = 253_402_300_800_000  # the year 10,000
MODES: Final = ("replace", "earliest", "latest", "keep")

Slot = Annotated[int, msgspec.Meta(ge=0, lt=SLOTS)]
Shard = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
Name = Annotated[str, msgspec.Meta(max_length=NAME_MAX)]


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """The envelope of a question."""

    version: int
    life: str
    """Whom it is for; another process, even of the same name, does nothing about it."""
    until_ms: int
    """What it asks for may begin until then, by the boot clock of who is asked; 0: it only wants to know that clock."""
    question: msgspec.Raw


class Told(msgspec.Struct, frozen=True, array_like=True):
    """The envelope of an answer."""

    version: int
    boot_ms: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
    """What the answerer's boot clock showed."""
    answer: msgspec.Raw


class _Word(msgspec.Struct, frozen=True, array_like=True, tag=True, tag_field="word"):
    pass


# ---- questions


class Hello(_Word, frozen=True):
    """Say your clock. Answer: Done."""


class ArmThese(_Word, frozen=True):
    """Arm timers. `slots` and `conditions` are parallel to them. Answer: Armed, Refusal."""

    timers: list[Timer]
    slots: list[Slot]
    conditions: list[Condition] | None


class CancelThese(_Word, frozen=True):
    """Answer: Cancelled, Refusal."""

    ids: list[str]
    slots: list[Slot]


class FireOne(_Word, frozen=True):
    """Answer: Fired, Absent, Unsure, Refusal."""

    id: str
    slot: Slot


class GetOne(_Word, frozen=True):
    """Answer: Got, Absent."""

    id: str
    slot: Slot


class ReadPages(_Word, frozen=True):
    """What lies behind a position, of each of these shards. `dead`: dead letters. Answer: Pages, Absent."""

    shards: list[Shard]
    dead: bool
    filter: Filter
    after: tuple[Annotated[int, msgspec.Meta(ge=-1, lt=SLOTS)], str]
    count: Count


class FillIn(_Word, frozen=True):
    """Put their payloads into these views. `as_they_were`: leave out what has changed. Answer: Filled, Absent."""

    views: list[TimerView]
    as_they_were: bool


class SoonestOf(_Word, frozen=True):
    """The soonest due of these shards, by (fire_at, generation), large payloads by place. Answer: Filled, Absent."""

    shards: list[Shard]
    type: str | None
    count: Count


class CountAll(_Word, frozen=True):
    """All counts of the node. Answer: Counted."""


class CountLive(_Word, frozen=True):
    """How many timers of a type these shards hold. Answer: Number, Absent."""

    shards: list[Shard]
    type: str


class HoldOff(_Word, frozen=True):
    """Refuse arms of a type for so long, or no longer (0; before that the catalogue is read again). Answer: Done."""

    type: Name
    by: Name
    """Who wants it: two who hold off the same type must not end each other's."""
    for_ms: Annotated[int, msgspec.Meta(ge=0)]


class DealWithDead(_Word, frozen=True):
    """Replay or purge (`purge`) dead letters: these ids, or those of a type in these shards. Answer: Number, Absent,
    Unsure, Refusal."""

    purge: bool
    shards: list[Shard]
    ids: list[str] | None
    type: str | None


Question = (
    Hello | ArmThese | CancelThese | FireOne | GetOne | ReadPages | FillIn | SoonestOf | CountAll | CountLive | HoldOff
    | DealWithDead
)  # fmt: skip


# ---- answers


class Done(_Word, frozen=True):
    pass


class Late(_Word, frozen=True):
    """It came after its time: nothing was done."""


class OtherVersion(_Word, frozen=True):
    """The question is in the words of another version (`Told` names ours): nothing was done."""


class Absent(_Word, frozen=True):
    """None of it was done, since these shards are not here."""

    shards: list[Shard]


class Unsure(_Word, frozen=True):
    """What became of it is not known: a shard went while it was asked, or does not answer in time."""

    why: str = ""
    """Empty: it went."""


class Refusal(_Word, frozen=True):
    """None of it was done, for a reason that the caller is to hear."""

    refused: Refused


class Armed(_Word, frozen=True):
    """Parallel to the timers. What is `NOT_HERE` was left alone."""

    armed: int
    conflicts: int
    results: list[ArmResult]


class Cancelled(_Word, frozen=True):
    """Parallel to the ids, but for those at `left`, which were left alone since their shards are not here."""

    results: list[CancelResult]
    left: list[int]


class Fired(_Word, frozen=True):
    """None: there is no such timer."""

    result: ArmResult | None


class Got(_Word, frozen=True):
    view: TimerView | None


class Pages(_Word, frozen=True):
    pages: list[Page]


class Filled(_Word, frozen=True):
    views: list[TimerView]


class Counted(_Word, frozen=True):
    tally: NodeTally


class Number(_Word, frozen=True):
    number: int


Answer = (
    Done | Late | OtherVersion | Absent | Unsure | Refusal | Armed | Cancelled | Fired | Got | Pages | Filled | Counted
    | Number
)  # fmt: skip

UNAVAILABLE: Final = "unavailable"
"""Of an item: its shard went while it was asked; what became of the item is not known."""
NOT_HERE: Final = "not_here"
"""Of an item: its shard is not here, and nothing was done about it."""
LEFT_ALONE: Final = ArmResult(NOT_HERE, 0, 0)


# ---- bytes

_encoder = msgspec.msgpack.Encoder()
_asked = msgspec.msgpack.Decoder(Asked)
_told = msgspec.msgpack.Decoder(Told)
_question: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode_question(life: str, until_ms: int, question: Question) -> bytes:
    return _encoder.encode(Asked(VERSION, life, until_ms, msgspec.Raw(_encoder.encode(question))))


def read_asked(data: bytes) -> Asked:
    """Raises msgspec.MsgspecError, also for anything that is no envelope of any version."""
    return _asked.decode(data)


def read_question(asked: Asked) -> Question:
    """Of an envelope of our version. Raises msgspec.MsgspecError."""
    question = _question.decode(asked.question)
    if isinstance(question, ArmThese):
        _check_arm(question)
    elif isinstance(question, CancelThese):
        _check_slots(question.slots, question.ids)
    elif isinstance(question, ReadPages | SoonestOf | CountLive | DealWithDead):
        _check_shards(question.shards)
    return question


def _check_shards(shards: Sequence[int]) -> None:
    if len(set(shards)) != len(shards):
        raise msgspec.ValidationError("`shards` has one more than once")


def _check_arm(asked: ArmThese) -> None:
    unsound = [
        timer
        for timer in asked.timers
        if timer.generation
        or timer.created_at
        or timer.failure is not None
        or timer.state != WAITING
        or timer.payload.__class__ is BodyRef
        or not MIN_FIRE_AT <= timer.fire_at < FIRE_AT_END
        or not 0 < len(timer.id) <= NAME_MAX
    ]
    if unsound:
        raise msgspec.ValidationError(f"`timers`: {unsound[0].id[:NAME_MAX]!r} can't be armed like this")
    conditions = asked.conditions
    if conditions is not None:
        if len(conditions) != len(asked.timers):
            raise msgspec.ValidationError("`conditions` are not as many as timers")
        if any(condition.mode not in MODES for condition in conditions):
            raise msgspec.ValidationError(f"`conditions`: a mode is one of {', '.join(MODES)}")
    _check_slots(asked.slots, [timer.id for timer in asked.timers])


def _check_slots(slots: Sequence[int], ids: Sequence[str]) -> None:
    if slots != slots_of(ids):
        raise msgspec.ValidationError("`slots` are not those of the ids")


def encode_answer(boot_ms: int, answer: Answer) -> bytes:
    return _encoder.encode(Told(VERSION, boot_ms, msgspec.Raw(_encoder.encode(answer))))


def read_told(data: bytes) -> Told:
    """Raises msgspec.MsgspecError."""
    return _told.decode(data)


def read_answer(told: Told, question: Question) -> Answer:
    """Of an envelope of our version. Raises msgspec.MsgspecError, also for what is no answer to this question."""
    answer = _answer.decode(told.answer)
    if not isinstance(answer, (*_ANSWERS[type(question)], Late, OtherVersion, Unsure)):
        raise msgspec.ValidationError(f"{type(answer).__name__} is no answer to {type(question).__name__}")
    if not _fits(question, answer):
        raise msgspec.ValidationError(f"{type(answer).__name__} does not fit what was asked")
    return answer


def _fits(question: Question, answer: Answer) -> bool:
    """Whether it is about what was asked, and about all of it."""
    match question, answer:
        case ArmThese(), Armed():
            count = len(question.timers)
            return len(answer.results) == count and 0 <= answer.armed <= count and 0 <= answer.conflicts <= count
        case CancelThese(), Cancelled():
            left, count = set(answer.left), len(question.ids)
            whole = len(left) == len(answer.left) and len(answer.results) + len(left) == count
            return whole and left <= set(range(count))
        case ReadPages(), Pages():
            return len(answer.pages) == len(question.shards)
        case GetOne(), Got():
            return answer.view is None or answer.view.id == question.id
        case SoonestOf(), Filled():
            return len(answer.views) <= question.count and {view.shard for view in answer.views} <= {*question.shards}
        case FillIn(), Filled():
            return {view.id for view in answer.views} <= {view.id for view in question.views}
        case _, Number():
            return answer.number >= 0
        case _, Absent():
            return bool(answer.shards)
    return True


_ANSWERS: Final[dict[type[Question], tuple[type[Answer], ...]]] = {
    Hello: (Done,),
    ArmThese: (Armed, Refusal),
    CancelThese: (Cancelled, Refusal),
    FireOne: (Fired, Absent, Refusal),
    GetOne: (Got, Absent),
    ReadPages: (Pages, Absent),
    FillIn: (Filled, Absent),
    SoonestOf: (Filled, Absent),
    CountAll: (Counted,),
    CountLive: (Number, Absent),
    HoldOff: (Done, Refusal),
    DealWithDead: (Number, Absent, Refusal),
}
"""Besides those that may always come."""

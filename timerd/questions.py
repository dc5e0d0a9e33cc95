"""What nodes ask each other, and what they answer: the words of the wire between them.

A question and its answer are one MessagePack array each, in an envelope that names the version of these words. A node
of another version is refused by number: no half-understood question is ever carried out. Payloads go as the bytes they
are. Any change of a struct here, or of one that is part of it, is another version.

Values only. A question is for one member and is never handed on: who is asked answers for itself (`parts`).
"""

from typing import Final

import msgspec

from timerd.engine.message import ArmResult, CancelResult, Condition, Filter, Page, Refused, TimerView
from timerd.engine.timer import Timer
from timerd.report import NodeTally

VERSION: Final = 1


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
    boot_ms: int
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
    slots: list[int]
    conditions: list[Condition] | None


class CancelThese(_Word, frozen=True):
    """Answer: Cancelled, Refusal."""

    ids: list[str]
    slots: list[int]


class FireOne(_Word, frozen=True):
    """Answer: Fired, Absent, Unsure, Refusal."""

    id: str
    slot: int


class GetOne(_Word, frozen=True):
    """Answer: Got, Absent."""

    id: str
    slot: int


class ReadPages(_Word, frozen=True):
    """What lies behind a position, of each of these shards. `dead`: dead letters. Answer: Pages, Absent."""

    shards: list[int]
    dead: bool
    filter: Filter
    after: tuple[int, str]
    count: int


class FillIn(_Word, frozen=True):
    """Put their payloads into these views. `as_they_were`: leave out what has changed. Answer: Filled, Absent."""

    views: list[TimerView]
    as_they_were: bool


class SoonestOf(_Word, frozen=True):
    """The soonest due of these shards, by (fire_at, generation), large payloads by place. Answer: Filled, Absent."""

    shards: list[int]
    type: str | None
    count: int


class CountAll(_Word, frozen=True):
    """All counts of the node. Answer: Counted."""


class CountLive(_Word, frozen=True):
    """How many timers of a type these shards hold. Answer: Number, Absent."""

    shards: list[int]
    type: str


class HoldOff(_Word, frozen=True):
    """Refuse arms of a type for so long, or no longer (0; before that the catalogue is read again). Answer: Done."""

    type: str
    by: str
    """Who wants it: two who hold off the same type must not end each other's."""
    for_ms: int


class DealWithDead(_Word, frozen=True):
    """Replay or purge (`purge`) dead letters: these ids, or those of a type in these shards. Answer: Number, Absent,
    Unsure, Refusal."""

    purge: bool
    shards: list[int]
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

    shards: list[int]


class Unsure(_Word, frozen=True):
    """A shard went while it was asked: what became of it is not known, and nothing more will come of it."""


class Refusal(_Word, frozen=True):
    """None of it was done, for a reason that the caller is to hear."""

    refused: Refused


class Armed(_Word, frozen=True):
    """Parallel to the timers. What is `NOT_HERE` was left alone."""

    armed: int
    conflicts: int
    results: list[ArmResult]


class Cancelled(_Word, frozen=True):
    """Parallel to the ids; those at `left` were left alone, since their shards are not here."""

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
    return _question.decode(asked.question)


def encode_answer(boot_ms: int, answer: Answer) -> bytes:
    return _encoder.encode(Told(VERSION, boot_ms, msgspec.Raw(_encoder.encode(answer))))


def read_told(data: bytes) -> Told:
    """Raises msgspec.MsgspecError."""
    return _told.decode(data)


def read_answer(told: Told) -> Answer:
    """Of an envelope of our version. Raises msgspec.MsgspecError."""
    return _answer.decode(told.answer)

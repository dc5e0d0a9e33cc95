"""Messages: what may enter a shard (`Shard.step`), and what it answers.

A message with a `token` is answered by one `effect.Reply` with that token; the engine never looks into a token.
Messages are values: plain structs, nothing durable, never written anywhere. Answers are values as well, made at the
step, so that nothing in them changes while the frame they rest on is being written.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from timerd.engine.move_message import MoveMessage
from timerd.engine.timer import BodyRef, Payload, Timer, TimerType

Token = Any
"""What ties an answer to its question; opaque to the engine."""


# ---- arming, cancelling, firing


class Condition(msgspec.Struct, frozen=True, gc=False):
    """What one item of an arm asks for beside plain replacement."""

    mode: str = "replace"
    """replace | earliest | latest | keep"""
    if_generation: int | None = None
    """Arm only if this is the current generation; 0 = nothing is there."""


class Arm(msgspec.Struct, frozen=True):
    """Arm these timers (their `generation` is 0 and is given here). `conditions` is parallel to `timers`, or None.

    So are `slots`, the slots of their ids, if whoever split the arm has worked them out: a hash is dear.
    """

    timers: list[Timer]
    token: Token
    conditions: Sequence[Condition] | None = None
    want_results: bool = True
    slots: list[int] | None = None


class ArmResult(msgspec.Struct, array_like=True, gc=False):
    """What became of one item: created | moved | unchanged | kept | conflict; unavailable, if its shard is `Gone`.

    `generation` and `fire_at` are those that stand now (0 where nothing stands); `previous_fire_at` is set when moved.
    """

    status: str
    generation: int
    fire_at: int
    previous_fire_at: int | None = None


class ArmDone(msgspec.Struct, frozen=True):
    """`results` is parallel to the timers asked for, or None if they were not wanted."""

    armed: int
    conflicts: int
    results: list[ArmResult] | None
    unavailable: Sequence[int] = ()
    """Indexes of the timers whose shard is not here (`Gone`)."""
    why: str = ""
    """What keeps one of these, if that is known."""


class Bounced(msgspec.Struct, frozen=True):
    """In place of an answer: some of what was asked for belongs to another shard by now, and is to be asked for there.

    `answer` is that for the others; `ids` are those that are left, in order; `indexes`, of an `Arm`, `Cancel`, `Revive`
    or `Purge` that names ids, says which they are.
    """

    answer: Any
    ids: list[str]
    indexes: list[int]


class Cancel(msgspec.Struct, frozen=True):
    """Cancel these ids. Answer: list[CancelResult], parallel."""

    ids: list[str]
    token: Token


class CancelResult(msgspec.Struct, array_like=True, gc=False):
    """`found` with the generation that is no more; `in_flight`: a delivery of it is on its way; `unavailable`: its
    shard is `Gone`."""

    found: bool
    in_flight: bool = False
    generation: int = 0
    unavailable: bool = False


class FireNow(msgspec.Struct, frozen=True):
    """Re-arm one id to now, waiting for no batch. Answer: ArmResult, or None (not there), or `TIMER_DEAD`."""

    id: str
    token: Token


TIMER_DEAD = "timer-dead"


# ---- reading


class Get(msgspec.Struct, frozen=True):
    """Show one id. Answer: TimerView or None."""

    id: str
    token: Token


class TimerView(msgspec.Struct, frozen=True):
    """A timer as a reader sees it. Times are Unix ms."""

    id: str
    type: str
    state: str
    """armed | due | in_flight | retrying | paused | dead"""
    fire_at: int
    generation: int
    attempt: int
    """Deliveries of this generation so far, one under way included."""
    created_at: int
    updated_at: int
    shard: int
    payload: Payload = None
    last_error: str | None = None
    next_attempt_at: int | None = None
    died_at: int | None = None
    attempts: int = 0
    """Deliveries that have ended."""


class Filter(msgspec.Struct, frozen=True):
    """Which timers a list shows; None = any. `fire_after` is exclusive, `fire_before` exclusive."""

    type: str | None = None
    state: str | None = None
    fire_after: int | None = None
    fire_before: int | None = None
    id_prefix: str | None = None


class List(msgspec.Struct, frozen=True):
    """The timers behind position (slot, id), in that order, at most `count`. Answer: Page."""

    filter: Filter
    after: tuple[int, str]
    """Exclusive; (-1, "") is the beginning."""
    count: int
    token: Token


class Page(msgspec.Struct, frozen=True):
    """Everything that matches up to `upto` (inclusive) is in `views`; None = the shard's slots are all read."""

    views: list[tuple[int, TimerView]]
    """(slot, view)"""
    upto: tuple[int, str] | None
    coming: list[tuple[int, str]] = []
    """(slot, id) of what is on its way to this shard: live, unless the shard that it comes from has shown it."""


class Next(msgspec.Struct, frozen=True):
    """The soonest due timers that are not in flight or dead. Answer: list[TimerView], by (fire_at, generation)."""

    type: str | None
    count: int
    token: Token


class Tally(msgspec.Struct, frozen=True):
    """Count. Answer: ShardTally."""

    token: Token


class TypeTally(msgspec.Struct, frozen=True):
    """One type's counts in one shard. `live` is counted from the timers, the rest is the totals."""

    armed: int
    revived: int
    fired: int
    cancelled: int
    replaced: int
    dead: int
    purged: int
    superseded: int
    retried: int
    dropped: dict[str, int]
    live: int
    in_flight: int
    retrying: int
    dead_letters: int
    due: int
    """First attempts that are due and not in flight, counted up to 10,000."""
    missed: int = 0
    """First attempts that are overdue beyond the grace and wait, at most."""
    moved_in: int = 0
    moved_out: int = 0


class ShardTally(msgspec.Struct, frozen=True):
    """A shard's counts at one moment."""

    shard: int
    epoch: int
    types: dict[str, TypeTally]
    oldest_due_at: int | None
    """Unix ms since when the longest waiting due timer waits; None if nothing is due."""
    slots: int = 0
    """What it owns, ceded ones not counted."""
    ceded: int = 0
    adopted: int = 0
    pending: int = 0


# ---- delivery


class Take(msgspec.Struct, frozen=True):
    """Hand out up to `count` ready timers of a lane for batch `batch_no`. Leads to one effect.Taken, maybe empty.

    A lane is (type, limit): limit 0 are first attempts, `catchup.MISSED` those overdue beyond the grace, any other the
    retries that may travel in batches of that size.
    With a `key` it is what was parked under that key.
    """

    batch_no: int
    type: str
    limit: int
    count: int
    key: str = ""


class ItemResult(msgspec.Struct, frozen=True, gc=False):
    """What an answer says of one id that is not plainly ok: retry | drop | dead | rearm."""

    status: str
    fire_at: int = 0
    payload: Payload = None
    """With rearm: the new payload; None keeps the old one."""
    error: str = ""


class WholeFailure(msgspec.Struct, frozen=True):
    """What becomes of every timer of a failed batch."""

    error: str
    gap_ms: int
    """Until the next attempt, jitter included; at least that, where the timer's own failures count."""
    limit: int
    """The largest batch they may travel in from now on."""
    counted: bool = False
    """Whether it counts against max_attempts (then the gap grows with the timer's own counted failures)."""
    unknown: bool = False
    """The batch may have been seen by the processor."""
    bury: bool = False
    """Dead at once."""
    attempted: bool = True
    """False, of what is buried: it never left, so this was no attempt."""


class Settle(msgspec.Struct, frozen=True):
    """The outcome of batch `batch_no` for the timers that this shard handed out. Leads to one effect.Settled.

    Exactly one case holds: `failure` is set (all members alike), or every member that `results` does not name is ok.
    """

    batch_no: int
    jitter: float = 1.0
    """Drawn once a batch; multiplies the gaps of named failures."""
    results: Mapping[str, ItemResult] | None = None
    failure: WholeFailure | None = None


class SettleSome(msgspec.Struct, frozen=True):
    """What became of some timers of batch `batch_no`; the others stay in flight. Leads to one effect.Settled.

    An id is in one of the three. The batch ends with its last timer; one of which nothing was taken, with this message.
    """

    batch_no: int
    part: int
    """Names this message within the batch; not 0."""
    jitter: float = 1.0
    fired: Sequence[str] = ()
    failed: Sequence[tuple[str, WholeFailure]] = ()
    parked: Mapping[str, Sequence[str]] = {}
    """By key: put back, since they may not be tried now. No attempt, no record: after a restart they are simply due."""


# ---- dead letters


class ListDead(msgspec.Struct, frozen=True):
    """Dead letters behind (slot, id), in that order, at most `count`. Answer: Page."""

    type: str | None
    after: tuple[int, str]
    count: int
    token: Token


class Revive(msgspec.Struct, frozen=True):
    """Replay dead letters: these ids, or of a type. Answer: (number, more): call again while more."""

    ids: list[str] | None
    type: str | None
    token: Token


class Purge(msgspec.Struct, frozen=True):
    """Forget dead letters: these ids, or of a type. Answer: (number, more): call again while more."""

    ids: list[str] | None
    type: str | None
    token: Token


# ---- upkeep


class SetTypes(msgspec.Struct, frozen=True):
    """The types as the catalogue has them now. Decides nothing by itself, and is no record."""

    types: Mapping[str, TimerType]


class SetReserve(msgspec.Struct, frozen=True):
    """Whether the log lives on its reserve: then `Retried` stays in memory."""

    low: bool


class Slice(msgspec.Struct, frozen=True):
    """Write a checkpoint slice over the slots whose last one is oldest. Answer, if it is wanted: None."""

    token: Token | None = None


class FindBodies(msgspec.Struct, frozen=True):
    """Which of these (id, where it lies) are live. Answer: list[tuple[int, str, int]]: (index, id, generation)."""

    bodies: list[tuple[str, BodyRef]]
    token: Token


class Relocate(msgspec.Struct, frozen=True):
    """Bodies were copied: (id, generation, old place, new place). Those that still lie at the old place move.

    Answer: None, when durable.
    """

    bodies: list[tuple[str, int, BodyRef, BodyRef]]
    token: Token


class BodyLost(msgspec.Struct, frozen=True):
    """The bodies of these (id, generation) of batch `batch_no` can't be read: bury them before the batch leaves.

    Answer: None, when durable.
    """

    batch_no: int
    timers: list[tuple[str, int]]
    error: str
    token: Token


class Close(msgspec.Struct, frozen=True):
    """Nothing is in flight and nothing will come: write `Closed`. Answer: None, when durable."""

    token: Token


Message = (
    Arm | Cancel | FireNow | Get | List | Next | Tally | Take | Settle | SettleSome | ListDead | Revive | Purge
    | SetTypes | SetReserve | Slice | FindBodies | Relocate | BodyLost | Close | MoveMessage
)  # fmt: skip


# ---- what a caller of the node is told instead of an answer


class Refused(msgspec.Struct, frozen=True):
    """A request was refused as a whole, and nothing of it was done."""

    name: str
    """A problem name of the contract, like `unknown-type`."""
    detail: str
    errors: Sequence[tuple[str, str]] = ()
    """(JSON pointer into the request, what is wrong there)"""
    retry_after_s: int | None = None


class Gone(Refused, frozen=True):
    """In place of any answer: the shard is not here (any more). Whether what was asked of it is done is not known."""


GONE = Gone("shard-unavailable", "the shard of this is changing hands", retry_after_s=1)

"""Effects: what may leave a shard, once the records of the turn are durable."""

from typing import Any

import msgspec

from timerd.engine.message import Token
from timerd.engine.move_message import MoveMessage
from timerd.engine.record import Record
from timerd.engine.timer import Timer


class Reply(msgspec.Struct, frozen=True, gc=False):
    """The answer to a message that carried `token`."""

    token: Token
    value: Any


class Ready(msgspec.Struct, frozen=True, gc=False):
    """How much of a lane is ready to be taken. Replaces what the shard said of the lane before.

    `since` is the wait of the longest waiting: for first attempts (limit 0, or `MISSED`) the Unix ms from which its lag
    counts, for retries the boot ms of its last attempt. `urgent`: there is one that waits for no batch.
    """

    shard: int
    type: str
    limit: int
    count: int
    since: int
    urgent: bool = False
    key: str = ""
    """Not empty: how much is parked under this key, at most; some of it may be gone. `limit` and `since` are 0 then."""


class Taken(msgspec.Struct, frozen=True, gc=False):
    """The timers that a `Take` handed out; in flight from now. `tried_at`: boot ms of the oldest last attempt, or 0."""

    batch_no: int
    shard: int
    timers: list[Timer]
    tried_at: int = 0
    flagged: frozenset[str] = frozenset()
    """Ids that may have been delivered before (possible_duplicate)."""


class Settled(msgspec.Struct, frozen=True, gc=False):
    """This shard's part of batch `batch_no` is settled, and durable. `buried` timers, of `type`, were given up.

    `part`: the number of the `SettleSome` that this is the end of; 0 after a `Settle`. `coalesced`: turns that re-arms
    skipped.
    """

    batch_no: int
    shard: int
    type: str = ""
    buried: int = 0
    part: int = 0
    coalesced: int = 0


class Dropped(msgspec.Struct, frozen=True, gc=False):
    """So many timers of `type` were dropped as missed, and that is durable."""

    type: str
    timers: int


class Send(msgspec.Struct, frozen=True, gc=False):
    """A message of a move, for another shard, wherever that is."""

    to: int
    message: MoveMessage


Effect = Reply | Ready | Taken | Settled | Dropped | Send


class Turn(msgspec.Struct, frozen=True):
    """What one turn came to: first `records` as one frame at position `lsn`, then, when that is durable, `effects`."""

    shard: int
    lsn: int
    """Position of the frame if there are records."""
    records: list[Record]
    effects: list[Effect]

"""Late: what shards still owe of batches that have gone on without them.

A shard whose append stands still answers nothing for as long as that lasts. A batch that waits for its part would hold
back the timers of all others, and its slot. So the shard is given up on: the batch goes on, and what comes of the
shard in the end is dealt with here. Timers that it hands out too late are settled as untried; an outcome that becomes
durable late frees nothing any more. Each Take is still followed by exactly one Settle.
"""

from typing import Final

from timerd.engine.command import SendSettle
from timerd.engine.effect import Settled, Taken
from timerd.engine.message import Settle, SettleSome, WholeFailure

LATE_PART: Final = -1  # of the SettleSome that a late Taken gets
UNTRIED: Final = "its shard stood still"


def untried(whole: int) -> WholeFailure:
    """What becomes of timers that were handed out and not sent, through no fault of anybody's."""
    return WholeFailure(UNTRIED, 1, max(1, whole), attempted=False)


class Late:
    """Of one dispatcher."""

    def __init__(self) -> None:
        self.given_up: set[int] = set()
        """Shards that nobody waits for at the moment."""
        self._takes: dict[tuple[int, int], tuple[int, bool]] = {}  # (batch, shard) -> (whole, callbacks)
        self._settles: set[tuple[int, int, int]] = set()  # (batch, shard, part)

    def __bool__(self) -> bool:
        return bool(self._takes or self._settles)

    def owes_take(self, batch_no: int, shard: int, whole: int, *, callbacks: bool) -> None:
        """The batch goes on without the answer to this Take."""
        self._takes[batch_no, shard] = whole, callbacks

    def owes_settle(self, batch_no: int, shard: int, part: int = 0) -> None:
        """The batch goes on, or ends, without the end of this Settle."""
        self._settles.add((batch_no, shard, part))

    def taken(self, taken: Taken) -> SendSettle | None:
        """What a late Taken is answered with; None: it is in time."""
        late = self._takes.pop((taken.batch_no, taken.shard), None)
        if late is None:
            return None
        whole, callbacks = late
        failure = untried(whole)
        settle: Settle | SettleSome
        if callbacks:
            settle = SettleSome(taken.batch_no, LATE_PART, failed=[(timer.id, failure) for timer in taken.timers])
        else:
            settle = Settle(taken.batch_no, failure=failure if taken.timers else None)
        self.owes_settle(taken.batch_no, taken.shard, LATE_PART if callbacks else 0)
        return SendSettle(taken.shard, settle)

    def settled(self, settled: Settled) -> bool:
        """Whether this is the end of something late."""
        key = settled.batch_no, settled.shard, settled.part
        if key not in self._settles:
            return False
        self._settles.remove(key)
        return True

    def forget(self, shard: int) -> None:
        """The shard is not here any more: it owes nothing."""
        self.given_up.discard(shard)
        self._takes = {key: late for key, late in self._takes.items() if key[1] != shard}
        self._settles = {key for key in self._settles if key[1] != shard}

    def owes(self, shard: int) -> bool:
        """Whether anything is to come of this shard."""
        return any(key[1] == shard for key in self._takes) or any(key[1] == shard for key in self._settles)

    def is_open(self, batch_no: int) -> bool:
        """Whether anything is to come of this batch."""
        return any(key[0] == batch_no for key in self._takes) or any(key[0] == batch_no for key in self._settles)

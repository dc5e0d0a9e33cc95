"""The ledger: an account of the log, kept apart from the product by folding every frame that is appended.

It has two states of each shard. `ahead` is what all frames make that were handed to the log; `durable` is what those
make whose append has returned. A crash throws `ahead` away: the log may hold any of the frames between the two, and
what it does hold shows at recovery. Found there, they are still not durable, for they may lie in a cache; the next
append that returns makes them so.

What one frame does is in account.py.
"""

from collections import ChainMap, Counter
from collections.abc import Sequence
from typing import Any

from tests.sim.account import Account, Between, Causes, Entry, Version, Violation
from timerd.engine.ring import RingTable, slot_of
from timerd.engine.shard import Shard
from timerd.engine.timer import DEAD
from timerd.ports import Frame


class Ledger:
    """All shards of one log."""

    def __init__(self, shards: int) -> None:
        self.bodies: dict[tuple[int, int], bytes] = {}
        """What was placed, by (segment, offset)."""
        self.between = Between()
        self.durable = [Account(self.bodies, self.between) for _ in range(shards)]
        between = Between()
        self.ahead = [Account(self.bodies, between) for _ in range(shards)]
        self.versions = ChainMap(*(account.versions for account in self.durable))
        """All that is durable, by (id, generation)."""
        self.ended = ChainMap(*(account.ended for account in self.durable))
        self.lacks_retries = False
        """Some retries came into the log by slices alone."""
        self.undecided: list[Frame] = []
        """Handed to the log, and not known to be durable."""

    def entry(self, id: str) -> Entry | None:
        """What is durable of an id, wherever it is."""
        return self.between.find(id)

    def entries(self) -> dict[str, Entry]:
        """All that is durable, by id. Raises Violation where an id lives twice."""
        ids = [id for account in self.durable for id in account.entries]
        return {id: entry for id in (*ids, *self.between) if (entry := self.entry(id)) is not None}

    def at_rest(self, table: RingTable | None) -> None:
        """Raise Violation unless each id is on the shard that the table names, and nothing is on its way."""
        assert table is not None
        for shard, account in enumerate(self.durable):
            if strays := [id for id in account.entries if table.shards[slot_of(id)] != shard]:
                raise Violation(f"shard {shard} holds {strays}, which are another's")
            if account.pending:
                raise Violation(f"shard {shard} has come to rest with something pending: {account.pending}")
        if self.between:
            raise Violation(f"at rest, and between two shards: {dict(self.between)}")

    def appending(self, frames: Sequence[Frame], causes: Causes) -> None:
        """These are being written. Their records must be copies."""
        for frame in frames:
            self.undecided.append(frame)
            self.ahead[frame.shard].apply(frame, causes)

    def appended(self) -> None:
        """They are durable, and everything before them is."""
        for frame in self.undecided:
            self.durable[frame.shard].apply(frame)
        self.undecided.clear()

    def recovered(self, shards: Sequence[Shard], lsns: dict[int, int]) -> int:
        """Compare what was recovered, up to these lsns; how many frames came back that nobody had been told of."""
        found = []
        between = Between(self.between)
        self.ahead = [account.copy(between) for account in self.durable]
        for frame in self.undecided:
            if frame.lsn <= lsns.get(frame.shard, 0):
                found.append(frame)
                self.ahead[frame.shard].apply(frame)
        self.undecided = found
        for shard in shards:
            account = self.ahead[shard.id]
            upto = lsns.get(shard.id, 0)
            if upto < account.lsn:
                raise Violation(f"shard {shard.id}: lsn {account.lsn} was durable, and the log ends at {upto}")
            if upto > account.lsn:
                raise Violation(
                    f"shard {shard.id}: the log has lsn {upto}, and no frame above {account.lsn} was written"
                )
            _compare(account, shard, self.lacks_retries)
        return len(found)


def _compare(account: Account, shard: Shard, lacks_retries: bool) -> None:
    """State after recovery = fold of the log."""
    state = shard.state
    where = f"after recovery of shard {shard.id}"
    for id, entry in list(account.entries.items()):
        timer = state.find(id)
        if timer is None:
            raise Violation(f"lost {where}: {entry.version}")
        failure = timer.failure
        if lacks_retries and failure is not None and failure.attempts > entry.attempts:
            entry = account.entries[id] = entry._replace(
                attempts=failure.attempts,
                counted=failure.counted,
                gap_ms=failure.gap_ms,
                limit=failure.limit,
                unknown=failure.unknown,
            )
        got = Entry(
            Version(timer.id, timer.generation, timer.fire_at, timer.type, account.payload(timer.payload)),
            failure.attempts if failure else 0,
            failure.counted if failure else 0,
            failure.gap_ms if failure and timer.state != DEAD else entry.gap_ms,
            failure.limit if failure and timer.state != DEAD else entry.limit,
            failure.unknown if failure else False,
            timer.state == DEAD,
        )
        if got != entry:
            raise Violation(f"{where}: {got}, expected {entry}")
    if state.timers != len(account.entries):
        raise Violation(f"{where}: {state.timers} timers, expected {len(account.entries)}")
    if state.last != account.last:
        raise Violation(f"{where}: the last generation is {state.last}, expected {account.last}")
    for name, sums in account.totals.items():
        lane = state.lanes.get(name)
        if lacks_retries and lane is not None:
            sums["retried"] = max(sums["retried"], lane.totals.retried)
        _compare_totals(where, name, sums, lane.totals if lane else None)
        if lane and lane.live != account.live(name):
            raise Violation(f"{where}: {lane.live} of {name} live, expected {account.live(name)}")


COUNTED = ("armed", "revived", "fired", "cancelled", "replaced", "dead", "purged", "superseded", "retried")


def _compare_totals(where: str, name: str, sums: Counter[str], totals: Any) -> None:
    """The counts of a type in a shard against the account's."""
    for field in COUNTED:
        got = getattr(totals, field) if totals is not None else 0
        if got != sums[field]:
            raise Violation(f"{where}: {name} has {field} {got}, expected {sums[field]}")
    dropped = {f"dropped {reason}": n for reason, n in (totals.dropped if totals is not None else {}).items() if n}
    expected = {how: n for how, n in sums.items() if how.startswith("dropped") and n}
    if dropped != expected:
        raise Violation(f"{where}: {name} has {dropped}, expected {expected}")

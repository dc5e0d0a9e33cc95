"""The book of a cluster: what tests/crash/book.py keeps and judges, and when and on which shard things happened.

A repeat is allowed only if its timer was due before the fault had its effect and was not finished before the fault:
`excused` says so of each. Repeats of everything else are faults, flagged or not.
"""

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.crash.book import Book
from tests.support.cases import instant
from tests.support.processor import Delivery

RECORDED_S = 1.0
"""So long after its answer an outcome is surely durable, while nothing is in the way."""

Key = tuple[str, int]


class Repeat(NamedTuple):
    """A (id, generation) that had been answered as done, and was received again."""

    key: Key
    at: float
    fire_at: float
    answered_at: float
    """When the first receipt was answered."""
    flagged: bool

    def excused(self, begin: float, effect_s: float) -> bool:
        """`begin`: when the fault began; `effect_s`: so long a node may go on delivering what it can't record."""
        return self.fire_at <= begin + effect_s and self.answered_at >= begin - RECORDED_S

    def __str__(self) -> str:
        return (
            f"{self.key[0]}, generation {self.key[1]}, due {self.fire_at:.3f}, answered {self.answered_at:.3f}, "
            f"received again {self.at:.3f}{'' if self.flagged else ', not flagged'}"
        )


class ClusterBook(Book):
    """One round's times beside the rounds' book."""

    def __init__(self) -> None:
        super().__init__()
        self.shard_of: dict[str, int] = {}
        self.repeats: list[Repeat] = []
        self.fires: dict[int, list[float]] = {}
        """shard -> when something of it was received."""
        self.lags: dict[int, list[tuple[float, float]]] = {}
        """shard -> (received at, late by) of first receipts; late by what is behind the fire time, max_lag included."""
        self.acks: dict[int, list[float]] = {}
        """shard -> when an arm was acknowledged."""
        self.answers: list[tuple[float, int, float]] = []
        """(answered at, status, seconds it took) of arms and cancels; status 0: no answer."""
        self._answered: dict[Key, float] = {}

    def fault(self, kind: str, what: str) -> None:
        """What is not flagged is judged with all repeats, when it is known what the fault was."""
        if kind == "duplicates not flagged":
            self.counts["unflagged"] += 1
        else:
            super().fault(kind, f"{time.time():.3f} {kind}: {what}")

    def receive(self, delivery: Delivery, timer: Mapping[str, Any], *, done: bool) -> None:
        key = (timer["id"], timer["generation"])
        due = instant(timer["fire_at"])
        shard = self.shard_of.get(timer["id"])
        before = self._received.get(key[0], {}).get(key[1])
        if before is not None and before.done:
            answered = self._answered.get(key, delivery.at)
            self.repeats.append(Repeat(key, delivery.at, due, answered, bool(timer.get("possible_duplicate"))))
        if shard is not None:
            self.fires.setdefault(shard, []).append(delivery.at)
            if before is None and timer["attempt"] == 1:
                self.lags.setdefault(shard, []).append((delivery.at, delivery.at - due))
        super().receive(delivery, timer, done=done)

    def is_known(self, id: str, generation: int) -> bool:
        """Whether it has been received before."""
        return generation in self._received.get(id, ())

    def answered(self, keys: Iterable[Key]) -> None:
        """They have been answered as done, now."""
        now = time.time()
        for key in keys:
            self._answered.setdefault(key, now)

    def acknowledged_on(self, id: str) -> None:
        """An arm of it was, now."""
        if (shard := self.shard_of.get(id)) is not None:
            self.acks.setdefault(shard, []).append(time.time())

    def new_round(self) -> None:
        """Forget the times."""
        self.fires, self.lags, self.acks = {}, {}, {}
        self.repeats, self.answers = [], []
        self._answered = {
            (id, generation): at
            for (id, generation), at in self._answered.items()
            if generation in self._received.get(id, {})
        }

    @property
    def refusals(self) -> int:
        """How many arms and cancels were not acknowledged."""
        return sum(status != 200 for _, status, _ in self.answers)

    # ---- figures

    def fire_gap(self, shards: Iterable[int], since: float, until: float) -> float:
        """The longest time without a fire on one of these shards."""
        return max((longest_gap(self.fires.get(shard, ()), since, until) for shard in shards), default=0.0)

    def ack_gap(self, shards: Iterable[int], since: float, until: float) -> float:
        """The longest time without an acknowledged arm on one of these shards."""
        return max((longest_gap(self.acks.get(shard, ()), since, until) for shard in shards), default=0.0)

    def lag(self, shards: Iterable[int], since: float, until: float) -> float:
        """The latest of what was received first in that time."""
        return max(
            (lag for shard in shards for at, lag in self.lags.get(shard, ()) if since <= at <= until), default=0.0
        )


def longest_gap(times: Sequence[float], since: float, until: float) -> float:
    """Between two of them, or between one and an end of the time looked at."""
    looked_at = [since, *sorted(at for at in times if since < at < until), until]
    return max(later - earlier for earlier, later in itertools.pairwise(looked_at))

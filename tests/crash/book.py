"""The book: what was asked for, what was acknowledged, and what was received. The judge of the kill rounds.

It is made of acknowledged answers and receipts alone, and knows no HTTP and no process. One caller at a time asks about
an id. What was asked for and not acknowledged may be so or not, but only as it was asked for; everything else is
exact: versions, generations, fire times, and that what is gone never comes again.
"""

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from tests.support.cases import instant, millis
from tests.support.processor import Delivery

SHOWN = 10


class Version(NamedTuple):
    """A timer as it was asked for, in a form that compares and is small."""

    fire_at: int
    digest: bytes

    @staticmethod
    def of(timer: Mapping[str, Any]) -> "Version":
        """`timer` as it is armed with a time in ms, or as it is listed or delivered."""
        at = timer["fire_at"]
        payload = msgspec.json.encode(timer.get("payload"))
        return Version(at if isinstance(at, int) else millis(instant(at)), blake2b(payload, digest_size=12).digest())


CANCELLED = Version(0, b"")


class Receipt(msgspec.Struct):
    """What is known of one generation that was received and may be received again."""

    version: Version
    done: bool
    """It was answered as fired or re-armed: another receipt is a duplicate."""
    attempt: int


class Book:
    """`wrong` is empty as long as everything was right. `cramped`: a re-arm that grows may be a retry."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.cramped = False
        self.known: dict[str, Version] = {}
        self.generations: dict[str, int] = {}
        self._moved: dict[str, dict[int, Version]] = {}  # what was acknowledged before what is known, since a start
        self._unknown: dict[str, list[Version]] = {}  # what was asked for before it, of which nothing became known
        self._asked: dict[str, list[Version]] = {}  # since the last acknowledgement; any of these may stand
        self._cancelled: set[tuple[str, int]] = set()  # acknowledged, and not too late: never to be received
        self._received: dict[str, dict[int, Receipt]] = {}  # by id and generation; of what may come again
        self._links: dict[str, int] = {}  # chain -> the last link received
        self._held: set[str] = set()  # chains that were acknowledged, or seen: they never end

    @property
    def acknowledged(self) -> int:
        return self.counts["arms"] + self.counts["cancels"]

    # ---- what callers ask and are told

    def ask(self, id: str, version: Version) -> None:
        """It may be so from now on."""
        self._asked.setdefault(id, []).append(version)

    def armed(self, id: str, version: Version, generation: int) -> None:
        """It is so."""
        if generation <= self.generations.get(id, 0):
            self.fault("generations", f"{id}: generation {generation} after {self.generations[id]}")
        if id in self.generations:
            self._moved.setdefault(id, {})[self.generations[id]] = self.known[id]
        self.known[id] = version
        self.generations[id] = generation
        asked = self._asked.pop(id, [version])
        asked.remove(version)
        if asked:
            self._unknown.setdefault(id, []).extend(asked)
        self.counts["arms"] += 1

    def cancelled(self, id: str) -> None:
        """It is gone, and no delivery of it begins any more."""
        self.known[id] = CANCELLED
        self._asked.pop(id, None)
        self._cancelled.add((id, self.generations[id]))
        self.counts["cancels"] += 1

    def refused(self, id: str, version: Version) -> None:
        """Nothing of it was done."""
        self._asked[id].remove(version)
        if not self._asked[id]:
            del self._asked[id]

    # ---- what is received

    def receive(self, delivery: Delivery, timer: Mapping[str, Any], *, done: bool) -> None:
        """`done`: it will be answered as fired or re-armed."""
        id, generation, version = timer["id"], timer["generation"], Version.of(timer)
        self.counts["receipts"] += 1
        if delivery.at * 1000 < version.fire_at:
            self.fault("early", f"{id}: received {version.fire_at / 1000 - delivery.at:.4f} s early")
        if (id, generation) in self._cancelled:
            self.fault("cancelled yet delivered", f"{id}: received after its cancel was acknowledged")
        receipts = self._received.setdefault(id, {})
        if (before := receipts.get(generation)) is None:
            receipts[generation] = Receipt(version, done, timer["attempt"])
            self.counts["fires"] += done
            if not id.startswith("chain"):
                self._is_expected(id, generation, version)
            return
        if before.version != version:
            self.fault("changed", f"{id}: generation {generation} was {before.version} and is {version}")
        if self.cramped and id.startswith("chain") and timer["attempt"] > before.attempt:
            self.counts["re-arms without room"] += 1
        elif before.done:
            self.counts["duplicates"] += 1
            if timer.get("possible_duplicate"):
                self.counts["flagged"] += 1
            else:
                self.fault("duplicates not flagged", f"{id}: received again, generation {generation}, without a word")
        self.counts["fires"] += done and not before.done
        before.done = before.done or done
        before.attempt = timer["attempt"]

    def link(self, id: str, n: int) -> None:
        """A chain was received: links come in order, and the last may come again."""
        last = self._links.setdefault(id, 0)
        if n not in (last, last + 1):
            self.fault("chains broken", f"{id}: link {n} after {last}")
        self.counts["re-arms"] += n > last
        self._links[id] = n
        self._held.add(id)

    def chain(self, id: str) -> None:
        """A chain was acknowledged."""
        self._held.add(id)
        self.counts["arms"] += 1

    @property
    def chains(self) -> int:
        return len(self._held)

    def _is_expected(self, id: str, generation: int, version: Version) -> None:
        """The first receipt of a generation: it is the acknowledged one, or one that was asked for."""
        asked = self._asked.get(id, ())
        known = self.known.get(id)
        if known is None and not asked:
            self.fault("came back", f"{id}: received, and it was gone before the last start")
        elif self._moved.get(id, {}).get(generation) == version:
            return  # It was on its way when it was moved.
        elif self._may_have_been(id, generation, version):
            return  # So was this, which had been stored without an answer.
        elif known != version and version not in asked:
            self.fault("changed", f"{id}: received as {version}, which is not what was asked for")
        elif not asked and generation != self.generations[id]:
            self.fault("changed", f"{id}: received as generation {generation}, acknowledged {self.generations[id]}")

    def _may_have_been(self, id: str, generation: int, version: Version) -> bool:
        """Whether it was asked for before what is known, and nothing is known of a timer of this generation."""
        is_open = version in self._unknown.get(id, ()) and generation not in self._moved.get(id, ())
        return is_open and generation < self.generations[id]

    # ---- after a start

    def settle(self, listed: Mapping[str, Mapping[str, Any]]) -> None:
        """Compare with all timers that are there after a start. What was open is decided by what is seen."""
        for id in self.known.keys() | self._asked.keys():
            possible = [self.known.get(id, CANCELLED), *self._asked.pop(id, ())]
            timer = listed.get(id)
            if timer is not None:
                self._compare(id, timer, possible)
            elif CANCELLED not in possible and not self._has_fired(id, possible):
                self.fault("lost", f"{id}: lost, {possible[0]}, generation {self.generations.get(id)}")
        for id in self.known.keys() - listed.keys():
            del self.known[id]
            self.generations.pop(id, None)
        for id in listed.keys() - self.known.keys():
            if not id.startswith("chain"):
                self.fault("came back", f"{id}: listed, and it was never asked for, or was gone")
        for id in self._held - listed.keys():
            self.fault("lost", f"{id}: the chain is broken")
        self._held |= {id for id in listed if id.startswith("chain")}
        # Of what is there no more, nothing can come again; if it does, `_is_expected` says so.
        self._received = {
            id: {generation: receipt for generation, receipt in receipts.items() if generation == timer["generation"]}
            for id, receipts in self._received.items()
            if (timer := listed.get(id)) is not None
        }
        self._cancelled = {key for key in self._cancelled if key[0] in listed}
        self._moved.clear()
        self._unknown.clear()

    def unfired(self) -> list[str]:
        """Ids that were acknowledged, are not cancelled, and were not received as they stand: the end's check."""
        return [
            id for id, version in self.known.items() if version is not CANCELLED and not self._has_fired(id, [version])
        ]

    def _compare(self, id: str, timer: Mapping[str, Any], possible: list[Version]) -> None:
        version = Version.of(timer)
        if possible == [CANCELLED]:
            self.fault("came back", f"{id}: listed, and its cancel was acknowledged")
        elif version not in possible:
            self.fault("changed", f"{id}: listed as {version}, which is none of {possible}")
        elif len(possible) == 1 and timer["generation"] != self.generations[id]:
            self.fault("changed", f"{id}: generation {timer['generation']}, acknowledged was {self.generations[id]}")
        self.known[id] = version
        self.generations[id] = timer["generation"]

    def _has_fired(self, id: str, possible: list[Version]) -> bool:
        receipts = self._received.get(id, {})
        if len(possible) == 1:
            receipt = receipts.get(self.generations[id])
            return receipt is not None and receipt.done
        return any(receipt.done for receipt in receipts.values())

    def fault(self, kind: str, what: str) -> None:
        """Something was not as promised."""
        self.counts[kind] += 1
        if len(self.wrong) < SHOWN:
            self.wrong.append(what)

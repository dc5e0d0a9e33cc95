"""The judge of the soak: of every timer, which version it must be at, by what was acknowledged and what has come.

A timer goes round: it is delivered, and either the answer arms it again, or it is answered as done and armed by a call;
and some are moved by calls while they wait. An answer is never acknowledged, and a call whose connection broke may or
may not have been heard; so of each timer it keeps the version known for certain and the fire times that may have come
after it. Everything else is a fault.

Times are Unix ms. A timer's id is its number.
"""

from array import array
from collections import Counter
from typing import Final

STALE_MS: Final = 2_000  # a delivery that was under way when a newer version was acknowledged may come this much later


class Chains:
    """Of `count` timers."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.faults = Counter[str]()
        self.examples: list[str] = []
        self.repeated = 0
        """Deliveries of a version that had come before, said to be possible duplicates."""
        self._generation = array("q", bytes(8 * count))
        self._fire_at = array("q", bytes(8 * count))  # of that generation
        self._came = bytearray(count)  # whether that generation was delivered
        self._answered = array("q", bytes(8 * count))  # the fire time that the answer to it gave; 0: none
        self._called = array("q", bytes(8 * count))  # the fire time of a call whose outcome is not known; 0: none
        self._known_at = array("q", bytes(8 * count))  # when a call's acknowledgement told the generation

    # ---- what is asked and told

    def call(self, n: int, fire_at: int) -> None:
        """An arm leaves."""
        self._called[n] = fire_at

    def acknowledge(self, n: int, generation: int, fire_at: int, now: int) -> None:
        """It was stored."""
        self._called[n] = 0
        if generation > self._generation[n]:
            self._learn(n, generation, fire_at)
            self._known_at[n] = now

    def deliver(self, n: int, generation: int, fire_at: int, flagged: bool, now: int) -> bool:
        """A timer came; whether it is a version that an answer can act on."""
        if fire_at > now:
            self._fault("early", f"{n}: {fire_at - now} ms")
        known = self._generation[n]
        if generation > known:
            if fire_at not in (self._answered[n], self._called[n]):
                self._fault("a fire time nobody asked for", self._of(n, f"{generation} at {fire_at}"))
            self._learn(n, generation, fire_at)
        elif generation < known:
            if now - self._known_at[n] > STALE_MS:
                self._fault("an old version after a newer was acknowledged", self._of(n, str(generation)))
            return False
        elif fire_at != self._fire_at[n]:
            self._fault("another fire time under the same generation", self._of(n, str(fire_at)))
        elif self._came[n]:
            self.repeated += 1
            if not flagged:
                self._fault("again, and not said to be a possible duplicate", self._of(n, ""))
        self._came[n] = 1
        return True

    def answer(self, n: int, fire_at: int) -> None:
        """What was delivered is answered with a re-arm; 0: as done."""
        self._answered[n] = fire_at

    # ---- what must be so

    def next_at(self, n: int) -> int:
        """When it should fire at the latest, by everything that was asked; 0: it may be gone."""
        return max(self._answered[n] if self._came[n] else self._fire_at[n], self._called[n])

    def overdue(self, now: int, grace_ms: int) -> list[int]:
        """Timers that should have come by now."""
        return [n for n in range(self.count) if 0 < self.next_at(n) < now - grace_ms]

    def listed(self, found: dict[int, tuple[int, int]]) -> None:
        """Compare with a list of everything, {n: (generation, fire_at)}, made while nothing is under way."""
        for n in range(self.count):
            if n not in found:
                self._fault("lost", self._of(n, "not listed"))
                continue
            generation, fire_at = found[n]
            known = self._generation[n]
            text = f"listed as {generation} at {fire_at}"
            if generation < known:
                self._fault("lost: an older version stands", self._of(n, text))
            elif generation > known and fire_at not in (self._answered[n], self._called[n]):
                self._fault("a fire time nobody asked for", self._of(n, text))
            elif generation == known and fire_at != self._fire_at[n]:
                self._fault("another fire time under the same generation", self._of(n, text))
            elif generation == known and self._came[n]:
                self._fault("lost: its answer had no effect", self._of(n, text))
        for n in found.keys() - range(self.count):
            self._fault("listed, and nobody armed it", str(n))

    def _learn(self, n: int, generation: int, fire_at: int) -> None:
        self._generation[n] = generation
        self._fire_at[n] = fire_at
        self._came[n] = 0
        self._answered[n] = 0

    def _of(self, n: int, text: str) -> str:
        return (
            f"{n}: {text}; known {self._generation[n]} at {self._fire_at[n]}, came {self._came[n]}, "
            f"answered {self._answered[n]}, called {self._called[n]}"
        )

    def _fault(self, what: str, example: str) -> None:
        self.faults[what] += 1
        if self.faults[what] <= 3:
            self.examples.append(f"{what}: {example}")

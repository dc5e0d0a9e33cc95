"""Planted in what becomes of overdue timers: who is missed, how they catch up, what is dropped."""

from typing import Final

from tests.mutations.mutation import Edit, Mutation, Pytest, Simulator

PLANTED: Final = (
    Mutation(
        "caught-up-at-any-rate",
        "what catches up is not taken off its own rate",
        "timerd/engine/flow.py",
        "rates = (self._rate, self._catch_up.rate if limit == MISSED else None)",
        "rates = (self._rate, None)",
        Simulator(60),
        (
            Edit(
                "timerd/engine/gate.py",
                "rates = (self._rate, self._catch_up.rate if missed else None)",
                "rates = (self._rate, None)",
            ),
        ),
    ),
    Mutation(
        "dropped-while-paused",
        "what is overdue of a paused type is dropped like any other",
        "timerd/engine/lane.py",
        "        if not self.drops or self._paused:\n",
        "        if not self.drops:\n",
        Pytest("tests/engine/test_misfire.py", because="seldom is a type that drops paused for longer than its grace"),
    ),
    Mutation(
        "aged-on-the-ready-list",
        "what was ready in time is handed out as if it still were on time",
        "timerd/engine/lane.py",
        "                if late := self._due.late(live, wall_ms):\n",
        "                if late := []:\n",
        Pytest("tests/engine/test_misfire.py", because="it can't tell when one that is near its grace was handed out"),
    ),
    Mutation(
        "missed-before-its-time",
        "the grace counts from fire_at, also for a timer that was armed for the past",
        "timerd/engine/due.py",
        "return timer.generation < before * 1000 or (timer.state == BEHIND and not self.spares_turns)",
        "return True",
        Simulator(60),
    ),
    Mutation(
        "catch-up-takes-it-all",
        "what catches up may hold every request of its type",
        "timerd/engine/catchup.py",
        "return max(0, max(1, slots // 2) - in_flight)",
        "return max(0, slots - in_flight)",
        Simulator(60),
    ),
    Mutation(
        "phase-lost",
        "a re-arm that skips turns goes to now, and not to the next of its turns",
        "timerd/engine/misfire.py",
        "return fire_at + skipped * step, skipped",
        "return now_ms, skipped",
        Simulator(60),
    ),
)

"""Planted in flow control: what a target with too much to do is given, and whose turn it is."""

from typing import Final

from tests.mutations.mutation import Mutation, Pytest, Simulator

PACE: Final = "timerd/engine/pace.py"

PLANTED: Final = (
    Mutation(
        "a-pause-ends-in-a-storm",
        "after a Retry-After a target gets half of what is configured at once",
        PACE,
        "        self._set(1, bound)\n",
        "        self._set(bound // 2, bound)\n",
        Simulator(60),
    ),
    Mutation(
        "an-outage-ends-in-a-storm",
        "what waits for a target that is back is sent at once, as far as there are slots",
        "timerd/engine/flow.py",
        "            self.pace.restart(max(self.open, default=0), self._bound, reason, boot_ms)\n",
        "            self.pace.forget()\n",
        Pytest("tests/engine/test_slow_down.py", because="its targets are as well after an outage as they ever were"),
    ),
    Mutation(
        "each-failure-cuts",
        "requests that were under way when the window was cut cut it again",
        PACE,
        "(failed.suspect or failed.refused) and batch_no > self._cut_at",
        "(failed.suspect or failed.refused)",
        Pytest("tests/engine/test_pace.py", because="what is late for being given too little is not judged"),
    ),
    Mutation(
        "refusals-not-spaced",
        "a target that only refuses is asked again at once",
        PACE,
        "            self.held_until = boot_ms + max(1, min(gap_ms, policy.max_backoff_ms))\n",
        "            self.held_until = 0 * gap_ms\n",
        Pytest("tests/engine/test_pace.py", because="it does not judge how often a target is asked"),
    ),
    Mutation(
        "turns-without-weights",
        "types take turns alike, whatever their max_in_flight",
        "timerd/engine/turns.py",
        "STRIDE // max(1, weight)",
        "STRIDE",
        Pytest("tests/engine/test_turns.py", because="it has no storms, and what is late in one is not judged"),
    ),
    Mutation(
        "a-slow-type-takes-the-room",
        "a type that has no payloads in memory waits for the room that others have",
        "timerd/room.py",
        "        if not self._of[type]:\n            return True\n",
        "",
        Pytest("tests/test_room.py", because="its payloads are far smaller than the room"),
    ),
)

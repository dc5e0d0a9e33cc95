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
        "timerd/engine/target.py",
        "            self.pace.restart(max(self._open, default=0), self._bound, reason, boot_ms)\n",
        "            self.pace.forget()\n",
        Pytest("tests/engine/test_slow_down.py", because="its targets are as well after an outage as they ever were"),
    ),
    Mutation(
        "each-failure-cuts",
        "requests that were under way when the window was cut cut it again",
        PACE,
        "            if batch_no <= self._cut_at:\n",
        "            if False:\n",
        Pytest("tests/engine/test_pace.py", because="what is late for being given too little is not judged"),
    ),
    Mutation(
        "poison-slows",
        "one timer that always fails cuts its target's window at each of its tries",
        PACE,
        "            if len(self._again) < max(2, size // GROWS_BY):\n",
        "            if not self._again:\n",
        Pytest("tests/engine/test_poison.py", because="it does not judge how late others are beside one that fails"),
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
        "STRIDE * cost // max(1, weight)",
        "STRIDE * cost",
        Pytest("tests/engine/test_turns.py", because="it has no storms, and what is late in one is not judged"),
    ),
    Mutation(
        "turns-cost-alike",
        "a batch of one timer counts as much as one of a thousand when types take turns",
        "timerd/engine/dispatcher.py",
        "self._turns.again(name, flow.weight, cost)",
        "self._turns.again(name, flow.weight, 1)",
        Pytest("tests/engine/test_turns.py", because="it has no storms, and what is late in one is not judged"),
    ),
    Mutation(
        "handed-out-while-writing",
        "timers are handed out while the record that they rest on is being written",
        "timerd/runner.py",
        "if not self._between or shard not in self.shards or not self.shards[shard].clean:",
        "if shard not in self.shards or not self.shards[shard].clean:",
        Pytest("tests/test_runner.py", because="a target can't see what was durable when it was asked"),
    ),
    Mutation(
        "due-behind-messages",
        "what has come due waits until a turn's messages are decided and durable",
        "timerd/runner.py",
        "        if not due or self._log.unsettled():\n",
        "        if due or self._log.unsettled():\n",
        Pytest("tests/test_runner.py", because="what is late by a turn is in time"),
    ),
    Mutation(
        "due-without-a-directory",
        "a process that was stopped and has lost its directory to another begins what has come due",
        "timerd/runner.py",
        "        if not due or self._log.unsettled():\n",
        "        if not due:\n",
        Pytest("tests/test_runner.py", because="its directories are never taken by another process"),
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

"""Planted in what decides on deliveries: when, how many, how often, and what an answer means."""

from typing import Final

from tests.mutations.mutation import Mutation, Pytest, Simulator

PLANTED: Final = (
    Mutation(
        "early-by-a-millisecond",
        "the wall clock is rounded to the nearest millisecond",
        "timerd/engine/now.py",
        "return self.wall_us // 1000",
        "return round(self.wall_us / 1000)",
        Simulator(20),
    ),
    Mutation(
        "due-in-the-next-millisecond",
        "a bin whose millisecond is the next one is opened already",
        "timerd/engine/due.py",
        "while ticks and ticks[0] <= now and left > 0:",
        "while ticks and ticks[0] <= now + 1 and left > 0:",
        Simulator(150),
    ),
    Mutation(
        "fire-at-rounded-down",
        "fractions of a millisecond of a fire time are cut off",
        "timerd/engine/instant.py",
        '        if fraction[3:].strip("0"):\n            ms += 1\n',
        "",
        Pytest("tests/engine/test_instant.py", because="its callers write fire times in whole milliseconds"),
    ),
    Mutation(
        "wake-up-lost",
        "arming an earlier timer does not settle anew when its lane wants to be woken",
        "timerd/engine/lane.py",
        "            self._due.push(timers)\n        self.changed = True\n",
        "            self._due.push(timers)\n        self.changed = self.changed or self.wakes == (None, None)\n",
        Simulator(60),
    ),
    Mutation(
        "wheel-keeps-the-old-wake-up",
        "the node's wheel does not take a wake-up that is earlier than the one it has",
        "timerd/wheel.py",
        "            if wall is not None:\n                self._wall.add((wall, shard))\n",
        "            if wall is not None and wall > (old_wall or 0):\n                self._wall.add((wall, shard))\n",
        Simulator(60),
    ),
    Mutation(
        "wait-from-fire-at",
        "a timer that was armed for the past is due at its fire time, and max_lag counts from there",
        "timerd/engine/timer.py",
        "return max(self.fire_at, self.generation // 1000)",
        "return self.fire_at",
        Pytest("tests/engine/test_lane.py", because="a batch that closes too soon breaks no promise that it judges"),
    ),
    Mutation(
        "lag-from-fire-at",
        "the lag that is reported counts from fire_at, also for a timer that was armed for the past",
        "timerd/lag.py",
        "wall_ms - timer.due_at",
        "wall_ms - timer.fire_at",
        Pytest("tests/test_lag.py", because="the simulator measures lags itself and does not read those reported"),
    ),
    Mutation(
        "batch-too-large",
        "each shard is asked for a whole batch",
        "timerd/engine/choice.py",
        "                takes.append((shard, part))\n                count -= part\n",
        "                takes.append((shard, part))\n",
        Simulator(60),
    ),
    Mutation(
        "one-slot-too-many",
        "one delivery more than max_in_flight is begun",
        "timerd/engine/flow.py",
        "len(self.open) >= target.slots:",
        "len(self.open) > target.slots:",
        Simulator(20),
    ),
    Mutation(
        "slot-freed-by-the-answer",
        "a slot is free when the first shard has settled, not the last",
        "timerd/engine/dispatcher.py",
        """\
        if not batch.awaited:
            self._close(settled.batch_no, batch)
        self._move(batch.flow)

    # ---- on the way out
""",
        """\
        batch.flow.open.discard(settled.batch_no)
        if not batch.awaited:
            del self._open[settled.batch_no]
        self._move(batch.flow)

    # ---- on the way out
""",
        Pytest(
            "tests/engine/test_dispatcher.py",
            because="it counts the POSTs that are open, and not the outcomes that are not durable",
        ),
    ),
    Mutation(
        "pause-does-not-hold",
        "a paused type is delivered like any other",
        "timerd/engine/flow.py",
        'if type is None or target.gone or type.state != "active" or len(self.open)',
        "if type is None or target.gone or len(self.open)",
        Pytest("tests/engine/test_dispatcher.py", because="it pauses types and does not judge what is sent meanwhile"),
    ),
    Mutation(
        "rate-not-spent",
        "what leaves is not taken off the rate's allowance",
        "timerd/engine/flow.py",
        "                rate.spend(count)\n",
        "                rate.spend(0)\n",
        Pytest(
            "tests/engine/test_dispatcher.py",
            "tests/engine/test_flow.py",
            because="it has rates and does not judge them",
        ),
    ),
    Mutation(
        "retry-after-ignored",
        "a target that asks for a pause is sent other batches all the same",
        "timerd/engine/target.py",
        "            self._held_until = max(self._held_until, now.boot_ms + failed.retry_after_ms)\n",
        "            pass\n",
        Pytest("tests/engine/test_dispatcher.py", because="its targets do not say when they are asked too soon"),
    ),
    Mutation(
        "breaker-never-closes",
        "a probe that succeeds does not close the breaker",
        "timerd/engine/breaker.py",
        "        self.succeeded_at = boot_ms\n        self._close()\n",
        "        self.succeeded_at = boot_ms\n        self.probe = None\n",
        Pytest(
            "tests/engine/test_breaker.py",
            because="all is delivered, if slowly, and lateness is judged of targets that never failed",
        ),
    ),
    Mutation(
        "duplicates-not-flagged",
        "only retries are looked at for possible duplicates, also after an unclean end",
        "timerd/engine/settling.py",
        "    if message.limit or message.key or state.unclean_generation:",
        "    if message.limit or message.key:",
        Simulator(60),
    ),
    Mutation(
        "silence-not-flagged",
        "an attempt without an answer is forgotten by the next one that has an answer",
        "timerd/engine/state.py",
        """\
                record.error,
                before.unknown or record.unknown,
                since=""",
        """\
                record.error,
                record.unknown,
                since=""",
        Simulator(60),
    ),
    Mutation(
        "lost-taken-for-not-sent",
        "a connection that is lost after the request was sent counts as one that never was",
        "timerd/engine/answer.py",
        'sent = error != "connect"',
        'sent = error not in ("connect", "lost")',
        Simulator(60),
    ),
    Mutation(
        "wall-goes-back",
        "what is ready is not looked at again when the wall clock has gone back",
        "timerd/engine/lane.py",
        "        if wall_ms >= self._popped_at:\n            return\n",
        "        if wall_ms >= self._popped_at or self._ready_count:\n            return\n",
        Pytest(
            "tests/engine/test_settling.py",
            because="12 seeds did not see it; something must be ready and have no slot when the wall goes back",
        ),
    ),
    Mutation(
        "garbage-is-success",
        "an answer that can't be read counts as a success",
        "timerd/engine/answer.py",
        '        return Failed(clip(f"HTTP {status} with a body that can\'t be read: {wrong}"))\n',
        "        return Accepted()\n",
        Simulator(60),
    ),
    Mutation(
        "attempts-off-by-one",
        "max_attempts allows one attempt too few",
        "timerd/engine/settling.py",
        "if policy.max_attempts and counted >= policy.max_attempts:",
        "if policy.max_attempts and counted + 1 >= policy.max_attempts > 1:",
        Simulator(60),
    ),
    Mutation(
        "counted-by-attempts",
        "failures that a down target has caused count against max_attempts",
        "timerd/engine/settling.py",
        "        counted = before.counted + 1\n",
        "        counted = before.attempts + 1\n",
        Simulator(60),
    ),
)

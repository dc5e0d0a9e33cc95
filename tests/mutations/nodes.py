"""Planted in what makes several processes one cluster: fences, take-overs, the plan, questions between nodes."""

from typing import Final

from tests.mutations.mutation import Edit, Mutation, Pytest, Simulator

SEEDS: Final = Simulator(60, "cluster")
STREAM: Final = "cluster/timerd_cluster/shard_stream.py"

PLANTED: Final = (
    Mutation(
        "taker-expects-no-exact-end",
        "a taker's Owned goes behind whatever the end is by then",
        STREAM,
        "            self._owned = True\n",
        """\
            if not self._owned:
                _, self.sequence = await self._bounds()
            self._owned = True
""",
        SEEDS,
        (
            Edit(
                "cluster/timerd_cluster/stream_log.py",
                "self._pause(min(FOLLOW_MS, wait_ms + 1 if wait_ms else FOLLOW_MS) / 1000)\n",
                "asyncio.sleep((wait_ms + 1) / 1000)\n                continue\n",
            ),
        ),
    ),
    Mutation(
        "unknown-outcome-sent-behind-the-newest",
        "an append that another's message has beaten goes out again behind that",
        STREAM,
        "            if finding is Finding.OTHERS:\n",
        """\
            if finding is Finding.OTHERS and self._owned:
                _, expected = await self._bounds()
                headers["Nats-Expected-Last-Sequence"] = str(expected)
                continue
            if finding is Finding.OTHERS:
""",
        SEEDS,
    ),
    Mutation(
        "delivery-without-confirm",
        "a delivery begins whether the shard is known to be ours or not",
        "timerd/dispatch.py",
        "        if unsure := self._runners.logs.unconfirmed(self._dispatcher.shards_of(batch.batch_no)):\n",
        "        if unsure := list[int]():\n",
        SEEDS,
    ),
    Mutation(
        "answer-without-the-lease",
        "an answer that rests on no append is given whether the shard is ours or not",
        "timerd/runner.py",
        "            if not frames and not self._log.is_confirmed() and any(",
        "            if not frames and not self._log.is_confirmed() and not any(",
        Pytest("tests/shards/test_holding.py", because="the simulator's owners look too soon for it to show often"),
    ),
    Mutation(
        "deposed-and-idle",
        "a node that has nothing to store never looks whether its shards are still its own",
        "timerd/ownership.py",
        ">= SURE_MS:",
        ">= 1_000_000 * SURE_MS:",
        Pytest(
            "tests/test_ownership.py", because="it takes a plan that comes back to who was paused: one seed in fifty"
        ),
    ),
    Mutation(
        "renewal-behind-closed",
        "what is let go of is renewed once more",
        STREAM,
        "while not self.fenced and not self.closed and not self.lease.holds():",
        "while not self.fenced and not self.lease.holds():",
        Pytest("tests/cluster/test_lease.py", because="it falls between two callbacks: one seed in fifty"),
    ),
    Mutation(
        "reader-skips-renewals",
        "a reader forgets that a renewal has a sequence",
        "cluster/timerd_cluster/message.py",
        """\
            self._first, self.sequence, self.segment = False, sequence, head.segment
            self.renewals""",
        "            self.renewals",
        SEEDS,
    ),
    Mutation(
        "lost-shard-lets-its-turn-out",
        "what a turn that was refused has come to is told all the same",
        "timerd/runner.py",
        "        return [turn for turn in turns if turn.shard not in fenced]\n",
        "        return turns\n",
        SEEDS,
    ),
    Mutation(
        "unclean-end-taken-for-clean",
        "what is due may have been delivered by the owner before, and is not flagged",
        "timerd/engine/state.py",
        "        if not record.clean:\n            # The wall",
        "        if record.clean:\n            # The wall",
        SEEDS,
    ),
    Mutation(
        "any-end-taken-for-closed",
        "a taker waits for nobody, whatever the stream ends with",
        "cluster/timerd_cluster/stream_log.py",
        "turn.sequence if records and isinstance(records[-1], Closed) else 0",
        "turn.sequence",
        SEEDS,
    ),
    Mutation(
        "let-go-while-delivering",
        "a shard is let go of before its open deliveries have ended",
        "timerd/holding.py",
        "clean = await self._dispatch.shutting.see_off(shard, grace_ms) and not group.ended.done()",
        "clean = not group.ended.done()",
        SEEDS,
    ),
    Mutation(
        "closed-while-delivering",
        "a shard is closed before its open deliveries have ended, and its log says that it is a clean end",
        "timerd/holding.py",
        "clean = await self._dispatch.shutting.see_off(shard, grace_ms) and not group.ended.done()",
        "clean = not group.ended.done()",
        SEEDS,
        (
            Edit(
                "timerd/engine/shard.py",
                "        if not self._draft.flights and not self._draft.forgets:\n            self._draft.write(C",
                "        if True:\n            self._draft.write(C",
            ),
        ),
    ),
    Mutation(
        "taken-though-the-plan-is-not-known",
        "the plan is asked for before a shard is taken, and no answer counts as one that changes nothing",
        "timerd/ownership.py",
        "            if not await self._ensemble.refresh():\n",
        "            if not await self._ensemble.refresh() and self._ensemble.plan() is None:\n",
        SEEDS,
    ),
)

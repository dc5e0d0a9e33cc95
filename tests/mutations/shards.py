"""Planted in what a node does with shards that come, go, end and stand still."""

from typing import Final

from tests.mutations.mutation import Mutation, Pytest

NO_CLUSTER: Final = "the simulator has one log, which ends with its process"

PLANTED: Final = (
    Mutation(
        "old-life-settled-in-the-new",
        "a batch keeps a shard that has gone, and settles with the one that has come in its place",
        "timerd/engine/absent.py",
        "                batch.left += batch.drop_part(shard)\n",
        "                pass\n",
        Pytest("tests/engine/test_absent.py", because=NO_CLUSTER),
    ),
    Mutation(
        "gone-shard-still-ready",
        "what a shard had ready stays to be asked for when it has gone",
        "timerd/engine/absent.py",
        """\
        for flow in self._flows.values():
            flow.forget(shard)
""",
        "",
        Pytest("tests/engine/test_absent.py", because=NO_CLUSTER),
    ),
    Mutation(
        "still-shard-holds-slots",
        "an outcome that a shard can't store holds its slot for as long as that lasts",
        "timerd/engine/absent.py",
        "            batch.awaited.remove(shard)\n            if not gone:\n                self._late.owes_settle(",
        "            if not gone:\n                return\n            batch.awaited.remove(shard)\n"
        "            if not gone:\n                self._late.owes_settle(",
        Pytest("tests/shards/test_standing_still.py", "tests/engine/test_absent.py", because=NO_CLUSTER),
    ),
    Mutation(
        "late-timers-forgotten",
        "timers that a shard hands out too late are not put back",
        "timerd/engine/late.py",
        "        self.owes_settle(taken.batch_no, taken.shard, LATE_PART if callbacks else 0)\n"
        "        return SendSettle(",
        "        return None if taken.timers else SendSettle(",
        Pytest("tests/shards/test_standing_still.py", "tests/engine/test_absent.py", because=NO_CLUSTER),
    ),
    Mutation(
        "waiting-arms-not-told",
        "who waits for a shard that has ended is told nothing",
        "timerd/runner.py",
        """\
        for turn in self._deciding:
            _tell_gone(turn)
        self._deciding = []
""",
        "",
        Pytest("tests/shards/test_holding.py", because=NO_CLUSTER),
    ),
    Mutation(
        "let-go-and-still-heard",
        "what a shard says after it was let go of is taken for news",
        "timerd/runners.py",
        "        if not group.held:\n            return  # the dispatcher",
        "        if group.ended.done():\n            return  # the dispatcher",
        Pytest("tests/shards/test_holding.py", because=NO_CLUSTER),
    ),
    Mutation(
        "closed-before-it-is-let-go-of",
        "arms are accepted behind `Closed`",
        "timerd/holding.py",
        "                self._let_go(shard)\n                if clean:\n",
        "                if clean:\n",
        Pytest("tests/shards/test_holding.py", because=NO_CLUSTER),
    ),
    Mutation(
        "not-confirmed-and-sent",
        "timers leave whose shard is not known to be ours",
        "timerd/dispatch.py",
        "            batch = self._without_left(batch, refused)\n",
        "            batch = self._without_left(batch)\n",
        Pytest("tests/shards/test_standing_still.py", because=NO_CLUSTER),
    ),
)

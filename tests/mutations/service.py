"""Planted in what makes nodes one service: who is asked, how often, until when; who is to have a shard, and has it."""

from typing import Final

from tests.mutations.mutation import Edit, Mutation, Pytest, Simulator

ONE_PROCESS: Final = "the machine's simulator has one process, which has all shards; in the cluster's it was not tried"

PLANTED: Final = (
    Mutation(
        "plan-before-who-has-it",
        "the node that the plan names is asked before the one that still has the shard",
        "timerd/spreading.py",
        "return self._asker.me if self._asker.is_here(shard) else self._fellows.owner_of(shard)",
        "return self._fellows.owner_of(shard) or (self._asker.me if self._asker.is_here(shard) else None)",
        Pytest("tests/front/test_readers.py", because=ONE_PROCESS),
    ),
    Mutation(
        "chosen-for-what-it-was-not",
        "a timer that was chosen for what it was is shown as it has become",
        "timerd/browsing.py",
        "as_they_were=wanted != Filter()",
        "as_they_were=False",
        Pytest("tests/front/test_readers.py", because=ONE_PROCESS),
    ),
    Mutation(
        "next-by-time-alone",
        "of several nodes' soonest, those of the same time are in the order of nodes",
        "timerd/parts.py",
        "key=lambda view: (view.fire_at, view.generation, view.shard)",
        "key=lambda view: view.fire_at",
        Pytest("tests/front/test_readers.py", because=ONE_PROCESS),
    ),
    Mutation(
        "own-shards-without-a-time",
        "this node's own shards may take as long as they like",
        "timerd/asking.py",
        "async with asyncio.timeout(wait_ms / 1000):",
        "async with asyncio.timeout(None):",
        Pytest("tests/front/test_readers.py", because=ONE_PROCESS),
    ),
    Mutation(
        "asked-again-before-it-is-over",
        "when the answer to a write is lost, its time is not waited for",
        "timerd/asking.py",
        "if write and isinstance(answer, Unanswered) and not answer.undone:",
        "if begin_ms < 0:",
        Pytest("tests/front/test_faults.py", because=ONE_PROCESS),
    ),
    Mutation(
        "asked-again-whatever-it-is",
        "a write whose answer is lost is asked for again, though it may have been done",
        "timerd/spreading.py",
        "if answer.undone:\n                        again += numbers",
        "if answer.undone or member != self._asker.me:\n                        again += numbers",
        Pytest("tests/front/test_faults.py", because=ONE_PROCESS),
    ),
    Mutation(
        "late-and-done",
        "a question that was held up on its way is carried out when nobody waits for it",
        "timerd/parts.py",
        "if life != self._life or (left_ms <= 0 and not isinstance(question, Hello)):",
        "if life != self._life:",
        Pytest("tests/front/test_faults.py", because=ONE_PROCESS),
        more=(
            Edit(
                "timerd/parts.py",
                "expires_at = self._node.clock.now().wall_ms + left_ms",
                "expires_at = self._node.clock.now().wall_ms + abs(left_ms)",
            ),
        ),
    ),
    Mutation(
        "counted-though-not-there",
        "a node counts the timers of a type in shards that it does not have as none",
        "timerd/parts.py",
        "return self._absent(shards) or Number(number)  # asked",
        "return Number(number)  # asked",
        Pytest("tests/front/test_faults.py", because=ONE_PROCESS),
    ),
    Mutation(
        "newcomer-not-told",
        "a type goes although a node that was not told to hold it off has a shard",
        "timerd/front.py",
        "            self._told[type] = {self._me, *holding}\n",
        "",
        Pytest("tests/front/test_newcomers.py", because=ONE_PROCESS),
    ),
    Mutation(
        "look-put-off-by-turns",
        "the look at slow appends begins to wait anew with each turn of another shard",
        "timerd/runners.py",
        "            self.on_moving(shard)\n        self._tell(now, effects)\n",
        "            self.on_moving(shard)\n        self._tell(now, effects)\n"
        "        if self._watch is not None:\n            self._watch.cancel()\n"
        "        self._watch = asyncio.get_running_loop().call_later(LOOK_MS / 1000, self._look)\n",
        Pytest("tests/shards/test_idle.py", because=ONE_PROCESS),
    ),
    Mutation(
        "step-seen-by-nobody",
        "the one look at the clock wakes no runner",
        "timerd/runners.py",
        "                group.runner.look(now)\n",
        "                pass\n",
        Pytest("tests/shards/test_idle.py", because=ONE_PROCESS),
    ),
    Mutation(
        "taken-back-by-what-was-known",
        "a node that was frozen takes shards by the plan that it knew",
        "timerd/ownership.py",
        """\
            if not await self._ensemble.refresh():
                self._again(trial, PAUSE_MAX_MS)
                return
""",
        "",
        Simulator(60, "cluster"),
    ),
    Mutation(
        "taken-before-it-is-given",
        "whoever reads the shards of a silent node beforehand takes them without a plan",
        "cluster/timerd_cluster/stream_log.py",
        "(wait_ms := stream.lease.wait_ms()) or not self.is_wanted():",
        "wait_ms := stream.lease.wait_ms():",
        Simulator(60, "cluster"),
    ),
    Mutation(
        "lease-runs-out-while-letting-go",
        "a shard that takes long to let go of is not kept by its owner meanwhile",
        "timerd/ownership.py",
        "renewing = None if opened is None else asyncio.ensure_future(self._renew(shard, opened))",
        "renewing = None",
        Pytest("tests/test_ownership.py", because=ONE_PROCESS),
    ),
    Mutation(
        "stops-without-a-plan",
        "a node that stops leaves it to the others to notice",
        "timerd/ownership.py",
        "                    await self._publish_without_me()\n",
        "                    pass\n",
        Pytest("tests/test_ownership.py", because=ONE_PROCESS),
    ),
    Mutation(
        "no-deputy",
        "only the first of the members ever publishes a plan",
        "timerd/ownership.py",
        "if now_ms - self._wrong_since_ms < rank * DEPUTY_MS:",
        "if rank:",
        Pytest("tests/test_ownership.py", because=ONE_PROCESS),
    ),
    Mutation(
        "moved-for-the-order",
        "who gets one more than the mean goes by name, and not by who has it",
        "timerd/engine/plan.py",
        "key=lambda seat: (-len(held[seat]), seat)",
        "key=lambda seat: seat",
        Pytest("tests/engine/test_plan.py", because=ONE_PROCESS),
    ),
    Mutation(
        "silence-of-the-servers-is-deadly",
        "members are given up while the bucket takes no beat of anybody",
        "cluster/timerd_cluster/ensemble.py",
        "if now_ms - self._stored_ms < STORED_BEATS * self._beat_s * 1000:",
        "if found:",
        Pytest("tests/cluster/test_ensemble.py", because=ONE_PROCESS),
    ),
    Mutation(
        "both-plans-published",
        "who publishes a plan and is not the first is told that it was",
        "cluster/timerd_cluster/ensemble.py",
        "        return self._plan == plan\n",
        "        return True\n",
        Pytest("tests/cluster/test_ensemble.py", because=ONE_PROCESS),
    ),
    Mutation(
        "waits-for-who-has-let-go",
        "a taker waits a lease though the stream ends in `Closed`",
        "cluster/timerd_cluster/stream_log.py",
        "            stream.lease.released()\n",
        "            if not stream.sequence:\n                stream.lease.released()\n",
        Pytest("tests/cluster/test_lease.py", because=ONE_PROCESS),
    ),
    Mutation(
        "payloads-before-the-end",
        "a taker looks at the payloads that are there, and then follows what the owner still writes",
        "cluster/timerd_cluster/stream_log.py",
        "        for stream in self._streams.values():  # the waits",
        "        for bodies in self._bodies.values():\n            await bodies.open()\n"
        "        for stream in self._streams.values():  # the waits",
        Pytest("tests/cluster/test_lease.py", because=ONE_PROCESS),
        more=(
            Edit(
                "cluster/timerd_cluster/stream_log.py",
                "        await self._open_bodies()  # not before",
                "        for shard, stream in self._streams.items():\n"
                "            self._bodies[shard].begin(stream.epoch)  # not before",
            ),
        ),
    ),
    Mutation(
        "closed-and-then-renewed",
        "a stream counts as let go of though its owner has written behind `Closed`",
        "cluster/timerd_cluster/stream_log.py",
        "if self._released.get(shard, 0) == stream.sequence:",
        "if self._released.get(shard, 0) or not stream.sequence:",
        Pytest("tests/cluster/test_lease.py", because=ONE_PROCESS),
    ),
)

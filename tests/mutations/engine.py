"""Planted in the engine: how timers are armed, ended and counted."""

from typing import Final

from tests.mutations.mutation import Edit, Mutation, Pytest, Simulator

PLANTED: Final = (
    Mutation(
        "generation-ignored",
        "an answer acts on whatever generation of the id is current",
        "timerd/engine/settling.py",
        "current = [timer for timer in flight if timer.state == IN_FLIGHT]",
        "current = list(flight)",
        Simulator(20),
    ),
    Mutation(
        "one-failure-repeats-the-batch",
        "one item that is to be retried repeats the whole batch",
        "timerd/engine/settling.py",
        """\
    if not results:
        fired = [timer.id for timer in timers]
        timers = []
""",
        """\
    if not results:
        fired = [timer.id for timer in timers]
        timers = []
    elif any(result.status == "retry" for result in results.values()):
        retried = [(timer, "the batch failed") for timer in timers]
        timers = []
""",
        Simulator(20),
    ),
    Mutation(
        "rearm-in-a-frame-of-its-own",
        "the re-arms of an answer are written a turn after the frame that says that the batch fired",
        "timerd/engine/settling.py",
        "draft.write(Fired(type, fired, rearmed, [",
        """\
ended = [timer.id for timer in rearmed]
        draft.rearmed = rearmed
        draft.write(Fired(type, fired + ended, [], [""",
        Simulator(20),
        (
            Edit(
                "timerd/engine/draft.py",
                "        self.slices_wanted = 0\n",
                "        self.slices_wanted = 0\n        self.rearmed: list[Timer] = []\n",
            ),
            Edit(
                "timerd/engine/shard.py",
                "        self.state.now = now\n        decision = DECISIONS.get(type(message))\n",
                """\
        self.state.now = now
        if self._draft.rearmed:
            self._draft.write(arming.Armed(self._draft.rearmed))
            self._draft.rearmed = []
        decision = DECISIONS.get(type(message))
""",
            ),
        ),
    ),
    Mutation(
        "newer-generation-not-held",
        "a newer generation that is due while an older one is being delivered does not wait for it",
        "timerd/engine/lane.py",
        "if timer.id in blocked:",
        "if timer.id in held:",
        Simulator(20),
    ),
    Mutation(
        "held-timers-forgotten",
        "what was held back while an older generation was being delivered is not let go afterwards",
        "timerd/engine/settling.py",
        "            if (held := state.held.pop(timer.id, None)) is not None:\n",
        "            if timer.state == IN_FLIGHT and (held := state.held.pop(timer.id, None)) is not None:\n",
        Simulator(150),
    ),
    Mutation(
        "cancel-answered-at-once",
        "a cancel is answered before its record is durable",
        "timerd/engine/arming.py",
        "        draft.write(Cancelled(list(found)))\n    draft.reply(message.token, results)",
        "        draft.write(Cancelled(list(found)))\n    message.token(results)",
        Simulator(20),
    ),
    Mutation(
        "cancelled-and-delivered",
        "what was cancelled while it was ready is handed out all the same",
        "timerd/engine/lane.py",
        "                live = [timer for timer in chunk if timer.state == READY]\n",
        "                live = chunk\n",
        Simulator(60),
    ),
    Mutation(
        "cancel-says-nothing-in-flight",
        "a cancel of a timer that is being delivered says that it is not",
        "timerd/engine/arming.py",
        "CancelResult(True, old.state == IN_FLIGHT, old.generation)",
        "CancelResult(True, old.state == READY, old.generation)",
        Simulator(60),
        (Edit("timerd/engine/arming.py", "import DEAD, IN_FLIGHT, URGENT,", "import DEAD, IN_FLIGHT, READY, URGENT,"),),
    ),
    Mutation(
        "unchanged-whatever-the-payload",
        "an arm that changes the payload alone is taken for a repeat",
        "timerd/engine/arming.py",
        "        and _same_payload(old.payload, new.payload)\n",
        "",
        Pytest(
            "tests/engine/test_arming.py",
            because="seldom does a caller there change the payload alone: once in some 150 seeds",
        ),
    ),
    Mutation(
        "earliest-and-latest-mixed-up",
        "an arm with mode `earliest` keeps the later of the two times",
        "timerd/engine/arming.py",
        'old.fire_at <= new.fire_at if condition.mode == "earliest" else old.fire_at >= new.fire_at',
        'old.fire_at >= new.fire_at if condition.mode == "earliest" else old.fire_at <= new.fire_at',
        Pytest("tests/engine/test_arming.py", because="the ledger judges what was decided, not what the mode asks for"),
    ),
    Mutation(
        "an-id-twice-in-a-request",
        "the second of two arms of one id in a request is decided on what was there before the first",
        "timerd/engine/arming.py",
        "    repeats = len(set(ids)) != len(ids)\n",
        "    repeats = False\n",
        Pytest(
            "tests/engine/test_arming.py",
            because="the timer that comes of it is the right one, and only the answer is wrong",
        ),
    ),
    Mutation(
        "results-in-the-order-of-shards",
        "the results of an arm over several shards are put behind one another",
        "timerd/gathering.py",
        """\
        for index, result in zip(part.indexes, answer.results or (), strict=True):
            results[index] = result
""",
        """\
        at = results.index(None)
        results[at : at + len(part.indexes)] = answer.results or ()
""",
        Simulator(20),
    ),
    Mutation(
        "generation-from-the-wall-alone",
        "a generation is a clock reading, also when the wall clock has gone back",
        "timerd/engine/draft.py",
        "max(self.state.now.wall_us, max(self.state.last, self.floor) + 1)",
        "self.state.now.wall_us",
        Simulator(20),
    ),
    Mutation(
        "replaced-not-counted",
        "a timer that is moved while it waits is not counted as replaced",
        "timerd/engine/state.py",
        "            lane.totals.replaced += len(waiting)\n",
        "",
        Simulator(20),
    ),
    Mutation(
        "dead-counted-twice",
        "a timer that is buried is counted with its batch, and once more by itself",
        "timerd/engine/state.py",
        "    def _buried(self, record: Buried) -> None:\n",
        """\
    def _buried(self, record: Buried) -> None:
        if record.attempted and len(record.ids) > 1:
            self.lane(self.find(record.ids[0]).type).totals.dead += len(record.ids)
""",
        Simulator(60),
    ),
    Mutation(
        "revived-not-counted",
        "dead letters that are replayed in one request are counted as one",
        "timerd/engine/state.py",
        "            self.lane(old.type).totals.revived += 1\n",
        "        if record.ids:\n            self.lane(old.type).totals.revived += 1\n",
        Simulator(60),
    ),
    Mutation(
        "gap-by-the-wall-clock",
        "the gap of a retry is counted from what the wall clock says",
        "timerd/engine/state.py",
        "                since=self.now.boot_ms,\n",
        "                since=self.now.wall_ms,\n",
        Simulator(20),
    ),
)

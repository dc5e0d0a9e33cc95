"""Planted in the moves of slots: the clauses of cluster/PROTOCOL.md, each left out, and what a programmer may add."""

from typing import Final

from tests.mutations.mutation import Edit, Mutation, Pytest

CEDING: Final = "timerd/engine/ceding.py"
MOVING: Final = "timerd/engine/moving.py"
MOVES: Final = "timerd/engine/moves.py"
CHECK: Final = Pytest(
    "tests/property/test_moves.py", because="shards of one process lose no messages, so most of this can't happen there"
)
STEPS: Final = Pytest("tests/engine/test_moves.py", because="luck brings about what it takes far too seldom")

PLANTED: Final = (
    Mutation(
        "move-does-not-ask-first",
        "the new owner decides alone on what it does not hold",
        MOVING,
        "elif slot not in moves.adopted or id in by_id:",
        "else:",
        CHECK,
        (Edit(MOVING, "            else:\n                self._ask(id, slot, queue)\n", ""),),
    ),
    Mutation(
        "move-last-not-in-answers",
        "only `Cede` carries the old owner's last generation",
        MOVING,
        "        self.draft.floor = max(self.draft.floor, message.last)\n        marks",
        "        marks",
        CHECK,
    ),
    Mutation(
        "move-last-not-in-drained",
        "the old owner's last generation is forgotten with the last question",
        MOVES,
        "        self._state.last = max(self._state.last, record.last)\n",
        "",
        STEPS,
    ),
    Mutation(
        "move-not-what-was-seen",
        "the old owner lets go of whatever it holds by then",
        CEDING,
        "if timer is None or seen_of(timer) != entry.seen:",
        "if timer is None:",
        CHECK,
    ),
    Mutation(
        "move-pulls-in-flight",
        "a timer that is being delivered is pulled",
        CEDING,
        "elif entry.kind == PULL and timer.state == IN_FLIGHT:",
        "elif False:",
        CHECK,
    ),
    Mutation(
        "move-busy-is-final",
        "the new owner drops its entry because the timer is in flight",
        MOVING,
        "            if result == BUSY:\n",
        "            if False:\n",
        STEPS,
        (Edit(MOVING, "            assert result in (MOVED, CHANGED)\n", ""),),
    ),
    Mutation(
        "move-late-answers-count",
        "an answer is taken for that to the question that waits",
        MOVING,
        "if queue is None or queue.asked != number:",
        "if queue is None or queue.asked is None:",
        CHECK,
    ),
    Mutation(
        "move-numbers-begin-anew",
        "a restarted shard gives the numbers of its last life again",
        MOVING,
        "return self._state.epoch << 32 | self._numbers",
        "return self._numbers",
        STEPS,
    ),
    Mutation(
        "move-not-remembered",
        "the old owner does not know what it has let go",
        CEDING,
        "if let_go == entry else",
        "if let_go is entry else",
        CHECK,
    ),
    Mutation(
        "move-remembered-not-in-slices",
        "what the old owner has let go is not in its checkpoints",
        MOVES,
        "list(ceded.remembered.values())",
        "[]",
        STEPS,
    ),
    Mutation(
        "move-pending-not-in-slices",
        "what is pending is not in the checkpoints",
        MOVES,
        "list(mine.pending.values())",
        "[]",
        CHECK,
    ),
    Mutation(
        "move-drained-while-pending",
        "a slot is drained as soon as the old owner holds nothing",
        MOVING,
        "if slot in adopted and not adopted[slot].pending]",
        "if slot in adopted]",
        CHECK,
        (
            Edit(
                MOVES,
                "            assert not self.adopted.pop(slot).pending",
                "            assert self.adopted.pop(slot)",
            ),
        ),
    ),
    Mutation(
        "move-listing-of-touched-ids",
        "a listing counts for ids of which something has become known since",
        MOVING,
        "            and id not in question.touched\n",
        "",
        STEPS,
    ),
    Mutation(
        "move-pulls-past-a-queue",
        "an id is pulled while an operation on it waits",
        MOVING,
        "            and id not in self._queues\n            and id not in question.touched\n",
        "",
        CHECK,
    ),
    Mutation(
        "move-of-any-version",
        "messages of an earlier table count",
        "timerd/engine/shard.py",
        "message.version == self._table.version and not",
        "not",
        STEPS,
    ),
    Mutation(
        "move-served-by-both",
        "the old owner goes on serving what it has ceded",
        MOVING,
        "        if slot in moves.ceded:\n            return AWAY\n",
        "",
        CHECK,
    ),
    Mutation(
        "move-left-without-totals",
        "a shard that has left its slots keeps no totals",
        CEDING,
        "            write_slice(self._draft, ())\n",
        "",
        STEPS,
    ),
    Mutation(
        "move-unclean-not-told",
        "what may have been delivered before a crash of the old owner is not flagged by the new one",
        MOVES,
        "        state.unclean_at = max(state.unclean_at, unclean_at)\n",
        "",
        STEPS,
    ),
    Mutation(
        "move-in-flight-as-seen",
        "a cancel says whether the timer was in flight when it was asked about, not when it ended",
        MOVING,
        "flags[entry.id] = in_flight",
        "flags[entry.id] = False",
        CHECK,
    ),
)

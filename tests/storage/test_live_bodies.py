"""Which bodies live, where timers move between shards: each shard's part is its own."""

from timerd.engine.move_record import CANCEL, PULL, Adopted, Entry, Left, Moved, Pended, Pending, Resolved, Seen
from timerd.engine.record import Armed, Checkpoint, Record, Relocated
from timerd.engine.ring import slot_of
from timerd.engine.timer import BodyRef, Timer
from timerd_storage.live_bodies import LiveBodies

PLACE, ELSEWHERE = BodyRef(1, 0, 600, b"0" * 16), BodyRef(2, 0, 600, b"0" * 16)
TIMER = Timer(1_800_000_000_000, 7, "a", "t", PLACE)
SEEN = Seen(7, 0, False, PLACE)


def places(*frames: tuple[int, Record]) -> list[BodyRef]:
    bodies = LiveBodies()
    lsns = dict.fromkeys({shard for shard, _ in frames}, 0)
    for shard, record in frames:
        lsns[shard] += 1
        bodies.take(shard, lsns[shard], [record])
    return bodies.places()


def slice_of(*slots: int) -> Checkpoint:
    return Checkpoint(list(slots), [], 9, 1, 0, 0, {})


def test_a_body_lives_with_the_shard_that_has_the_timer() -> None:
    slot = slot_of("a")
    adopted = [(0, Armed([TIMER])), (1, Adopted(2, 0, [slot], 7)), (1, slice_of(slot))]
    assert places(*adopted) == [PLACE], "an empty slice of the new owner says nothing of the old one's"
    pended = [*adopted, (1, Pended(2, [Pending("a", PULL, SEEN, "t", TIMER)]))]
    let_go = [*pended, (0, Moved(2, [(Entry("a", PULL, SEEN, 7), False)]))]
    arrived = [*let_go, (1, Resolved(["a"], []))]
    assert places(*arrived) == [PLACE]
    assert places(*let_go, (1, Relocated([("a", 7, ELSEWHERE)])), (1, Resolved(["a"], []))) == [ELSEWHERE]
    assert places(*pended, (1, Resolved([], ["a"]))) == [PLACE]
    cancelled = [*adopted, (1, Pended(2, [Pending("a", CANCEL, SEEN, "t", None)]))]
    gone = (0, Moved(2, [(Entry("a", CANCEL, SEEN, 0), False)]))
    assert places(*cancelled, gone, (1, Resolved(["a"], []))) == []


def test_a_shard_without_slots_is_made_up_for_by_a_slice_of_none() -> None:
    bodies = LiveBodies()
    bodies.take(0, 1, [Armed([TIMER])])
    bodies.take(5, 90, [Left(2, [3]), slice_of()])
    assert bodies.without_beginning() == []
    bodies.take(6, 90, [Left(2, [3])])
    assert len(bodies.without_beginning()) == 1

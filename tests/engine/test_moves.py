"""The clauses of cluster/PROTOCOL.md that luck alone seldom brings to the test: one history each, step by step."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from tests.engine.harness import T0
from tests.engine.moves_rig import IDS, SLOTS, TYPES, Host, Rig, few_slots
from timerd.engine.message import (
    Arm,
    ArmDone,
    Bounced,
    Cancel,
    Filter,
    Get,
    ItemResult,
    List,
    Revive,
    Settle,
    Slice,
    Take,
    WholeFailure,
)
from timerd.engine.move_message import Cede, MayCede, Move, MoveDone, Pull, Pulled, SetPull, SetTable, Told
from timerd.engine.ring import RingTable, slot_of
from timerd.engine.timer import Timer

ID = IDS[0]
FAR = 2_000_000_000_000


@pytest.fixture(autouse=True)
def _few_slots() -> Iterator[None]:
    with few_slots(SLOTS):
        yield


class Pair(Rig):
    """Shard 0, of all slots, and shard 1, of none; and messages that stay where they are until they are carried."""

    def __init__(self, ahead_ms: int = 0) -> None:
        super().__init__(0, 2, 1)
        self.old, self.new = self.hosts
        self.lazy = False
        self.old.ahead_ms, self.new.ahead_ms = ahead_ms, 0
        for host in self.hosts:
            host.begin()

    def publish(self, owner: int, *told: Host) -> None:
        """All slots to one shard; those who are told of it take a turn."""
        self.table = RingTable(self.table.version + 1, (owner,) * SLOTS, self.table.shards, 2)
        for host in told or self.hosts:
            host.inbox.append(SetTable(self.table))
            host.turn()

    def carry(self, *kinds: type) -> None:
        """Carry everything, or what is of these kinds, until nothing of it is left."""
        while chosen := [item for item in self.net if not kinds or item[1] in kinds]:
            for item in chosen:
                self.net.remove(item)
                self.hosts[item[0]].inbox.append(msgspec.msgpack.decode(item[2], type=item[1]))
            for host in self.hosts:
                host.turn()

    def held_back(self, kind: type) -> tuple[int, type, bytes]:
        """Take the one message of a kind off the net, for later."""
        (item,) = [item for item in self.net if item[1] is kind]
        self.net.remove(item)
        return item

    def asked_of(self, host: Host, message: Callable[[int], Any]) -> list[Any]:
        """Ask; the answer will be in the list."""
        token, answers = self.number(), list[Any]()
        host.asked[token] = (message(token), answers.append)
        host.inbox.append(host.asked[token][0])
        host.turn()
        return answers

    def armed(self, host: Host, id: str = ID, at: int = 0, payload: bytes | None = None) -> list[Any]:
        return self.asked_of(host, lambda token: Arm([Timer(at, 0, id, "t", payload)], token))

    def generation(self, host: Host, id: str = ID) -> int:
        return (host.shard.state.find(id) or pytest.fail(f"{id} is not there")).generation

    def delivered(self, host: Host) -> int:
        """Begin a delivery of what is due."""
        host.turn()
        batch_no = self.number()
        host.inbox.append(Take(batch_no, "t", 0, 10))
        host.turn()
        assert host.flights[batch_no].timers
        return batch_no

    def rest(self) -> None:
        for _ in range(20):
            self.pass_time(1_100)
            self.carry()
        assert self.at_rest()


def test_a_slot_moves_with_all_that_a_timer_has() -> None:
    pair = Pair()
    pair.armed(pair.old, payload=b'"x"')
    no = pair.delivered(pair.old)
    pair.old.inbox.append(Settle(no, failure=WholeFailure("HTTP 500", 60_000, 7, counted=True, unknown=True)))
    pair.old.turn()
    before = pair.old.shard.state.find(ID)
    assert before is not None
    pair.publish(1)
    pair.rest()
    after = pair.new.shard.state.find(ID)
    assert after is not None
    assert after is not before
    assert (after.generation, after.payload, after.created_at) == (before.generation, b'"x"', before.created_at)
    assert after.failure is not None
    assert (after.failure.attempts, after.failure.counted, after.failure.limit) == (1, 1, 7)
    assert after.failure.unknown
    assert not pair.old.shard.state.covered
    pair.new.begin()
    assert pair.generation(pair.new) == after.generation


def test_what_is_asked_of_the_new_owner_before_it_has_adopted_waits() -> None:
    pair = Pair()
    pair.armed(pair.old, at=FAR)
    pair.publish(1)
    answers = pair.asked_of(pair.new, lambda token: Get(ID, token))
    assert not answers
    pair.carry()
    assert answers[0].fire_at == FAR


def test_the_old_owner_sends_callers_elsewhere_and_goes_on_delivering() -> None:
    pair = Pair()
    pair.armed(pair.old)
    pair.publish(1)
    (answer,) = pair.armed(pair.old, IDS[1])
    assert answer == Bounced(ArmDone(0, 0, [None]), [IDS[1]], [0])  # type: ignore[list-item]
    no = pair.delivered(pair.old)
    pair.old.inbox.append(Settle(no, results={ID: ItemResult("rearm", FAR)}))
    pair.old.turn()
    assert pair.old.shard.state.find(ID).fire_at == FAR  # type: ignore[union-attr]
    pair.rest()
    assert pair.new.shard.state.find(ID).fire_at == FAR  # type: ignore[union-attr]


def test_a_request_of_many_is_answered_when_all_of_it_is_done() -> None:
    pair = Pair()
    for id in IDS[:3]:
        pair.armed(pair.old, id, FAR)
    pair.publish(1)
    pair.carry(Cede)
    ids = [IDS[0], IDS[5], IDS[0], IDS[2]]
    timers = [Timer(FAR + 1 + n, 0, id, "t") for n, id in enumerate(ids)]
    answers = pair.asked_of(pair.new, lambda token: Arm(timers, token))
    assert not answers
    pair.carry()
    (done,) = answers
    assert [result.status for result in done.results] == ["moved", "created", "moved", "moved"]
    assert done.armed == 4
    assert done.results[2].previous_fire_at == FAR + 1
    pair.rest()
    assert pair.new.shard.state.find(IDS[0]).fire_at == FAR + 3  # type: ignore[union-attr]
    cancelled = pair.asked_of(pair.new, lambda token: Cancel([*ids, "id8"], token))
    assert [result.found for result in cancelled[0]] == [True, True, False, True, False]


def test_busy_settles_nothing() -> None:
    pair = Pair()
    pair.armed(pair.old)
    pair.publish(1)
    pair.carry(Cede, Pull, Pulled)
    move = pair.held_back(Move)
    no = pair.delivered(pair.old)
    pair.net.append(move)
    pair.carry(Move, MoveDone)
    assert pair.new.shard.state.moves.pending(ID)
    pair.old.inbox.append(Settle(no, failure=WholeFailure("HTTP 500", 10, 3)))
    pair.old.turn()
    pair.net.append(move)  # a copy that was under way all the time; it was one attempt ago
    pair.rest()
    assert pair.new.shard.state.find(ID)


def test_a_copy_of_a_pull_that_was_busy_finds_the_entry_still_there() -> None:
    """The delivery ends without a trace: the disk is full, say, and the process was restarted since."""
    pair = Pair()
    pair.armed(pair.old)
    pair.publish(1)
    pair.carry(Cede, Pull, Pulled)
    move = pair.held_back(Move)
    pair.delivered(pair.old)
    pair.net.append(move)
    pair.carry(Move, MoveDone)
    pair.old.flights.clear()
    pair.old.begin()
    pair.net = [move]
    pair.carry(Move)
    assert pair.old.shard.state.find(ID) is None
    pair.rest()
    assert pair.new.shard.state.find(ID)


def test_no_life_of_a_shard_takes_an_answer_to_an_earlier_one() -> None:
    pair = Pair()
    pair.armed(pair.old)
    pair.publish(1)
    pair.new.inbox.append(SetPull(0))
    pair.lazy = True
    pair.carry(Cede)
    pair.asked_of(pair.new, lambda token: Get(ID, token))
    pair.old.inbox += [msgspec.msgpack.decode(item[2], type=item[1]) for item in pair.net if item[0] == 0]
    pair.net.clear()
    pair.old.turn()
    late = pair.held_back(Told)
    pair.new.begin()
    no = pair.delivered(pair.old)
    pair.old.inbox.append(Settle(no, results={ID: ItemResult("rearm", FAR)}))
    pair.old.turn()
    answers = pair.asked_of(pair.new, lambda token: Get(ID, token))
    pair.net.insert(0, late)
    pair.carry(Told)
    assert not answers
    pair.carry()
    assert answers[0].fire_at == FAR


def test_a_new_owner_that_forgot_what_it_was_told_gives_no_generation_again() -> None:
    """The old owner's clock is ahead, and it goes on re-arming after it has ceded."""
    pair = Pair(ahead_ms=60_000)
    pair.armed(pair.old)
    pair.publish(1)
    pair.carry(Cede)
    pair.pass_time(5)
    no = pair.delivered(pair.old)
    pair.old.inbox.append(Settle(no, results={ID: ItemResult("rearm", T0 + 60_000)}))
    pair.old.turn()
    last = pair.generation(pair.old)
    no = pair.delivered(pair.old)
    pair.old.inbox.append(Settle(no))
    pair.old.turn()
    pair.rest()
    pair.new.begin()
    (done,) = pair.armed(pair.new)
    assert done.results[0].generation > last


def test_what_was_let_go_is_remembered_in_checkpoints() -> None:
    pair = Pair()
    pair.armed(pair.old, at=FAR)
    pair.publish(1)
    pair.carry(Cede, Pull, Pulled, Move)
    pair.held_back(MoveDone)  # and lost
    for _ in range(SLOTS):
        pair.old.inbox.append(Slice())
        pair.old.turn()
    needed = pair.old.shard.needed_lsn()
    assert needed > 3
    pair.old.frames = [frame for frame in pair.old.frames if frame[0] >= needed]
    pair.old.begin()
    pair.rest()
    assert pair.generation(pair.new)


def test_a_listing_says_nothing_of_what_was_touched_since() -> None:
    pair = Pair()
    pair.armed(pair.old, at=FAR)
    pair.publish(1)
    pair.carry(Cede, Pull, Pulled)
    move = pair.held_back(Move)
    pair.pass_time(600)  # it pulls again before the old owner has heard of its entry
    pair.carry(Pull)
    late = pair.held_back(Pulled)
    pair.net.append(move)
    pair.carry(Move, MoveDone)
    assert pair.new.shard.state.find(ID)
    (cancelled,) = pair.asked_of(pair.new, lambda token: Cancel([ID], token))
    assert cancelled[0].found
    pair.net.append(late)
    pair.carry()
    pair.rest()
    assert pair.new.shard.state.find(ID) is None


def test_an_announcement_of_an_earlier_table_is_nobodys() -> None:
    pair = Pair()
    pair.publish(1)
    (early, *_) = [item for item in pair.net if item[1] is Cede]
    pair.rest()
    pair.publish(0)
    pair.rest()
    pair.publish(1, pair.new)  # the old owner has not heard of it
    pair.net.append(early)
    pair.carry()
    assert not pair.new.shard.state.moves
    pair.old.inbox.append(SetTable(pair.table))
    pair.rest()


def test_a_shard_that_has_left_everything_keeps_its_totals() -> None:
    pair = Pair()
    for id in IDS:
        pair.armed(pair.old, id, FAR)
    for _ in range(SLOTS):
        pair.old.inbox.append(Slice())
        pair.old.turn()
    pair.asked_of(pair.old, lambda token: Cancel([IDS[1]], token))
    pair.publish(1)
    pair.rest()
    before = pair.old.shard.state.lane("t").totals
    assert (before.armed, before.cancelled, before.moved_out) == (9, 1, 8)
    needed = pair.old.shard.needed_lsn()
    pair.old.frames = [frame for frame in pair.old.frames if frame[0] >= needed]
    pair.old.begin()
    assert pair.old.shard.state.lane("t").totals == before
    assert pair.old.shard.pinned(needed - 1) == 0
    pair.publish(0)
    pair.rest()
    needed = pair.old.shard.needed_lsn()
    pair.old.frames = [frame for frame in pair.old.frames if frame[0] >= needed]
    pair.old.begin()
    totals = pair.old.shard.state.lane("t").totals
    assert (totals.armed, totals.cancelled, totals.moved_out, totals.moved_in) == (9, 1, 8, 8)


def test_dead_letters_move_and_those_of_a_type_are_asked_for_where_they_belong() -> None:
    pair = Pair()
    pair.armed(pair.old)
    no = pair.delivered(pair.old)
    pair.old.inbox.append(Settle(no, results={ID: ItemResult("dead", error="bad")}))
    pair.old.turn()
    pair.publish(1)
    (answer,) = pair.asked_of(pair.old, lambda token: Revive(None, "t", token))
    assert answer == Bounced((0, False), [ID], [0])
    pair.carry(Cede)
    answers = pair.asked_of(pair.new, lambda token: Revive([ID], None, token))
    pair.carry()
    assert answers == [(1, False)]
    assert not pair.new.shard.state.lane("t").dead
    assert pair.new.shard.state.lane("t").live == 1
    pair.rest()


def test_a_list_tells_of_what_is_between_two_shards() -> None:
    pair = Pair()
    pair.armed(pair.old, at=FAR)
    pair.publish(1)
    pair.carry(Cede, Pull, Pulled, Move)
    pages = [pair.asked_of(host, lambda token: List(Filter(), (-1, ""), 10, token))[0] for host in pair.hosts]
    assert [page.views for page in pages] == [[], []]
    assert pages[1].coming == [(slot_of(ID), ID)]


def test_what_a_crash_of_the_old_owner_made_uncertain_is_flagged_by_the_new_one() -> None:
    pair = Pair()
    pair.pass_time(5_000)
    pair.armed(pair.old, at=T0 + 4_000)
    pair.delivered(pair.old)
    pair.crash(pair.old)
    pair.publish(1)
    pair.rest()
    no = pair.delivered(pair.new)
    assert pair.new.flights[no].flagged == {ID}


def test_an_arm_that_waits_for_the_old_owner_counts_for_its_type() -> None:
    pair = Pair()
    pair.armed(pair.old, at=FAR)
    pair.publish(1)
    pair.carry(Cede)
    pair.armed(pair.new, at=FAR + 1)
    pair.armed(pair.new, IDS[1], at=FAR)
    assert (pair.new.shard.waiting, pair.new.shard.coming("t"), pair.new.shard.coming("u")) == (2, 2, 0)
    pair.carry()
    assert (pair.new.shard.waiting, pair.new.shard.coming("t")) == (0, 0)
    assert pair.new.shard.state.lane("t").live == 2
    pair.rest()


def test_the_gap_of_a_timer_between_two_shards_counts_anew_after_a_restart() -> None:
    pair = Pair()
    pair.armed(pair.old)
    no = pair.delivered(pair.old)
    pair.old.inbox.append(Settle(no, failure=WholeFailure("HTTP 500", 60_000, 7, counted=True)))
    pair.old.turn()
    pair.publish(1)
    while not (pending := pair.new.shard.state.moves.pending(ID)):
        pair.carry(Cede, Pull, Pulled)
        pair.pass_time(500)
    assert pending.timer
    assert pending.timer.failure
    pair.pass_time(5_000)
    pair.new.begin()
    again = pair.new.shard.state.moves.pending(ID)
    assert again
    assert again.entry == pending.entry
    assert again.timer
    assert again.timer.failure
    assert again.timer.failure.since == pair.new.shard.state.now.boot_ms >= pending.timer.failure.since + 5_000
    pair.rest()


def test_nothing_is_ceded_before_there_is_room_for_it() -> None:
    pair = Pair()
    pair.armed(pair.old, at=FAR)
    pair.table = RingTable(pair.table.version + 1, (1,) * SLOTS, pair.table.shards, 2)
    for host in pair.hosts:
        host.inbox.append(SetTable(pair.table, waits=True))
        host.turn()
    pair.pass_time(5_000)
    pair.carry()
    assert (pair.old.shard.to_cede, pair.new.shard.to_cede) == (SLOTS, 0)
    assert not pair.old.shard.state.moves.ceded
    assert pair.old.shard.table_version == pair.new.shard.table_version == pair.table.version
    pair.old.inbox.append(MayCede())
    pair.old.turn()
    assert pair.old.shard.to_cede == 0
    pair.rest()
    assert pair.generation(pair.new)


def test_nothing_is_pulled_onto_a_full_disk() -> None:
    pair = Pair()
    pair.armed(pair.old, at=FAR)
    pair.new.inbox.append(SetPull(0))
    pair.publish(1)
    pair.carry()
    pair.pass_time(5_000)
    pair.carry()
    assert pair.old.shard.state.find(ID)
    assert pair.new.shard.wake_at()[1] is None
    pair.new.inbox.append(SetPull(100))
    pair.rest()
    assert TYPES

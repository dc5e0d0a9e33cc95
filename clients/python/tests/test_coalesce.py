"""What goes into the next request: properties of the pure coalescer under any schedule, then tables.

The property test plays shell, network and server. Time moves in steps; at each step calls are added, requests taken,
and open requests end in one of the ways in which requests end. A request whose answer is lost may still be applied at
any moment until it is settled. What the server applied is then looked at id by id.
"""

from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from timerd_client import Arm, OutcomeUnknown, StorageFull, Unavailable
from timerd_client._coalesce import OPEN_MAX, OVERTAKE_S, TURN_ITEMS_MAX, Chunk, Coalescer, Job, Turn
from timerd_client._protocol import Call, EncodedArm, Request, encode_arm

TIMEOUT = 10.0
IDS = "abcd"


def arm(id: str, payload: Any = None) -> EncodedArm:
    return encode_arm(Arm(id, "poll", delay=1, payload=payload))


def job(id: str) -> Job:
    return Job(arm(id), (id,), None)


def other(*ids: str) -> Job:
    if len(ids) > 1:
        return Job(Chunk([arm(id) for id in ids], 0), ids, None)
    return Job(Call(Request("DELETE", "/"), lambda reply: None, ids), ids, None)


jobs = st.one_of(
    st.sampled_from(IDS).map(job),
    st.sampled_from(IDS).map(job),
    st.sampled_from(IDS).map(other),
    st.just(()).map(lambda keys: other()),  # a read
    st.lists(st.sampled_from(IDS), min_size=2, max_size=3, unique=True).map(lambda ids: other(*ids)),
)
ENDS = ["answered", "answered", "refused", "lost", "not sent", "slow and answered"]


@settings(max_examples=150, deadline=None, print_blob=True)
@given(st.data())
def test_order_is_kept_and_every_call_is_answered_once(data: st.DataObject) -> None:
    coalescer = Coalescer(TIMEOUT)
    numbers: dict[int, int] = {}  # id of the job -> its place in the order of the calls
    added: list[Job] = []
    settled: list[Job] = []
    open_turns: list[tuple[Turn, float]] = []
    applied: list[tuple[float, int, str]] = []  # (when, number of the job, id)
    now, step = 0.0, 0

    def land(turn: Turn, when: float) -> None:
        last = {str(key): numbers[id(one)] for one in turn.jobs for key in one.keys}  # one request, one step
        applied.extend((when, number, key) for key, number in last.items())

    def end(turn: Turn, taken_at: float) -> None:
        how = data.draw(st.sampled_from(ENDS))
        settled_at, deadline = 0.0, min(turn.deadline, data.draw(st.sampled_from([now, turn.deadline])))
        outcomes: list[Any] = ["result"] * len(turn.jobs)
        if how == "refused":
            outcomes = [StorageFull("storage-full", 507) for _ in turn.jobs]
        elif how == "not sent":
            outcomes = [Unavailable("") for _ in turn.jobs]
        elif how == "lost":
            outcomes = [OutcomeUnknown("") for _ in turn.jobs]
            settled_at = data.draw(st.sampled_from([now, now + 0.5, now + 4.0]))
            if data.draw(st.booleans()):
                land(turn, data.draw(st.floats(taken_at, max(taken_at, settled_at - 1e-6))))
        else:
            land(turn, data.draw(st.floats(taken_at, now)))
            if how == "slow and answered":  # a first attempt is still on its way, and may land again
                settled_at = now + 3.0
                land(turn, data.draw(st.floats(taken_at, settled_at - 1e-6)))
        settled.extend(coalescer.done(turn, outcomes, settled_at, deadline, now))

    while step < 25 or open_turns or coalescer.first() is not None:
        step += 1
        if step < 25:
            for one in data.draw(st.lists(jobs, max_size=4)):
                numbers[id(one)] = len(added)
                added.append(one)
                coalescer.add(one, now)
        settled.extend(coalescer.expire(now))
        while (turn := coalescer.take(now)) is not None:
            keys = [key for one in turn.jobs for key in one.keys]
            in_flight = {key for there, _ in open_turns for one in there.jobs for key in one.keys}
            assert in_flight.isdisjoint(keys)
            open_turns.append((turn, now))
            assert len(open_turns) <= OPEN_MAX
        for entry in list(open_turns):
            if step > 25 or data.draw(st.booleans()):
                open_turns.remove(entry)
                end(*entry)
        wake_at = coalescer.wake_at(now)
        assert wake_at is None or wake_at > now
        now += data.draw(st.sampled_from([0.001, 0.05, 0.3, 2.0]))
        assert step < 500

    assert {id(one) for one in settled} == {id(one) for one in added}
    assert len(settled) == len(added)
    landed = defaultdict(list)
    for _, number, key in sorted(applied, key=lambda entry: entry[0]):
        landed[key].append(number)
    for key, order in landed.items():
        assert order == sorted(order), f"{key}: applied in the order {order}"


def take(coalescer: Coalescer, now: float) -> list[str]:
    turn = coalescer.take(now)
    return [] if turn is None else [str(key) for one in turn.jobs for key in one.keys]


def test_the_first_goes_at_once_and_the_rest_gather_meanwhile() -> None:
    coalescer = Coalescer(TIMEOUT)
    coalescer.add(job("a"), 0.0)
    turn = coalescer.take(0.0)
    assert turn is not None
    for id in "bcd":
        coalescer.add(job(id), 0.01)
        assert take(coalescer, 0.01) == []
    coalescer.done(turn, ["result"], 0.0, turn.deadline, 0.02)
    assert take(coalescer, 0.02) == ["b", "c", "d"]


def test_a_slow_request_is_overtaken_by_other_ids_only() -> None:
    coalescer = Coalescer(TIMEOUT)
    coalescer.add(job("a"), 0.0)
    assert take(coalescer, 0.0) == ["a"]
    coalescer.add(job("a"), 0.01)
    coalescer.add(job("b"), 0.02)
    assert take(coalescer, 0.03) == []
    assert coalescer.wake_at(0.03) == 0.02 + OVERTAKE_S
    assert take(coalescer, 0.02 + OVERTAKE_S) == ["b"]


def test_one_id_twice_shares_a_request_in_order() -> None:
    coalescer = Coalescer(TIMEOUT)
    first, second = job("a"), job("a")
    coalescer.add(first, 0.0)
    coalescer.add(second, 0.0)
    turn = coalescer.take(0.0)
    assert turn is not None
    assert turn.jobs == [first, second]


def test_a_cancel_between_two_arms_of_an_id_stays_between_them() -> None:
    coalescer = Coalescer(TIMEOUT)
    for one in (job("a"), other("a"), job("a"), job("b")):
        coalescer.add(one, 0.0)
    turn = coalescer.take(0.0)
    assert turn is not None
    assert [one.keys for one in turn.jobs] == [("a",), ("b",)]
    coalescer.done(turn, ["result"] * 2, 0.0, turn.deadline, 0.1)
    turn = coalescer.take(0.1)
    assert turn is not None
    assert not turn.coalesced
    assert take(coalescer, 0.1) == []


def test_a_request_has_bounds() -> None:
    coalescer = Coalescer(TIMEOUT)
    for number in range(TURN_ITEMS_MAX + 1):
        coalescer.add(job(f"t{number}"), 0.0)
    assert len(take(coalescer, 0.0)) == TURN_ITEMS_MAX
    big = Coalescer(TIMEOUT)
    for number in range(4):
        big.add(Job(arm(f"t{number}", "x" * 400_000), (f"t{number}",), None), 0.0)
    assert len(take(big, 0.0)) == 2


def test_a_caller_that_went_away_is_not_sent_but_what_was_sent_stays_held() -> None:
    coalescer = Coalescer(TIMEOUT)
    gone, sent = job("a"), job("b")
    coalescer.add(sent, 0.0)
    turn = coalescer.take(0.0)
    assert turn is not None
    coalescer.add(gone, 0.0)
    gone.settle(None)
    sent.settle(None)
    assert coalescer.done(turn, [OutcomeUnknown("")], 3.0, turn.deadline, 1.0) == []
    coalescer.add(job("b"), 1.0)
    assert take(coalescer, 1.0) == []
    assert coalescer.wake_at(1.0) == 3.0
    assert take(coalescer, 3.0) == ["b"]


def test_waiting_too_long_says_whether_it_was_ever_sent() -> None:
    coalescer = Coalescer(1.0)
    coalescer.add(job("a"), 0.0)
    turn = coalescer.take(0.0)
    assert turn is not None
    again = turn.jobs[0]
    coalescer.done(turn, [OutcomeUnknown("")], 5.0, 0.5, 0.5)  # the request had less time than its job
    coalescer.add(job("a"), 0.6)
    assert [type(one.outcome) for one in coalescer.expire(1.6)] == [OutcomeUnknown, Unavailable]
    assert again.settled


def test_slow_reads_leave_room_for_arms() -> None:
    coalescer = Coalescer(TIMEOUT)
    for _ in range(20):
        coalescer.add(other(), 0.0)
    while coalescer.take(0.0) is not None:
        pass
    coalescer.add(job("a"), 0.0)
    assert take(coalescer, 0.0) == ["a"]

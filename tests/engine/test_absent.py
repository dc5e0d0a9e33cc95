"""Shards that can't be asked: what the dispatcher does without them, at every stage of a batch's life."""

import pytest

from timerd.engine.answer import Accepted, Failed
from timerd.engine.batch import Batch
from timerd.engine.command import Command, Post, SendSettle, SendTake, Sort
from timerd.engine.dispatcher import Dispatcher
from timerd.engine.effect import Ready, Settled, Taken
from timerd.engine.late import LATE_PART
from timerd.engine.message import SettleSome
from timerd.engine.now import Now
from timerd.engine.share import share_of
from timerd.engine.timer import Misfire, Timer, TimerType

NOW = Now(1_796_025_600_000_000, 60_000)
STAGES = ["asked", "posted", "answered", "told"]


class Two:
    """One batch of shards 0 and 1, two timers each, led to a stage: nothing of it but shard 1's answers is missing."""

    def __init__(self, kind: str = "processor", in_flight: int = 1) -> None:
        self.type = TimerType("t", url="http://t", kind=kind, max_lag_ms=0, batch_size=4, max_in_flight=in_flight)
        self.dispatcher = Dispatcher()
        self.dispatcher.set_types({"t": self.type})
        for shard in (0, 1):
            self.dispatcher.ready(Ready(shard, "t", 0, 2, NOW.wall_ms))
        self.takes = [c.message for c in self.do() if isinstance(c, SendTake)]
        self.no = self.takes[0].batch_no
        assert [take.count for take in self.takes] == [2, 2]

    def do(self) -> list[Command]:
        return self.dispatcher.commands(NOW)

    def timers(self, shard: int) -> list[Timer]:
        return [Timer(NOW.wall_ms, 1, f"{shard}-{n}", "t") for n in range(2)]

    def take(self, shard: int, count: int = 2) -> None:
        self.dispatcher.taken(Taken(self.no, shard, self.timers(shard)[:count]))
        self.dispatcher.ready(Ready(shard, "t", 0, 0, 0))

    def reach(self, stage: str) -> None:
        at = STAGES.index(stage)
        self.take(0)
        if at >= 1:
            self.take(1)
            assert any(isinstance(c, Post) for c in self.do())
        if at >= 2:
            self.dispatcher.answered(NOW, self.no, Accepted(), 0.5)
        if at >= 3:
            assert {c.shard for c in self.do() if isinstance(c, SendSettle)} == {0, 1}

    @property
    def slots(self) -> int:
        return self.dispatcher.open_batches()


def ids(batch: Batch) -> list[str]:
    return [timer.id for timer in batch.timers]


@pytest.mark.parametrize("end", ["forget", "give_up"])
def test_a_batch_goes_on_without_the_part_that_does_not_come(end: str) -> None:
    two = Two()
    two.reach("asked")
    getattr(two.dispatcher.absent, end)(1)
    [post] = [c for c in two.do() if isinstance(c, Post)]
    assert ids(post.batch) == ["0-0", "0-1"]
    two.dispatcher.answered(NOW, two.no, Accepted(), 0.5)
    assert [c.shard for c in two.do() if isinstance(c, SendSettle)] == [0]
    two.dispatcher.settled(Settled(two.no, 0))
    assert two.slots == 0
    assert two.dispatcher.idle() == (end == "forget")
    if end == "forget":
        return
    assert two.dispatcher.absent.holds(1)
    two.take(1)  # too late
    [late] = [c for c in two.do() if isinstance(c, SendSettle)]
    assert late.shard == 1
    assert late.message.failure is not None
    assert not late.message.failure.counted
    assert not late.message.failure.unknown
    two.dispatcher.settled(Settled(two.no, 1))
    assert two.dispatcher.idle()
    assert not two.dispatcher.absent.holds(1)


def test_a_part_that_has_come_leaves_with_its_shard_and_stays_with_one_that_stands_still() -> None:
    for end, sent in (("forget", ["0-0", "0-1"]), ("give_up", ["1-0", "1-1", "0-0", "0-1"])):
        two = Two()
        two.take(1)
        getattr(two.dispatcher.absent, end)(1)
        two.take(0)
        [post] = [c for c in two.do() if isinstance(c, Post)]
        assert ids(post.batch) == sent, end


def test_what_was_posted_and_not_sent_leaves_when_its_shard_has_gone() -> None:
    two = Two()
    two.reach("posted")
    two.dispatcher.absent.forget(1)
    assert list(two.dispatcher.shards_of(two.no)) == [0]
    assert [timer.id for timer in two.dispatcher.leave_out(two.no)] == ["1-0", "1-1"]
    assert not two.dispatcher.leave_out(two.no), "said once"
    two.dispatcher.answered(NOW, two.no, Failed("HTTP 500"), 0.5)
    assert [c.shard for c in two.do() if isinstance(c, SendSettle)] == [0]


def test_what_is_left_out_is_put_back_untried_and_holds_no_slot() -> None:
    two = Two()
    two.reach("posted")
    assert [timer.id for timer in two.dispatcher.leave_out(two.no, {1})] == ["1-0", "1-1"]
    [back] = [c for c in two.do() if isinstance(c, SendSettle)]
    assert (back.shard, back.message.failure.counted) == (1, False)
    two.dispatcher.answered(NOW, two.no, Accepted(), 0.5)
    assert [c.shard for c in two.do() if isinstance(c, SendSettle)] == [0]
    two.dispatcher.settled(Settled(two.no, 0))
    assert two.slots == 0
    assert two.dispatcher.is_open(two.no)
    two.dispatcher.settled(Settled(two.no, 1))
    assert not two.dispatcher.is_open(two.no)


def test_a_batch_of_which_nothing_is_left_ends() -> None:
    two = Two()
    two.reach("posted")
    for shard in (0, 1):
        two.dispatcher.absent.forget(shard)
    assert len(two.dispatcher.leave_out(two.no)) == 4
    two.dispatcher.emptied(two.no)
    assert not two.do()
    assert two.dispatcher.idle()
    assert two.slots == 0


@pytest.mark.parametrize("stage", ["answered", "told"])
@pytest.mark.parametrize("end", ["forget", "give_up"])
def test_a_settlement_that_is_not_confirmed_holds_no_slot(stage: str, end: str) -> None:
    two = Two()
    two.reach(stage)
    getattr(two.dispatcher.absent, end)(1)
    commands = two.do()
    if stage == "answered":
        assert [c.shard for c in commands if isinstance(c, SendSettle)] == ([0] if end == "forget" else [0, 1])
    two.dispatcher.settled(Settled(two.no, 0))
    assert two.slots == 0
    assert two.dispatcher.is_open(two.no) == (end == "give_up"), "the bodies of its answer are still to be stepped"
    if end == "give_up":
        two.dispatcher.settled(Settled(two.no, 1))
    assert two.dispatcher.idle()


def test_one_that_is_shut_is_not_asked_and_what_it_says_is_kept() -> None:
    two = Two(in_flight=4)
    two.reach("posted")
    two.dispatcher.absent.shut(1)
    two.dispatcher.ready(Ready(1, "t", 0, 3, NOW.wall_ms))
    two.dispatcher.ready(Ready(0, "t", 0, 1, NOW.wall_ms))
    assert [c.shard for c in two.do() if isinstance(c, SendTake)] == [0]
    assert two.dispatcher.absent.holds(1), "what is under way ends as usual"
    two.dispatcher.answered(NOW, two.no, Accepted(), 0.5)
    assert {c.shard for c in two.do() if isinstance(c, SendSettle)} == {0, 1}
    two.dispatcher.settled(Settled(two.no, 1))
    assert not two.dispatcher.absent.holds(1)
    two.dispatcher.absent.reopen(1)
    assert [(c.shard, c.message.count) for c in two.do() if isinstance(c, SendTake)] == [(1, 3)]


def test_one_that_is_forgotten_had_nothing_ready_and_comes_back_as_another() -> None:
    two = Two(in_flight=4)
    two.reach("posted")
    two.dispatcher.ready(Ready(1, "t", 0, 3, NOW.wall_ms))
    two.dispatcher.absent.forget(1)
    assert not [c for c in two.do() if isinstance(c, SendTake)]
    two.dispatcher.ready(Ready(1, "t", 0, 2, NOW.wall_ms))
    [again] = [c for c in two.do() if isinstance(c, SendTake)]
    two.dispatcher.answered(NOW, two.no, Accepted(), 0.5)
    assert [c.shard for c in two.do() if isinstance(c, SendSettle)] == [0], "the old life is not settled in the new one"
    assert again.message.batch_no != two.no


def test_commands_for_it_that_nobody_has_fetched_are_forgotten() -> None:
    two = Two()
    two.reach("told")
    two.dispatcher.settled(Settled(two.no, 0))
    two.dispatcher.settled(Settled(two.no, 1))
    two.dispatcher.ready(Ready(1, "t", 0, 2, NOW.wall_ms))
    two.dispatcher.absent.give_up(1)
    assert not [c for c in two.do() if isinstance(c, SendTake)]


# ---- callbacks


class Calls(Two):
    def __init__(self) -> None:
        super().__init__("callback", in_flight=8)

    def sorted(self) -> list[Timer]:
        [sort] = [c for c in self.do() if isinstance(c, Sort)]
        return self.dispatcher.sort(NOW, self.no, [(timer, f"http://{timer.id}:80") for timer in sort.batch.timers])


@pytest.mark.parametrize("end", ["forget", "give_up"])
def test_callbacks_go_on_without_the_part_that_does_not_come(end: str) -> None:
    two = Calls()
    two.take(0)
    getattr(two.dispatcher.absent, end)(1)
    assert [timer.id for timer in two.sorted()] == ["0-0", "0-1"]
    two.dispatcher.ended(NOW, two.no, [("0-0", Accepted()), ("0-1", Accepted())], 0.5)
    [settle] = [c for c in two.do() if isinstance(c, SendSettle)]
    two.dispatcher.settled(Settled(two.no, 0, part=settle.message.part))
    assert two.slots == 0
    if end == "give_up":
        two.take(1)
        [late] = [c for c in two.do() if isinstance(c, SendSettle)]
        assert isinstance(late.message, SettleSome)
        assert [id for id, _ in late.message.failed] == ["1-0", "1-1"]
        two.dispatcher.settled(Settled(two.no, 1, part=LATE_PART))
    assert two.dispatcher.idle()


def test_callbacks_of_a_shard_that_has_gone_end_without_a_word() -> None:
    two = Calls()
    two.take(0)
    two.take(1)
    assert len(two.sorted()) == 4
    two.dispatcher.absent.forget(1)
    assert two.dispatcher.shard_of(two.no, "1-0") is None
    two.dispatcher.withdraw(two.no, "1-0")
    two.dispatcher.ended(NOW, two.no, [("1-1", Accepted())], 0.5)
    assert not [c for c in two.do() if isinstance(c, SendSettle)]
    two.dispatcher.withdraw(two.no, "0-0")
    two.dispatcher.ended(NOW, two.no, [("0-1", Accepted())], 0.5)
    settles = [c for c in two.do() if isinstance(c, SendSettle)]
    assert [c.message.parked for c in settles] == [{"http://0-0:80": ["0-0"]}, {}]
    for settle in settles:
        two.dispatcher.settled(Settled(two.no, 0, part=settle.message.part))
    assert two.dispatcher.idle()
    assert two.slots == 0


def test_callbacks_that_are_being_sorted_when_their_shard_goes_are_not_sent() -> None:
    two = Calls()
    two.take(0)
    two.take(1)
    [sort] = [c for c in two.do() if isinstance(c, Sort)]
    two.dispatcher.absent.forget(1)
    sent = two.dispatcher.sort(NOW, two.no, [(timer, f"http://{timer.id}:80") for timer in sort.batch.timers])
    assert [timer.id for timer in sent] == ["0-0", "0-1"]
    two.dispatcher.absent.forget(0)
    two.dispatcher.ended(NOW, two.no, [("0-0", Accepted()), ("0-1", Failed("HTTP 500"))], 0.5)
    assert two.slots == 0
    assert two.dispatcher.idle() or not two.do()


def test_outcomes_of_one_that_stands_still_hold_no_slot() -> None:
    two = Calls()
    two.take(0)
    two.take(1)
    two.sorted()
    two.dispatcher.absent.give_up(1)
    two.dispatcher.ended(NOW, two.no, [(id, Accepted()) for id in ("0-0", "0-1", "1-0", "1-1")], 0.5)
    settles = [c for c in two.do() if isinstance(c, SendSettle)]
    assert {c.shard for c in settles} == {0, 1}
    for settle in settles:
        if settle.shard == 0:
            two.dispatcher.settled(Settled(two.no, 0, part=settle.message.part))
    assert two.slots == 0
    assert two.dispatcher.absent.holds(1)
    for settle in settles:
        if settle.shard == 1:
            two.dispatcher.settled(Settled(two.no, 1, part=settle.message.part))
    assert two.dispatcher.idle()


# ---- shares


@pytest.mark.parametrize(
    ("mine", "all", "in_flight", "per_second", "missed"),
    [
        (24, 24, 16, 100.0, 50.0),
        (8, 24, 5, 100 / 3, 50 / 3),
        (1, 24, 1, 100 / 24, 50 / 24),
        (0, 24, 1, 100 / 24, 50 / 24),
    ],
)
def test_a_node_has_its_share_of_a_type(mine: int, all: int, in_flight: int, per_second: float, missed: float) -> None:
    type = TimerType("t", max_in_flight=16, max_per_second=100.0, misfire=Misfire(max_per_second=50.0))
    shared = share_of(type, mine, all)
    assert (shared.max_in_flight, shared.max_per_second) == (in_flight, pytest.approx(per_second))
    assert shared.misfire.max_per_second == pytest.approx(missed)
    assert (shared is type) == (mine == all)
    unlimited = share_of(TimerType("t"), mine, all)
    assert unlimited.max_per_second is None
    assert unlimited.misfire.max_per_second is None

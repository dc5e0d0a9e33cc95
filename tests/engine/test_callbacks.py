"""Callback types: the dispatcher over real shards, with time moved by hand and hosts that do as they are told.

`World` carries out commands as the shell does, one turn of each shard a step. A timer's payload is the name of its
host. It checks on every step what must always hold: no more requests than slots and shares, no id in two requests.
"""

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.harness import ALL_SLOTS, T0, check
from timerd.engine.answer import Accepted, Failed, Outcome
from timerd.engine.command import SendSettle, SendTake, Sort, TargetTurned
from timerd.engine.dispatcher import Dispatcher
from timerd.engine.effect import Ready, Settled, Taken
from timerd.engine.gate import Gate
from timerd.engine.host import share_of
from timerd.engine.hosts import HOSTS_IDLE_MAX
from timerd.engine.message import Arm, Cancel, Message, SetTypes, WholeFailure
from timerd.engine.now import Now
from timerd.engine.ring import slot_of
from timerd.engine.shard import Shard
from timerd.engine.state import State
from timerd.engine.timer import RetryPolicy, Timer, TimerType

OK = Accepted()
DOWN = Failed("connect: refused", suspect=True, sent=False)
REFUSED = Failed("HTTP 500")
HELD = Failed("HTTP 429", retry_after_ms=5_000)
GONE = Failed("HTTP 410", gone=True)
FORBIDDEN = Failed("private", sent=False, no_retry=True)
BAD = WholeFailure("no request", 0, 1, bury=True, attempted=False)
TYPE = TimerType(
    "t",
    kind="callback",
    batch_size=50,
    max_lag_ms=10_000,
    max_in_flight=16,
    retry=RetryPolicy(max_attempts=5, min_backoff_ms=100, max_backoff_ms=2_000, jitter=0.0),
)


class World:
    def __init__(self, type: TimerType = TYPE, shards: int = 2) -> None:
        self.type = type
        self.now_ms = 0
        self.shards = [Shard(State(n, ALL_SLOTS[n::shards], self.now)) for n in range(shards)]
        self.inboxes: list[list[Message]] = [[SetTypes({"t": type})] for _ in self.shards]
        self.dispatcher = Dispatcher()
        self.dispatcher.set_types({"t": type})
        self.answers: dict[str, Callable[[Timer], Outcome]] = {}
        self.latency_ms: dict[str, int] = {}
        self.sent: list[tuple[int, str, str]] = []
        """(ms, host, id)"""
        self.sorted: Counter[str] = Counter()
        self.under_way: dict[str, str] = {}
        self.events: list[tuple[int, int, int, str, str]] = []
        self.turned: list[TargetTurned] = []
        self.checks = 0
        for shard in self.shards:
            shard.own(self.now)

    @property
    def now(self) -> Now:
        return Now((T0 + self.now_ms) * 1000, 1_000 + self.now_ms)

    @property
    def gate(self) -> Gate:
        gate = self.dispatcher._flows["t"]
        assert isinstance(gate, Gate)
        return gate

    def arm(self, ids: list[str], host: str, delay_ms: int = 0) -> None:
        for n, shard in enumerate(self.shards):
            mine = [id for id in ids if slot_of(id) in shard.state.run_of]
            timers = [Timer(T0 + self.now_ms + delay_ms, 0, id, "t", host.encode()) for id in mine]
            if timers:
                self.inboxes[n].append(Arm(timers, None, want_results=False))

    def cancel(self, *ids: str) -> None:
        for n, shard in enumerate(self.shards):
            mine = [id for id in ids if slot_of(id) in shard.state.run_of]
            if mine:
                self.inboxes[n].append(Cancel(mine, None))

    def turn(self) -> bool:
        """One turn of everything; whether anything happened."""
        moved = False
        for n, shard in enumerate(self.shards):
            messages, self.inboxes[n] = self.inboxes[n], []
            for message in messages:
                shard.step(self.now, message)
            shard.tick(self.now)
            turn = shard.take()
            moved = moved or bool(messages)
            for effect in turn.effects:
                moved = True
                if isinstance(effect, Ready):
                    self.dispatcher.ready(effect)
                elif isinstance(effect, Taken):
                    self.dispatcher.taken(effect)
                elif isinstance(effect, Settled):
                    self.dispatcher.settled(effect)
        while self.events and self.events[0][0] <= self.now_ms:
            _, _, batch_no, id, host = heappop(self.events)
            timer = next(s.state.find(id) for s in self.shards if slot_of(id) in s.state.run_of)
            outcome = self.answers.get(host, lambda timer: OK)(timer or Timer(0, 0, id, "t"))
            del self.under_way[id]
            self.dispatcher.ended(self.now, batch_no, [(id, outcome)], 0.5)
            moved = True
        while commands := self.dispatcher.commands(self.now):
            moved = True
            for command in commands:
                if isinstance(command, SendTake | SendSettle):
                    self.inboxes[command.shard].append(command.message)
                elif isinstance(command, Sort):
                    self.sort(command)
                elif isinstance(command, TargetTurned):
                    self.turned.append(command)
        self.check()
        return moved

    def sort(self, command: Sort) -> None:
        batch = command.batch
        assert len(batch.timers) <= self.type.batch_size
        hosts = {timer.id: timer.payload.decode() for timer in batch.timers}  # type: ignore[union-attr]
        wants: list[tuple[Timer, str | WholeFailure]] = [(timer, hosts[timer.id] or BAD) for timer in batch.timers]
        self.sorted.update(timer.id for timer in batch.timers)
        for timer in self.dispatcher.sort(self.now, batch.batch_no, wants):
            host = hosts[timer.id]
            assert timer.id not in self.under_way, "in two requests at once"
            assert timer.fire_at <= T0 + self.now_ms, "early"
            self.under_way[timer.id] = host
            self.sent.append((self.now_ms, host, timer.id))
            at = self.now_ms + self.latency_ms.get(host, 5)
            heappush(self.events, (at, len(self.sent), batch.batch_no, timer.id, host))

    def check(self) -> None:
        self.checks += 1
        for shard in self.shards:
            if self.checks % 64 == 0 or shard.state.timers < 20:  # it looks at every timer
                check(shard)
        assert len(self.under_way) <= self.gate.in_flight <= self.type.max_in_flight
        for host, count in Counter(self.under_way.values()).items():
            assert count <= share_of(self.type.max_in_flight), host

    def run(self, ms: int = 600_000, until: Callable[[], bool] | None = None) -> None:
        """Let time go by, from one event to the next."""
        end = self.now_ms + ms
        while self.now_ms < end and not (until and until()):
            if self.turn():
                self.now_ms += 1
                continue
            moments = [self.events[0][0]] if self.events else []
            wall, boot = self.dispatcher.wake_at()
            moments += [wall - T0] if wall is not None else []
            moments += [boot - 1_000] if boot is not None else []
            for shard in self.shards:
                wall, boot = shard.wake_at()
                moments += [wall - T0] if wall is not None else []
                moments += [boot - 1_000] if boot is not None else []
            self.now_ms = min(end, max(self.now_ms + 1, min(moments, default=end)))

    def totals(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for shard in self.shards:
            found.update(
                {n: c for n, c in msgspec.structs.asdict(shard.state.lane("t").totals).items() if type(c) is int}
            )
        return {name: count for name, count in found.items() if count}

    @property
    def live(self) -> int:
        return sum(shard.state.lane("t").live for shard in self.shards)


def ids(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{n}" for n in range(count)]


def test_every_callback_is_sent_once_and_nothing_is_left() -> None:
    world = World()
    for host in "abcdef":
        world.arm(ids(host, 100), host, delay_ms=50)
    world.run(until=lambda: bool(world.totals().get("fired", 0) == 600))
    world.run(1)
    assert Counter(id for _, _, id in world.sent) == Counter({f"{h}{n}": 1 for h in "abcdef" for n in range(100)})
    assert max(world.sorted.values()) <= 2, "looked at to learn the host, and to be sent"
    assert (world.gate.in_flight, len(world.gate.hosts), world.gate.open) == (0, 0, set())
    assert world.sent[0][0] >= 50


def test_it_leaves_at_once_whatever_max_lag_says() -> None:
    world = World()
    world.arm(["x"], "a", delay_ms=1_000)
    world.run(2_000)
    assert 1_000 <= world.sent[0][0] <= 1_000 + 55  # the shards' wake-ups fall together


def test_a_host_that_is_down_costs_a_probe_at_a_time_and_the_others_nothing() -> None:
    world = World()
    world.answers["down"] = lambda timer: DOWN
    world.arm(ids("d", 2_000), "down")
    world.arm(ids("g", 100), "good", delay_ms=10)
    world.run(1_000)
    assert world.totals()["fired"] == 100
    assert max(at for at, host, _ in world.sent if host == "good") < 500
    world.run(60_000)
    tried = [at for at, host, _ in world.sent if host == "down"]
    assert len(tried) < 10 + 60_000 / 2_000, "the first few, and then probes at gaps that grow to max_backoff"
    assert all(later - sooner >= 1_990 for sooner, later in zip(tried[-10:], tried[-9:], strict=False))
    unsorted = [id for id in ids("d", 2_000) if world.sorted[id] == 0]
    assert unsorted == []
    assert sum(world.sorted.values()) < 2_000 + 100 + 2 * len(world.sent), "those that wait are not looked at again"
    world.answers.clear()
    world.run(60_000)
    assert world.live == 0


def test_a_pause_is_kept_for_the_host_that_asked() -> None:
    world = World()
    world.answers["busy"] = lambda timer: HELD if world.now_ms < 100 else OK
    world.arm(ids("b", 40), "busy")
    world.arm(ids("g", 40), "good")
    world.run(20_000)
    sent = [at for at, host, _ in world.sent if host == "busy"]
    first = [at for at in sent if at < 1_000]
    assert len(first) <= 4
    assert min(at for at in sent if at >= 1_000) >= 5_000
    assert world.totals()["fired"] == 80
    assert world.totals()["retried"] == len(first), "each attempt counts"


@pytest.mark.parametrize(
    ("outcome", "attempts", "total"),
    [(REFUSED, 5, "dead"), (GONE, 1, "dead"), (FORBIDDEN, 1, "dead"), (OK, 1, "fired")],
)
def test_what_an_outcome_makes_of_it(outcome: Outcome, attempts: int, total: str) -> None:
    world = World()
    world.answers["a"] = lambda timer: outcome
    world.arm(["x"], "a")
    world.run(60_000)
    assert len(world.sent) == attempts
    assert world.totals()[total] == 1
    if total == "dead":
        (dead,) = [timer for shard in world.shards for timer in shard.state.lane("t").dead.values()]
        assert dead.failure is not None
        assert dead.failure.attempts == (0 if outcome is FORBIDDEN else attempts)


def test_what_asks_for_nothing_is_buried_and_its_neighbours_are_sent() -> None:
    world = World()
    world.arm(["x"], "")
    world.arm(["y"], "a")
    world.run(1_000)
    assert world.totals() == {"armed": 2, "fired": 1, "dead": 1}
    assert world.gate.in_flight == 0


def test_one_hanging_item_does_not_close_its_host_to_the_others() -> None:
    world = World()
    hangs = Failed("timeout", suspect=True, unknown=True)
    world.answers["a"] = lambda timer: hangs if timer.id == "bad" else OK
    world.latency_ms["a"] = 100
    world.arm(["bad"], "a")
    world.run(500)
    world.arm(ids("x", 50), "a")
    world.run(60_000)
    assert world.totals() == {"armed": 51, "fired": 50, "dead": 1, "retried": 4}


def test_more_hosts_than_slots_all_get_their_turn_and_so_does_what_is_not_sorted_yet() -> None:
    world = World(msgspec.structs.replace(TYPE, max_in_flight=4))
    for n in range(20):
        world.arm(ids(f"{n}.", 200), f"h{n}")
        world.latency_ms[f"h{n}"] = 50
    world.run(2_000)
    world.arm(["late"], "new")
    world.run(20_000, until=lambda: any(id == "late" for _, _, id in world.sent))
    at = next(at for at, _, id in world.sent if id == "late")
    assert at < 6_000, "not behind the 4,000 others"
    counts = Counter(host for _, host, _ in world.sent)
    assert max(counts[f"h{n}"] for n in range(20)) <= 4 * min(counts[f"h{n}"] for n in range(20)) + 4


def test_a_rate_is_kept_and_nothing_spins_for_it() -> None:
    world = World(msgspec.structs.replace(TYPE, max_per_second=20.0))
    world.arm(ids("x", 100), "a")
    world.run(4_000)
    assert 60 <= len(world.sent) <= 84
    world.run(10_000)
    assert world.totals()["fired"] == 100
    assert max(world.sorted.values()) <= 2


def test_what_is_parked_can_be_cancelled_and_moved() -> None:
    world = World()
    world.answers["down"] = lambda timer: DOWN
    world.arm(ids("d", 300), "down")
    world.run(2_000)
    world.cancel(*ids("d", 299))
    world.arm(["d299"], "up")
    world.run(5_000)
    assert world.live == 0
    assert world.totals()["fired"] == 1
    assert world.sent[-1][1:] == ("up", "d299")
    # The probe that found nothing any more is not under way for ever.
    world.answers.clear()
    world.arm(["later"], "down")
    world.run(5_000)
    assert world.sent[-1][1:] == ("down", "later")


def test_stale_entries_are_swept() -> None:
    world = World(shards=1)
    world.answers["down"] = lambda timer: DOWN
    world.arm(["probe", "probe2", "probe3", "probe4", "probe5"], "down")
    world.run(1_000)
    for _ in range(60):
        world.arm(ids("d", 50), "down")
        world.run(20)
    parking = world.shards[0].state.lane("t")._parking
    assert parking._entries < 1_024 + 300


def test_a_drain_ends_what_is_under_way_and_begins_nothing() -> None:
    world = World()
    world.arm(ids("x", 100), "a")
    world.run(100, until=lambda: len(world.sent) > 1)  # it has answered
    world.latency_ms["a"] = 1_000
    world.run(100)
    sent = len(world.sent)
    assert len(world.under_way) == 4
    world.dispatcher.drain()
    world.run(5_000)
    assert len(world.sent) == sent
    assert world.dispatcher.idle()
    assert not any(shard._draft.flights for shard in world.shards), "a clean end can be written"


def test_what_is_being_sorted_when_a_drain_begins_is_not_sent() -> None:
    world = World()
    sort = world.sort

    def late(command: Sort) -> None:
        world.dispatcher.drain()
        sort(command)

    world.sort = late  # type: ignore[method-assign]
    world.arm(ids("x", 10), "a")
    world.run(1_000)
    assert world.sent == []
    assert world.dispatcher.idle()
    assert world.live == 10


def test_a_pause_of_the_type_and_new_limits_are_heard() -> None:
    world = World(msgspec.structs.replace(TYPE, state="paused"))
    world.arm(ids("x", 40), "a")
    world.run(1_000)
    assert world.sent == []
    world.type = msgspec.structs.replace(TYPE, max_in_flight=4)
    world.dispatcher.set_types({"t": world.type})
    world.latency_ms["a"] = 1_000
    world.run(100)
    assert len(world.under_way) == 1
    world.run(1_000)
    world.type = msgspec.structs.replace(TYPE, max_in_flight=40)
    world.dispatcher.set_types({"t": world.type})
    world.run(500)
    assert len(world.under_way) == 10


def test_a_host_that_has_not_answered_yet_gets_one_at_a_time() -> None:
    world = World(msgspec.structs.replace(TYPE, max_in_flight=16))
    for n in range(8):
        world.latency_ms[f"hangs{n}"] = 30_000
        world.arm(ids(f"x{n}-", 10), f"hangs{n}")
    world.arm(ids("y", 10), "well")
    world.run(200)
    assert sum(host == "well" for _, host, _ in world.sent) == 10, "eight hosts that hang leave room"
    assert max(Counter(world.under_way.values()).values()) == 1


def test_hosts_in_trouble_are_remembered_within_bounds() -> None:
    world = World(msgspec.structs.replace(TYPE, max_in_flight=10_000, batch_size=5_000))
    world.check = lambda: None  # type: ignore[method-assign]
    for n in range(HOSTS_IDLE_MAX + 500):
        world.answers[f"h{n}"] = lambda timer: GONE if timer.id.startswith("x") else OK
        world.answers[f"h{n}"] = lambda timer: Failed("HTTP 503", suspect=True, no_retry=True)
        world.arm([f"x{n}"], f"h{n}")
    world.run(5_000)
    assert world.totals()["dead"] == HOSTS_IDLE_MAX + 500
    assert len(world.gate.hosts) == HOSTS_IDLE_MAX
    world.answers.clear()
    for n in range(HOSTS_IDLE_MAX + 500):
        world.arm([f"y{n}"], f"h{n}")
    world.run(5_000)
    assert len(world.gate.hosts) == 0


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 30),
    st.lists(st.tuples(st.integers(1, 60), st.sampled_from("abcd"), st.integers(0, 300)), min_size=1, max_size=8),
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from([OK, DOWN, REFUSED, HELD, GONE, FORBIDDEN]), max_size=4),
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 400), max_size=4),
    st.sampled_from([None, 15.0, 200.0]),
)
def test_nothing_is_lost_and_everything_ends(
    max_in_flight: int,
    batch_size: int,
    arms: list[tuple[int, str, int]],
    trouble: dict[str, Outcome],
    latency_ms: dict[str, int],
    rate: float | None,
) -> None:
    world = World(
        msgspec.structs.replace(TYPE, max_in_flight=max_in_flight, batch_size=batch_size, max_per_second=rate)
    )
    world.latency_ms = latency_ms
    for host, outcome in trouble.items():
        # In trouble for ten seconds, and well again.
        world.answers[host] = lambda timer, outcome=outcome: outcome if world.now_ms < 10_000 else OK  # type: ignore[misc]
    for n, (count, host, delay_ms) in enumerate(arms):
        world.arm(ids(f"{n}.", count), host, delay_ms)
        world.run(50)
    world.cancel("0.0")
    world.run(400_000, until=lambda: world.live == 0)
    world.run(10)
    assert world.live == 0
    assert (world.gate.in_flight, world.gate.open) == (0, set())
    assert len(world.gate.hosts) <= 4

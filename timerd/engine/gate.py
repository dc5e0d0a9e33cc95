"""One callback type's gate: which due callbacks may leave now, by the host that each goes to.

A callback is a request of its own, and its host is known only when its payload has been read. So a batch of due timers
is first taken to be *sorted*: those whose host has room leave at once, the others are parked in their shards under
their host's name. From there they are taken when that host has a slot again, and not before: a dead host with a
hundred thousand callbacks is one probe at a time and no polling, and each of them is sorted once.

What was missed (see catchup.py) is sorted as it may leave, and parked apart: a host's on-time callbacks go before its
missed ones.

Whenever a slot is free what is not sorted yet is sorted, a batch at a time; which host's turn it is among what is
parked, `Hosts` knows. Like a `Flow` it knows counts, and its work does not grow with how much is due; the dispatcher
does the bookkeeping of the batches.

Invariants
1. At most `max_in_flight` requests are under way, to one host at most its share; what is asked for a host counts from
   the Take on, and everything until its outcome is durable.
2. Of an open breaker's host at most one is under way that was sent since it opened: the probe.
"""

from collections.abc import Sequence

from timerd.engine.answer import Failed
from timerd.engine.catchup import MISSED, CatchUp, host_of, key_of_missed
from timerd.engine.choice import Choice, Lane
from timerd.engine.command import TargetTurned
from timerd.engine.condition import Course, HostsCondition, course_of, turns
from timerd.engine.effect import Ready
from timerd.engine.host import Host, share_of
from timerd.engine.hosts import Hosts
from timerd.engine.message import WholeFailure
from timerd.engine.now import Now
from timerd.engine.rate import Rate, rate_of
from timerd.engine.timer import RetryPolicy, Timer, TimerType


class Gate:
    """Of one type. `wake` as in `Flow`."""

    def __init__(self, name: str, lanes: dict[int, Lane]) -> None:
        """`lanes`: what the shards have ready that is not sorted."""
        self.name = name
        self.type: TimerType | None = None
        self.open: set[int] = set()
        """The batches under way."""
        self.moved_at = 0
        self.wake: tuple[int | None, int | None] = (None, None)
        self.turned: list[TargetTurned] = []
        """What hosts have come to, and nobody has been told."""
        self.hosts = Hosts(name, self.turned)
        self.in_flight = 0
        self.lanes = lanes
        self._catch_up = CatchUp()
        self._missed_in_flight = 0
        self._newest = 0  # the batch that was begun last; thousands may be open, and each may fail
        self._sorting: int | None = None  # the batch that is being sorted
        self._sorts_missed = False
        self._rate: Rate | None = None
        self._retries_next = False

    def set_type(self, type: TimerType | None, boot_ms: int) -> None:
        """Know the type as it is now; None: there is no such type, and its timers wait."""
        by = type.tries_by(self.type, boot_ms) if type else None
        self.type = type
        self._catch_up.set_type(type, boot_ms)
        self._rate = rate_of(type.max_per_second if type else None, self._rate, boot_ms)
        for host in self.hosts:
            if by is not None:
                host.breaker.hasten(by)
                host.pace.hasten(by)
            self.hosts.offer(host)

    @property
    def policy(self) -> RetryPolicy:
        """How its failures are tried again."""
        return self.type.retry if self.type else RetryPolicy()

    @property
    def idle(self) -> bool:
        """Whether the gate could be forgotten."""
        return self.type is None and not self.open and not self.lanes and all(h.idle for h in self.hosts)

    def report(self, ready: Ready) -> None:
        """A shard says what it has of a lane, or what is parked under a host."""
        if ready.key:
            host = self.hosts.of(host_of(ready.key))
            host.lane(ready.key).reported[ready.shard] = ready
            host.lane(ready.key).tidy(ready.shard)
            self.hosts.offer(host)
            self.hosts.tidy(host)
            return
        lane = self.lanes.get(ready.limit)
        if lane is None:
            lane = self.lanes[ready.limit] = Lane(ready.limit)
        lane.reported[ready.shard] = ready
        self._tidy(lane, ready.shard)

    def forget(self, shard: int) -> list[Ready]:
        """Take out what the shard has said, so that it is not asked. Linear in lanes and hosts."""
        said: list[Ready] = []
        for lane in list(self.lanes.values()):
            said += lane.forget(shard)
            self._tidy(lane, shard)
        return said + self.hosts.forget(shard)

    # ---- taking

    def choose(self, now: Now, hurried: bool = False) -> Choice | None:
        """The next batch that may be taken now, or None until `wake` or the next event."""
        self.wake = (None, None)
        type = self.type
        if type is None or type.state != "active":
            return None
        free = type.max_in_flight - self.in_flight
        if free <= 0:
            return None
        if self._rate:
            free = min(free, self._rate.available(now.boot_ms))
            if free <= 0:
                if self.hosts.any_waits() or self.lanes:
                    self.wake = (None, self._rate.free_at(1, now.boot_ms))
                return None
        self.hosts.pass_moments(now.boot_ms)
        missed_first = self._catch_up.its_turn
        wanted = bool(self.hosts.missed_ring) or (MISSED in self.lanes and self.lanes[MISSED].total() > 0)
        choice = self._choose_missed(type, now, free) if wanted and missed_first else None
        if choice is None:
            choice = self._choose_unsorted(type) or self._choose_parked(type, now, free, missed=False)
        if choice is None and wanted and not missed_first:
            choice = self._choose_missed(type, now, free)
        if choice is not None:
            self._catch_up.note_choice(choice.limit == MISSED, wanted)
            return choice
        if (moment := self.hosts.next_moment()) is not None:
            self._wake_by(moment)
        return None

    def begin(self, choice: Choice, batch_no: int) -> None:
        """The choice is carried out: its takes are under way."""
        self.open.add(batch_no)
        self._newest = batch_no
        lane = self.hosts.of(host_of(choice.key)).lane(choice.key) if choice.key else self.lanes[choice.limit]
        for shard, count in choice.takes:
            lane.asked[shard] = lane.asked.get(shard, 0) + count
        if choice.key:
            host = self.hosts.of(host_of(choice.key))
            self._reserve(host, sum(count for _, count in choice.takes), batch_no, choice.limit == MISSED)
        else:
            self._sorting = batch_no
            self._sorts_missed = choice.limit == MISSED
            if not self._sorts_missed:
                self._retries_next = choice.limit == 0

    def receive(self, choice: Choice, shard: int, asked: int, taken: int) -> None:
        """A take has ended with this many."""
        if choice.key:
            host = self.hosts.of(host_of(choice.key))
            lane = host.lane(choice.key)
            lane.asked[shard] -= asked
            lane.tidy(shard)
            if asked > taken:
                missed = choice.limit == MISSED
                for rate in self._rates(missed):
                    rate.give_back(asked - taken)
                self.release(host.name, asked - taken, missed)
            return
        lane = self.lanes[choice.limit]
        lane.asked[shard] -= asked
        self._tidy(lane, shard)

    def sort(self, now: Now, batch_no: int, hosts: Sequence[str], halted: bool) -> list[bool]:
        """Which members of a batch, going to these hosts, leave at once; the others must be parked. `halted`: none."""
        type = self.type
        missed = self._sorts_missed and batch_no == self._sorting
        leaves = []
        for name in hosts:
            host = self.hosts.of(name)
            if host.troubled_since and host.calm(now.boot_ms):
                host.forget()
            ok = (
                type is not None
                and not halted
                and type.state == "active"
                and self.in_flight < type.max_in_flight
                and host.room(share_of(type.max_in_flight)) > 0
                and host.free_at <= now.boot_ms
                and all(rate.available(now.boot_ms) > 0 for rate in self._rates(missed))
                and (not missed or self._room(type) > 0)
            )
            if ok:
                self._reserve(host, 1, batch_no, missed)
            leaves.append(ok)
            self.hosts.tidy(host)
        return leaves

    def end_sorting(self, batch_no: int) -> None:
        """The batch is sorted, or there was nothing to sort; the next may be."""
        if self._sorting == batch_no:
            self._sorting = None

    def drop(self, name: str, batch_no: int) -> None:
        """What was to go to this host as this batch, or of it, is not sent after all."""
        host = self.hosts.of(name)
        host.breaker.drop_probe(batch_no)
        self.hosts.offer(host)

    def release(self, name: str, count: int, missed: bool = False) -> None:
        """So many requests to this host hold no slot any more."""
        host = self.hosts.of(name)
        self.in_flight -= count
        self._missed_in_flight -= count if missed else 0
        host.in_flight -= count
        assert host.in_flight >= 0, "released twice"
        self.hosts.offer(host)
        self.hosts.tidy(host)

    # ---- outcomes

    def accept(self, name: str, boot_ms: int) -> None:
        """The host has answered with success."""
        host = self.hosts.of(name)
        host.answers = True
        was, reason = course_of(host.breaker, host.pace), host.pace.reason
        host.pace.succeed(boot_ms, self._share)
        host.breaker.succeed(boot_ms)
        self._turn(host, was, boot_ms, reason)
        if host.held_until <= boot_ms:
            host.held_until = 0
        if host.untroubled and not host.pace.slowed:
            host.troubled_since = 0
        self.hosts.offer(host)

    def judge(self, now: Now, batch_no: int, name: str, timer: Timer, failed: Failed, jitter: float) -> WholeFailure:
        """What a failure makes of the timer; the host's breaker and pause learn what it says of the host.

        Every attempt counts. What was refused before anything was sent, for good, says nothing about the host.
        """
        host = self.hosts.of(name)
        was = course_of(host.breaker, host.pace)
        if host.breaker.open:
            if failed.suspect or failed.sent:
                host.pace.note(failed.error, now.boot_ms)
        else:
            host.pace.fail(
                failed, batch_no, self._newest, host.in_flight, self._share, self.policy, now.boot_ms, jitter,
                timer.id, timer.failure is not None,
            )  # fmt: skip
        if failed.suspect:
            host.breaker.suspect(batch_no, timer.id, self.policy, now.boot_ms, jitter)
        elif failed.sent:
            host.answers |= not failed.refused  # a refusal asks for no more than one at a time
            host.breaker.hear()
        else:
            host.breaker.drop_probe(batch_no)
        gap_ms = 1
        if failed.retry_after_ms is not None:
            gap_ms = max(1, failed.retry_after_ms)
            host.held_until = max(host.held_until, now.boot_ms + failed.retry_after_ms)
        self._turn(host, was, now.boot_ms, failed.error)
        if not host.troubled_since and (host.pace.slowed or not host.untroubled):
            host.troubled_since = now.boot_ms
        self.hosts.offer(host)
        return WholeFailure(
            failed.error,
            gap_ms,
            self.type.batch_size if self.type else 1,
            counted=True,
            unknown=failed.unknown,
            bury=failed.gone or failed.no_retry,
            attempted=failed.sent or failed.suspect,
        )

    def waits(self, now: Now) -> bool:
        """Whether something could be taken now: it lacks somebody's work."""
        type = self.type
        if type is None or type.state != "active" or self.in_flight >= type.max_in_flight:
            return False
        if self._rate and not self._rate.available(now.boot_ms):
            return False
        unsorted = [] if self._sorting is not None else [limit for limit, lane in self.lanes.items() if lane.total()]
        if self.hosts.ring or any(limit != MISSED for limit in unsorted):
            return True
        rate = self._catch_up.rate
        may_catch_up = self._room(type) > 0 and (rate is None or rate.available(now.boot_ms))
        return bool(may_catch_up and (self.hosts.missed_ring or unsorted))

    def condition(self, boot_ms: int) -> HostsCondition:
        """How its hosts are. Linear in those that are known; those that nothing has to do with any more are well."""
        return self.hosts.condition(self._share, boot_ms)

    @property
    def weight(self) -> int:
        """As a flow's."""
        return self.type.max_in_flight if self.type else 1

    # ---- steps

    @property
    def _share(self) -> int:
        return share_of(self.type.max_in_flight) if self.type else 1

    def _turn(self, host: Host, was: Course, boot_ms: int, reason: str) -> None:
        """The host has been heard of: as in a flow."""
        if was.open and not host.breaker.open:
            host.pace.restart(self._newest, self._share, reason, boot_ms)
        self.turned += turns(was, course_of(host.breaker, host.pace), self.name, host.name, reason)

    def _choose_unsorted(self, type: TimerType) -> Choice | None:
        if self._sorting is not None:
            return None
        first = self.lanes.get(0)
        first = first if first and first.total() else None
        retries = min(
            (lane for limit, lane in self.lanes.items() if limit > 0 and lane.total()), key=Lane.last_try, default=None
        )
        lane = (retries if self._retries_next else first) or first or retries
        if lane is None:
            return None
        count = min(lane.total(), type.batch_size)
        return Choice(lane.limit, type.batch_size, lane.split(count))

    def _choose_parked(self, type: TimerType, now: Now, free: int, missed: bool) -> Choice | None:
        found = self.hosts.next(share_of(type.max_in_flight), free, now.boot_ms, missed)
        if found is None:
            return None
        name, lane, count = found
        key = key_of_missed(name) if missed else name
        return Choice(MISSED if missed else 0, count, lane.split(count), key)

    def _choose_missed(self, type: TimerType, now: Now, free: int) -> Choice | None:
        """Of what catches up: first what is parked, since the rate is for what leaves, and that waits the longest."""
        free = min(free, self._room(type))
        if free <= 0:
            return None
        allowed = type.batch_size
        if (rate := self._catch_up.rate) is not None:
            allowed = min(allowed, rate.available(now.boot_ms))
            if allowed <= 0:
                self._wake_by(rate.free_at(1, now.boot_ms))
                return None
        choice = self._choose_parked(type, now, min(free, allowed), missed=True)
        if choice is not None or self._sorting is not None:
            return choice
        lane = self.lanes.get(MISSED)
        count = min(lane.total(), allowed) if lane else 0
        return Choice(MISSED, type.batch_size, lane.split(count)) if lane and count else None

    def _room(self, type: TimerType) -> int:
        """How many more of what catches up may be under way."""
        return self._catch_up.room(self._missed_in_flight, type.max_in_flight)

    def _wake_by(self, boot_ms: int) -> None:
        at = self.wake[1]
        self.wake = (None, boot_ms if at is None else min(at, boot_ms))

    def _rates(self, missed: bool) -> list[Rate]:
        """Those that hold for a callback, missed or not."""
        rates = (self._rate, self._catch_up.rate if missed else None)
        return [rate for rate in rates if rate is not None]

    def _reserve(self, host: Host, count: int, batch_no: int, missed: bool) -> None:
        self.in_flight += count
        self._missed_in_flight += count if missed else 0
        host.in_flight += count
        self.hosts.note_work(host)
        for rate in self._rates(missed):
            rate.spend(count)
        if host.breaker.open:
            host.breaker.send_probe(batch_no)

    def _tidy(self, lane: Lane, shard: int) -> None:
        lane.tidy(shard)
        if not lane.reported and not lane.asked:
            del self.lanes[lane.limit]

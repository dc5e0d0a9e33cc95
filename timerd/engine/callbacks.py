"""Callback batches that are open: taken together, sent one by one, settled as they end.

    Take to each shard -> Taken from each -> Sort -> `sort` says which leave; the others are parked by a SettleSome
    -> outcomes, several at a time as they come -> a SettleSome to each shard concerned -> Settled

A member's slot is free when its outcome is durable. The bookkeeping is here, every judgement is the gate's. Pure, like
the dispatcher, whose hand it is: what it wants done is added to the dispatcher's commands.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from timerd.engine.answer import Accepted, Outcome
from timerd.engine.backoff import draw_jitter
from timerd.engine.batch import Batch
from timerd.engine.catchup import MISSED, host_of, key_of_missed
from timerd.engine.choice import Choice
from timerd.engine.command import Command, SendSettle, SendTake, Sort
from timerd.engine.effect import Settled, Taken
from timerd.engine.gate import Gate
from timerd.engine.late import Late
from timerd.engine.message import SettleSome, Take, WholeFailure
from timerd.engine.now import Now
from timerd.engine.timer import Timer

NOWHERE: Final = -1  # in place of a shard that is not here any more


class _Group:
    """A batch under way."""

    def __init__(self, gate: Gate, choice: Choice) -> None:
        self.gate = gate
        self.choice = choice
        self.missed = choice.limit == MISSED
        self.host = host_of(choice.key)
        """Not empty: the one that all of it goes to."""
        self.asked = dict(choice.takes)
        self.awaited = set(self.asked)
        """Shards whose Taken is still to come."""
        self.sorting = False
        """Its Sort is given, and not done."""
        self.timers: dict[str, Timer] = {}
        self.shard_of: dict[str, int] = {}
        self.flagged: frozenset[str] = frozenset()
        self.sent: dict[str, str] = {}
        """id -> host: under way."""
        self.parts: dict[int, tuple[int, Counter[str]]] = {}
        """Number of a SettleSome that is not durable yet -> its shard, and slots that it frees, by host."""
        self.last_part = 0


class _Part:
    """A SettleSome in the making, of one shard."""

    def __init__(self) -> None:
        self.fired: list[str] = []
        self.failed: list[tuple[str, WholeFailure]] = []
        self.parked: dict[str, list[str]] = {}
        self.slots: Counter[str] = Counter()


class Callbacks:
    """See the module. `sent` is told each request that leaves, by type; `moved` each gate in which something moved."""

    def __init__(
        self, out: list[Command], late: Late, sent: Callable[[str, int], None], moved: Callable[[Gate], None]
    ) -> None:
        self._out = out
        self._late = late
        self._sent = sent
        self._moved = moved
        self._open: dict[int, _Group] = {}

    def __contains__(self, batch_no: int) -> bool:
        return batch_no in self._open

    def __bool__(self) -> bool:
        return bool(self._open)

    def is_posted(self, batch_no: int) -> bool:
        """Whether requests of it are under way."""
        return bool(self._open[batch_no].sent)

    def take(self, gate: Gate, choice: Choice, batch_no: int) -> None:
        """Begin a batch."""
        gate.begin(choice, batch_no)
        self._open[batch_no] = _Group(gate, choice)
        self._out += [
            SendTake(shard, Take(batch_no, gate.name, choice.limit, count, choice.key)) for shard, count in choice.takes
        ]

    def taken(self, taken: Taken) -> None:
        """A shard has handed out its part of a batch."""
        group, batch_no = self._open[taken.batch_no], taken.batch_no
        group.awaited.remove(taken.shard)
        group.gate.receive(group.choice, taken.shard, group.asked[taken.shard], len(taken.timers))
        for timer in taken.timers:
            group.timers[timer.id] = timer
            group.shard_of[timer.id] = taken.shard
        group.flagged |= taken.flagged
        if not taken.timers:
            self._settle(group, batch_no, {taken.shard: _Part()})
        self._look(group, batch_no)
        self._moved(group.gate)

    def _look(self, group: _Group, batch_no: int) -> None:
        """All parts may have come: then it is sorted, if there is anything."""
        if group.awaited:
            return
        if group.timers:
            name, choice = group.gate.name, group.choice
            timers = list(group.timers.values())
            group.sorting = True
            self._out.append(Sort(Batch(batch_no, name, timers, group.flagged, 0, choice.whole)))
        else:
            group.gate.end_sorting(batch_no)
            if group.host:
                group.gate.drop(group.host, batch_no)

    def sort(
        self, now: Now, batch_no: int, wants: Sequence[tuple[Timer, str | WholeFailure]], halted: bool
    ) -> list[Timer]:
        """Say where each member of a batch goes, or why it can't go anywhere. Answer: those to be sent at once.

        A batch that was taken for one host has its slots already, and leaves whole, unless the service has `halted`.
        """
        group = self._open[batch_no]
        gate, whole = group.gate, group.host
        group.sorting = False
        wants = [(timer, want) for timer, want in wants if timer.id in group.timers]  # the shards of others have gone
        going = [(timer, want) for timer, want in wants if isinstance(want, str)]
        hosts = [host for _, host in going]
        leaves = [True] * len(going) if whole else gate.sort(now, batch_no, hosts, halted)
        parts: dict[int, _Part] = {}
        sent: list[Timer] = []
        for (timer, host), leave in zip(going, leaves, strict=True):
            if leave:
                group.sent[timer.id] = host
                sent.append(timer)
            else:
                part = parts.setdefault(group.shard_of[timer.id], _Part())
                part.parked.setdefault(key_of_missed(host) if group.missed else host, []).append(timer.id)
        for timer, want in wants:
            if isinstance(want, WholeFailure):
                part = parts.setdefault(group.shard_of[timer.id], _Part())
                part.failed.append((timer.id, want))
                if whole:
                    part.slots[whole] += 1
        if whole and not sent:
            gate.drop(whole, batch_no)
        self._settle(group, batch_no, parts)
        gate.end_sorting(batch_no)
        self._end_if_done(group, batch_no)
        self._sent(gate.name, len(sent))
        self._moved(gate)
        return sent

    def ended(self, now: Now, batch_no: int, outcomes: Sequence[tuple[str, Outcome]], random: float) -> None:
        """Requests of a batch have ended, each with its outcome."""
        group = self._open[batch_no]
        gate = group.gate
        jitter = draw_jitter(gate.policy, random)
        parts: dict[int, _Part] = {}
        for id, outcome in outcomes:
            host = group.sent.pop(id)
            part = parts.setdefault(group.shard_of[id], _Part())
            part.slots[host] += 1
            if isinstance(outcome, Accepted):
                gate.accept(host, now.boot_ms)
                part.fired.append(id)
            else:
                part.failed.append((id, gate.judge(now, batch_no, host, group.timers[id], outcome, jitter)))
        self._settle(group, batch_no, parts, jitter)
        self._end_if_done(group, batch_no)
        self._moved(gate)

    def settled(self, settled: Settled) -> None:
        """Some of a batch is settled and durable."""
        group, batch_no = self._open[settled.batch_no], settled.batch_no
        self._free(group, group.parts.pop(settled.part)[1])
        self._end_if_done(group, batch_no)
        self._moved(group.gate)

    def shard_of(self, batch_no: int, id: str) -> int | None:
        """Who has handed out one that is to be sent; None: a shard that is not here any more."""
        shard = self._open[batch_no].shard_of.get(id, NOWHERE)
        return None if shard == NOWHERE else shard

    def withdraw(self, batch_no: int, id: str) -> None:
        """One that was to be sent is not sent after all: it goes back to where others wait for its host.

        Nothing waits for that to be durable: its shard may stand still."""
        group = self._open[batch_no]
        host = group.sent.pop(id)
        group.gate.drop(host, batch_no)
        part = _Part()
        part.slots[host] += 1
        part.parked[key_of_missed(host) if group.missed else host] = [id]
        self._settle(group, batch_no, {group.shard_of[id]: part}, late=True)
        self._end_if_done(group, batch_no)
        self._moved(group.gate)

    def go_on_without(self, shard: int, *, gone: bool) -> None:
        """Let every batch go on without what this shard has still to say; if it is gone, without its timers, too."""
        for batch_no, group in list(self._open.items()):
            gate = group.gate
            if gone:
                for id in [id for id, of in group.shard_of.items() if of == shard]:
                    if id in group.sent:  # it is on its way, and what its host answers is still of use
                        group.shard_of[id] = NOWHERE
                        continue
                    del group.timers[id], group.shard_of[id]
                    if group.host:
                        self._free(group, Counter({group.host: 1}))
            for number, (of, slots) in list(group.parts.items()):
                if of == shard:
                    del group.parts[number]
                    self._free(group, slots)
                    if not gone:
                        self._late.owes_settle(batch_no, shard, number)
            if shard in group.awaited:
                group.awaited.remove(shard)
                gate.receive(group.choice, shard, group.asked[shard], 0)
                if not gone:
                    self._late.owes_take(batch_no, shard, group.choice.whole, callbacks=True)
                self._look(group, batch_no)
            elif not (group.awaited or group.timers):
                gate.end_sorting(batch_no)
            self._end_if_done(group, batch_no)
            self._moved(gate)

    def holds(self, shard: int) -> bool:
        """Whether something of this shard is under way."""
        return any(
            shard in group.awaited
            or shard in group.shard_of.values()
            or any(of == shard for of, _ in group.parts.values())
            for group in self._open.values()
        )

    def _free(self, group: _Group, slots: Counter[str]) -> None:
        for host, count in slots.items():
            group.gate.release(host, count, group.missed)

    def _end_if_done(self, group: _Group, batch_no: int) -> None:
        if not (group.awaited or group.sorting or group.timers or group.parts):
            del self._open[batch_no]
            group.gate.open.remove(batch_no)

    def _settle(
        self, group: _Group, batch_no: int, parts: dict[int, _Part], jitter: float = 1.0, *, late: bool = False
    ) -> None:
        for shard, part in parts.items():
            for ids in (part.fired, [id for id, _ in part.failed], *part.parked.values()):
                for id in ids:
                    del group.timers[id], group.shard_of[id]
            if shard == NOWHERE:
                self._free(group, part.slots)
                continue
            group.last_part += 1
            message = SettleSome(batch_no, group.last_part, jitter, part.fired, part.failed, part.parked)
            self._out.append(SendSettle(shard, message))
            if late or shard in self._late.given_up:
                self._late.owes_settle(batch_no, shard, group.last_part)
                self._free(group, part.slots)
            else:
                group.parts[group.last_part] = shard, part.slots

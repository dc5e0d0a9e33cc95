"""The loop that turns are made of: gather, decide, persist, act.

One runner drives all shards that share a log. While a frame is being written, messages arrive; when it is durable, its
effects leave, and everything that arrived meanwhile is the next turn. So there is one write and one sync for whatever
was asked during the last one, and nobody waits for a batcher.

Between two turns memory says nothing that the log does not. Deliveries begin there: nothing is logged for what is
handed out, so it need not wait for a turn, and what has come due is looked for before a turn's messages are decided.

Nothing leaves a shard before the records it rests on are durable. An answer that rests on none (a read, an arm that
changes nothing, a cancel of what is not there) rests on the shard being ours, which the log confirms. A failed append
ends the run (`LogFailed`): the state in memory is then ahead of the log and must not be seen. Whoever still waits for a
shard that has ended is told that it is gone, and hears nothing else.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from timerd.engine.effect import Effect, Reply, Send, Turn
from timerd.engine.message import GONE, Message, ShardTally, Take
from timerd.engine.move_message import size_of
from timerd.engine.now import Now
from timerd.engine.shard import Shard
from timerd.inbox import TURN_BYTES_MAX, Inbox
from timerd.ports import Clock, Frame, Log
from timerd.wheel import Wheel

# A wall clock that was stepped, or went on while the machine was suspended, is noticed within this, so that what is due
# right after it is still in time (promise 3 has 250 ms). The cost is a look at the wheel, once for all runners.
SLEEP_MS_MAX: Final = 200
WAITING_MAX: Final = 20_000  # operations of one shard that wait for another, which gives up a slot to it


class Runner:
    """Turns of the shards of one log."""

    def __init__(self, shards: Iterable[Shard], log: Log, clock: Clock) -> None:
        self.looked_after = False
        """Somebody calls `look` every `SLEEP_MS_MAX`; else it looks itself."""
        self.shards = {shard.id: shard for shard in shards}
        self.turns = 0
        self.appended_bytes = 0
        self.turn_bytes = TURN_BYTES_MAX
        """What a shard's turn gathers at most."""
        self.on_effects: Callable[[Now, list[Effect]], int | None] = lambda now, effects: None
        """Told the effects of a turn that are no replies, also when there are none. Answers with the ms until it wants
        to be called again, or None."""
        self.on_durable: Callable[[int], None] = lambda appended: None
        """Told after each turn, with the bytes it appended, when state and log say the same."""
        self.on_fenced: Callable[[int], bool] = lambda shard: True
        """Told of a shard that another writer has taken: it takes no more turns, and its last one let nothing out.
        Answers whether those who wait for it are to be told; not, if the process is about to end."""
        self.appending_since: int | None = None
        """Boot ms at which the append began that is under way."""
        self.on_quiet: Callable[[int | None], None] = lambda wakes_in_ms: None
        """Told when nothing is left to do now, with the ms until time alone brings something, or None."""
        self._log = log
        self._clock = clock
        self._wheel = Wheel()
        self._inboxes = {shard: Inbox(len(self.shards)) for shard in self.shards}
        self._rung: set[int] = set()
        self._bell = asyncio.Event()
        self._next_call_ms: int | None = None
        self._between = False  # between two turns, with what was decided on disk
        self._deciding: list[Turn] = []  # what is being stored

    def add(self, shard: Shard) -> None:
        """Take turns of one more."""
        self.shards[shard.id] = shard
        self._inboxes[shard.id] = Inbox(len(self.shards))
        for inbox in self._inboxes.values():
            inbox.share(len(self.shards))
        self._wheel.put(shard.id, (0, None))
        self._bell.set()

    def share(self, shards: int) -> None:
        """So many shards share what all inboxes may take."""
        for inbox in self._inboxes.values():
            inbox.share(shards)

    def end(self) -> None:
        """It runs no more: tell whoever waits that its shards are gone."""
        for turn in self._deciding:
            _tell_gone(turn)
        self._deciding = []
        for inbox in self._inboxes.values():
            _empty(inbox)

    def has_room(self, shards: Iterable[int]) -> bool:
        """Whether messages for these shards may come in, all together."""
        now_ms = self._clock.now().boot_ms
        return all(
            self._inboxes[shard].has_room(now_ms) and self.shards[shard].waiting < WAITING_MAX for shard in shards
        )

    def is_full(self) -> bool:
        """Whether no shard has room for more. One that has much to do is no reason to refuse what is for others."""
        now_ms = self._clock.now().boot_ms
        return not any(inbox.has_room(now_ms) for inbox in self._inboxes.values())

    def send(self, shard: int, message: Message, size: int = 64, timers: int = 1) -> None:
        """Put a message into a shard's inbox. `size`: about the bytes it will take in the log."""
        self._inboxes[shard].put(message, size, timers, self._clock.now().boot_ms)
        self._rung.add(shard)
        self._bell.set()

    def send_ahead(self, shard: int, message: Message, size: int = 64) -> None:
        """The same for a step of a delivery: it waits behind none but its like."""
        self._inboxes[shard].put_ahead(message, size)
        self._rung.add(shard)
        self._bell.set()

    def hand_out(self, shard: int, take: Take) -> list[Effect]:
        """Let a shard hand out timers: between two turns at once, and this says what came of it; else in the next."""
        if not self._between or shard not in self.shards or not self.shards[shard].clean:
            self.send_ahead(shard, take)
            return []
        self._rung.add(shard)  # it has to tick
        return self.shards[shard].hand_out(self._clock.now(), take)

    def ring(self) -> None:
        """Let `on_effects` be called soon."""
        self._bell.set()

    def look(self, now: Now) -> None:
        """Wake up if there is something to do: a clock may have been stepped, or the log have news."""
        if self._wheel.delay_ms(now) == 0 or self._log.unsettled() or self._log.fenced:
            self._bell.set()

    async def run(self) -> None:
        """Take turns until cancelled. Raises LogFailed."""
        for shard in self.shards.values():
            self._wheel.put(shard.id, (0, None))
        while True:
            await self._wait()
            if self._let_time_pass(self._clock.now()):
                await asyncio.sleep(0)  # what leaves begins now
            turns = self._decide(self._clock.now())
            frames = [Frame(turn.shard, turn.lsn, turn.records) for turn in turns if turn.records]
            # Without frames there may still be bodies and grants of arms that changed nothing: they must not pile up.
            appended = 0
            if frames or self._log.unsettled():
                self._deciding = turns
                self.appending_since = self._clock.now().boot_ms
                appended = await self._log.append(frames, sum(inbox.bytes for inbox in self._inboxes.values()))
                self.appending_since = None
                self._deciding = []
            if not frames and not self._log.is_confirmed() and any(map(_rests_on_the_lease, turns)):
                self._deciding = turns
                self.appending_since = self._clock.now().boot_ms
                await self._log.confirm()
                self.appending_since = None
                self._deciding = []
            self._act(self._still_ours(turns), appended)

    def _let_time_pass(self, now: Now) -> bool:
        """Let what has come due begin to leave, before messages are decided that it would wait for. Whether there was
        something."""
        due = self._wheel.due(now)
        if not due or self._log.unsettled():
            return False
        effects: list[Effect] = []
        for id in due:
            shard = self.shards[id]
            shard.tick(now)
            self._wheel.put(id, shard.wake_at())
            if shard.clean:
                effects += self._carry(shard.take().effects)
            else:
                self._rung.add(id)
        if effects:
            self._tell(effects)
        return bool(effects)

    def _tell(self, effects: list[Effect]) -> None:
        self._between = True
        self._next_call_ms = self.on_effects(self._clock.now(), effects)
        self._between = False

    def _decide(self, now: Now) -> list[Turn]:
        """Step what was gathered, in the shards that have something to do."""
        rung = sorted(self._rung.union(self._wheel.due(now)) & self.shards.keys())
        self._rung.clear()
        turns = []
        for id in rung:
            shard = self.shards[id]
            inbox = self._inboxes[id]
            for message in inbox.gather(self.turn_bytes):
                shard.step(now, message)
            if inbox:
                self._rung.add(id)
            shard.tick(now)
            turns.append(shard.take())
            self._wheel.put(id, shard.wake_at())
        return turns

    def _still_ours(self, turns: list[Turn]) -> list[Turn]:
        """The turns that are stored. A shard that another writer has taken leaves: its state is ahead of the log."""
        fenced = self._log.fenced
        if not fenced:
            return turns
        for shard in fenced:
            if self.shards.pop(shard, None) is not None:
                self._wheel.put(shard, (None, None))
                if not self.on_fenced(shard):
                    continue
                for turn in turns:
                    if turn.shard == shard:
                        _tell_gone(turn)
                _empty(self._inboxes[shard])
        return [turn for turn in turns if turn.shard not in fenced]

    def _act(self, turns: list[Turn], appended: int) -> None:
        """Everything is durable: let the effects out, in order."""
        self.turns += 1
        self.appended_bytes += appended
        others: list[Effect] = []
        for turn in turns:
            others += self._carry(turn.effects)
        self.on_durable(appended)
        self._tell(others)

    def _carry(self, effects: list[Effect]) -> list[Effect]:
        """Let answers go to who asked, and messages of moves to their shards; the rest is for the dispatcher."""
        others: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Reply):
                effect.token(effect.value)
            elif isinstance(effect, Send):
                if effect.to in self.shards:  # else it is sent again
                    self.send_ahead(effect.to, effect.message, size_of(effect.message))
            else:
                others.append(effect)
        return others

    async def _wait(self) -> None:
        """Until there is a message, or a wake-up has come."""
        if self._rung:
            await asyncio.sleep(0)  # let the loop serve others between two turns
        else:
            wakes_in_ms = self._wakes_in_ms()
            delay = wakes_in_ms
            if not self.looked_after:
                delay = SLEEP_MS_MAX if wakes_in_ms is None else min(SLEEP_MS_MAX, wakes_in_ms)
            if delay is None:
                await self._bell.wait()
            elif delay > 0:
                if not self._bell.is_set():
                    self.on_quiet(wakes_in_ms)
                loop = asyncio.get_running_loop()
                alarm = loop.call_later(delay / 1000, self._bell.set)
                await self._bell.wait()
                alarm.cancel()
            else:
                await asyncio.sleep(0)
        self._bell.clear()

    def _wakes_in_ms(self) -> int | None:
        delays = [] if self._next_call_ms is None else [max(1, self._next_call_ms)]
        if (wheel := self._wheel.delay_ms(self._clock.now())) is not None:
            delays.append(wheel)
        return min(delays, default=None)


def gone(message: Message) -> None:
    """Answer a message to a shard that is not here. Takes and settlements have no token: their sender knows."""
    token = getattr(message, "token", None)
    if token is not None:
        token(GONE)


def _rests_on_the_lease(turn: Turn) -> bool:
    """Whether it answers somebody and stores nothing. Only an owner may do that: what it knows may be old news, else.
    Counts are told by anybody, also while nothing can be stored."""
    return any(isinstance(effect, Reply) and not isinstance(effect.value, ShardTally) for effect in turn.effects)


def _tell_gone(turn: Turn) -> None:
    for effect in turn.effects:
        if isinstance(effect, Reply):
            effect.token(GONE)


def _empty(inbox: Inbox) -> None:
    while messages := inbox.gather():
        for message in messages:
            gone(message)

"""Handing over: the words between who has a shard and who is to have it, so that it is away for a moment only.

The taker replays while the shard is still served, and says that it is `warm` when it has come to the end; whoever has
the shard says that it is still `here`, and lets go when it hears the other, or has waited long enough; then it says
that the shard is `gone`, and the taker looks at the end of the log at once. Meanwhile all ask who has it.

None of it is a right: each word may be lost, late or forged, and costs time then. What decides is in the log.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from timerd.engine.plan import Plan, Seat
from timerd.ports import Ensemble, FollowedLog, Member, Word

WARM_MS: Final = 15_000  # so long a taker is waited for at most; a replay of 100,000 timers takes a few seconds
AGAIN_MS: Final = 500  # a word may be lost
VALID_MS: Final = 1_600  # of three that are said one behind the other one is heard
KNOWN_MAX: Final = 1_024


class Handing:
    """Of one node."""

    def __init__(self, ensemble: Ensemble, shards: int, now_ms: Callable[[], int]) -> None:
        self._ensemble = ensemble
        self._shards = shards
        self._now_ms = now_ms
        self._warm: dict[int, tuple[Seat, int]] = {}  # shard -> who could take it, and until when that is true
        self._here: dict[int, tuple[Seat, int]] = {}  # the same: who has it still
        self._awaited: dict[int, asyncio.Event] = {}
        self._followed: dict[int, FollowedLog] = {}
        self._known: dict[Seat, Member] = {}  # who leaves is no member any more, and still has shards for a moment
        self._plan: Plan | None = None
        self.look()
        ensemble.on_said = self._said

    def look(self) -> None:
        """See who is there, and what the plan is. Who had a shard by the plan before has it for a moment still."""
        there = {member.seat: member for member in self._ensemble.members()}
        self._known |= there  # also when they have left
        while len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
        before, self._plan = self._plan, self._ensemble.plan()
        if before is None or self._plan is None or before.version == self._plan.version:
            return
        for shard, (old, new) in enumerate(zip(before.owners, self._plan.owners, strict=False)):
            if old != new and old in there and old != self._ensemble.me.seat:
                self._here[shard] = old, self._now_ms() + VALID_MS

    def holder(self, shard: int) -> Member | None:
        """Who has a shard, by what it says or had by the plan a moment ago, though the plan gives it to another."""
        seat, until_ms = self._here.get(shard, (None, 0))
        return self._known.get(seat) if seat is not None and self._now_ms() < until_ms else None

    def not_there(self, shard: int, member: Member) -> None:
        """A member has answered, or will not, as somebody who does not have it."""
        if self._here.get(shard, (None, 0))[0] == member.seat:
            del self._here[shard]

    # ---- who is to have it

    def follow(self, shard: int, log: FollowedLog, on_end: Callable[[], None]) -> None:
        """A log is about to be replayed: say so when that has come to the end, and tell it when to look again."""

        async def at_end() -> None:
            on_end()
            await self._ensemble.say("warm", shard)

        log.at_end = at_end
        self._followed[shard] = log

    def look_soon(self, shard: int) -> None:
        """There is news of a shard that is followed."""
        if shard in self._followed:
            self._followed[shard].look_soon()

    def followed(self, shard: int) -> None:
        """That is over."""
        self._followed.pop(shard, None)

    # ---- who has it

    async def until_warm(self, shard: int, is_held: Callable[[], bool], most_ms: int) -> None:
        """Return when the one that the plan names could take it at once, or nobody is to, or after so long."""
        ends_ms = self._now_ms() + most_ms
        event = self._awaited[shard] = asyncio.Event()
        try:
            while is_held() and (left_ms := ends_ms - self._now_ms()) > 0 and self._is_waited_for(shard):
                event.clear()
                await self._ensemble.say("here", shard)
                try:
                    async with asyncio.timeout(min(AGAIN_MS, left_ms) / 1000):
                        await event.wait()
                except TimeoutError:
                    pass
        finally:
            del self._awaited[shard]

    async def gone(self, shard: int) -> None:
        """It has been let go of."""
        await self._ensemble.say("gone", shard)

    def _is_waited_for(self, shard: int) -> bool:
        """Whether somebody is to have it who is not warm yet."""
        plan = self._ensemble.plan()
        seat = None if plan is None else plan.owner_of(shard)
        if seat is None or seat == self._ensemble.me.seat:
            return False
        if all(member.seat != seat for member in self._ensemble.members()):
            return False
        warm, until_ms = self._warm.get(shard, (None, 0))
        return warm != seat or until_ms <= self._now_ms()

    # ----

    def _said(self, word: Word, shard: int, seat: Seat) -> None:
        if not 0 <= shard < self._shards:
            return  # nobody's: not to be remembered
        until_ms = self._now_ms() + VALID_MS
        if word == "warm":
            self._warm[shard] = seat, until_ms
            if shard in self._awaited:
                self._awaited[shard].set()
        elif word == "here":
            self._here[shard] = seat, until_ms
        else:
            self._here.pop(shard, None)
            self.look_soon(shard)

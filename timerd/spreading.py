"""Spreading: a request's parts go to the owners of its shards, all at once, and once more where that is sound.

A part goes to the member that the plan gives its shard to, or stays here while the shard is here. A second time go the
parts of which nothing was done, by the plan as it is then, and no others. Nothing is asked a third time, and nothing
takes longer than `PATIENCE_MS`: then the caller hears that an owner is away.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from timerd.asking import ATTEMPT_MS, Asker, Unanswered
from timerd.engine.message import Refused
from timerd.ports import Clock, Member
from timerd.questions import Absent, Answer, Question, Refusal

PATIENCE_MS: Final = 10_000  # a whole request
LONG_MS: Final = 9_500  # a question that is asked once: it may be much work
MOMENT_MS: Final = 300  # until a part is asked for again of the same owner: a shard that is handed over is soon taken
RETRY_AFTER_S: Final = 1


class Fellows(Protocol):
    """What is known of the cluster, here and now."""

    def members(self) -> list[Member]:
        """Who is there, this node included."""
        ...

    def owner_of(self, shard: int) -> Member | None:
        """Who serves a shard, by what is known here; None: nobody who is there."""
        ...

    def not_there(self, shard: int, member: Member) -> None:
        """That one has been asked for it, and does not have it."""
        ...

    def seen_at(self, name: str) -> int | None:
        """Unix ms at which a member was last heard of."""
        ...


class Heard(NamedTuple):
    """One member's answer about some shards."""

    member: Member
    shards: list[int]
    answer: Any


class Left(NamedTuple):
    """What became of the parts of a write that were not carried out."""

    refusals: list[Refused]
    unsure: bool
    """Of some it is not known whether they were."""
    why: str


class Spread:
    """Of one node."""

    def __init__(self, asker: Asker, fellows: Fellows, shards: Callable[[], Sequence[int]], clock: Clock) -> None:
        """`shards`: the shard of each slot."""
        self._asker = asker
        self._fellows = fellows
        self._shards = shards
        self._clock = clock

    @property
    def forwarded(self) -> Sequence[int]:
        """See `Asker.forwarded`."""
        return self._asker.forwarded

    def owner(self, shard: int) -> Member | None:
        """Who is to be asked; this node while it serves the shard, whatever the plan says."""
        return self._asker.me if self._asker.is_here(shard) else self._fellows.owner_of(shard)

    # ---- writes of many

    async def write(
        self,
        slots: Sequence[int],
        expires_at: int | None,
        question: Callable[[list[int]], Question],
        take: Callable[[list[int], Any], list[int]],
    ) -> Left:
        """Ask for items, by number. `take` is told the numbers of a part and the answer; it says which of them were not
        done, and are to be asked for again. What may have been done is not: it would fire twice if it had fired in
        between, and only the caller knows whether that matters."""
        began_ms = self._clock.now().boot_ms
        todo: list[int] = list(range(len(slots)))
        refusals: list[Refused] = []
        unsure, why = False, ""
        for attempt in range(2):
            left_ms = PATIENCE_MS - (self._clock.now().boot_ms - began_ms)
            wait_ms = min(ATTEMPT_MS, left_ms)
            begin_ms = wait_ms if expires_at is None else min(wait_ms, expires_at - self._clock.now().wall_ms + 1)
            groups, again = self._grouped(todo, slots)
            if again:
                why = "nobody serves some of the shards just now"
            answers = await asyncio.gather(
                *(
                    self._asker.ask(member, question(numbers), wait_ms, write=True, begin_ms=begin_ms)
                    for member, numbers in groups.items()
                )
            )
            for (member, numbers), answer in zip(groups.items(), answers, strict=True):
                if isinstance(answer, Unanswered):
                    why = f"node {member.name}: {answer.reason}"
                    unsure = unsure or not answer.undone
                    if answer.undone:
                        again += numbers
                        self._not_there(member, numbers, slots)
                elif isinstance(answer, Refusal):
                    if answer.refused.name == "expired" and not self._is_late(expires_at):
                        again += numbers  # our own limit, not the caller's
                    else:
                        refusals.append(answer.refused)
                elif left := take(numbers, answer):
                    why = f"node {member.name} does not serve some of the shards just now"
                    again += left
                    self._not_there(member, left, slots)
            if not again or attempt or self._is_late(expires_at):
                break
            todo = sorted(again)
            await asyncio.sleep(MOMENT_MS / 1000)
        return Left(refusals, unsure, why)

    def _grouped(self, numbers: Sequence[int], slots: Sequence[int]) -> tuple[dict[Member, list[int]], list[int]]:
        """The numbers by who is to be asked, in order, and those for whom there is nobody."""
        shards = self._shards()
        by_shard: dict[int, list[int]] = {}
        for number in numbers:
            shard = shards[slots[number]]
            found = by_shard.get(shard)
            if found is None:
                by_shard[shard] = [number]
            else:
                found.append(number)
        groups: dict[Member, list[int]] = {}
        nobody: list[int] = []
        for shard, found in by_shard.items():
            owner = self.owner(shard)
            if owner is None:
                nobody += found
            else:
                groups.setdefault(owner, []).extend(found)
        for found in groups.values():
            found.sort()  # an id's items stand in the order of the request
        return groups, nobody

    def _not_there(self, member: Member, numbers: Sequence[int], slots: Sequence[int]) -> None:
        shards = self._shards()
        for shard in {shards[slots[number]] for number in numbers}:
            self._fellows.not_there(shard, member)

    # ---- questions about one shard

    async def one(
        self, shard: int, question: Question, *, write: bool = False, expires_at: int | None = None
    ) -> Answer | Refused:
        """The answer of a shard's owner. A write whose answer is lost is not asked for again."""
        why = "nobody serves the shard just now"
        for attempt in range(2):
            begin_ms = ATTEMPT_MS if expires_at is None else expires_at - self._clock.now().wall_ms + 1
            if (owner := self.owner(shard)) is not None:
                answer = await self._asker.ask(owner, question, ATTEMPT_MS, write=write, begin_ms=begin_ms)
                if isinstance(answer, Unanswered):
                    why = f"node {owner.name}: {answer.reason}"
                    if write and not answer.undone:
                        break
                    self._fellows.not_there(shard, owner)
                elif isinstance(answer, Absent):
                    why = f"node {owner.name} does not serve the shard just now"
                    self._fellows.not_there(shard, owner)
                elif not isinstance(answer, Refusal):
                    return answer
                elif answer.refused.name != "expired" or self._is_late(expires_at):
                    return answer.refused
            if attempt or self._is_late(expires_at):
                break
            await asyncio.sleep(MOMENT_MS / 1000)
        return unavailable(why)

    # ---- questions about many shards

    async def read(
        self,
        shards: Collection[int],
        question: Callable[[list[int]], Question],
        *,
        wait_ms: int = ATTEMPT_MS,
        write: bool = False,
        expires_at: int | None = None,
    ) -> list[Heard] | Refused:
        """What their owners answer about these shards, each shard by one; unless some can't be had, or one refuses.

        Of a write that part is not asked for again of which the answer was lost.
        """
        ends_ms = self._clock.now().boot_ms + PATIENCE_MS
        heard: list[Heard] = []
        todo = list(shards)
        why = ""
        for attempt in range(2):
            wait_ms = min(wait_ms, ends_ms - self._clock.now().boot_ms)
            begin_ms = wait_ms if expires_at is None else expires_at - self._clock.now().wall_ms + 1
            groups: dict[Member, list[int]] = {}
            again: list[int] = []
            gone: list[tuple[int, Member]] = []
            lost = False
            for shard in todo:
                if (owner := self.owner(shard)) is None:
                    why = f"nobody serves shard {shard} just now"
                    again.append(shard)
                else:
                    groups.setdefault(owner, []).append(shard)
            asked = [
                self._asker.ask(member, question(mine), wait_ms, write=write, begin_ms=begin_ms)
                for member, mine in groups.items()
            ]
            for (member, mine), answer in zip(groups.items(), await asyncio.gather(*asked), strict=True):
                if isinstance(answer, Unanswered):
                    why = f"node {member.name}: {answer.reason}"
                    again += mine
                    gone += [(shard, member) for shard in mine]
                    lost = lost or not answer.undone
                elif isinstance(answer, Absent):
                    why = f"node {member.name} does not serve shard {answer.shards[0]} just now"
                    again += mine
                    gone += [(shard, member) for shard in answer.shards]
                elif not isinstance(answer, Refusal):
                    heard.append(Heard(member, mine, answer))
                elif answer.refused.name == "expired" and not self._is_late(expires_at):
                    again += mine  # our own limit, not the caller's
                else:
                    return answer.refused
            for shard, member in gone:
                self._fellows.not_there(shard, member)
            if not again:
                return heard
            if attempt or (write and lost) or self._is_late(expires_at):
                break
            todo = again
            await asyncio.sleep(MOMENT_MS / 1000)
        return unavailable(why)

    async def everyone(
        self, question: Question, *, but_me: bool = False, wait_ms: int = ATTEMPT_MS
    ) -> Mapping[Member, Answer | Unanswered]:
        """What each member answers."""
        members = [m for m in self._fellows.members() if not (but_me and m == self._asker.me)]
        answers = await asyncio.gather(*(self._asker.ask(member, question, wait_ms) for member in members))
        return dict(zip(members, answers, strict=True))

    def _is_late(self, expires_at: int | None) -> bool:
        return expires_at is not None and self._clock.now().wall_us > expires_at * 1000


def unavailable(why: str) -> Refused:
    """An owner is away."""
    return Refused("shard-unavailable", why, retry_after_s=RETRY_AFTER_S)


class Away(Exception):
    """What can't be answered without somebody who is away."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.detail)
        self.refused = refused

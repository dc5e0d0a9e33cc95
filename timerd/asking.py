"""One question to one member, and what is known when no answer comes.

Every question says until when it may be begun, by the boot clock of who is asked, so that one that was held up on its
way can't undo what came after it. How another's boot clock stands is learned from its answers, as at least so much:
what it showed, plus the time since, less what clocks may drift. So a question of ours never lives longer over there
than we wait for it; at worst it is refused a moment early, and asked again.

When the answer to a write is lost, its time is waited for before anything else happens: after that it is done or it
never will be. So whoever is told that something was unavailable may send it again, or something newer, to any node.
"""

import asyncio
from typing import Final, NamedTuple

import msgspec
import structlog

from timerd.parts import Parts
from timerd.ports import Clock, Member, NoReply, Peers
from timerd.questions import (
    VERSION,
    Answer,
    ArmThese,
    CancelThese,
    Hello,
    Late,
    OtherVersion,
    Question,
    Unsure,
    encode_question,
    read_answer,
    read_told,
)

ATTEMPT_MS: Final = 4_000  # of one question; two of them, and a moment between, fit into what a request may take
MARGIN_MS: Final = 50  # beyond a question's time, before it counts as over
DRIFT: Final = 0.001  # of two boot clocks; quartz does a tenth of it
PEERS_KNOWN_MAX: Final = 256

log = structlog.get_logger()


class Unanswered(NamedTuple):
    """In place of an answer."""

    undone: bool
    """Nothing was done, and nothing will be. Else it was done, or never will be: a write's time is over by now."""
    reason: str


class Asker:
    """Asks members; `me` is this node itself, which answers without a wire."""

    def __init__(self, me: Member, parts: Parts, peers: Peers, clock: Clock) -> None:
        self.me = me
        self._parts = parts
        self.is_here = parts.is_here
        self._peers = peers
        self._clock = clock
        self.forwarded = [0, 0]
        """Questions to others that callers' requests came to, and the timers in them."""
        self._shown: dict[str, tuple[int, int]] = {}  # by life: its boot ms at the least, when ours showed that

    async def ask(
        self, member: Member, question: Question, wait_ms: int, *, write: bool = False, begin_ms: int | None = None
    ) -> Answer | Unanswered:
        """The answer, if it comes within `wait_ms`. What it asks for may begin within `begin_ms` (None: as long).

        Never raises for what a peer does.
        """
        begin_ms = wait_ms if begin_ms is None else min(begin_ms, wait_ms)
        if begin_ms <= 0:
            return Unanswered(True, "no time is left")
        if member == self.me:
            return await self._ask_here(question, wait_ms, begin_ms)
        asked_ms = self._clock.now().boot_ms
        if (shows := self._shows(member.life)) is None:
            answer = await self._exchange(member, Hello(), 0, wait_ms)
            if isinstance(answer, Unanswered):
                return answer._replace(undone=True)
            passed_ms = self._clock.now().boot_ms - asked_ms
            wait_ms, begin_ms = wait_ms - passed_ms, begin_ms - passed_ms
            shows = self._shows(member.life)
            if shows is None or begin_ms <= 0:
                return Unanswered(True, "it did not say in time what its clock shows")
        ends_ms = self._clock.now().boot_ms + begin_ms + MARGIN_MS
        self.forwarded[0] += 1
        self.forwarded[1] += len(question.slots) if isinstance(question, ArmThese | CancelThese) else 0
        answer = await self._exchange(member, question, shows + begin_ms, wait_ms)
        if write and isinstance(answer, Unanswered) and not answer.undone:
            await asyncio.sleep(max(0, ends_ms - self._clock.now().boot_ms) / 1000)
        return answer

    async def _ask_here(self, question: Question, wait_ms: int, begin_ms: int) -> Answer | Unanswered:
        """A message that has been sent to a shard stays in its line, before whatever is sent later; so what is not
        answered in time is not undone, and can't overtake anything."""
        try:
            async with asyncio.timeout(wait_ms / 1000):
                return _plain(await self._parts.answer(question, begin_ms))
        except TimeoutError:
            return Unanswered(
                False, self._parts.why_silent(question) or "this node's own shards did not answer in time"
            )

    async def _exchange(self, member: Member, question: Question, until_ms: int, wait_ms: int) -> Answer | Unanswered:
        reply = await self._peers.ask(member, encode_question(member.life, until_ms, question), wait_ms / 1000)
        if isinstance(reply, NoReply):
            return Unanswered(not reply.sent, reply.reason)
        try:
            told = read_told(reply)
            if told.version != VERSION:
                return self._speaks(member, told.version)
            answer = read_answer(told, question)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            log.warning("peer_answer_unread", peer=member.name, reason=str(error))
            return Unanswered(False, "its answer can't be read")
        self._hear(member.life, told.boot_ms)
        if isinstance(answer, OtherVersion):
            return self._speaks(member, told.version)
        return _plain(answer)

    def _speaks(self, member: Member, version: int) -> Unanswered:
        log.warning("peer_version", peer=member.name, theirs=version, ours=VERSION)
        return Unanswered(True, f"node {member.name} speaks version {version} between nodes, and this one {VERSION}")

    def _hear(self, life: str, boot_ms: int) -> None:
        known = self._shows(life)
        if known is None and len(self._shown) >= PEERS_KNOWN_MAX:
            self._shown.pop(next(iter(self._shown)))
        if known is None or boot_ms >= known:
            self._shown[life] = boot_ms, self._clock.now().boot_ms

    def _shows(self, life: str) -> int | None:
        """What its boot clock shows now, at the least."""
        if life not in self._shown:
            return None
        boot_ms, at_ms = self._shown[life]
        return boot_ms + int((self._clock.now().boot_ms - at_ms) * (1 - DRIFT))


def _plain(answer: Answer) -> Answer | Unanswered:
    if isinstance(answer, Late):
        return Unanswered(True, "it came too late, or to another process")
    if isinstance(answer, Unsure):
        return Unanswered(False, answer.why or "the shard went while it was asked")
    return answer

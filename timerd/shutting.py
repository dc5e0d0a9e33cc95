"""Shutting: which shards the dispatcher is to ask for nothing just now, and why; there may be several reasons at once.

A shard is opened again when the last reason is gone. It knows shards and reasons; what becomes of batches that have to
do with a shard is the dispatcher's (engine/absent.py).
"""

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from functools import partial

from timerd.engine.absent import Absent
from timerd.runners import Runners


class Why(Enum):
    """A reason."""

    SLOW = auto()
    """Its append takes long."""
    UNREAD = auto()
    """Its payloads that lie apart can't be read."""
    UNSURE = auto()
    """Nobody knows whether it is ours: its confirmation takes long."""
    LEAVING = auto()
    """It is about to be let go of."""


class Shutting:
    """Of one node. `fewer` is told when batches may have ended without a shard, `ring` asks for another turn."""

    def __init__(self, absent: Absent, fewer: Callable[[], None], ring: Callable[[], None]) -> None:
        self._absent = absent
        self._fewer = fewer
        self._ring = ring
        self._why: dict[int, set[Why]] = {}
        self._leaving: dict[int, asyncio.Event] = {}  # -> nothing of it is under way

    def hear(self, runners: Runners) -> None:
        """Be told of reasons."""
        runners.on_gone = self.forget
        runners.on_slow, runners.on_still = partial(self.shut, why=Why.SLOW), self.still
        runners.on_moving = partial(self.open, why=Why.SLOW)
        runners.bodies.on_still = partial(self.shut, why=Why.UNREAD)
        runners.bodies.on_read = partial(self.open, why=Why.UNREAD)
        runners.logs.confirming.on_unsure = partial(self.shut, why=Why.UNSURE)
        runners.logs.confirming.on_sure = partial(self.open, why=Why.UNSURE)

    def shut(self, shard: int, why: Why) -> None:
        """Ask it for nothing more, until it is opened for the same reason."""
        self._why.setdefault(shard, set()).add(why)
        self._absent.shut(shard)

    def still(self, shard: int) -> None:
        """Its append takes so long that it is waited for no more."""
        self._absent.give_up(shard)
        self._fewer()

    def open(self, shard: int, why: Why) -> None:
        """That reason is gone."""
        left = self._why.get(shard, set())
        left.discard(why)
        if not left or why is Why.SLOW:  # that it is waited for again needs nothing else
            self._absent.reopen(shard)
        if left:
            self._absent.shut(shard)
        else:
            self._why.pop(shard, None)
            self._ring()

    def forget(self, shard: int) -> None:
        """The shard is not here any more."""
        self._why.pop(shard, None)
        self._absent.forget(shard)
        self._fewer()
        if (left := self._leaving.get(shard)) is not None:
            left.set()
        self._ring()

    async def see_off(self, shard: int, grace_ms: int) -> bool:
        """Begin nothing more of this shard, and wait until what is under way is durable. False: it took longer than
        allowed."""
        self.shut(shard, Why.LEAVING)
        left = self._leaving[shard] = asyncio.Event()
        self._ring()
        try:
            await asyncio.wait_for(left.wait(), grace_ms / 1000)
        except TimeoutError:
            return False
        finally:
            del self._leaving[shard]
        return True

    def look(self) -> None:
        """Something has ended: it may have been the last of a shard that is about to go."""
        for shard, left in self._leaving.items():
            if not self._absent.holds(shard):
                left.set()

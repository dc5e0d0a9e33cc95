"""Absent: shards that can't be asked, for a while or for ever, and what becomes of batches that have to do with them.

A shard is *shut* while it is slow, or about to be let go of: it is asked for nothing more, and what is under way ends
as usual. It is *given up* on when it stands still: batches go on without its answers (late.py). It is *forgotten* when
it is not here any more: what it had ready is nobody's, and batches go on with the others' timers. One of the same
number may come back, and is another: no batch of before knows it.

Its work is linear in open batches, and in lanes and hosts, each time a shard changes.
"""

from collections.abc import Callable

from timerd.engine.callbacks import Callbacks
from timerd.engine.command import Command, SendSettle, SendTake
from timerd.engine.effect import Ready
from timerd.engine.flow import Flow
from timerd.engine.gate import Gate
from timerd.engine.late import Late
from timerd.engine.open_batch import OpenBatch


class Absent:
    """The dispatcher's hand, which it lends flows, open batches and commands."""

    def __init__(
        self,
        flows: dict[str, Flow | Gate],
        open: dict[int, OpenBatch],
        out: list[Command],
        late: Late,
        callbacks: Callbacks,
        ready: Callable[[Ready], None],
        complete: Callable[[int, OpenBatch], None],
        close: Callable[[int, OpenBatch], None],
        move: Callable[[Flow | Gate], None],
    ) -> None:
        self._flows = flows
        self._open = open
        self._out = out
        self._late = late
        self._callbacks = callbacks
        self._ready = ready
        self._complete = complete
        self._close = close
        self._move = move
        self._shut: dict[int, dict[tuple[str, int, str], Ready]] = {}  # shard -> what it has said, and is not asked for

    def __bool__(self) -> bool:
        return bool(self._shut)

    def keep(self, ready: Ready) -> bool:
        """Whether this is of a shard that is shut; then it is kept until that is opened."""
        if (said := self._shut.get(ready.shard)) is None:
            return False
        said[ready.type, ready.limit, ready.key] = ready
        return True

    def shut(self, shard: int) -> None:
        """Ask this shard for nothing more. What it says is kept until it is opened again."""
        if shard in self._shut:
            return
        said = self._shut[shard] = {}
        for flow in self._flows.values():
            said.update({(ready.type, ready.limit, ready.key): ready for ready in flow.forget(shard)})

    def reopen(self, shard: int) -> None:
        """It may be asked again, and is waited for."""
        self._late.given_up.discard(shard)
        for ready in self._shut.pop(shard, {}).values():
            self._ready(ready)

    def give_up(self, shard: int) -> None:
        """Wait no more for what this shard was asked for; nor for what it will be told, until it is opened again."""
        self.shut(shard)
        self._late.given_up.add(shard)
        self._go_on_without(shard, gone=False)

    def forget(self, shard: int) -> None:
        """The shard is not here any more; it answers nothing. One of the same number may come, and is another."""
        self._shut.pop(shard, None)
        self._late.forget(shard)
        for flow in self._flows.values():
            flow.forget(shard)
        self._out[:] = [c for c in self._out if not (isinstance(c, SendTake | SendSettle) and c.shard == shard)]
        self._go_on_without(shard, gone=True)

    def holds(self, shard: int) -> bool:
        """Whether something of this shard is under way."""
        batches = self._open.values()
        mine = any(shard in (batch.awaited if batch.told else batch.asked) for batch in batches)
        return mine or self._callbacks.holds(shard) or self._late.owes(shard)

    def _go_on_without(self, shard: int, *, gone: bool) -> None:
        """Let every batch go on without what this shard has still to say; if it is gone, without its timers, too."""
        for batch_no, batch in list(self._open.items()):
            if shard not in batch.asked:
                continue
            if batch.settling:
                self.settle_without(batch_no, batch, shard, gone=gone)
            elif not batch.posted:
                if shard in batch.awaited:
                    batch.flow.receive(batch.limit, shard, batch.asked[shard], 0)
                    batch.awaited.remove(shard)
                    batch.drop_part(shard)
                    if not gone:
                        self._late.owes_take(batch_no, shard, batch.whole, callbacks=False)
                elif gone:
                    left = {timer.id for timer in batch.drop_part(shard)}
                    batch.timers = [timer for timer in batch.timers if timer.id not in left]
                else:
                    continue  # it has given its part
                if not batch.awaited:
                    self._complete(batch_no, batch)
            elif gone:
                batch.left += batch.drop_part(shard)
            self._move(batch.flow)
        self._callbacks.go_on_without(shard, gone=gone)

    def settle_without(self, batch_no: int, batch: OpenBatch, shard: int, *, gone: bool) -> None:
        """A batch that has its outcome goes on without this shard."""
        if not batch.told:  # its turn has not come
            if gone:
                batch.awaited.discard(shard)
                batch.drop_part(shard)
        elif shard in batch.awaited:
            batch.awaited.remove(shard)
            if not gone:
                self._late.owes_settle(batch_no, shard)
            if not batch.awaited:
                self._close(batch_no, batch)

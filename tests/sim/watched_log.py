"""The shipped file log, watched: what is appended, and when that has returned, is told to the ledger."""

from collections.abc import AsyncIterator, Sequence

from tests.sim.account import Causes
from tests.sim.ledger import Ledger
from timerd.engine.timer import BodyRef
from timerd.ports import Frame
from timerd_storage import codec
from timerd_storage.file_log import FileLog


class WatchedLog(FileLog):
    """Made by `open`, like its base; then `watch`."""

    ledger: Ledger
    causes: Causes
    lsns: dict[int, int]
    """By shard: the last lsn that replay gave."""

    def watch(self, ledger: Ledger, causes: Causes) -> None:
        """Begin to tell."""
        self.ledger, self.causes = ledger, causes
        self.lsns = {}

    async def replay(self) -> AsyncIterator[Frame]:
        async for frame in super().replay():
            self.lsns[frame.shard] = frame.lsn
            yield frame

    async def append(self, frames: Sequence[Frame], waiting_bytes: int = 0) -> int:
        # Records share timers with the shard, which changes them later; what is encoded now is what counts.
        copies = [Frame(each.shard, each.lsn, codec.decode(codec.encode(each.records))) for each in frames]
        self.ledger.appending(copies, self.causes)
        appended = await super().append(frames, waiting_bytes)
        self.ledger.appended()
        return appended

    def place_bodies(self, shard: int, bodies: Sequence[tuple[str, bytes]]) -> list[BodyRef]:
        places = super().place_bodies(shard, bodies)
        for place, (_, data) in zip(places, bodies, strict=True):
            self.ledger.bodies[place.segment, place.offset] = data
        return places

    def low(self) -> bool:
        low = super().low()
        if low:
            self.causes.low()
        return low

"""A batch to a processor while it is under way, as the dispatcher keeps it."""

from timerd.engine.batch import Batch
from timerd.engine.choice import Choice
from timerd.engine.flow import Flow
from timerd.engine.timer import Timer


class OpenBatch:
    """From its first Take to its last Settled."""

    def __init__(self, flow: Flow, choice: Choice) -> None:
        self.flow = flow
        self.limit = choice.limit
        self.whole = choice.whole
        self.asked = dict(choice.takes)
        """Shard -> how many. Those that have left, or that the batch goes on without, are not in it."""
        self.awaited = set(self.asked)
        """Shards whose Taken, and later whose Settled, is still to come."""
        self.parts: dict[int, list[Timer]] = {}
        """What each has handed out."""
        self.timers: list[Timer] = []
        self.left: list[Timer] = []
        """What has left since it was posted, and who sends it has not been told."""
        self.flagged: frozenset[str] = frozenset()
        self.tried_at = 0
        self.posted = False
        self.settling = False
        self.told = False
        """The Settles are sent."""

    def as_posted(self, batch_no: int) -> Batch:
        """What is delivered."""
        return Batch(batch_no, self.flow.name, self.timers, self.flagged, self.tried_at, self.whole)

    def drop_part(self, shard: int) -> list[Timer]:
        """The shard leaves, with what it has handed out."""
        del self.asked[shard]
        return self.parts.pop(shard, [])

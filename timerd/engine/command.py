"""Commands: what the dispatcher wants done, in order. Values; carrying them out is the shell's."""

from typing import NamedTuple

from timerd.engine.batch import Batch
from timerd.engine.message import Settle, SettleSome, Take


class SendTake(NamedTuple):
    """Send this to that shard."""

    shard: int
    message: Take


class SendSettle(NamedTuple):
    """Send this to that shard."""

    shard: int
    message: Settle | SettleSome


class Post(NamedTuple):
    """Deliver this batch now; call `answered` with its number when that has ended."""

    batch: Batch


class Sort(NamedTuple):
    """Read what each member of this batch of callbacks asks for, and call `sort` with where each goes."""

    batch: Batch


class PauseType(NamedTuple):
    """Pause the type and say why. The dispatcher sends it nothing until `set_types` is called."""

    name: str
    reason: str


class TargetTurned(NamedTuple):
    """A target's condition has changed; somebody may want to read of it."""

    type: str
    host: str
    """Of callbacks; else empty."""
    what: str
    """breaker_opened | breaker_closed | slow_down_began | slow_down_ended"""
    reason: str
    """Of what was answered last."""


Command = SendTake | SendSettle | Post | Sort | PauseType | TargetTurned

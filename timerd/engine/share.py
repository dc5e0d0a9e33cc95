"""A node's share of what a type allows: limits hold over the whole service, and each node keeps its part of them.

Shares are by shards held. They add up to no more than the limit, except that each node may do one thing at a time.
"""

import msgspec

from timerd.engine.timer import TimerType


def share_of(type: TimerType, mine: int, all: int) -> TimerType:
    """The type as the dispatcher of a node sees it that holds `mine` of `all` shards."""
    if mine >= all:
        return type
    part = max(1, mine) / max(1, all)
    missed = type.misfire.max_per_second
    return msgspec.structs.replace(
        type,
        max_in_flight=max(1, type.max_in_flight * max(1, mine) // all),
        max_per_second=None if type.max_per_second is None else type.max_per_second * part,
        misfire=type.misfire if missed is None else msgspec.structs.replace(type.misfire, max_per_second=missed * part),
    )

"""All mutations, in the order of the table."""

from typing import Final

from tests.mutations import (
    callbacks,
    cluster,
    delivery,
    engine,
    flow_control,
    misfires,
    moves,
    nodes,
    recovery,
    service,
    shards,
    storage,
)
from tests.mutations.mutation import Mutation

ALL: Final[tuple[Mutation, ...]] = (
    *storage.PLANTED,
    *recovery.PLANTED,
    *engine.PLANTED,
    *delivery.PLANTED,
    *callbacks.PLANTED,
    *misfires.PLANTED,
    *flow_control.PLANTED,
    *moves.PLANTED,
    *cluster.PLANTED,
    *nodes.PLANTED,
    *shards.PLANTED,
    *service.PLANTED,
)

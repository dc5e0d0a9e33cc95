"""What stands in for constants and functions of the product while a run is made, and the loop of the run.

Some constants are part of the draw. The functions are those that always give the same and take longer than much of
a run. Everything is put back at the end.
"""

import asyncio
import gc
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import aiohttp.connector
import structlog
from fastapi.dependencies import models

from tests.sim.loop import VirtualLoop
from tests.sim.machine import make_task
from tests.sim.swarm import Swarm
from timerd import boot, dispatch, joining, scaling, upkeep
from timerd.engine import shard
from timerd.engine.ring import RingTable, build_table
from timerd_api import contract_page, openapi, turns
from timerd_cluster import logs


class _Table(RingTable, frozen=True):
    """A table that knows which slots a shard has, since a run starts many times."""

    def slots_of(self, shard: int) -> list[int]:
        known = _SLOTS.setdefault(len(self.shard_ids), {})
        if shard not in known:
            known[shard] = super().slots_of(shard)
        return known[shard]


_SLOTS: Final[dict[int, dict[int, list[int]]]] = {}


@lru_cache
def table(shards: range) -> RingTable:
    """The table of so many shards. Making it takes longer than the rest of a first start."""
    made = build_table(shards)
    return _Table(made.version, made.shards)


@lru_cache
def _placed(shards: int) -> tuple[int, ...]:
    return build_table(range(shards)).shards


async def _work_out(before: RingTable, shards: int) -> RingTable:
    """The table that follows, in no time."""
    known = max(before.known, len(before.shard_ids), shards)
    return RingTable(before.version + 1, _placed(shards), before.shards, known, before.least)


_ALWAYS: Final = (
    (scaling, "work_out", _work_out),
    (boot, "build_table", table),
    (openapi, "document", lru_cache(openapi.document)),
    (openapi, "encoded", lru_cache(openapi.encoded)),
    (contract_page, "render", lambda document: b""),
)


@contextmanager
def turned(swarm: Swarm, loop: VirtualLoop) -> Iterator[None]:
    """Everything as the run is to have it."""
    drawn = (
        # They take the loop's time and the system's for the same.
        (aiohttp.connector, "monotonic", loop.time),
        (turns, "time", SimpleNamespace(monotonic=loop.time)),
        (upkeep, "LOOK_BYTES", swarm.look_bytes),
        (shard, "SLICE_TIMERS", swarm.slice_timers),
        (scaling, "PULL_PER_SECOND", swarm.pulls),
        (upkeep, "SLICE_TIMERS", swarm.slice_timers),
        (dispatch, "TURN_TIMERS", swarm.turn_timers),
    )
    usual = [(module, name, getattr(module, name)) for module, name, _ in (*_ALWAYS, *drawn)]
    for module, name, value in (*_ALWAYS, *drawn):
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in usual:
            setattr(module, name, value)


@contextmanager
def turned_for_cluster(
    swarm: Any, connect: Callable[..., Any], peers: Callable[..., Any], random: Random
) -> Iterator[None]:
    """What a run of a cluster needs: its nodes are many, and begin often, and their writers' names are drawn."""

    def drawn_name(length: int) -> str:
        return f"{random.getrandbits(8 * length):x}"

    drawn = (
        (joining, "build_table", table),
        (joining, "Connection", SimpleNamespace(connect=connect)),
        (joining, "random", random),
        (joining, "HttpPeers", peers),
        (joining, "secrets", SimpleNamespace(token_hex=drawn_name, token_urlsafe=drawn_name)),
        (logs, "secrets", SimpleNamespace(token_hex=drawn_name)),
        (upkeep, "LOOK_BYTES", swarm.look_bytes),
        (upkeep, "SLICE_TIMERS", swarm.slice_timers),
        (shard, "SLICE_TIMERS", swarm.slice_timers),
    )
    usual = [(module, name, getattr(module, name)) for module, name, _ in drawn]
    for module, name, value in drawn:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in usual:
            setattr(module, name, value)


@contextmanager
def virtual_loop(kind: type[VirtualLoop] = VirtualLoop) -> Iterator[Any]:
    """A loop on virtual time, and nothing beside it that goes by chance."""
    structlog.configure(processors=[_drop])
    # Collections by chance would let coroutines end at moments that are not the run's.
    gc.disable()
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)  # of lives that were ended
    loop = kind()
    loop.set_task_factory(make_task)
    asyncio.set_event_loop(loop)
    try:
        yield loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        _clear_up()
        gc.enable()


def _clear_up() -> None:
    """Collect what some runs have left, without looking at all that was there before."""
    for kept in _KEPT:  # by endpoints, which hold the world that they were made in
        kept.cache_clear()
    run = next(_RUNS)
    if run % 16 == 15:
        gc.collect()
    elif run == 0:
        gc.freeze()


_RUNS: Final = itertools.count()
_KEPT: Final = [value for value in vars(models).values() if hasattr(value, "cache_clear")]


def _drop(logger: Any, name: str, event: Any) -> Any:
    raise structlog.DropEvent

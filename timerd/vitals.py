"""Vitals: how a node of a cluster does, told at any time: also while its log does not answer.

A shard whose append stands still answers nothing, so a tally of all would wait for the servers, and whoever watches
would see nothing just then. Here such a shard has the counts that it last told; they rest on what was stored. What has
never told any is left out.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from timerd.engine.message import ShardTally
from timerd.node import Node
from timerd.ports import Link
from timerd.report import NodeTally, Vitals

PATIENCE_S: Final = 1.0


class OwnCounts:
    """Of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._last: dict[int, ShardTally] = {}

    async def tally(self) -> NodeTally:
        """This node's counts, of each shard the last that can be had within a moment."""
        held = self._node.held
        still = self._node.standing.still(held)
        asked = {
            asyncio.ensure_future(self._node.count([shard])): shard for shard in held if shard not in still
        }  # fmt: skip
        if asked:
            done, late = await asyncio.wait(asked, timeout=PATIENCE_S)
            for task in late:
                task.cancel()
            for task in done:
                for told in task.result():
                    self._last[told.shard] = told
        held = self._node.held
        self._last = {shard: told for shard, told in self._last.items() if held.get(shard) == told.epoch}
        return self._node.tally_of([self._last[shard] for shard in sorted(self._last)])


def vitals(node: Node, link: Link, plan_version: int, forwarded: Sequence[int]) -> Vitals:
    """For /metrics. `forwarded`: how many requests to other nodes, and how many timers in them."""
    table = node.table
    return Vitals(
        connected=link.connected,
        heartbeat_age_s=link.heartbeat_age_ms / 1000,
        append_age_s=node.standing.append_age_ms() / 1000,
        shards_held=len(node.held),
        shards=len(table.shard_ids),
        plan_version=plan_version,
        ring_version=table.version,
        appends_unknown=link.appends_unknown,
        shards_fenced=link.shards_fenced,
        forwarded_requests=forwarded[0],
        forwarded_timers=forwarded[1],
    )

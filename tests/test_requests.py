"""A request that its caller has given up is not carried out, whatever it asks for; one about nothing is answered."""

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from timerd import boot
from timerd.engine.message import ArmDone, Filter, Refused
from timerd.engine.now import Now
from timerd.engine.settings import Settings
from timerd.engine.timer import Timer, TimerType
from timerd.node import Node
from timerd.ports import Answer, Request
from timerd_storage.memory_catalog import MemoryCatalog
from timerd_storage.memory_log import MemoryLog

T0 = 1_796_000_000_000
FAR = T0 + 10**6
TYPE = TimerType("t", url="http://127.0.0.1:9/")
ASK: dict[str, Callable[[Node, int], Awaitable[Any]]] = {
    "arm": lambda node, expires_at: node.arm([Timer(FAR, 0, "new", "t")], None, True, expires_at),
    "cancel": lambda node, expires_at: node.cancel(["a"], expires_at),
    "fire": lambda node, expires_at: node.fire("a", expires_at),
    "put a type": lambda node, expires_at: node.put_type(TimerType("u"), False, expires_at),
    "pause": lambda node, expires_at: node.set_type_state("t", "paused", expires_at),
    "delete a type": lambda node, expires_at: node.delete_type("idle", expires_at),
    "replay the dead": lambda node, expires_at: node.replay_dead(None, "t", expires_at),
    "purge the dead": lambda node, expires_at: node.purge_dead(None, "t", expires_at),
}


class StillClock:
    def now(self) -> Now:
        return Now(T0 * 1000 + 1, 5_000)


class Nobody:
    async def post(self, request: Request) -> Answer:
        return Answer(error="connect")

    async def close(self) -> None:
        pass


async def a_node() -> Node:
    node = await boot.start(
        Settings(shards=2), MemoryLog(), MemoryCatalog(), StillClock(), Nobody(), random.Random(1).random
    )
    for type in (TYPE, TimerType("idle")):
        await node.put_type(type, False, None)
    await node.arm([Timer(FAR, 0, "a", "t")], None, True, None)
    return node


async def all_of(node: Node) -> Any:
    """What there is of types and timers."""
    return dict(node.types), await node.list(Filter(), 10, None)


@pytest.mark.parametrize("what", ASK)
async def test_what_is_accepted_too_late_is_refused_and_changes_nothing(what):
    node = await a_node()
    before = await all_of(node)
    answer = await ASK[what](node, T0)
    assert isinstance(answer, Refused)
    assert answer.name == "expired"
    assert await all_of(node) == before
    answer = await ASK[what](node, T0 + 1)
    assert not isinstance(answer, Refused), "there was time"
    await node.stop(1_000)


async def test_a_request_about_nothing_is_answered():
    node = await a_node()
    before = await all_of(node)
    assert await node.cancel([], None) == []
    assert await node.arm([], None, True, None) == ArmDone(0, 0, [])
    assert await node.arm([], [], False, None) == ArmDone(0, 0, [])
    assert await node.replay_dead([], None, None) == 0
    assert await node.purge_dead([], None, None) == 0
    assert await all_of(node) == before
    await node.stop(1_000)

"""Types as callers see them while one is being deleted or becomes another kind."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from timerd import boot
from timerd.catalogue import Types
from timerd.clock import SystemClock
from timerd.engine.message import ArmDone, Refused
from timerd.engine.settings import Settings
from timerd.engine.timer import Timer, TimerType
from timerd.node import Node
from timerd.ports import Answer, Request
from timerd_storage.memory_catalog import MemoryCatalog
from timerd_storage.memory_log import MemoryLog

CALLBACK = TimerType("t", kind="callback")
PROCESSOR = TimerType("t", url="http://127.0.0.1:9/")
OTHER = TimerType("other", url="http://127.0.0.1:9/")
CHANGES = pytest.mark.parametrize("goes", [False, True], ids=["kind", "delete"])


class Count:
    """What a change asks how many timers live: answers when it is told to."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[asyncio.Future[int]] = asyncio.Queue()

    async def __call__(self) -> int:
        answer = asyncio.get_running_loop().create_future()
        self.asked.put_nowait(answer)
        return await answer

    async def next(self) -> asyncio.Future[int]:
        async with asyncio.timeout(10):
            return await self.asked.get()


class Changing:
    """A type that a change is under way of."""

    def __init__(self, goes: bool) -> None:
        self.types = Types(MemoryCatalog(), [CALLBACK, OTHER], lambda types: None)
        self.seen = self.types.known
        self.count = Count()
        work = self.types.delete("t", self.count) if goes else self.types.put(PROCESSOR, True, self.count)
        self.task: asyncio.Task[object] = asyncio.ensure_future(work)

    def refusal(self, type: str = "t") -> Refused | None:
        return self.types.refuse([Timer(0, 0, "x", type)], self.seen)


@CHANGES
async def test_a_change_that_is_refused_disturbs_nobody(goes: bool) -> None:
    changing = Changing(goes)
    asked = await changing.count.next()
    assert changing.types.known["t"] == CALLBACK
    assert changing.refusal() is None
    asked.set_result(1)
    refused = await changing.task
    assert isinstance(refused, Refused)
    assert refused.name == "type-in-use"
    assert changing.refusal() is None


@CHANGES
@pytest.mark.parametrize("lost", [False, True])
async def test_while_a_change_is_made_the_type_is_seen_and_arms_of_it_come_back(goes: bool, lost: bool) -> None:
    changing = Changing(goes)
    (await changing.count.next()).set_result(0)
    asked = await changing.count.next()
    assert changing.types.known["t"] == CALLBACK
    refused = changing.refusal()
    assert refused is not None
    assert (refused.name, refused.retry_after_s) == ("overloaded", 1)
    assert changing.refusal("other") is None
    asked.set_result(int(lost))
    assert isinstance(await changing.task, Refused) == lost
    assert changing.types.known.get("t") == (CALLBACK if lost else None if goes else PROCESSOR)
    # Who was checked before it is not armed after it, as what the type no longer is.
    assert (changing.refusal() is None) == lost
    assert changing.refusal("other") is None


class Nobody:
    async def post(self, request: Request) -> Answer:
        return Answer(error="connect")

    async def close(self) -> None:
        pass


class SlowRoom(MemoryLog):
    """A log in which `between` happens while room is asked for."""

    between: Callable[[], object] | None = None

    async def grant(self, arm_bytes: int, reserve_bytes: int, body_bytes: int | None = None) -> bool:
        between, self.between = self.between, None
        if between is not None:
            await between()  # type: ignore[misc]
        return await super().grant(arm_bytes, reserve_bytes, body_bytes)


@pytest.fixture
def log() -> SlowRoom:
    return SlowRoom()


@pytest_asyncio.fixture
async def node(log: SlowRoom) -> AsyncIterator[Node]:
    node = await boot.start(Settings(), log, MemoryCatalog(), SystemClock(), Nobody(), random.Random(1).random)
    await node.put_type(PROCESSOR, False, None)
    yield node
    await node.stop(1_000)


def timer(node: Node) -> Timer:
    return Timer(node.clock.now().wall_ms + 3_600_000, 0, "x", "t", b"1")


@CHANGES
async def test_an_arm_that_waited_for_room_while_its_type_changed_is_refused(
    node: Node, log: SlowRoom, goes: bool
) -> None:
    log.between = lambda: node.delete_type("t", None) if goes else node.put_type(CALLBACK, True, None)
    refused = await node.arm([timer(node)], None, True, None)
    assert isinstance(refused, Refused)
    assert (refused.name, refused.retry_after_s) == ("overloaded", 1)
    assert await node.get("x") is None


async def test_an_arm_that_waited_for_room_while_its_type_was_put_again_is_armed(node: Node, log: SlowRoom) -> None:
    log.between = lambda: node.set_type_state("t", "paused", None)
    assert isinstance(await node.arm([timer(node)], None, True, None), ArmDone)
    refused = await node.delete_type("t", None)
    assert isinstance(refused, Refused)
    assert refused.name == "type-in-use"


@pytest.mark.parametrize("step", ["types", "put_type"])
async def test_a_pause_that_a_shared_catalogue_does_not_take_is_tried_again(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timerd.catalogue.PAUSE_AGAIN_S", 0)
    catalog = MemoryCatalog()
    await catalog.put_type(PROCESSOR)
    types = Types(catalog, [PROCESSOR], lambda types: None)
    types.shared = True
    inner, tries = getattr(catalog, step), 0

    async def away(*given: object) -> object:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ConnectionError("nobody answers")
        return await inner(*given)

    setattr(catalog, step, away)
    async with asyncio.timeout(10):
        await types.pause_durably("t")
    assert tries == 3
    assert types.known["t"].state == "paused"
    tries, types.shared = -(10**9), False
    monkeypatch.setattr(catalog, "put_type", away)
    with pytest.raises(ConnectionError):  # a file that fails is not to be asked for ever
        await types.pause_durably("t")

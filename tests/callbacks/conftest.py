"""What tests of callbacks share: a real process that may send to loopback, and a target that keeps all it got."""

from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count
from typing import Any

import pytest
import pytest_asyncio

from tests.callbacks.target import Target
from tests.support.process import Process

ALLOW = ("--callback-allow", "127.0.0.0/8")
_numbers = count()


class Calls:
    """One callback type of a service, and its timers."""

    def __init__(self, timerd: Process, type: str) -> None:
        self.timerd = timerd
        self.type = type

    async def put(self, **fields: Any) -> None:
        await self.timerd.put_type(self.type, kind="callback", **fields)

    async def arm(self, *timers: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Arm callbacks; the results."""
        answer = await self.timerd.arm([{"type": self.type, **timer} for timer in timers])
        results: list[dict[str, Any]] = answer["results"]
        return results

    async def stats(self) -> dict[str, Any]:
        return await self.timerd.stats(self.type)

    async def dead(self) -> list[dict[str, Any]]:
        return await self.timerd.dead_letters(f"&type={self.type}")

    async def until_dead(self, count: int) -> list[dict[str, Any]]:
        """Wait for so many dead letters."""

        async def dead() -> bool:
            return len(await self.dead()) == count

        await self.timerd.until(dead)
        return await self.dead()

    async def until_fired(self, count: int) -> None:
        async def fired() -> bool:
            return bool((await self.stats())["fired"] == count)

        await self.timerd.until(fired)

    async def until_gone(self, id: str) -> None:
        async def gone() -> bool:
            return await self.timerd.get(id) is None

        await self.timerd.until(gone)

    async def clear(self) -> None:
        """Cancel all that is left."""
        if left := [timer["id"] for timer in await self.timerd.list(f"&type={self.type}")]:
            await self.timerd.request("POST", "/v1/timers:cancel", {"ids": left})


@pytest_asyncio.fixture(loop_scope="module")
async def target() -> AsyncIterator[Target]:
    async with Target() as target:
        yield target


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Process]:
    """One process for all tests of a module; each has a type of its own."""
    async with Process(tmp_path_factory.mktemp("callbacks") / "data", *ALLOW) as timerd:
        yield timerd
        assert not timerd.complaints()


@pytest_asyncio.fixture(loop_scope="module")
async def calls(service: Process) -> AsyncIterator[Calls]:
    calls = Calls(service, f"call{next(_numbers)}")
    yield calls
    await calls.clear()


def callback(id: str, url: str, delay: float = 0, **request: Any) -> dict[str, Any]:
    """An arm of a callback."""
    return {"id": id, "delay": delay, "request": {"url": url, **request}}


def callbacks(ids: Sequence[str], url: str, delay: float = 0, **request: Any) -> list[dict[str, Any]]:
    return [callback(id, url, delay, **request) for id in ids]

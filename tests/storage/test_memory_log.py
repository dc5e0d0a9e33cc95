"""The reference log."""

import pytest

from tests.storage.laid import armed
from tests.storage.log_conformance import Home, LogConformance
from timerd.ports import Log
from timerd_storage.memory_log import MemoryLog


class MemoryHome:
    def __init__(self) -> None:
        self._log = MemoryLog(16_384)

    async def open(self) -> Log:
        return self._log

    async def restart(self) -> Log:
        self._log = self._log.reopen()
        return self._log


class TestMemoryLog(LogConformance):
    @pytest.fixture
    def home(self) -> Home:
        return MemoryHome()


async def test_capacity_bounds_what_is_granted_and_what_was_granted_counts_until_an_append() -> None:
    log = MemoryLog(1000, capacity=10_000)
    assert await log.grant(5000, 1000)
    assert not await log.grant(5000, 1000)
    await log.append([armed(0, 1)])
    assert await log.grant(5000, 1000)
    assert not log.low()
    assert not await log.grant(0, 9000)
    assert log.low()

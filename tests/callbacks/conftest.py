"""What tests of callbacks share: a real process that may send to loopback, and a target that keeps all it got."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.callbacks.target import Target
from tests.support.process import Process

ALLOW = ("--callback-allow", "127.0.0.0/8")


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    async with Target() as target:
        yield target


@pytest.fixture
async def timerd(tmp_path: Path) -> AsyncIterator[Process]:
    async with Process(tmp_path / "data", *ALLOW) as timerd:
        yield timerd
        assert not timerd.complaints()


def callback(id: str, url: str, delay: float = 0, type: str = "call", **request: Any) -> Mapping[str, Any]:
    """An arm of a callback."""
    return {"id": id, "type": type, "delay": delay, "request": {"url": url, **request}}

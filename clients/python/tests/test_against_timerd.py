"""The same promises against the real server, where there is one: ids, errors of neighbours, and a late repeat.

The server is another distribution, which the client never imports: it is run as a command, or the tests are skipped.
"""

import asyncio
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from timerd_client import (
    Arm,
    AsyncTimerd,
    CallbackRequest,
    HorizonExceeded,
    NotFound,
    TargetForbidden,
    Timerd,
    TypeInUse,
    UnknownType,
    ValidationFailed,
)

from .fake_timerd import Loop
from .fault_proxy import fault, fault_proxy, release

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("timerd.__main__") is None if importlib.util.find_spec("timerd") else True,
    reason="the server is not installed here",
)
AT = datetime(2030, 1, 1, tzinfo=UTC)
IDS = list(json.loads((Path(__file__).parents[2] / "contract" / "ids.json").read_text())["segments"])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "timerd", "serve", "--port", str(port), "--data"]
    command.append(str(tmp_path_factory.mktemp("timerd") / "data"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert server.stderr is not None
    said: list[str] = []
    for line in server.stderr:
        said.append(line)
        if line.startswith("timerd ready on "):
            break
    else:
        raise AssertionError("".join(said))
    address = said[-1].split()[-1]
    try:
        with Timerd(address) as client:
            client.put_type("poll", url="http://127.0.0.1:9/")
        yield address
    finally:
        server.terminate()
        server.wait(30)
        server.stderr.close()


def test_a21_every_id_is_reached(url: str) -> None:
    with Timerd(url) as client:
        for id in IDS:
            assert client.arm(id, "poll", fire_at=AT, payload=[id]).status == "created"
            found = client.get(id)
            assert found is not None
            assert (found.id, found.payload, found.fire_at) == (id, [id], AT)
            assert client.arm(id, "poll", fire_at=AT + timedelta(hours=1)).status == "moved"
        assert sorted(timer.id for timer in client.list(type="poll", page_size=3)) == sorted(IDS)
        assert all(client.cancel(id).cancelled for id in IDS)
        assert [client.get(id) for id in IDS] == [None] * len(IDS)


async def test_a_bad_arm_fails_alone(url: str) -> None:
    async with AsyncTimerd(url) as client:
        arms = [client.arm(f"t{n}", "poll", fire_at=AT) for n in range(300)]
        wrong = [client.arm(f"n{n}", "nope", fire_at=AT) for n in range(150)]
        far = [client.arm(f"f{n}", "poll", fire_at=AT + timedelta(days=36500)) for n in range(5)]
        outcomes = await asyncio.gather(*arms, *wrong, *far, return_exceptions=True)
        kinds = [type(outcome).__name__ for outcome in outcomes]
        assert kinds == ["ArmResult"] * 300 + [UnknownType.__name__] * 150 + [HorizonExceeded.__name__] * 5
        assert sum(result.cancelled for result in await client.cancel_many([f"t{n}" for n in range(300)])) == 300


def test_answers_and_refusals(url: str) -> None:
    with Timerd(url) as client:
        first = client.arm("x", "poll", fire_at=AT)
        assert client.arm("x", "poll", delay=5, if_generation=first.generation - 1).status == "conflict"
        assert client.arm("absent", "poll", delay=5, if_generation=7).fire_at is None
        with pytest.raises(TypeInUse):
            client.delete_type("poll")
        with pytest.raises(NotFound):
            client.fire("absent")
        assert client.pause_type("poll").state == "paused"
        assert client.resume_type("poll").state == "active"
        assert len(client.arm_many(Arm(f"m{n}", "poll", delay=3600) for n in range(10_001))) == 10_001
        assert client.status().timers["armed"] >= 10_001
        assert client.stats()["poll"].live >= 10_001
        assert client.replay_dead_letters(type="poll") == 0
        assert list(client.dead_letters()) == []


@pytest.mark.parametrize("when", ["before the newer arm", "after it"])
def test_a27_a_late_repeat_never_lands_after_a_newer_arm(url: str, when: str) -> None:
    loop = Loop()
    later = AT + timedelta(hours=2)
    try:
        with fault_proxy(loop, url) as (proxy, proxied), Timerd(proxied, timeout=2) as client:
            held = fault(loop, hold_request=True, hang_up=True)
            proxy.script.append(held)
            client.arm("late", "poll", fire_at=AT + timedelta(hours=1))
            if when == "before the newer arm":
                release(loop, held)
            assert client.arm("late", "poll", fire_at=later).fire_at == later
            if when == "after it":
                release(loop, held)
            found = client.get("late")
            assert found is not None
            assert found.fire_at == later
    finally:
        loop.stop()


def test_callbacks_are_armed_with_a_request(url: str) -> None:
    with Timerd(url) as client:
        info = client.put_type("call", kind="callback")
        assert (info.kind, info.url) == ("callback", None)
        plain = CallbackRequest("https://example.com/hook")
        for request, shown in (
            (plain, {}),
            (CallbackRequest(plain.url, "PUT", {"X-A": "1"}, "text"), {"body": "text"}),
            (CallbackRequest(plain.url, json={"n": None}), {"json": {"n": None}}),
            (CallbackRequest(plain.url, json=None), {"json": None}),
            (CallbackRequest(plain.url, body=b"\x00\xff"), {"body_base64": "AP8="}),
        ):
            client.arm("c", "call", fire_at=AT, request=request)
            found = client.get("c")
            assert found is not None
            common = {"url": request.url, "method": request.method, "headers": dict(request.headers)}
            assert (found.request, found.payload) == ({**common, **shown}, None)
        assert client.arm_many([Arm("d", "call", fire_at=AT, request=plain)])[0].status == "created"
        with pytest.raises(TargetForbidden):
            client.arm("e", "call", fire_at=AT, request=CallbackRequest("http://127.0.0.1/"))
        with pytest.raises(ValidationFailed):
            client.arm("e", "call", fire_at=AT, payload=1)
        with pytest.raises(ValueError, match="not both"):
            client.arm("e", "call", fire_at=AT, payload=1, request=plain)
        with pytest.raises(ValueError, match="not both"):
            CallbackRequest(plain.url, body="a", json=1)
        assert client.cancel("c").cancelled
        assert client.cancel("d").cancelled

"""Both clients against a server on a socket: the calls, ids in paths, coalescing as it happens, and cancellation."""

import asyncio
import inspect
import json
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from timerd_client import (
    Arm,
    AsyncTimerd,
    HorizonExceeded,
    NotFound,
    ProblemError,
    Timerd,
    TimerDead,
    Unauthorized,
    Unavailable,
    UnknownType,
    ValidationFailed,
)
from timerd_client._turns import chunks

from .fake_timerd import FakeTimerd, HttpRequest, fake_timerd, problem

AT = datetime(2030, 1, 1, tzinfo=UTC)
IDS = list(json.loads((Path(__file__).parents[2] / "contract" / "ids.json").read_text())["segments"])


@pytest.fixture
def server() -> Iterator[tuple[FakeTimerd, str]]:
    with fake_timerd() as (fake, url, _):
        yield fake, url


def armed_sizes(fake: FakeTimerd) -> list[int]:
    return [len(json.loads(r.body)["timers"]) for r, _ in fake.seen if r.target == "/v1/timers" and r.method == "POST"]


def test_both_clients_have_the_same_calls() -> None:
    def calls(kind: type) -> dict[str, list[tuple[str, Any]]]:
        return {
            name: [(p.name, p.default) for p in inspect.signature(method).parameters.values()]
            for name, method in vars(kind).items()
            if callable(method) and not name.startswith("_")
        }

    assert calls(Timerd) == calls(AsyncTimerd)


def test_a21_every_id_is_reached(server: tuple[FakeTimerd, str]) -> None:
    fake, url = server
    with Timerd(url) as client:
        for id in IDS:
            assert client.arm(id, "poll", fire_at=AT, payload=id).status == "created"
            found = client.get(id)
            assert found is not None
            assert (found.id, found.payload) == (id, id)
            assert client.arm(id, "poll", fire_at=AT + timedelta(hours=1)).status == "moved"
            assert client.fire(id).status == "moved"
        assert sorted(timer.id for timer in client.list(page_size=3)) == sorted(IDS)
        for id in IDS:
            assert client.cancel(id).cancelled
            assert not client.cancel(id).cancelled
            assert client.get(id) is None
    assert fake.timers == {}


async def test_a21_every_id_is_reached_async(server: tuple[FakeTimerd, str]) -> None:
    _, url = server
    async with AsyncTimerd(url) as client:
        for id in IDS:
            await client.arm(id, "poll", fire_at=AT)
            found = await client.get(id)
            assert found is not None
            assert found.id == id
        assert sorted([timer.id async for timer in client.list(page_size=3)]) == sorted(IDS)
        assert sum(result.cancelled for result in await client.cancel_many([*IDS, "never"])) == len(IDS)


@pytest.mark.parametrize("id", ["", ".", "..", "a\nb", "x" * 257, "\ud800"])
def test_a21_what_no_path_can_carry_is_refused_before_it_is_sent(server: tuple[FakeTimerd, str], id: str) -> None:
    fake, url = server
    with Timerd(url) as client:
        for call in (client.get, client.cancel, client.fire):
            with pytest.raises(ValueError):
                call(id)
        with pytest.raises(ValueError):
            client.arm(id, "poll", fire_at=AT)
    assert fake.seen == []


async def test_arms_called_one_by_one_share_requests(server: tuple[FakeTimerd, str]) -> None:
    fake, url = server
    async with AsyncTimerd(url) as client:

        async def work(number: int) -> None:
            for turn in range(20):
                assert (await client.arm(f"t{number}", "poll", fire_at=AT + timedelta(hours=turn))).armed

        await asyncio.gather(*[work(number) for number in range(64)])
    sizes = armed_sizes(fake)
    assert sum(sizes) == 64 * 20
    assert len(sizes) <= 30
    for number in range(64):
        mine = [at for id, at in fake.applied if id == f"t{number}"]
        assert mine == sorted(mine)


def test_threads_share_requests_too(server: tuple[FakeTimerd, str]) -> None:
    fake, url = server
    fake.delay_s = 0.002
    failures: list[BaseException] = []
    with Timerd(url) as client:

        def work(number: int) -> None:
            try:
                for turn in range(20):
                    assert client.arm(f"t{number}", "poll", fire_at=AT + timedelta(hours=turn)).id == f"t{number}"
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert failures == []
    sizes = armed_sizes(fake)
    assert sum(sizes) == 32 * 20
    assert len(sizes) < 32 * 20 / 5


async def test_a_bad_arm_fails_alone(server: tuple[FakeTimerd, str]) -> None:
    fake, url = server
    async with AsyncTimerd(url) as client:
        calls = [client.arm(f"t{n}", "nope" if n % 3 == 0 else "poll", fire_at=AT) for n in range(300)]
        calls.append(client.arm("far", "poll", fire_at=AT + timedelta(days=36500)))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    for n, outcome in enumerate(outcomes[:300]):
        if n % 3 == 0:
            assert isinstance(outcome, UnknownType)
            assert outcome.errors[0].pointer == "/timers/0/type"
        else:
            assert not isinstance(outcome, BaseException)
            assert outcome.id == f"t{n}"
    assert isinstance(outcomes[300], HorizonExceeded)
    assert len(fake.timers) == 200
    assert sum(armed_sizes(fake)) <= 301 + 200 + 101 + 101


async def test_items_given_together_stand_or_fall_together(server: tuple[FakeTimerd, str]) -> None:
    fake, url = server
    items = [Arm(f"t{n}", "nope" if n == 10_003 else "poll", fire_at=AT) for n in range(10_010)]
    async with AsyncTimerd(url) as client:
        with pytest.raises(UnknownType) as caught:
            await client.arm_many(items)
        assert [entry.pointer for entry in caught.value.errors] == ["/timers/10003/type"]
        assert len(caught.value.results) == len(fake.timers) == 10_000
        with pytest.raises(ValueError, match="not a timer id"):
            await client.arm_many([Arm("good", "poll", fire_at=AT), Arm("", "poll", fire_at=AT)])
        assert "good" not in fake.timers


def test_large_items_are_cut_by_bytes_and_halved_when_the_server_takes_less(server: tuple[FakeTimerd, str]) -> None:
    fake, url = server
    items = [Arm(f"t{n}", "poll", fire_at=AT, payload="x" * 60_000) for n in range(300)]
    assert [chunk.offset for chunk in chunks(items)] == [0, 139, 278]

    def small(request: HttpRequest) -> Any:
        return (413, problem("body-too-large")) if len(request.body) > 1 << 20 else None

    fake.before = small
    with Timerd(url) as client:
        assert [result.id for result in client.arm_many(items)] == [item.id for item in items]


@pytest.mark.parametrize(
    ("status", "name", "kind"),
    [
        (401, "unauthorized", Unauthorized),
        (404, "timer-not-found", NotFound),
        (409, "timer-dead", TimerDead),
        (422, "validation", ValidationFailed),
        (418, "teapot", ProblemError),
    ],
)
def test_problems_by_name(server: tuple[FakeTimerd, str], status: int, name: str, kind: type[ProblemError]) -> None:
    fake, url = server
    fake.before = lambda request: None if request.target == "/healthz" else (status, problem(name))
    with Timerd(url, key="k") as client, pytest.raises(kind) as caught:
        client.fire("x")
    assert type(caught.value) is kind
    assert (caught.value.name, caught.value.status) == (name, status)
    assert fake.seen[-1][0].headers["authorization"] == "Bearer k"


async def test_a_caller_that_goes_away_leaves_the_client_whole(server: tuple[FakeTimerd, str]) -> None:
    fake, url = server
    fake.delay_s = 0.05
    async with AsyncTimerd(url) as client:
        for number in range(20):
            task = asyncio.ensure_future(client.arm("x", "poll", fire_at=AT + timedelta(hours=number)))
            await asyncio.sleep(0.003)
            task.cancel()
        last = AT + timedelta(days=9)
        assert (await client.arm("x", "poll", fire_at=last)).fire_at == last
    order = [at for _, at in fake.applied]
    assert order == sorted(order)
    with pytest.raises(RuntimeError, match="closed"):
        await client.get("x")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda client: client.arm_many([("q1", "poll", 60)]), "expected Arm, got tuple"),
        (lambda client: client.arm_many([Arm("q1", "poll", delay=1), {"id": "q2"}]), "expected Arm, got dict"),
        (lambda client: client.arm(1, "poll", delay=1), "an id is a str, not int"),
        (lambda client: client.arm("x", b"poll", delay=1), "a type's name is a str, not bytes"),
        (lambda client: client.arm("x", "poll", fire_at="2030-01-01"), "expected a datetime, got str"),
        (lambda client: client.arm("x", "poll", delay=1, if_generation="7"), "if_generation is an int, not str"),
        (lambda client: client.arm("x", "poll", delay=1, payload=object()), "type object is unsupported"),
        (lambda client: client.cancel_many("feed-17"), "expected a list of ids, got str"),
        (lambda client: client.purge_dead_letters("feed-17"), "expected a list of ids, got str"),
        (lambda client: client.put_type("poll", signing_secrets="whsec_"), "expected a list of secrets, got str"),
        (lambda client: client.put_type("poll", retry=3), "expected a mapping, got int"),
        (lambda client: Timerd("http://h", key=7), "a key is a str, not int"),
    ],
)
def test_arguments_of_a_wrong_kind_are_named_and_nothing_is_sent(
    server: tuple[FakeTimerd, str], call: Any, says: str
) -> None:
    fake, url = server
    with Timerd(url) as client, pytest.raises(TypeError, match=says):
        call(client)
    assert fake.seen == []


@pytest.mark.parametrize("kind", [Timerd, AsyncTimerd])
def test_a_key_in_the_address_is_refused_and_not_shown(kind: Any) -> None:
    with pytest.raises(ValueError, match="key=") as refused:
        kind("https://user:sesame@h")
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("kind", [Timerd, AsyncTimerd])
def test_a_ca_file_that_is_not_there_is_refused_at_once(kind: Any) -> None:
    with pytest.raises(OSError):
        kind("https://h", ca_file="/nowhere.pem")


def test_a_payload_is_what_msgspec_writes_as_json(server: tuple[FakeTimerd, str]) -> None:
    fake, url = server
    with Timerd(url) as client:
        client.arm("x", "poll", fire_at=AT, payload={"set": {1}, "at": AT, "bytes": b"ab", 7: (None, True)})
    (sent,) = json.loads(fake.seen[-1][0].body)["timers"]
    assert sent["payload"] == {"set": [1], "at": "2030-01-01T00:00:00Z", "bytes": "YWI=", "7": [None, True]}


async def test_types(server: tuple[FakeTimerd, str]) -> None:
    fake, url = server
    async with AsyncTimerd(url) as client:
        info = await client.put_type(
            "feed-poll", url="http://p/", batch_size=10, max_lag=timedelta(seconds=1.5), retry={"max_backoff": 60}
        )
    body = json.loads(fake.seen[-1][0].body)
    assert body == {"url": "http://p/", "batch_size": 10, "max_lag": "1500ms", "retry": {"max_backoff": 60}}
    assert (info.name, info.max_lag) == ("feed-poll", "1500ms")


@pytest.mark.parametrize("url", ["", "timerd", "ftp://h", "http://", "http://h/?q=1"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Timerd(url)


class Fails:
    """A transport that fails so, and counts how often it was asked."""

    def __init__(self, error: ssl.SSLError) -> None:
        self.error, self.asked = error, 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        raise httpx.ConnectError(str(self.error)) from self.error

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)

    def close(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


def _wrong_certificate() -> ssl.SSLError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = 20
    return error


def _no_tls() -> ssl.SSLError:
    error = ssl.SSLError(1, "wrong version number")
    error.reason = "WRONG_VERSION_NUMBER"
    return error


@pytest.mark.parametrize(("made", "hint"), [(_wrong_certificate, "ca_file="), (_no_tls, "http:// and not https://")])
async def test_what_no_other_attempt_would_mend_fails_at_once(made: Any, hint: str) -> None:
    transport: Any = Fails(made())
    with Timerd("https://h", timeout=60, transport=transport) as client:
        for call in (lambda: client.get("x"), lambda: client.arm("x", "poll", fire_at=AT)):
            with pytest.raises(Unavailable, match=hint):
                call()
    assert transport.asked == 2
    async with AsyncTimerd("https://h", timeout=60, transport=transport) as client:
        arms = [client.arm(f"{n}", "poll", fire_at=AT) for n in range(3)]
        failed = await asyncio.gather(client.get("x"), *arms, return_exceptions=True)
    assert {type(error) for error in failed} == {Unavailable}
    assert transport.asked <= 6, "each call once"

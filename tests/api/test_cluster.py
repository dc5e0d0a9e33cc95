"""A service of several nodes, as callers see it: owners that are away, nodes and ring, and the door for other nodes."""

import asyncio
from typing import Any

import msgspec
import pytest

from tests.api.asgi import HOST, JSON, call
from tests.api.fake_service import FakeService
from timerd.engine.message import ArmDone, ArmResult, CancelResult, Refused
from timerd.engine.timer import TimerType
from timerd.ports import Member, NoReply
from timerd.questions import Done, encode_answer, read_asked
from timerd.report import NodeReport, NodeTally, RingReport, Vitals
from timerd_api.app import create_app
from timerd_api.peers import HEADER, PATH, PeerDoor
from timerd_api.settings import ApiSettings

SECRET = "a secret of sixteen"
AWAY = Refused("shard-unavailable", "an owner is away", retry_after_s=1)
TWO = b'{"timers":[{"id":"a","type":"poll","delay":1},{"id":"b","type":"poll","delay":1}]}'
ASK = PATH.decode()


class FakeCluster:
    def __init__(self, service: FakeService) -> None:
        self.service = service
        self.learnt = 0
        self.refusal: Refused | None = None
        self.elsewhere: dict[str, TimerType] = {}

    async def learn_types(self) -> Refused | None:
        self.learnt += 1
        self.service.types |= self.elsewhere
        return self.refusal

    async def own_tally(self) -> NodeTally:
        return await self.service.tally()

    def vitals(self) -> Vitals:
        return Vitals(True, 0.5, 2.5, 3, 24, 7, 1, 4, 2, 10, 900)

    def nodes(self) -> list[NodeReport]:
        return [NodeReport("a", "http://a:1", [0, 2], 1_796_025_600_000), NodeReport("b", "http://b:1", [1], None)]

    def ring(self) -> RingReport:
        return RingReport(3, self.service.table.shards, {0: ("a", "http://a:1"), 1: ("b", "http://b:1")})


class Hears:
    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def hear(self, data: bytes) -> bytes:
        self.asked.append(data)
        await self.gate.wait()
        if data == b"nonsense":
            raise msgspec.DecodeError("nonsense")
        if data.startswith(b"\x94"):
            read_asked(data)
        return encode_answer(1, Done())


@pytest.fixture
def cluster(service: FakeService) -> FakeCluster:
    return FakeCluster(service)


@pytest.fixture
def hears() -> Hears:
    return Hears()


@pytest.fixture
def app(service: FakeService, cluster: FakeCluster, hears: Hears) -> Any:
    return create_app(service, ApiSettings(api_key="owner"), None, cluster, PeerDoor(hears, SECRET, 1_000))


KEY = (b"authorization", b"Bearer owner")
HEADERS = [HOST, JSON, KEY]


@pytest.mark.parametrize("prefer", [[], [(b"prefer", b"return=minimal")]])
async def test_a_503_says_what_became_of_each_item(app: Any, service: FakeService, prefer: Any) -> None:
    async def arm(*given: Any) -> ArmDone:
        return ArmDone(1, 0, [ArmResult("created", 7, 1_796_025_601_000), ArmResult("unavailable", 0, 0)], [1])

    service.arm = arm  # type: ignore[method-assign]
    answer = await call(app, "POST", "/v1/timers", TWO, [*HEADERS, *prefer])
    assert answer.status == 503
    assert answer.problem == "shard-unavailable"
    assert answer.headers["retry-after"] == "1"
    said = answer.json()
    assert (said["armed"], said["conflicts"], said["now"]) == (1, 0, "2026-11-30T08:00:00.000Z")
    assert said["results"] == [
        {"id": "a", "status": "created", "generation": 7, "fire_at": "2026-11-30T08:00:01.000Z"},
        {"id": "b", "status": "unavailable", "generation": 0, "fire_at": None},
    ]


@pytest.mark.parametrize(
    ("why", "said"), [("", "an owner is away"), ("node b: its log is silent", "node b: its log is silent")]
)
async def test_it_says_why_if_that_is_known(app: Any, service: FakeService, why: str, said: str) -> None:
    async def arm(*given: Any) -> ArmDone:
        return ArmDone(0, 0, [ArmResult("unavailable", 0, 0)], [0], why)

    service.arm = arm  # type: ignore[method-assign]
    one = b'{"timers":[{"id":"a","type":"poll","delay":1}]}'
    several = await call(app, "POST", "/v1/timers", one, HEADERS)
    alone = await call(app, "PUT", "/v1/timers/a", b'{"type":"poll","delay":1}', HEADERS)
    for answer in (several, alone):
        assert answer.status == 503
        assert (
            answer.json()["detail"]
            == f"1 not acknowledged: {said}. What became of that is not known; sending it again is safe"
        )


async def test_so_does_a_cancel(app: Any, service: FakeService) -> None:
    async def cancel(ids: Any, expires_at: Any) -> list[CancelResult]:
        return [CancelResult(True, True, 5), CancelResult(False), CancelResult(False, unavailable=True)]

    service.cancel = cancel  # type: ignore[method-assign]
    answer = await call(app, "POST", "/v1/timers:cancel", b'{"ids":["a","b","c"]}', HEADERS)
    assert answer.problem == "shard-unavailable"
    assert answer.json()["cancelled"] == 1
    assert [(row["id"], row["status"], row["in_flight"]) for row in answer.json()["results"]] == [
        ("a", "cancelled", True), ("b", "not_found", False), ("c", "unavailable", False)
    ]  # fmt: skip


async def test_a_call_about_one_timer_is_a_plain_503(app: Any, service: FakeService) -> None:
    async def arm(*given: Any) -> ArmDone:
        return ArmDone(0, 0, [ArmResult("unavailable", 0, 0)], [0])

    async def cancel(*given: Any) -> list[CancelResult]:
        return [CancelResult(False, unavailable=True)]

    async def away(*given: Any) -> Refused:
        return AWAY

    service.arm, service.cancel = arm, cancel  # type: ignore[method-assign]
    for name in ("get", "fire", "next", "list", "list_dead", "replay_dead", "tally", "status", "delete_type"):
        setattr(service, name, away)
    for method, target, body in (
        ("PUT", "/v1/timers/a", b'{"type":"poll","delay":1}'),
        ("DELETE", "/v1/timers/a", b""),
        ("GET", "/v1/timers/a", b""),
        ("POST", "/v1/timers/a:fire", b""),
        ("GET", "/v1/timers", b""),
        ("GET", "/v1/timers:next", b""),
        ("GET", "/v1/dead-letters", b""),
        ("POST", "/v1/dead-letters:replay", b'{"type":"poll"}'),
        ("GET", "/v1/stats", b""),
        ("GET", "/v1/status", b""),
        ("DELETE", "/v1/types/poll", b""),
    ):
        answer = await call(app, method, target, body, HEADERS)
        assert (answer.status, answer.problem) == (503, "shard-unavailable"), target
        assert answer.headers["retry-after"] == "1"
        assert "results" not in answer.json()


async def test_metrics_are_this_nodes_own(app: Any, service: FakeService, cluster: FakeCluster) -> None:
    own = await service.tally()

    async def everybodys() -> Refused:
        return AWAY

    async def this_nodes() -> NodeTally:
        return own

    service.tally, cluster.own_tally = everybodys, this_nodes  # type: ignore[method-assign, assignment]
    answer = await call(app, "GET", "/metrics", b"", HEADERS)
    assert answer.status == 200
    assert b"timerd_fired_total" in answer.body
    for line in (
        b"timerd_cluster_connected 1.0",
        b"timerd_heartbeat_age_seconds 0.5",
        b"timerd_append_age_seconds 2.5",
        b"timerd_shards_fenced_total 2.0",
    ):
        assert b"\n" + line + b"\n" in answer.body


async def test_a_type_is_heard_of_before_it_is_an_error(app: Any, service: FakeService, cluster: FakeCluster) -> None:
    cluster.elsewhere = {"new": TimerType("new", url="http://h/")}
    body = TWO.replace(b'"poll"', b'"new"')
    assert (await call(app, "POST", "/v1/timers", body, HEADERS)).status == 200
    assert cluster.learnt == 1
    assert (await call(app, "PUT", "/v1/timers/x", b'{"type":"new","delay":1}', HEADERS)).status == 201
    assert cluster.learnt == 1
    assert (await call(app, "PUT", "/v1/timers/x", b'{"type":"none","delay":1}', HEADERS)).problem == "unknown-type"
    assert cluster.learnt == 2
    assert (await call(app, "PUT", "/v1/timers/x", b'{"type":"new","delay":-1}', HEADERS)).problem == "validation"
    assert cluster.learnt == 2, "only for types"
    cluster.refusal = AWAY
    assert (await call(app, "POST", "/v1/timers", TWO.replace(b"poll", b"x"), HEADERS)).problem == "shard-unavailable"


async def test_nodes_and_ring(app: Any, service: FakeService) -> None:
    shown = (await call(app, "GET", "/v1/nodes", b"", HEADERS)).json()
    assert shown == {
        "nodes": [
            {"id": "a", "address": "http://a:1", "shards": [0, 2], "seen_at": "2026-11-30T08:00:00.000Z"},
            {"id": "b", "address": "http://b:1", "shards": [1], "seen_at": None},
        ]
    }
    ring = (await call(app, "GET", "/v1/ring", b"", HEADERS)).json()
    assert ring["version"] == 3
    assert ring["slots"] == list(service.table.shards)
    assert ring["shards"][1:3] == [
        {"id": 1, "node": "b", "address": "http://b:1"},
        {"id": 2, "node": None, "address": None},
    ]


async def test_one_node_alone_is_all_there_is(service: FakeService) -> None:
    app = create_app(service, ApiSettings())
    shown = (await call(app, "GET", "/v1/nodes")).json()
    assert shown["nodes"] == [
        {"id": "here", "address": "http://127.0.0.1:8470", "shards": [0], "seen_at": "2026-11-30T08:00:00.000Z"}
    ]
    ring = (await call(app, "GET", "/v1/ring")).json()
    assert {shard["address"] for shard in ring["shards"]} == {"http://127.0.0.1:8470"}
    assert len(ring["slots"]) == 16_384
    assert (await call(app, "POST", ASK, b"x", [HOST, (HEADER, b"")])).status == 404, "there is no such door"


async def test_the_door_opens_to_the_secret_alone(app: Any, hears: Hears) -> None:
    for headers in ([], [(HEADER, b"")], [(HEADER, SECRET.encode() + b"x")], [KEY], [(HEADER, "ü".encode())]):
        answer = await call(app, "POST", ASK, [b"never read"] * 9, [HOST, *headers])
        assert (answer.status, answer.problem) == (401, "unauthorized")
        assert SECRET not in answer.body.decode()
    assert not hears.asked
    answer = await call(app, "POST", ASK, b"question", [(HEADER, SECRET.encode())])
    assert answer.status == 200, "whatever host it was called by: it is no page's door"
    assert answer.headers["content-type"] == "application/msgpack"
    assert hears.asked == [b"question"]
    assert (await call(app, "GET", ASK, b"", [HOST, (HEADER, SECRET.encode()), KEY])).status == 404
    assert SECRET not in repr(PeerDoor(hears, SECRET, 1))
    with pytest.raises(ValueError, match="empty"):
        PeerDoor(hears, "", 1)


@pytest.mark.parametrize("deep", [b"\x91", b"\x81\xa1a"])
async def test_a_question_that_is_too_deep_is_malformed(deep: bytes) -> None:
    app = create_app(FakeService(), ApiSettings(api_key="owner"), None, None, PeerDoor(Hears(), SECRET, 1 << 20))
    question = b"\x94\x01\xa1x\x00" + deep * 100_000 + b"\x90"
    answer = await call(app, "POST", ASK, question, [(HEADER, SECRET.encode())])
    assert (answer.status, answer.problem) == (400, "malformed")


async def test_the_door_is_bounded(app: Any, hears: Hears, monkeypatch: pytest.MonkeyPatch) -> None:
    known = [(HEADER, SECRET.encode())]
    assert (await call(app, "POST", ASK, b"x" * 1_001, known)).problem == "body-too-large"
    assert (await call(app, "POST", ASK, b"nonsense", known)).problem == "malformed"
    monkeypatch.setattr("timerd_api.peers.ASKING_MAX", 2)
    hears.gate.clear()
    waiting = [asyncio.ensure_future(call(app, "POST", ASK, b"q", known)) for _ in range(2)]
    await asyncio.sleep(0)
    while len(hears.asked) < 3:
        await asyncio.sleep(0)
    assert (await call(app, "POST", ASK, b"q", known)).problem == "overloaded"
    hears.gate.set()
    assert [answer.status for answer in await asyncio.gather(*waiting)] == [200, 200]
    assert (await call(app, "POST", ASK, b"q", known)).status == 200


async def test_no_reply_says_whether_anything_may_have_arrived() -> None:
    from timerd.peers import HttpPeers

    peers = HttpPeers(SECRET)
    assert SECRET not in repr(peers)
    statuses = [b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", b""]
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.append(head + await reader.readexactly(8))
        said = statuses.pop(0) if statuses else None
        if said is not None:
            writer.write(said)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    member = Member("b", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", "life")
    assert await peers.ask(member, b"question", 5) == NoReply(False, "it answers with status 401")
    assert await peers.ask(member, b"question", 5) == NoReply(True, "it answers with status 500")
    lost = await peers.ask(member, b"question", 5)
    assert isinstance(lost, NoReply)
    assert lost.sent
    silent = await peers.ask(member, b"question", 0.1)
    assert silent == NoReply(True, "no answer within 0.1 s")
    assert len(seen) == 4, "nothing is sent twice"
    assert all(SECRET.encode() in head and head.endswith(b"question") for head in seen)
    nobody = await peers.ask(Member("c", "http://127.0.0.1:9", "life"), b"question", 5)
    assert isinstance(nobody, NoReply)
    assert not nobody.sent
    peers._questions = 10**9
    assert not (await peers.ask(member, b"question", 5)).sent  # type: ignore[union-attr]
    await peers.close()
    server.close()

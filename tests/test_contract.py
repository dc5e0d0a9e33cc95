"""The whole contract once, through a real process: every route, status and field that the API's own tests see faked."""

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest

from tests.support.process import Process
from tests.support.processor import Answer, Processor

FAR = 2_050_000_000_000


@pytest.fixture
async def processor():
    async with Processor() as made:
        yield made


@pytest.fixture
async def timerd(tmp_path, processor):
    async with Process(tmp_path / "data", "--log-level", "warning") as made:
        await made.put_type("t", url=processor.url)
        yield made


async def test_arm_move_keep_and_read(timerd):
    item = {"id": "a", "type": "t", "fire_at": 2_000_000_000_000, "payload": {"n": [1, 2.5, None, "ü"]}}
    first = await timerd.arm([item])
    assert first["armed"] == 1
    assert first["results"][0]["status"] == "created"
    assert first["results"][0]["fire_at"] == "2033-05-18T03:33:20.000Z"
    generation = first["results"][0]["generation"]

    again = (await timerd.arm([item]))["results"][0]
    assert (again["status"], again["generation"]) == ("unchanged", generation)

    async def mode(name, fire_at, **more):
        answer = await timerd.arm([{**item, "fire_at": fire_at, "mode": name, **more}])
        return answer["results"][0]

    assert (await mode("earliest", 2_000_000_000_001))["status"] == "kept"
    assert (await mode("latest", 1_999_999_999_999))["status"] == "kept"
    assert (await mode("keep", 1_999_999_999_999))["status"] == "kept"
    moved = await mode("earliest", 1_999_999_999_999)
    assert moved["status"] == "moved"
    assert moved["previous_fire_at"] == "2033-05-18T03:33:20.000Z"
    assert moved["generation"] > generation
    assert (await mode("replace", FAR, if_generation=generation))["status"] == "conflict"
    assert (await mode("replace", FAR, if_generation=moved["generation"]))["status"] == "moved"

    timer = await timerd.get("a")
    assert timer["state"] == "armed"
    assert timer["payload"] == item["payload"]
    assert timer["attempt"] == 0
    assert timer["created_at"] <= timer["updated_at"]
    assert {"id", "type", "fire_at", "generation", "shard"} <= timer.keys()


async def test_an_id_twice_in_one_request_is_applied_in_order(timerd):
    answer = await timerd.arm([{"id": "a", "type": "t", "fire_at": FAR + n} for n in range(3)])
    assert [r["status"] for r in answer["results"]] == ["created", "moved", "moved"]
    assert (await timerd.get("a"))["fire_at"] == "2034-12-17T20:26:40.002Z"


async def test_one_bad_item_and_nothing_is_armed(timerd):
    good = {"id": "good", "type": "t", "fire_at": FAR}
    bad = [{"id": "x", "type": "t", "fire_at": 1_700_000_000}, {"id": "", "type": "t", "fire_at": FAR}]
    status, problem = await timerd.request("POST", "/v1/timers", {"timers": [good, *bad]})
    assert status == 422
    assert problem["type"] == "https://timerd.dev/problems/validation"
    assert [error["pointer"] for error in problem["errors"]] == ["/timers/1/fire_at", "/timers/2/id"]
    assert await timerd.get("good") is None
    status, problem = await timerd.request("POST", "/v1/timers", {"timers": [{**good, "type": "nobody"}]})
    assert (status, problem["type"].rsplit("/", 1)[1]) == (422, "unknown-type")


async def test_conditional_put_and_expiry(timerd):
    body = {"type": "t", "fire_at": FAR}
    status, created = await timerd.request("PUT", "/v1/timers/a", body, headers={"If-None-Match": "*"})
    assert (status, created["status"]) == (201, "created")
    status, problem = await timerd.request("PUT", "/v1/timers/a", body, headers={"If-None-Match": "*"})
    assert (status, problem["type"].rsplit("/", 1)[1]) == (412, "generation-mismatch")
    match = {"If-Match": f'"{created["generation"]}"'}
    status, moved = await timerd.request("PUT", "/v1/timers/a", {**body, "fire_at": FAR + 1}, headers=match)
    assert (status, moved["status"]) == (200, "moved")
    late = {"Timerd-Expires": "2020-01-01T00:00:00Z"}
    status, problem = await timerd.request("PUT", "/v1/timers/a", body, headers=late)
    assert (status, problem["type"].rsplit("/", 1)[1]) == (409, "expired")


async def test_list_pages_through_everything_once_and_filters(timerd):
    await timerd.put_type("u", url="http://127.0.0.1:9/")
    await timerd.arm([{"id": f"t{n:04}", "type": "t", "fire_at": FAR + n} for n in range(700)])
    await timerd.arm([{"id": f"u{n:04}", "type": "u", "fire_at": FAR + n} for n in range(50)])
    found = await timerd.list()
    assert sorted(timer["id"] for timer in found) == sorted(
        [f"t{n:04}" for n in range(700)] + [f"u{n:04}" for n in range(50)]
    )
    seen, token = [], ""
    while True:
        _, page = await timerd.request("GET", f"/v1/timers?type=u&page_size=7{token}")
        assert len(page["timers"]) <= 7
        seen += [timer["id"] for timer in page["timers"]]
        if "next_page_token" not in page:
            break
        token = f"&page_token={page['next_page_token']}"
    assert sorted(seen) == [f"u{n:04}" for n in range(50)]
    between = f"&fire_after={FAR + 9}&fire_before={FAR + 20}"
    assert len(await timerd.list(between)) == 20
    assert len(await timerd.list("&id_prefix=t069")) == 10
    _, soonest = await timerd.request("GET", "/v1/timers:next?type=t&limit=3")
    assert [timer["id"] for timer in soonest["timers"]] == ["t0000", "t0001", "t0002"]
    status, problem = await timerd.request("GET", "/v1/timers?page_token=nonsense")
    assert (status, problem["type"].rsplit("/", 1)[1]) == (422, "validation")


async def test_cancel_one_and_many(timerd):
    await timerd.arm([{"id": f"{n}", "type": "t", "fire_at": FAR} for n in range(5)])
    status, gone = await timerd.request("DELETE", "/v1/timers/0")
    assert (status, gone["in_flight"]) == (200, False)
    status, problem = await timerd.request("DELETE", "/v1/timers/0")
    assert (status, problem["type"].rsplit("/", 1)[1]) == (404, "timer-not-found")
    _, answer = await timerd.request("POST", "/v1/timers:cancel", {"ids": ["0", "1", "2", "2"]})
    assert answer["cancelled"] == 2
    assert [r["status"] for r in answer["results"]] == ["not_found", "cancelled", "cancelled", "not_found"]


async def test_fire_now_waits_for_no_batch(timerd, processor):
    await timerd.put_type("slow", url=processor.url, max_lag="1h")
    await timerd.arm([{"id": "a/b", "type": "slow", "fire_at": FAR, "payload": 1}])
    status, result = await timerd.request("POST", "/v1/timers/a%2Fb:fire")
    assert (status, result["status"]) == (200, "moved")
    await processor.until(lambda: "a/b" in processor.ids)
    delivery = processor.deliveries[0]
    assert delivery.body["timers"][0]["payload"] == 1
    assert delivery.body["timers"][0]["attempt"] == 1
    assert delivery.headers["webhook-id"] == delivery.body["batch_id"]
    assert delivery.headers["Idempotency-Key"] == f'"{delivery.body["batch_id"]}"'
    status, _ = await timerd.request("POST", "/v1/timers/nobody:fire")
    assert status == 404


async def test_in_flight_is_shown_and_a_re_arm_then_supersedes(timerd, processor):
    release = asyncio.Event()

    async def hold(delivery):
        await release.wait()
        return Answer()

    processor.answer = hold
    await timerd.arm([{"id": "a", "type": "t", "delay": 0}])
    await processor.until(lambda: bool(processor.deliveries))
    assert (await timerd.get("a"))["state"] == "in_flight"
    status, result = await timerd.request("POST", "/v1/timers/a:fire")
    assert (status, result["status"]) == (200, "unchanged")
    moved = (await timerd.arm([{"id": "a", "type": "t", "fire_at": FAR, "mode": "keep"}]))["results"][0]
    assert moved["status"] == "moved"
    release.set()

    async def superseded():
        while (await timerd.request("GET", "/v1/stats"))[1]["types"]["t"]["superseded"] == 0:
            await asyncio.sleep(0.02)

    await asyncio.wait_for(superseded(), 10)
    assert (await timerd.get("a"))["generation"] == moved["generation"]


async def test_dead_letters_are_listed_replayed_and_purged(timerd, processor):
    await timerd.put_type("d", url=processor.url, retry={"max_attempts": 1})
    processor.answer = lambda delivery: Answer(200, {"results": [{"id": "x", "status": "dead", "error": "no such x"}]})
    await timerd.arm([{"id": "x", "type": "d", "delay": 0, "payload": "p"}])

    async def dead():
        while not (letters := (await timerd.request("GET", "/v1/dead-letters?type=d"))[1]["dead_letters"]):
            await asyncio.sleep(0.02)
        return letters

    letter = (await asyncio.wait_for(dead(), 10))[0]
    assert {"id", "type", "generation", "fire_at", "attempts", "last_error", "died_at", "payload"} <= letter.keys()
    assert (letter["attempts"], letter["last_error"]) == (1, "no such x")
    assert (await timerd.get("x"))["state"] == "dead"
    status, problem = await timerd.request("POST", "/v1/timers/x:fire")
    assert (status, problem["type"].rsplit("/", 1)[1]) == (409, "timer-dead")
    processor.answer = lambda delivery: Answer()
    _, replayed = await timerd.request("POST", "/v1/dead-letters:replay", {"ids": ["x", "nobody"]})
    assert replayed == {"replayed": 1}
    await processor.until(lambda: processor.counts["x"] == 2)
    processor.answer = lambda delivery: Answer(500)
    await timerd.arm([{"id": "y", "type": "d", "delay": 0}])
    await asyncio.wait_for(dead(), 10)
    _, purged = await timerd.request("POST", "/v1/dead-letters:purge", {"type": "d"})
    assert purged == {"purged": 1}
    assert await timerd.get("y") is None


async def test_types_live_pause_and_go(timerd, processor):
    status, type = await timerd.request("PUT", "/v1/types/p", {"url": processor.url, "max_lag": "250ms"})
    assert (status, type["max_lag"], type["state"]) == (201, "250ms", "active")
    secret = "whsec_" + "c2VjcmV0" * 4
    status, type = await timerd.request(
        "PUT", "/v1/types/p", {"url": processor.url, "max_lag": 0, "signing_secrets": [secret], "headers": {"X-A": "b"}}
    )
    assert status == 200
    assert secret not in str(type)
    assert type["headers"] == {"X-A": "***"}
    _, paused = await timerd.request("POST", "/v1/types/p:pause")
    assert paused["state"] == "paused"
    await timerd.arm([{"id": "w", "type": "p", "delay": 0}])
    assert (await timerd.get("w"))["state"] == "paused"
    status, problem = await timerd.request("DELETE", "/v1/types/p")
    assert (status, problem["type"].rsplit("/", 1)[1]) == (409, "type-in-use")
    assert not processor.deliveries
    _, resumed = await timerd.request("POST", "/v1/types/p:resume")
    assert resumed["state"] == "active"
    await processor.until(lambda: "w" in processor.ids)
    assert processor.deliveries[0].headers["webhook-signature"].startswith("v1,")
    assert processor.deliveries[0].headers["X-A"] == "b"

    async def deleted():
        while (await timerd.request("DELETE", "/v1/types/p"))[0] != 204:
            await asyncio.sleep(0.02)

    await asyncio.wait_for(deleted(), 10)
    assert [t["name"] for t in (await timerd.request("GET", "/v1/types"))[1]["types"]] == ["t"]
    status, problem = await timerd.request("GET", "/v1/types/p")
    assert (status, problem["type"].rsplit("/", 1)[1]) == (404, "type-not-found")


async def test_minimal_answers_and_msgpack_both_ways(timerd):
    headers = {"Prefer": "return=minimal", "Content-Type": "application/msgpack", "Accept": "application/msgpack"}
    data = msgspec.msgpack.encode({"timers": [{"id": "m", "type": "t", "fire_at": FAR, "payload": {"k": [1, "é"]}}]})
    async with timerd.session.post(timerd.url + "/v1/timers", data=data, headers=headers) as answer:
        assert answer.status == 200
        assert answer.headers["Preference-Applied"] == "return=minimal"
        assert "Timerd-Now" in answer.headers
        body = msgspec.msgpack.decode(await answer.read())
    assert body["armed"] == 1
    assert "results" not in body
    assert (await timerd.get("m"))["payload"] == {"k": [1, "é"]}


async def test_large_payloads_come_back_whole_also_after_a_kill(timerd, processor):
    large = {"text": "ü" * 9_000}
    await timerd.arm([{"id": "L", "type": "t", "fire_at": FAR, "payload": large}])
    timerd.kill()
    await timerd.start()
    assert (await timerd.get("L"))["payload"] == large
    await timerd.request("POST", "/v1/timers/L:fire")
    await processor.until(lambda: "L" in processor.ids)
    assert processor.deliveries[0].body["timers"][0]["payload"] == large
    status, problem = await timerd.request(
        "POST", "/v1/timers", {"timers": [{"id": "x", "type": "t", "fire_at": FAR, "payload": "x" * 70_000}]}
    )
    assert (status, problem["errors"][0]["pointer"]) == (422, "/timers/0/payload")


async def test_the_service_says_how_it_is(timerd):
    assert (await timerd.request("GET", "/healthz"))[0] == 200
    assert (await timerd.request("GET", "/readyz"))[0] == 200
    _, status = await timerd.request("GET", "/v1/status")
    assert status["durability"] == "fsync"
    assert {"version", "uptime_s", "node", "timers", "oldest_due_at", "ring_version"} <= status.keys()
    _, shards = await timerd.request("GET", "/v1/shards")
    assert [shard["id"] for shard in shards["shards"]] == list(range(8))
    assert {"owner", "epoch", "timers", "capacity", "utilisation", "in_flight"} <= shards["shards"][0].keys()
    _, contract = await timerd.request("GET", "/openapi.json")
    assert "/v1/timers/{id}" in contract["paths"]
    assert (await timerd.request("GET", "/docs"))[0] == 200
    assert datetime.now(UTC).year >= 2026


async def test_a_key_opens_everything_but_the_probes(tmp_path):
    async with Process(tmp_path / "data", "--host", "0.0.0.0", env={"TIMERD_API_KEY": "sesame"}) as timerd:
        timerd.url = timerd.url.replace("0.0.0.0", "127.0.0.1")
        assert (await timerd.request("GET", "/healthz"))[0] == 200
        status, problem = await timerd.request("GET", "/v1/status")
        assert (status, problem["type"].rsplit("/", 1)[1]) == (401, "unauthorized")
        assert (await timerd.request("GET", "/metrics"))[0] == 401
        assert (await timerd.request("GET", "/v1/status", headers={"Authorization": "Bearer sesame"}))[0] == 200


async def test_it_refuses_to_be_reachable_without_a_key(tmp_path):
    timerd = Process(tmp_path / "data", "--host", "0.0.0.0")
    assert not await (await timerd.spawn())
    assert await timerd.wait() == 2
    assert "--insecure" in "".join(timerd.stderr)
    assert not timerd.data.exists()


async def test_the_number_of_shards_is_the_data_directorys(tmp_path):
    async with Process(tmp_path / "data", "--shards", "3") as timerd:
        _, shards = await timerd.request("GET", "/v1/shards")
        assert len(shards["shards"]) == 3
        assert await timerd.stop() == 0
        timerd.options = ("--shards", "4")
        assert not await (await timerd.spawn())
        assert await timerd.wait() == 2
        assert "3 shards" in "".join(timerd.stderr)
        timerd.options = ()
        await timerd.start()


async def test_types_of_the_configuration_file_leave_pause_and_secrets_alone(tmp_path):
    file = tmp_path / "timerd.toml"
    file.write_text('[types.c]\nurl = "http://127.0.0.1:9/"\nmax_lag = "3s"\n')
    async with Process(tmp_path / "data", "--config", str(file)) as timerd:
        assert (await timerd.request("GET", "/v1/types/c"))[1]["max_lag"] == "3s"
        await timerd.request("POST", "/v1/types/c:pause")
        assert await timerd.stop() == 0
        await timerd.start()
        assert (await timerd.request("GET", "/v1/types/c"))[1]["state"] == "paused"

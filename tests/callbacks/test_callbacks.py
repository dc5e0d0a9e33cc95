"""Scheduled callbacks on the real process: what arrives at the target, and what becomes of the timer."""

import base64
import hashlib
import hmac
import re
import time
from pathlib import Path
from typing import Any

from standardwebhooks import Webhook

from tests.callbacks.conftest import ALLOW, callback
from tests.callbacks.target import Got, Reply, Target
from tests.support.process import Process

SECRETS = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_" + base64.b64encode(b"another secret of ours").decode()]
FAST = {"min_backoff": "50ms", "max_backoff": "100ms", "jitter": 0}


async def put(timerd: Process, name: str = "call", **fields: object) -> None:
    await timerd.put_type(name, kind="callback", **fields)


async def test_the_request_is_sent_as_it_is_at_its_time(timerd: Process, target: Target) -> None:
    await put(timerd, max_lag="10s")
    body = '{"a": 1.0, "ü": "☃",  "z":null}'
    due = time.time() + 1
    await timerd.arm(
        [
            {
                **callback("order:42", f"{target.url}/a%2Fb?q=%20&q=1", method="PUT", body=body),
                "delay": 1,
            }
        ]
    )
    timers = await timerd.list()
    assert timers[0]["request"] == {
        "url": f"{target.url}/a%2Fb?q=%20&q=1",
        "method": "PUT",
        "headers": {},
        "body": body,
    }
    assert "payload" not in timers[0]
    await target.until(lambda: bool(target.got))
    (got,) = target.got
    assert (got.method, got.target, got.body) == ("PUT", "/hook/a%2Fb?q=%20&q=1", body.encode())
    assert due <= got.at < due + 2, "at once, whatever max_lag says"
    names = {"host", "content-length", "user-agent", "webhook-id", "webhook-timestamp"}
    assert set(got.headers) == {*names, "timerd-timer-id", "timerd-generation", "timerd-attempt"}
    assert (got.id, got.headers["timerd-attempt"]) == ("order:42", "1")
    assert got.headers["timerd-generation"] == str(timers[0]["generation"])
    await timerd.until(lambda: gone(timerd, "order:42"))
    stats = await timerd.stats("call")
    assert (stats["fired"], stats["batches"], stats["live"]) == (1, 1, 0)


async def gone(timerd: Process, id: str) -> bool:
    return await timerd.get(id) is None


FORMS: list[tuple[dict[str, Any], bytes, str | None]] = [
    ({}, b"", None),
    ({"method": "GET"}, b"", None),
    ({"method": "DELETE", "headers": {"X-Own": "1, 2"}}, b"", None),
    ({"body": "käse"}, "käse".encode(), None),
    ({"json": {"a": [1, None]}}, b'{"a": [1, null]}', "application/json"),
    ({"json": None}, b"null", "application/json"),
    ({"json": 1, "headers": {"content-type": "application/vnd.x+json"}}, b"1", "application/vnd.x+json"),
    ({"body_base64": base64.b64encode(bytes(range(256))).decode()}, bytes(range(256)), None),
    ({"body": "x" * 60_000}, b"x" * 60_000, None),
    ({"body": "a=b", "headers": {"Content-Type": "text/plain", "User-Agent": "me/1"}}, b"a=b", "text/plain"),
]


async def test_bodies_and_headers_of_every_form(timerd: Process, target: Target) -> None:
    await put(timerd, signing_secrets=SECRETS)
    await timerd.request("POST", "/v1/types/call:pause")
    await timerd.arm([callback(str(n), target.url, **request) for n, (request, _, _) in enumerate(FORMS)])
    for n, (request, _, _) in enumerate(FORMS):
        shown = (await timerd.get(str(n)) or {})["request"]
        assert shown == {"method": "POST", "headers": {}, **request, "url": target.url}
    await timerd.request("POST", "/v1/types/call:resume")
    await target.until(lambda: len(target.got) == len(FORMS))
    for got in target.got:
        request, body, content_type = FORMS[int(got.id)]
        assert (got.method, got.body) == (request.get("method", "POST"), body)
        assert got.headers.get("content-type") == content_type
        for name, value in request.get("headers", {}).items():
            assert got.headers[name.lower()] == value
        assert got.headers["webhook-signature"].count("v1,") == 2
        for secret in SECRETS:
            verify(secret, got)


def verify(secret: str, got: Got) -> None:
    try:
        Webhook(secret).verify(got.body, dict(got.headers), json_parse=False)
    except UnicodeDecodeError:  # the library takes text alone; the specification any bytes
        signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
        digest = hmac.digest(base64.b64decode(secret.removeprefix("whsec_")), signed, hashlib.sha256)
        assert f"v1,{base64.b64encode(digest).decode()}" in got.headers["webhook-signature"].split()


async def test_odd_ids_come_percent_encoded(timerd: Process, target: Target) -> None:
    await put(timerd)
    await timerd.arm([callback("käse 100%", target.url), callback("plain/a b", target.url)])
    await target.until(lambda: len(target.got) == 2)
    assert set(target.ids) == {"k%C3%A4se%20100%25", "plain/a b"}


async def test_rearms_conditions_and_unchanged_work_as_with_payloads(timerd: Process, target: Target) -> None:
    await put(timerd)
    long = {"body": "x" * 2_000}
    at = round((time.time() + 3600) * 1000)
    arm = {"id": "a", "type": "call", "fire_at": at, "request": {"url": target.url, **long}}
    statuses = []
    for change in (
        {},
        {},
        {"request": {"url": target.url, "method": "POST", "headers": {}, **long}},
        {"request": {"url": target.url, "body": "x" * 1_999}},
        {"mode": "keep"},
        {"if_generation": 1},
        {"fire_at": at - 1, "mode": "earliest"},
    ):
        answer = await timerd.arm([{**arm, **change}])
        statuses.append(answer["results"][0]["status"])
    assert statuses == ["created", "unchanged", "unchanged", "moved", "kept", "conflict", "moved"]
    status, answer = await timerd.request("POST", "/v1/timers/a:fire")
    assert (status, answer["status"]) == (200, "moved")
    await target.until(lambda: bool(target.got))
    assert target.got[0].body == b"x" * 2_000


FAILURES = {
    "500": (Reply(500, body=b"no such luck"), "HTTP 500: no such luck"),
    "302": (
        Reply(302, {"Location": "http://127.0.0.1:1/"}),
        "HTTP 302 to http://127.0.0.1:1/; redirects are not followed",
    ),
    "404": (Reply(404), "HTTP 404"),
    "lost": (Reply(drop=True), "lost"),
}


async def test_every_failure_is_tried_again_and_counts(timerd: Process, target: Target) -> None:
    target.answer = lambda got: FAILURES[got.id][0]
    await put(timerd, retry={**FAST, "max_attempts": 3})
    await timerd.arm([callback(id, target.url) for id in FAILURES])
    await timerd.until(lambda: dead(timerd, len(FAILURES)))
    for letter in await timerd.dead_letters():
        assert letter["attempts"] == 3
        assert letter["last_error"].startswith(FAILURES[letter["id"]][1])
        assert letter["request"]["url"] == target.url
    for id, (reply, _) in FAILURES.items():
        tries = [got for got in target.got if got.id == id]
        assert [got.headers["timerd-attempt"] for got in tries] == ["1", "2", "3"]
        assert len({got.headers["webhook-id"] for got in tries}) == 1, "the same in every attempt"
        repeats = [got.headers.get("timerd-possible-duplicate") for got in tries]
        assert repeats == ([None, "true", "true"] if reply.drop else [None] * 3)


async def dead(timerd: Process, count: int) -> bool:
    return len(await timerd.dead_letters()) == count


async def test_gone_and_no_retry_are_dead_at_once(timerd: Process, target: Target) -> None:
    replies = {"a": Reply(410), "b": Reply(204), "c": Reply(500, {"Timerd-No-Retry": "true"})}
    target.answer = lambda got: replies[got.id]
    await put(timerd)
    await timerd.arm([callback(id, target.url) for id in replies])
    await timerd.until(lambda: dead(timerd, 2))
    assert len(target.got) == 3
    status, type = await timerd.request("GET", "/v1/types/call")
    assert (status, type["state"]) == (200, "active")
    target.answer = lambda got: Reply()
    assert (await timerd.request("POST", "/v1/dead-letters:replay", {"ids": ["a"]}))[1] == {"replayed": 1}
    await target.until(lambda: target.ids.count("a") == 2)


async def test_any_2xx_is_success_whatever_it_says(timerd: Process, target: Target) -> None:
    bodies = [b"", b"{", b'{"results":[{"id":"a","status":"retry"}]}', b"x" * 1_000_000]
    target.answer = lambda got: Reply(202, {"Content-Type": "application/json"}, bodies[int(got.id)])
    await put(timerd)
    await timerd.arm([callback(str(n), target.url) for n in range(len(bodies))])
    await timerd.until(lambda: settled(timerd, len(bodies)))
    assert len(target.got) == len(bodies)


async def test_default_attempts_are_ten_and_a_put_may_say_otherwise(timerd: Process) -> None:
    for retry, expected in (({}, 10), ({"max_attempts": 0}, 0), ({"min_backoff": "2s"}, 10)):
        await put(timerd, retry=retry)
        _, type = await timerd.request("GET", "/v1/types/call")
        assert (type["retry"]["max_attempts"], type["kind"], "url" in type) == (expected, "callback", False)


async def test_a_paused_host_gets_nothing_and_others_go_on(timerd: Process, target: Target) -> None:
    async with Target() as other:
        target.answer = lambda got: Reply(429, {"Retry-After": "2"}) if len(target.got) == 1 else Reply()
        await put(timerd, max_in_flight=4, retry=FAST)
        await timerd.arm([callback(f"a{n}", target.url) for n in range(20)])
        await target.until(lambda: bool(target.got))
        first = target.got[0].at
        await timerd.arm([callback(f"b{n}", other.url) for n in range(20)])
        await other.until(lambda: len(other.got) == 20)
        assert time.time() < first + 2
        assert len(target.got) == 1
        await target.until(lambda: len(target.got) == 21)
        assert target.got[1].at >= first + 2
        assert target.got[-1].at < first + 5
    assert (await timerd.stats("call"))["dead"] == 0


async def test_one_host_gets_a_quarter_and_the_type_no_more_than_its_own(timerd: Process, target: Target) -> None:
    target.answer = lambda got: Reply(delay_s=0.05)
    async with (
        Target(target.answer) as b,
        Target(target.answer) as c,
        Target(target.answer) as d,
        Target(target.answer) as e,
    ):
        all_ = [target, b, c, d, e]
        await put(timerd, max_in_flight=12)
        await timerd.arm([callback(f"{n}.{i}", t.url) for n in range(40) for i, t in enumerate(all_)])
        open_max = 0
        for t in all_:
            await t.until(lambda t=t: len(t.got) == 40)  # type: ignore[misc]
            open_max = max(open_max, sum(each.open for each in all_))
        assert [t.open_max for t in all_] == [3] * 5
        assert open_max <= 12
    await timerd.until(lambda: settled(timerd, 200))


async def settled(timerd: Process, fired: int) -> bool:
    return (await timerd.stats("call"))["fired"] == fired


async def test_a_rate_is_kept(timerd: Process, target: Target) -> None:
    await put(timerd, max_per_second=50, max_in_flight=100)
    await timerd.arm([callback(f"{n}", target.url) for n in range(60)])
    await target.until(lambda: len(target.got) == 60)
    assert target.got[-1].at - target.got[0].at > 0.9


async def test_a_dead_host_holds_up_nobody_and_comes_back(timerd: Process, target: Target, tmp_path: Path) -> None:
    async with Target() as down:
        await down.stop()
        await put(timerd, max_lag="1s", retry={"min_backoff": "100ms", "max_backoff": "500ms", "max_attempts": 0})
        await timerd.arm([callback(f"dead{n}", down.url, body="x" * 600) for n in range(5_000)])
        due = time.time() + 0.5
        await timerd.arm([callback(f"good{n}", target.url, delay=0.5) for n in range(200)])
        await target.until(lambda: len(target.got) == 200)
        assert target.got[-1].at - due < 5
        cpu_s, at = timerd.cpu_s(), time.monotonic()
        await timerd.until(lambda: waited(at + 2))
        assert (timerd.cpu_s() - cpu_s) / (time.monotonic() - at) < 0.3, "those of the dead host are not polled"
        tried = (await timerd.stats("call"))["retried"]
        assert tried < 60, "one probe at a time, and what was under way before"
        # What waits can be cancelled, moved and read like any other timer.
        state = (await timerd.get("dead4999") or {})["state"]
        assert state in ("due", "retrying")
        status, answer = await timerd.request("DELETE", "/v1/timers/dead4999")
        assert (status, answer["in_flight"]) == (200, False)
        await timerd.arm([callback("dead4998", target.url)])
        await target.until(lambda: "dead4998" in target.ids)
        await down.start()
        await down.until(lambda: len(set(down.ids)) == 4_998)
    await timerd.until(lambda: settled(timerd, 4_998 + 201))
    assert "dead4999" not in down.ids


async def waited(until: float) -> bool:
    return time.monotonic() >= until


async def test_after_a_kill_what_waited_is_due_and_what_flew_may_be_a_repeat(timerd: Process, target: Target) -> None:
    target.answer = lambda got: Reply(delay_s=30)
    await put(timerd, max_in_flight=4)
    await timerd.arm([callback(f"{n}", target.url) for n in range(10)])
    await target.until(lambda: bool(target.got))
    timerd.kill()
    target.answer = lambda got: Reply()
    before = len(target.got)
    await timerd.start()
    await target.until(lambda: len(target.got) == before + 10)
    assert all(got.headers["timerd-possible-duplicate"] == "true" for got in target.got[before:])
    assert sorted(got.id for got in target.got[before:]) == [f"{n}" for n in range(10)]


async def test_a_stop_lets_requests_end_and_begins_none(tmp_path: Path, target: Target) -> None:
    target.answer = lambda got: Reply(delay_s=1)
    async with Process(tmp_path / "data", *ALLOW) as timerd:
        await put(timerd, max_in_flight=8)
        await timerd.arm([callback(f"{n}", target.url) for n in range(10)])
        await target.until(lambda: target.open == 2)
        assert await timerd.stop() == 0
        assert len(target.got) == 2
        target.answer = lambda got: Reply()
        await timerd.start()
        await target.until(lambda: len(target.got) == 10)
        assert not any("timerd-possible-duplicate" in got.headers for got in target.got)
        assert not timerd.complaints()


async def test_a_rearm_while_it_is_sent_supersedes_the_answer(timerd: Process, target: Target) -> None:
    target.answer = lambda got: Reply(500, delay_s=0.5) if len(target.got) == 1 else Reply()
    await put(timerd)
    await timerd.arm([callback("a", target.url)])
    await target.until(lambda: bool(target.got))
    answer = await timerd.arm([callback("a", target.url, body="new")])
    assert answer["results"][0]["status"] == "moved"
    await target.until(lambda: len(target.got) == 2)
    assert (target.got[1].body, target.got[1].headers["timerd-attempt"]) == (b"new", "1")
    assert target.got[1].at - target.got[0].at >= 0.5, "not before the open delivery has ended"
    await timerd.until(lambda: gone(timerd, "a"))
    stats = await timerd.stats("call")
    assert (stats["superseded"], stats["replaced"], stats["fired"], stats["retried"]) == (1, 1, 1, 0)


async def test_a_pause_holds_everything_and_a_resume_lets_it_go(timerd: Process, target: Target) -> None:
    await put(timerd)
    await timerd.request("POST", "/v1/types/call:pause")
    await timerd.arm([callback(f"{n}", target.url) for n in range(50)])
    assert (await timerd.get("7") or {})["state"] == "paused"
    assert not target.got
    await timerd.request("POST", "/v1/types/call:resume")
    await target.until(lambda: len(target.got) == 50)


async def test_the_kind_of_a_type_with_live_timers_stays(timerd: Process, target: Target) -> None:
    await put(timerd)
    await timerd.arm([callback("a", target.url, delay=3600)])
    status, problem = await timerd.request("PUT", "/v1/types/call", {"url": target.url})
    assert (status, problem["type"].rpartition("/")[2]) == (409, "type-in-use")
    await timerd.request("DELETE", "/v1/timers/a")
    assert (await timerd.request("PUT", "/v1/types/call", {"url": target.url}))[0] == 200


async def test_a_dead_letter_of_another_kind_is_buried_again_when_it_is_replayed(
    timerd: Process, target: Target
) -> None:
    target.answer = lambda got: Reply(410)
    await put(timerd)
    await timerd.arm([callback("a", target.url, body="ü"), callback("b", target.url)])
    await timerd.until(lambda: dead(timerd, 2))
    target.answer = lambda got: Reply()
    await timerd.put_type("call", url=target.url)
    await timerd.arm([{"id": "c", "type": "call", "delay": 0, "payload": "ü"}])
    await timerd.request("POST", "/v1/dead-letters:replay", {"type": "call"})
    await timerd.until(lambda: dead(timerd, 2))
    letters = await timerd.dead_letters()
    assert {letter["last_error"] for letter in letters} == {"it holds a request and no payload"}
    await timerd.request("DELETE", "/v1/timers/c")
    await timerd.until(lambda: gone(timerd, "c"))
    await put(timerd)
    await timerd.request("POST", "/v1/dead-letters:replay", {"ids": ["a"]})
    await target.until(lambda: any(re.fullmatch("a", got.headers.get("timerd-timer-id", "")) for got in target.got[2:]))

"""Scheduled callbacks on the real process: what arrives at the target, and what becomes of the timer."""

import base64
import hashlib
import hmac
import time
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.callbacks.conftest import Calls, callback, callbacks
from tests.callbacks.target import Got, Reply, Target

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRETS = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_" + base64.b64encode(b"another secret of ours").decode()]
FAST = {"min_backoff": "50ms", "max_backoff": "100ms", "jitter": 0}
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
FAILURES = {
    "500": (Reply(500, body=b"no such luck"), "HTTP 500: no such luck"),
    "302": (Reply(302, {"Location": "http://127.0.0.1:1/"}), "HTTP 302 to http://127.0.0.1:1/; redirects are not"),
    "404": (Reply(404), "HTTP 404"),
    "lost": (Reply(drop=True), "lost"),
}


async def test_the_request_is_sent_as_it_is_at_its_time(calls: Calls, target: Target) -> None:
    await calls.put(max_lag="10s")
    body = '{"a": 1.0, "ü": "☃",  "z":null}'
    due = time.time() + 1
    await calls.arm(callback("order:42", f"{target.url}/a%2Fb?q=%20&q=1", delay=1, method="PUT", body=body))
    timer = await calls.timerd.get("order:42") or {}
    request = {"url": f"{target.url}/a%2Fb?q=%20&q=1", "method": "PUT", "headers": {}, "body": body}
    assert (timer["request"], "payload" in timer) == (request, False)
    assert [each["request"] for each in await calls.timerd.list(f"&type={calls.type}")] == [request]
    await target.until(lambda: bool(target.got))
    (got,) = target.got
    assert (got.method, got.target, got.body) == ("PUT", "/hook/a%2Fb?q=%20&q=1", body.encode())
    assert due <= got.at < due + 2, "at once, whatever max_lag says"
    names = {"host", "content-length", "user-agent", "webhook-id", "webhook-timestamp"}
    assert set(got.headers) == {*names, "timerd-timer-id", "timerd-generation", "timerd-attempt"}
    assert (got.id, got.headers["timerd-attempt"]) == ("order:42", "1")
    assert got.headers["timerd-generation"] == str(timer["generation"])
    await calls.until_gone("order%3A42")
    stats = await calls.stats()
    assert (stats["fired"], stats["batches"], stats["live"]) == (1, 1, 0)


async def test_bodies_and_headers_of_every_form(calls: Calls, target: Target) -> None:
    await calls.put(signing_secrets=SECRETS)
    await calls.timerd.request("POST", f"/v1/types/{calls.type}:pause")
    await calls.arm(*(callback(str(n), target.url, **request) for n, (request, _, _) in enumerate(FORMS)))
    for n, (request, _, _) in enumerate(FORMS):
        shown = (await calls.timerd.get(str(n)) or {})["request"]
        assert shown == {"method": "POST", "headers": {}, **request, "url": target.url}
    await calls.timerd.request("POST", f"/v1/types/{calls.type}:resume")
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


async def test_odd_ids_come_percent_encoded(calls: Calls, target: Target) -> None:
    await calls.put()
    await calls.arm(*callbacks(["käse 100%", "plain/a b"], target.url))
    await target.until(lambda: len(target.got) == 2)
    assert set(target.ids) == {"k%C3%A4se%20100%25", "plain/a b"}


async def test_rearms_conditions_and_unchanged_work_as_with_payloads(calls: Calls, target: Target) -> None:
    await calls.put()
    long = {"body": "x" * 2_000}
    at = round((time.time() + 3600) * 1000)
    arm = {"id": "a", "fire_at": at, "request": {"url": target.url, **long}}
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
        (result,) = await calls.arm({**arm, **change})
        statuses.append(result["status"])
    assert statuses == ["created", "unchanged", "unchanged", "moved", "kept", "conflict", "moved"]
    status, answer = await calls.timerd.request("POST", "/v1/timers/a:fire")
    assert (status, answer["status"]) == (200, "moved")
    await target.until(lambda: bool(target.got))
    assert target.got[0].body == b"x" * 2_000


async def test_every_failure_is_tried_again_and_counts(calls: Calls, target: Target) -> None:
    target.answer = lambda got: FAILURES[got.id][0]
    await calls.put(retry={**FAST, "max_attempts": 3})
    await calls.arm(*callbacks(list(FAILURES), target.url))
    for letter in await calls.until_dead(len(FAILURES)):
        assert letter["attempts"] == 3
        assert letter["last_error"].startswith(FAILURES[letter["id"]][1])
        assert letter["request"]["url"] == target.url
    for id, (reply, _) in FAILURES.items():
        tries = [got for got in target.got if got.id == id]
        assert [got.headers["timerd-attempt"] for got in tries] == ["1", "2", "3"]
        assert len({got.headers["webhook-id"] for got in tries}) == 1, "the same in every attempt"
        repeats = [got.headers.get("timerd-possible-duplicate") for got in tries]
        assert repeats == ([None, "true", "true"] if reply.drop else [None] * 3)


async def test_gone_and_no_retry_are_dead_at_once(calls: Calls, target: Target) -> None:
    replies = {"a": Reply(410), "b": Reply(204), "c": Reply(500, {"Timerd-No-Retry": "true"})}
    target.answer = lambda got: replies[got.id]
    await calls.put()
    await calls.arm(*callbacks(list(replies), target.url))
    await calls.until_dead(2)
    assert len(target.got) == 3
    status, type = await calls.timerd.request("GET", f"/v1/types/{calls.type}")
    assert (status, type["state"]) == (200, "active")
    target.answer = lambda got: Reply()
    assert (await calls.timerd.request("POST", "/v1/dead-letters:replay", {"ids": ["a"]}))[1] == {"replayed": 1}
    await target.until(lambda: target.ids.count("a") == 2)


async def test_any_2xx_is_success_whatever_it_says(calls: Calls, target: Target) -> None:
    bodies = [b"", b"{", b'{"results":[{"id":"a","status":"retry"}]}', b"x" * 1_000_000]
    target.answer = lambda got: Reply(202, {"Content-Type": "application/json"}, bodies[int(got.id)])
    await calls.put()
    await calls.arm(*callbacks([str(n) for n in range(len(bodies))], target.url))
    await calls.until_fired(len(bodies))
    assert len(target.got) == len(bodies)


async def test_a_name_that_leads_to_a_network_not_allowed_is_a_dead_letter(calls: Calls, target: Target) -> None:
    """IPv6's loopback is not among what this service may reach."""
    await calls.put()
    await calls.arm(callback("a", "http://ip6-localhost:1/"), callback("b", target.url))
    await target.until(lambda: target.ids == ["b"])
    letters = [letter for letter in await calls.dead() if letter["id"] == "a"]
    if letters:  # where the name is known
        assert letters[0]["attempts"] == 0
        assert "callbacks may not go there" in letters[0]["last_error"]
    status, problem = await calls.timerd.request(
        "POST", "/v1/timers", {"timers": [{"type": calls.type, **callback("c", "http://10.0.0.1/")}]}
    )
    assert (status, problem["type"].rpartition("/")[2]) == (422, "target-forbidden")


async def test_a_paused_host_gets_nothing_and_others_go_on(calls: Calls, target: Target) -> None:
    async with Target() as other:
        target.answer = lambda got: Reply(429, {"Retry-After": "2"}) if len(target.got) == 1 else Reply()
        await calls.put(max_in_flight=4, retry=FAST)
        await calls.arm(*callbacks([f"a{n}" for n in range(20)], target.url))
        await target.until(lambda: bool(target.got))
        first = target.got[0].at
        await calls.arm(*callbacks([f"b{n}" for n in range(20)], other.url))
        await other.until(lambda: len(other.got) == 20)
        assert other.got[-1].at < first + 2
        await target.until(lambda: len(target.got) == 21)
        assert target.got[1].at >= first + 2
    assert (await calls.stats())["dead"] == 0


async def test_one_host_gets_a_quarter_and_the_type_no_more_than_its_own(calls: Calls, target: Target) -> None:
    target.answer = lambda got: Reply(delay_s=0.05)
    targets = [target, *(Target(target.answer) for _ in range(4))]
    for other in targets[1:]:
        await other.start()
    try:
        await calls.put(max_in_flight=12)
        open_max = 0
        await calls.arm(*(callback(f"{n}.{i}", t.url) for n in range(40) for i, t in enumerate(targets)))
        for each in targets:
            await each.until(lambda each=each: len(each.got) == 40)  # type: ignore[misc]
            open_max = max(open_max, sum(t.open for t in targets))
        assert [t.open_max for t in targets] == [3] * 5
        assert open_max <= 12
        await calls.until_fired(200)
    finally:
        for other in targets[1:]:
            await other.stop()


async def test_a_rearm_while_it_is_sent_supersedes_the_answer(calls: Calls, target: Target) -> None:
    target.answer = lambda got: Reply(500, delay_s=0.5) if len(target.got) == 1 else Reply()
    await calls.put()
    await calls.arm(callback("a", target.url))
    await target.until(lambda: bool(target.got))
    (result,) = await calls.arm(callback("a", target.url, body="new"))
    assert result["status"] == "moved"
    await target.until(lambda: len(target.got) == 2)
    assert (target.got[1].body, target.got[1].headers["timerd-attempt"]) == (b"new", "1")
    assert target.got[1].at - target.got[0].at >= 0.5, "not before the open delivery has ended"
    await calls.until_gone("a")
    stats = await calls.stats()
    assert (stats["superseded"], stats["replaced"], stats["fired"], stats["retried"]) == (1, 1, 1, 0)


async def test_a_pause_holds_everything_and_a_resume_lets_it_go(calls: Calls, target: Target) -> None:
    await calls.put()
    await calls.timerd.request("POST", f"/v1/types/{calls.type}:pause")
    await calls.arm(*callbacks([str(n) for n in range(50)], target.url))
    assert (await calls.timerd.get("7") or {})["state"] == "paused"
    assert not target.got
    await calls.timerd.request("POST", f"/v1/types/{calls.type}:resume")
    await target.until(lambda: len(target.got) == 50)


async def test_the_kind_of_a_type_with_live_timers_stays(calls: Calls, target: Target) -> None:
    await calls.put()
    await calls.arm(callback("a", target.url, delay=3600))
    status, problem = await calls.timerd.request("PUT", f"/v1/types/{calls.type}", {"url": target.url})
    assert (status, problem["type"].rpartition("/")[2]) == (409, "type-in-use")
    await calls.timerd.request("DELETE", "/v1/timers/a")
    assert (await calls.timerd.request("PUT", f"/v1/types/{calls.type}", {"url": target.url}))[0] == 200


async def test_a_dead_letter_of_another_kind_is_buried_again_when_it_is_replayed(calls: Calls, target: Target) -> None:
    target.answer = lambda got: Reply(410)
    await calls.put()
    await calls.arm(callback("a", target.url, body="ü"), callback("b", target.url))
    await calls.until_dead(2)
    target.answer = lambda got: Reply()
    await calls.timerd.put_type(calls.type, url=target.url)
    await calls.arm({"id": "c", "delay": 0, "payload": "ü"})
    await calls.timerd.request("POST", "/v1/dead-letters:replay", {"type": calls.type})
    letters = await calls.until_dead(2)
    assert {letter["last_error"] for letter in letters} == {"it holds a request and no payload"}
    await calls.until_gone("c")
    await calls.put()
    await calls.timerd.request("POST", "/v1/dead-letters:replay", {"ids": ["a"]})
    await target.until(lambda: target.got[-1].headers.get("timerd-timer-id") == "a")

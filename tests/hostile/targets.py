"""What reads bytes from outside, each as a function of bytes: what it must keep whatever they are.

A target returns what became of its input (a short word, by which the fuzzer tells new behaviour), or raises: anything
but the documented refusal is a failure, and so is taking what would be written differently.
"""

import asyncio
import json
import math
import zlib
from collections.abc import Callable, Hashable
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp
import msgspec

from tests.api.asgi import HOST, call
from tests.api.fake_service import FakeService
from tests.hostile.connection_target import connection
from timerd import deliver
from timerd.engine.address import Targets
from timerd.engine.answer import ERROR_BYTES_MAX, Accepted, Limits, read_answer
from timerd.engine.callback import decode_request, encode_request, is_request
from timerd.engine.errors import CorruptLog
from timerd.engine.instant import format_instant, parse_duration, parse_http_date, parse_instant
from timerd.engine.now import Now
from timerd.engine.timer import Timer, TimerType
from timerd.pages import page_token_of, read_token
from timerd_api import openapi
from timerd_api.app import create_app
from timerd_api.items import Items
from timerd_api.problem import Problem
from timerd_api.requests import request_item
from timerd_api.settings import ApiSettings
from timerd_api.values import id_fault
from timerd_storage import body, codec, frame, recover, segment

NOW = Now(1_796_025_600_000_250, 1_796_025_600_000)
HORIZON_MS = 3_652 * 86_400_000
PAYLOAD_MAX = 64 * 1024
LIMITS = Limits()
SERVICE = FakeService()
CALL = SERVICE.types["call"] = TimerType("call", kind="callback")
APP = create_app(SERVICE, ApiSettings(max_body_bytes=1 << 20))
LOOP = asyncio.new_event_loop()
ITEMS = Items(lambda: SERVICE.types, HORIZON_MS, PAYLOAD_MAX, Targets())
MEMBERS = frozenset({"a", "b", "é", "x" * 256})
MEDIA_TYPES = (b"application/json", b"application/msgpack", b"application/json; charset=x", b"", b"\xff")


class Target(NamedTuple):
    """One reader."""

    run: Callable[[bytes], Hashable]
    seeds: list[bytes]


def is_json(data: bytes) -> bool:
    """Whether it is JSON by the book; numbers of any size are."""
    json.loads(data.decode(), parse_int=str, parse_float=str)
    return True


# ---- storage


def one_frame(data: bytes) -> Hashable:
    """A frame's header and payload, taken as they are or with the checksum that makes them whole."""
    if data[:1] > b"\x7f" and len(data) > frame.HEADER.size + 1:
        data = resealed(data[1:])
    found = frame.read(data, 0, 0)
    if found is None:
        return None
    again = frame.encode(found.shard, found.lsn, found.position, found.synced, found.payload)
    assert again == data[: found.end], "a frame was taken that would be written differently"
    return min(found.shard, 3), len(found.payload) > 10


def resealed(data: bytes) -> bytes:
    length = len(data) - frame.OVERHEAD_BYTES
    data = frame.MARKER + data[4:8] + max(length, 0).to_bytes(4, "little") + data[12:-1] + frame.END
    checksum = zlib.crc32(data[8:-1])
    return data[:4] + checksum.to_bytes(4, "little") + data[8:]


def one_segment(data: bytes) -> Hashable:
    """A last segment, header and frames."""
    header = segment.decode_header(data[: segment.HEADER_BYTES], 1)
    frames = list(frame.search(data, segment.HEADER_BYTES - 1, -1))
    assert len(frames) <= len(data) // frame.OVERHEAD_BYTES
    if header is None:
        return None
    if header.version == segment.VERSION:
        assert segment.encode_header(1, header.first)[:32] == data[:32]
    path = Path("000000000001.log")
    try:
        ending = recover.read(path, data, header, None)
        records = [record for raw in ending.frames for record in recover.decode(path, header, raw)]
    except CorruptLog as corrupt:
        return str(corrupt).partition(":")[0]
    again = b"".join(frame.encode(f.shard, f.lsn, f.position, f.synced, f.payload) for f in ending.frames)
    assert data[segment.HEADER_BYTES : segment.HEADER_BYTES + len(again)] == again
    assert ending.position == header.first + len(again)
    return len(ending.frames), ending.torn, len(records)


def records(data: bytes) -> Hashable:
    try:
        found = codec.decode(data)
    except ValueError:
        return None
    again = codec.encode(found)
    assert codec.decode(again) == found
    return tuple(type(record).__name__ for record in found[:4])


def body_frame(data: bytes) -> Hashable:
    if data[:1] > b"\x7f" and len(data) > body.FRAME_HEADER.size + 1:
        data = data[1:]
        end = body.FRAME_HEADER.size + int.from_bytes(data[12:14], "little")
        data = body.MARKER + zlib.crc32(data[8:end]).to_bytes(4, "little") + data[8:]
    head = body.read_head(data, 0, 0)
    if head is None:
        return None
    assert head.length <= body.PAYLOAD_BYTES_MAX
    assert body.FRAME_HEADER.size <= head.offset <= len(data)
    return head.length > 0, len(head.id) > 0


# ---- the API


def check_timers(timers: list[Timer]) -> None:
    for timer in timers:
        assert id_fault(timer.id) is None
        timer.id.encode()
        assert timer.type is SERVICE.types[timer.type].name
        assert 0 <= timer.fire_at <= NOW.wall_ms + HORIZON_MS
        if timer.type == "call":
            check_request(timer.payload)
        elif timer.payload is not None:
            assert isinstance(timer.payload, bytes)
            assert len(timer.payload) <= PAYLOAD_MAX
            assert is_json(timer.payload)


def check_request(payload: object) -> None:
    """A request that can be sent as it stands, and nothing beside it."""
    assert isinstance(payload, bytes)
    assert is_request(payload)
    request = decode_request(payload)
    assert encode_request(request) == payload
    assert len(request.body) <= PAYLOAD_MAX
    head = "".join([request.method, request.url, *(text for header in request.headers for text in header)])
    assert head.isascii()
    assert head.replace("\t", " ").isprintable()
    parts = urlsplit(request.url)
    assert parts.hostname
    assert "@" not in parts.netloc
    try:
        address = ip_address(parts.hostname)
    except ValueError:
        return
    assert address.is_global, "an address that is not public was taken"


def refusal(problem: Problem) -> Hashable:
    assert problem.kind.status < 500
    assert len(problem.response().body) < 1 << 18
    return problem.kind.name, len(problem.faults), problem.faults[0].detail[:12] if problem.faults else None


def arms_json(data: bytes) -> Hashable:
    try:
        timers, conditions = ITEMS.read(data, False, NOW)
    except Problem as problem:
        return refusal(problem)
    check_timers(timers)
    assert all(timer.type == "call" or timer.payload is None or timer.payload in data for timer in timers)
    # The same request written by the book means the same.
    again = msgspec.json.encode({"timers": [written(timer) for timer in timers]})
    assert ITEMS.read(again, False, NOW)[0] == timers
    return len(timers), conditions is None


def arms_msgpack(data: bytes) -> Hashable:
    try:
        timers, conditions = ITEMS.read(data, True, NOW)
    except Problem as problem:
        return refusal(problem)
    check_timers(timers)
    again = msgspec.json.encode({"timers": [written(timer) for timer in timers]})
    assert ITEMS.read(again, False, NOW)[0] == timers
    return len(timers), conditions is None


def written(timer: Timer) -> dict[str, object]:
    shown: dict[str, object] = {"id": timer.id, "type": timer.type, "fire_at": timer.fire_at}
    if isinstance(timer.payload, bytes) and is_request(timer.payload):
        shown["request"] = request_item(timer.payload)  # as it is shown it can be given
    elif isinstance(timer.payload, bytes):
        shown["payload"] = msgspec.Raw(timer.payload)
    return shown


def one_call(data: bytes) -> Hashable:
    """Any route: a byte for the route, one for the media type; path segment, query, a header and the body behind it."""
    route, media, rest = data[:1] or b"\0", data[1:2] or b"\0", data[2:]
    segment_, query, header, content = (rest.split(b"\xfe", 3) + [b""] * 4)[:4]
    target = openapi.CALLS[route[0] % len(openapi.CALLS)]
    text = "".join(chr(b) for b in segment_ if b not in b"/?# \r\n") or "a"
    path = target.path.replace("{id}", text).replace("{name}", text)
    headers = [HOST, (b"content-type", MEDIA_TYPES[media[0] % len(MEDIA_TYPES)])]
    name, _, value = header.partition(b":")
    if name and value:
        headers.append((name.lower(), value))
    SERVICE.__init__()  # type: ignore[misc]
    SERVICE.types["call"] = CALL
    answer = LOOP.run_until_complete(
        call(APP, target.method.upper(), f"{path}?{query.decode('latin-1')}", content, headers)
    )
    assert answer.status < 500, answer
    check_timers([timer for timer in SERVICE.timers.values() if timer.type in ("poll", "call")])
    return target.path, target.method, answer.status, answer.problem if answer.status >= 400 else None


# ---- what targets answer

HEADERS: tuple[dict[str, str], ...] = (
    {"content-type": "application/json"},
    {},
    {"content-type": "text/plain"},
    {"content-type": "application/problem+json"},
    {"content-type": "application/json", "timerd-no-retry": "true"},
)
STATUSES = (200, 204, 301, 410, 429, 500, 503)


def answer(data: bytes) -> Hashable:
    """The answer of a processor: a byte for the status, one for the headers, then the body."""
    status = STATUSES[data[0] % len(STATUSES)] if data else 200
    headers = HEADERS[data[1] % len(HEADERS)] if data[1:] else HEADERS[0]
    if status in (429, 503):
        headers = {**headers, "retry-after": data[2:40].decode("latin-1")}
    outcome = read_answer(NOW, MEMBERS, LIMITS, status=status, headers=headers, body=data[2:])
    if isinstance(outcome, Accepted):
        assert 200 <= status < 300
        assert outcome.results.keys() <= MEMBERS
        for result in outcome.results.values():
            assert len(result.error.encode()) <= ERROR_BYTES_MAX
            if result.payload is not None:
                assert isinstance(result.payload, bytes)
                assert len(result.payload) <= LIMITS.max_payload_bytes
                assert is_json(result.payload)
        return tuple(sorted(r.status for r in outcome.results.values()))[:4], min(outcome.unnamed, 2)
    assert len(outcome.error.encode()) <= ERROR_BYTES_MAX
    assert outcome.retry_after_ms is None or 0 <= outcome.retry_after_ms <= LIMITS.max_retry_after_ms
    return status, outcome.error[:24], outcome.retry_after_ms is None


CODINGS = ("gzip", "deflate", "x-gzip", "br")


def compressed(data: bytes) -> Hashable:
    try:
        plain, overlong = deliver._decompressed(data[1:], False, CODINGS[data[0] % 4] if data else "gzip", 4096)
    except aiohttp.ClientPayloadError as error:
        return str(error)[:20]
    assert len(plain) <= 4096
    return overlong, len(plain) > 0


# ---- values


def times(data: bytes) -> Hashable:
    text = data.decode("latin-1")
    found: list[Hashable] = []
    for parse in (parse_instant, parse_duration, parse_http_date):
        try:
            ms = parse(text)
        except ValueError as error:
            found.append(str(error)[:10])
        else:
            assert ms >= (-(10**15) if parse is parse_http_date else 0)
            if parse is parse_instant:
                assert parse_instant(format_instant(ms)) == ms
            found.append(True)
    try:
        number = msgspec.json.decode(data, type=int | float)
        ms = parse_duration(number)
        assert ms >= math.floor(number * 1000) or number > 2**50
    except (msgspec.MsgspecError, ValueError):
        pass
    return tuple(found)


def page_token(data: bytes) -> Hashable:
    position = read_token(data.decode("latin-1"))
    if position is None:
        return None
    assert read_token(page_token_of(position)) == position
    return position[0] > 0, len(position[1])


def _seeds() -> dict[str, list[bytes]]:
    from timerd.engine.record import Armed, Cancelled, Fired

    payload = codec.encode([Armed([Timer(1_800_000_000_000, 5, "a", "poll", b'{"n":1}')]), Cancelled(["b"])])
    other = codec.encode([Fired("poll", ["a"])])
    first = frame.encode(1, 1, 0, 0, payload)
    frames = first + frame.encode(2, 1, len(first), len(first), other)
    ahead = b"\xff" + first[:36] + b"\1" + first[37:]  # it says that it was on disk before it was written
    arm = b'{"timers":[{"id":"a","type":"poll","fire_at":1800000000000,"payload":{"n":[1,"x"]}}]}'
    careful = b'{"timers":[{"id":"a","type":"poll","delay":"10s","mode":"keep","if_generation":0,"payload":1e3}]}'
    hook = (
        b'{"timers":[{"id":"a","type":"call","delay":1,"request":{"url":"http://1.2.3.4:80/a?b","method":"PUT",'
        b'"headers":{"X-A":"b"},"json":{"n":1}}},{"id":"b","type":"call","delay":1,'
        b'"request":{"url":"https://example.com/","body_base64":"AP8="}}]}'
    )
    results = (
        b'{"results":[{"id":"a","status":"rearm","delay":"5s","payload":[1]},{"id":"b","status":"dead","error":"x"}]}'
    )
    token = page_token_of((5, "abc")).encode()
    calls = [bytes((n, 0)) + b"a\xfe\xfe\xfe" for n in range(len(openapi.CALLS))]
    one = b'{"type":"poll","delay":"1h","payload":{"n":1}}'
    calls += [
        bytes((0, 0)) + b"a\xfe\xfeprefer:return=minimal\xfe" + arm,
        bytes((0, 0)) + b"a\xfe\xfe\xfe" + hook,
        bytes((0, 1)) + b"a\xfe\xfe\xfe" + msgspec.msgpack.encode(msgspec.json.decode(careful)),
        bytes((3, 0)) + b'\xfe\xfetimerd-expires:2027-01-01T00:00:00Z\xfe{"ids":["a"]}',
        bytes((5, 0)) + b'a%2Fb\xfe\xfeif-match:"5"\xfe' + one,
        bytes((5, 1)) + b"a\xfe\xfeif-none-match:*\xfe" + msgspec.msgpack.encode(msgspec.json.decode(one)),
        bytes((7, 0)) + b"a\xfe\xfe\xfe{}",
        bytes((10, 0)) + b'n\xfe\xfe\xfe{"url":"http://h/","max_lag":"1s","retry":{"jitter":0.1},"headers":{"a":"b"}}',
        bytes((1, 0)) + b"a\xfetype=poll&state=due&fire_after=2026-12-01T00:00:00Z&page_size=5&page_token=" + token,
        bytes((15, 0)) + b'a\xfe\xfe\xfe{"type":"poll"}',
    ]
    return {
        "frame": [first, b"\xff" + first, b"\xff" + frames, b"\xff" + first[:14] + b"\1" + first[15:], ahead],
        "segment": [segment.encode_header(1, 0) + frames + bytes(100), segment.encode_header(1, 0) + bytes(100)],
        "records": [payload, other],
        "body": [body.encode("a", b"payload", body.digest_of(b"payload"))],
        "arms-json": [arm, careful, hook],
        "arms-msgpack": [msgspec.msgpack.encode(msgspec.json.decode(data)) for data in (arm, careful, hook)],
        "call": calls,
        "answer": [b"\0\0" + results, b'\0\0{"batchItemFailures":[{"itemIdentifier":"a"}]}', b"\4\0120"],
        "compressed": [b"\0" + zlib.compress(b"{}" * 50, wbits=31), b"\1" + zlib.compress(b"{}")],
        "times": [b"2026-11-30T08:00:00.123+02:00", b"1.5h", b"Sun, 06 Nov 1994 08:49:37 GMT", b"1e3", b"60d"],
        "page-token": [token],
        "connection": [
            b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 3,
            b"PUT /v1/timers/a HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(one), one),
            b"POST /v1/timers HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\nGET / HTTP/1.0\r\n\r\n" % (len(arm), arm),
        ],
    }


_RUNS: dict[str, Callable[[bytes], Hashable]] = {
    "frame": one_frame,
    "segment": one_segment,
    "records": records,
    "body": body_frame,
    "arms-json": arms_json,
    "arms-msgpack": arms_msgpack,
    "call": one_call,
    "answer": answer,
    "compressed": compressed,
    "times": times,
    "page-token": page_token,
    "connection": connection,
}
TARGETS = {name: Target(_RUNS[name], seeds) for name, seeds in _seeds().items()}

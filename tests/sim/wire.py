"""The API as its callers have it: requests in one of their ways, answers held against the contract.

What is called is the shipped ASGI application, in process, with the scopes that a server would make. A call gives what
the node's own method would give, read back from the wire; on the way everything that the contract says of an answer
whatever it means is checked: status, media type, length, `Timerd-Now`, the form of a problem and its name, ETag, the
sums. Some requests come in pieces, some in MessagePack, some with an item that makes the whole of it invalid.

It knows HTTP and no timers: what an answer means is the checker's business.
"""

import asyncio
import re
from collections.abc import Sequence
from random import Random
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from tests.sim.account import Violation
from tests.sim.clock import SimClock
from tests.sim.wire_forms import (
    ArmForm,
    CancelForm,
    CountForm,
    DeadPageForm,
    DeleteForm,
    PageForm,
    ProblemForm,
    ResultForm,
    StatsForm,
    TimerForm,
    TypeForm,
    from_instant,
    request_body,
    type_body,
)
from timerd.engine.callback import is_request
from timerd.engine.message import ArmDone, ArmResult, CancelResult, Condition, Refused, TimerView
from timerd.engine.timer import Timer, TimerType
from timerd.node import Node
from timerd_api.app import create_app
from timerd_api.settings import ApiSettings

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
KEY: Final = "only-for-the-simulator"
_SAMPLE: Final = re.compile(
    r'^timerd_([a-z_]+?)(?:_total)?\{(?:reason="(\w+)",)?type="([^"]+)"\} (\S+)$',
    re.MULTILINE,
)
STATUS: Final = {
    "validation": 422, "unknown-type": 422, "horizon-exceeded": 422, "malformed": 400, "timer-not-found": 404,
    "type-not-found": 404, "generation-mismatch": 412, "type-in-use": 409, "timer-dead": 409, "expired": 409,
    "overloaded": 503, "storage-full": 507,
}  # fmt: skip
"""The problems that a call of the workload may meet."""


class Front:
    """What the application has for a service: the node of the day."""

    def __init__(self, clock: SimClock) -> None:
        self.clock = clock
        self.node: Node | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.node, name)


class Reply(NamedTuple):
    """An answer, and the media type of its body."""

    status: int
    headers: dict[str, str]
    body: bytes

    def read(self, form: Any) -> Any:
        """The body as this."""
        decode = msgspec.msgpack.decode if self.headers["content-type"] == MSGPACK else msgspec.json.decode
        return decode(self.body, type=form)


class Wire:
    """All callers of one run speak through it."""

    def __init__(self, clock: SimClock, random: Random) -> None:
        self.front = Front(clock)
        self.requests = 0
        self._clock = clock
        self._random = random
        keyed = random.random() < 0.3
        self._key = [(b"authorization", f"Bearer {KEY}".encode())] if keyed else []
        self._app = create_app(self.front, ApiSettings(api_key=KEY if keyed else None))  # type: ignore[arg-type]

    # ---- timers

    async def arm(
        self, timers: Sequence[Timer], conditions: Sequence[Condition] | None, minimal: bool, expires_at: int | None
    ) -> ArmDone | Refused:
        """`POST /v1/timers`, or `PUT /v1/timers/{id}` for some of those that are alone."""
        if len(timers) == 1 and not minimal and self._random.random() < 0.5:
            return await self._arm_one(timers[0], conditions[0] if conditions else Condition(), expires_at)
        items = [self._item(timer, conditions[n] if conditions else None) for n, timer in enumerate(timers)]
        asked = [(b"prefer", b"return=minimal")] if minimal else []
        reply = await self._write("POST", "/v1/timers", {"timers": items}, expires_at, asked)
        if isinstance(reply, Refused):
            return reply
        answer = reply.read(ArmForm)
        if minimal != (answer.results is None) or minimal != ("preference-applied" in reply.headers):
            raise Violation(f"results were {'not ' * minimal}wanted: {reply}")
        if answer.results is None:
            return ArmDone(answer.armed, answer.conflicts, None)
        results = [result.value() for result in answer.results]
        if [result.id for result in answer.results] != [timer.id for timer in timers]:
            raise Violation(f"results of other timers than were asked for: {reply}")
        if answer.armed != sum(result.status in ("created", "moved") for result in results):
            raise Violation(f"armed {answer.armed}, it says: {results}")
        if answer.conflicts != sum(result.status == "conflict" for result in results):
            raise Violation(f"conflicts {answer.conflicts}, it says: {results}")
        return ArmDone(answer.armed, answer.conflicts, results)

    async def arm_badly(self, timers: Sequence[Timer]) -> None:
        """An arm with an item that is no good: nothing of it may be done."""
        items = [self._item(timer, None) for timer in timers]
        at = self._random.randrange(len(items))
        bad: list[tuple[dict[str, Any], str, str]] = [
            ({"fire_at": 12}, "validation", "/fire_at"),
            ({"type": "nobody"}, "unknown-type", "/type"),
            ({"id": "\x07"}, "validation", "/id"),
            ({"mode": "perhaps"}, "validation", "/mode"),
            ({"fire_at": self._clock.wall_ms + 4_000 * 86_400_000}, "horizon-exceeded", "/fire_at"),
            ({"surprise": 1}, "validation", "/surprise"),
        ]
        change, name, pointer = self._random.choice(bad)
        items[at] |= change
        if "fire_at" in change:
            items[at].pop("delay", None)
        reply = await self._write("POST", "/v1/timers", {"timers": items}, None)
        if not isinstance(reply, Refused) or reply.name not in (name, "unknown-type", "validation"):
            raise Violation(f"an arm of {items[at]} was not refused for it: {reply}")
        if f"/timers/{at}{pointer}" not in [where for where, _ in reply.errors]:
            raise Violation(f"{items[at]} is not pointed at: {reply}")

    async def _arm_one(self, timer: Timer, condition: Condition, expires_at: int | None) -> ArmDone | Refused:
        item = self._item(timer, condition)
        del item["id"]
        asked = []
        if (wanted := condition.if_generation) is not None and self._random.random() < 0.7:
            del item["if_generation"]
            asked = [(b"if-match", b'"%d"' % wanted)] if wanted else [(b"if-none-match", b"*")]
        reply = await self._write("PUT", _path(timer.id), item, expires_at, asked)
        if isinstance(reply, Refused):
            if reply.name == "generation-mismatch" and asked:
                return ArmDone(0, 1, [ArmResult("conflict", 0, 0)])
            return reply
        result = reply.read(ResultForm)
        if (reply.status == 201) != (result.status == "created") or result.id != timer.id:
            raise Violation(f"{timer} was armed alone, and the answer is {reply}")
        if reply.headers.get("etag") != f'"{result.generation}"':
            raise Violation(f"not the generation's ETag: {reply}")
        conflict = result.status == "conflict"
        return ArmDone(int(result.status in ("created", "moved")), int(conflict), [result.value()])

    async def cancel(self, ids: Sequence[str], expires_at: int | None) -> list[CancelResult] | Refused:
        """`DELETE` of one, or `:cancel` of many, whose answers name no generation (0 here)."""
        if len(ids) == 1:
            reply = await self._write("DELETE", _path(ids[0]), None, expires_at)
            if isinstance(reply, Refused):
                return [CancelResult(False)] if reply.name == "timer-not-found" else reply
            deleted = reply.read(DeleteForm)
            if deleted.id != ids[0]:
                raise Violation(f"deleted another than {ids[0]!r}: {reply}")
            return [CancelResult(True, deleted.in_flight, deleted.generation)]
        reply = await self._write("POST", "/v1/timers:cancel", {"ids": list(ids)}, expires_at)
        if isinstance(reply, Refused):
            return reply
        answer = reply.read(CancelForm)
        if [item.id for item in answer.results] != list(ids):
            raise Violation(f"cancelled others than {ids}: {reply}")
        results = [CancelResult(item.status == "cancelled", item.in_flight) for item in answer.results]
        if answer.cancelled != sum(result.found for result in results):
            raise Violation(f"cancelled {answer.cancelled}, it says: {answer.results}")
        return results

    async def fire(self, id: str) -> ArmResult | Refused | None:
        """`:fire`; None: there is no such timer."""
        reply = await self._write("POST", _path(id) + ":fire", self._random.choice([None, {}]), None)
        if isinstance(reply, Refused):
            return None if reply.name == "timer-not-found" else reply
        result = reply.read(ResultForm)
        if result.id != id:
            raise Violation(f"fired another than {id!r}: {reply}")
        return result.value()

    async def get(self, id: str) -> TimerView | None:
        """`GET` of one."""
        reply = await self._read(_path(id))
        if isinstance(reply, Refused):
            return None
        view = reply.read(TimerForm).value()
        if view.id != id or reply.headers.get("etag") != f'"{view.generation}"':
            raise Violation(f"asked for {id!r}: {reply}")
        return view

    async def next(self, limit: int) -> list[TimerView]:
        """What is soonest, in its order."""
        reply = await self._read(f"/v1/timers:next?limit={limit}")
        if isinstance(reply, Refused):
            raise Violation(f"a read was refused: {reply}")
        views = [timer.value() for timer in reply.read(PageForm).timers]
        if len(views) > limit or [v.fire_at for v in views] != sorted(v.fire_at for v in views):
            raise Violation(f"the next {limit}: {views}")
        return views

    async def page(self, state: str | None, size: int, token: str | None) -> tuple[list[TimerView], str | None]:
        """A page of the list."""
        query = f"page_size={size}" + (f"&state={state}" if state else "") + (f"&page_token={token}" if token else "")
        reply = await self._read(f"/v1/timers?{query}")
        if isinstance(reply, Refused):
            raise Violation(f"a page was refused: {reply}")
        page = reply.read(PageForm)
        views = [timer.value() for timer in page.timers]
        if len(views) > size or (state and any(view.state != state for view in views)):
            raise Violation(f"a page of {size} {state}: {views}")
        return views, page.next_page_token

    # ---- types, dead letters, counts

    async def put_type(self, type: TimerType) -> Refused | None:
        """Put it as it is, and look at what was stored."""
        reply = await self._write("PUT", f"/v1/types/{type.name}", type_body(type), None)
        return reply if isinstance(reply, Refused) else _same(type, reply)

    async def set_type_state(self, name: str, state: str) -> Refused | None:
        """Pause or resume."""
        verb = "pause" if state == "paused" else "resume"
        reply = await self._write("POST", f"/v1/types/{name}:{verb}", None, None)
        if not isinstance(reply, Refused) and reply.read(TypeForm).state != state:
            raise Violation(f"{name} is not {state}: {reply}")
        return reply if isinstance(reply, Refused) else None

    async def delete_type(self, name: str) -> Refused | None:
        """Delete one that nothing lives of."""
        reply = await self._write("DELETE", f"/v1/types/{name}", None, None)
        return reply if isinstance(reply, Refused) else None

    async def list_dead(self, size: int) -> list[TimerView]:
        """The first page of dead letters."""
        reply = await self._read(f"/v1/dead-letters?page_size={size}")
        if isinstance(reply, Refused):
            raise Violation(f"a page was refused: {reply}")
        return [letter.value() for letter in reply.read(DeadPageForm).dead_letters]

    async def act_on_dead(self, verb: str, ids: list[str] | None, type: str | None) -> int | Refused:
        """`replay` or `purge` these, or all of a type."""
        chosen = {"type": type} if ids is None else {"ids": ids}
        reply = await self._write("POST", f"/v1/dead-letters:{verb}", chosen, None)
        return reply if isinstance(reply, Refused) else int(sum(reply.read(CountForm)))

    async def stats(self) -> dict[str, Any]:
        """The counts by type."""
        reply = await self._read("/v1/stats")
        if isinstance(reply, Refused):
            raise Violation(f"a read was refused: {reply}")
        return dict(reply.read(StatsForm).types)

    async def metrics(self) -> dict[str, dict[str, Any]]:
        """The same, as a scraper reads them."""
        reply = await self._read("/metrics")
        if isinstance(reply, Refused):
            raise Violation(f"a read was refused: {reply}")
        counts: dict[str, dict[str, Any]] = {}
        for name, reason, type, number in _SAMPLE.findall(reply.body.decode()):
            of = counts.setdefault(type, {"dropped": {}})
            (of["dropped"] if reason else of)[reason or name] = int(float(number))
        return counts

    # ---- one exchange

    def _item(self, timer: Timer, condition: Condition | None) -> dict[str, Any]:
        r = self._random
        item: dict[str, Any] = {"id": timer.id, "type": timer.type}
        draw = r.random()
        if draw < 0.15 and timer.fire_at >= (now_ms := self._clock.wall_ms_up):
            item["delay"] = f"{timer.fire_at - now_ms}ms"  # the call is taken up at this very instant
        else:
            item["fire_at"] = timer.fire_at if draw < 0.6 else from_instant(timer.fire_at)
        if timer.payload is not None:
            assert isinstance(timer.payload, bytes)
            if is_request(timer.payload):
                item["request"] = request_body(timer.payload)
            else:
                item["payload"] = msgspec.Raw(timer.payload)
        if condition is not None:
            if condition.mode != "replace" or r.random() < 0.3:
                item["mode"] = condition.mode
            if condition.if_generation is not None:
                item["if_generation"] = condition.if_generation
        return item

    async def _write(
        self, method: str, path: str, body: Any, expires_at: int | None, asked: Sequence[tuple[bytes, bytes]] = ()
    ) -> Reply | Refused:
        r = self._random
        headers = list(asked)
        data = b""
        if body is not None:
            data = msgspec.json.encode(body)
            media_type = JSON
            if r.random() < 0.3:
                data, media_type = msgspec.msgpack.encode(msgspec.json.decode(data)), MSGPACK
            headers.append((b"content-type", media_type.encode()))
        if expires_at is not None:
            headers.append((b"timerd-expires", from_instant(expires_at).encode()))
        in_pieces = len(data) > 1 and r.random() < 0.1 and b'"delay"' not in data and b"\xa5delay" not in data
        return await self._exchange(method, path, headers, data, in_pieces)

    async def _read(self, path: str) -> Reply | Refused:
        return await self._exchange("GET", path, [], b"", False)

    async def _exchange(
        self, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes, in_pieces: bool
    ) -> Reply | Refused:
        r = self._random
        self.requests += 1
        packed = r.random() < 0.2
        if packed:
            headers.append((b"accept", MSGPACK.encode()))
        target, _, query = path.partition("?")
        headers += [(b"host", b"127.0.0.1:8470"), (b"content-length", b"%d" % len(body)), *self._key]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": target, "raw_path": target.encode(), "query_string": query.encode(), "root_path": "",
            "headers": headers, "client": ("127.0.0.1", 40_000), "server": ("127.0.0.1", 8470),
        }  # fmt: skip
        at = r.randrange(len(body)) if in_pieces else len(body)
        pieces = [body[:at], body[at:]] if in_pieces else [body]
        answered: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if not pieces:
                return await asyncio.get_running_loop().create_future()  # nobody hangs up
            if at < len(body) and len(pieces) == 1:
                await asyncio.sleep(r.random() * 0.05)
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

        async def send(message: Any) -> None:
            answered.append(message)
            said_at.append(from_instant(self._clock.wall_ms))

        said_at: list[str] = []
        await self._app(scope, receive, send)
        start, *parts = answered
        shown = {name.decode(): value.decode() for name, value in start["headers"]}
        reply = Reply(start["status"], shown, b"".join(part.get("body", b"") for part in parts))
        if shown.get("timerd-now") != said_at[0]:
            raise Violation(f"{method} {path} at {said_at[0]}: {reply}")
        return self._judge(method, path, reply, packed)

    def _judge(self, method: str, path: str, reply: Reply, packed: bool) -> Reply | Refused:
        """What any answer must be."""
        shown = reply.headers
        if reply.status == 204:
            return reply
        if int(shown["content-length"]) != len(reply.body):
            raise Violation(f"its length is {len(reply.body)}: {reply}")
        if reply.status < 300:
            if shown["content-type"] != (MSGPACK if packed else JSON) and path != "/metrics":
                raise Violation(f"{method} {path}: the answer is of another type: {reply}")
            return reply
        problem = msgspec.json.decode(reply.body, type=ProblemForm)
        name = problem.type.removeprefix("https://timerd.dev/problems/")
        if shown["content-type"] != "application/problem+json" or STATUS.get(name) != reply.status == problem.status:
            raise Violation(f"{method} {path}: {reply}")
        if (reply.status == 503) != ("retry-after" in shown):
            raise Violation(f"{method} {path}: try again when? {reply}")
        return Refused(name, problem.detail, [(error.pointer, error.detail) for error in problem.errors])


def _path(id: str) -> str:
    return "/v1/timers/" + quote(id, safe="")


def _same(type: TimerType, reply: Reply) -> None:
    """Raises Violation unless the answer shows this type."""
    shown = reply.read(TypeForm)
    for field in ("name", "url", "kind", "batch_size", "max_in_flight", "max_per_second", "state"):
        if getattr(shown, field) != getattr(type, field):
            raise Violation(f"put {type}, stored {shown}")
    for field in ("policy", "max_per_second"):
        if shown.misfire[field] != getattr(type.misfire, field):
            raise Violation(f"put {type}, stored {shown}")
    if shown.retry["max_attempts"] != type.retry.max_attempts:
        raise Violation(f"put {type}, stored {shown}")

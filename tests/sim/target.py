"""The targets: HTTP endpoints of all tempers, as the node's deliverer meets them. Implements `timerd.ports.Deliver`.

Requests take time to arrive, answers take time to come, and either may be lost: a target that has acted is then asked
again. What a target says is told to the checker in words of its own, at the moment at which the node hears it.
"""

import asyncio
import hmac
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from email.utils import formatdate
from random import Random
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from tests.sim.account import Violation
from tests.sim.checker import Checker
from tests.sim.clock import SimClock
from tests.sim.deliveries import Said, Sent
from tests.sim.network import Call
from tests.sim.swarm import CALM, Swarm
from timerd.engine.callback import CallbackRequest, decode_request, encode_request, host_of
from timerd.ports import Answer, Request

JSON: Final = {"content-type": "application/json"}
GARBAGE: Final = (
    b"{",
    b"[]",
    b'"ok"',
    b"null",
    b'{"results":{}}',
    b'{"done":true}',
    b'{"results":[],"batchItemFailures":[]}',
    b"\xff\xfe",
)


class Attempt(Call):
    """One POST of one batch."""

    def __init__(self, request: Request, type: str, batch_id: str, sent: list[Sent], lane: str) -> None:
        super().__init__()
        self.request = request
        self.type = type
        self.lane = lane
        """Whom it goes to: the type's target, or a host of callbacks."""
        self.batch_id = batch_id
        self.sent = sent
        self.arrivals = 0
        self.answer: Answer | None = None
        """What the target has answered, whole,"""
        self.said: list[Said] = []
        """and what that says."""


class _Timer(msgspec.Struct):
    id: str
    generation: int
    fire_at: str
    attempt: int
    possible_duplicate: bool = False
    payload: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    type: str
    batch_id: str
    dispatched_at: str
    timers: list[_Timer]


_decode: Final = msgspec.json.Decoder(_Body).decode


class Targets:
    """All types' targets."""

    def __init__(
        self, swarm: Swarm, random: Random, clock: SimClock, checker: Checker, note: Callable[[str], None]
    ) -> None:
        self.healthy = False
        """From now on everything is answered, soon, and nothing is armed again."""
        self.down: dict[str, str] = {}
        """Type -> how it fails every POST."""
        self.counts: Counter[str] = Counter()
        self.meddle: Callable[[str], None] = lambda id: None
        """Called with an id that is being delivered: a processor that calls back."""
        self._races = swarm.races
        self._secrets = {type.name: type.signing_secrets for type in swarm.types}
        self._habits = swarm.habits
        self._random = random
        self._clock = clock
        self._checker = checker
        self._note = note
        self._posts: Counter[str] = Counter()
        """By type, and by host of callbacks."""
        self._webhook_ids: dict[tuple[str, int], str] = {}

    def forget(self) -> None:
        """The process is gone, and with it all connections."""
        self._posts.clear()

    async def close(self) -> None:
        """Nothing to let go of."""

    async def post(self, request: Request) -> Answer:
        """One exchange, without a network: what the target says is heard, or the failure that is to be."""
        call = self.begin(request)
        answer, said, wait_s = self.answer(call)
        await asyncio.sleep(wait_s)
        self.end(call, answer, said)
        return answer

    def begin(self, request: Request) -> "Attempt":
        """The node hands over a batch."""
        if request.guarded:
            return self._begin_callback(request)
        body = _decode(request.body)
        sent = [
            Sent(t.id, t.generation, _ms(t.fire_at), t.attempt, t.possible_duplicate, bytes(t.payload) or None)
            for t in body.timers
        ]
        self._check_headers(body, request)
        self._posts[body.type] += 1
        self._note(f"post {body.type} {body.batch_id} {[(t.id, t.generation, t.attempt) for t in sent]}")
        self._checker.posted(body.type, sent, self._posts[body.type], body.type, 0)
        return Attempt(request, body.type, body.batch_id, sent, body.type)

    def _begin_callback(self, request: Request) -> "Attempt":
        """The node hands over the request of one callback. What it added must be all that is not as it was armed."""
        headers = dict(request.headers)
        id, generation = unquote(headers.pop("Timerd-Timer-Id")), int(headers.pop("Timerd-Generation"))
        attempt, repeat = int(headers.pop("Timerd-Attempt")), headers.pop("Timerd-Possible-Duplicate", "") == "true"
        webhook_id = headers.pop("webhook-id")
        for name in ("webhook-timestamp", "User-Agent"):
            del headers[name]
        headers.pop("webhook-signature", None)  # of those types that have secrets
        armed = self._checker.version(id, generation)
        form = decode_request(armed.payload or b"").form
        payload = encode_request(
            CallbackRequest(request.method, request.url, tuple(headers.items()), form, request.body)
        )
        if self._webhook_ids.setdefault((id, generation), webhook_id) != webhook_id:
            raise Violation(f"two webhook-ids of one generation: {id!r} {generation}")
        lane = f"{armed.type} {host_of(request.url)}"
        sent = [Sent(id, generation, armed.fire_at, attempt, repeat, payload)]
        self._posts[armed.type] += 1
        self._posts[lane] += 1
        self._note(f"call {lane} {(id, generation, attempt)}")
        self.counts["callbacks"] += 1
        self._checker.posted(armed.type, sent, self._posts[armed.type], lane, self._posts[lane])
        return Attempt(request, armed.type, webhook_id, sent, lane)

    def _check_headers(self, body: "_Body", request: Request) -> None:
        """Who it is from, and what it is about, by the contract."""
        shown = {name.lower(): value for name, value in request.headers.items()}
        seconds = str(self._clock.wall_ms // 1000)
        text = f"{body.batch_id}.{seconds}.".encode() + request.body
        keys = [b64decode(secret.removeprefix("whsec_")) for secret in self._secrets[body.type]]
        signed = ["v1," + b64encode(hmac.digest(key, text, "sha256")).decode() for key in keys]
        wanted = {
            "content-type": "application/json",
            "webhook-id": body.batch_id,
            "idempotency-key": f'"{body.batch_id}"',
            "webhook-timestamp": seconds,
            "webhook-signature": " ".join(signed) or None,
        }
        if any(shown.get(name) != value for name, value in wanted.items()):
            raise Violation(f"the headers are {shown}, expected {wanted}")

    def end(self, call: "Attempt", answer: Answer, said: list[Said]) -> None:
        """The node hears what became of it."""
        self._posts[call.type] -= 1
        if call.lane != call.type:
            self._posts[call.lane] -= 1
        if answer.error is None and any(what.what == "rearm" and what.fire_at < 0 for what in said):
            now_ms = self._clock.wall_ms_up
            said = [what._replace(fire_at=now_ms - what.fire_at - 1) if what.fire_at < 0 else what for what in said]
        if answer.status in (429, 503) and (after := answer.headers.get("retry-after", "")).isdigit():
            self._checker.asked_to_wait(call.lane, int(after))
        self._note(f"answer {call.batch_id} {answer.status} {answer.error}")
        unknown = answer.error in ("timeout", "lost")
        posts, lane_posts = self._posts[call.type], self._posts[call.lane]
        self._checker.answered(call.type, call.sent, said, unknown, posts, call.lane, lane_posts)

    # ---- what comes back: the answer, what it says of each timer, and after how long

    def answer(self, call: "Attempt") -> tuple[Answer, list[Said], float]:
        """Decide on it."""
        r = self._random
        type, sent, request = call.type, call.sent, call.request
        habits = self._habits[type]
        wait_s = 0.001 + (0.01 if self.healthy else habits.slow_s) * r.random() ** 2
        how = None
        if not self.healthy:
            if down := self.down.get(type) or self.down.get(call.lane):
                how = down
            elif r.random() < habits.trouble:
                how = r.choices(list(_TROUBLES), list(_TROUBLES.values()))[0]
            elif habits.capacity and self._posts[call.lane] > habits.capacity:
                how = "busy"
            elif habits.poison and any(hash_of(t.id) < habits.poison for t in sent):
                how = "poison"
        meddles = not self.healthy and r.random() < self._races
        if meddles:
            self.meddle(r.choice(sent).id)
            wait_s += 0.05 * r.random()
        if call.lane == CALM:
            how, wait_s = None, 0.001 + 0.01 * r.random()
        if call.lane != type and how in (None, "garbage", "overlong"):
            answer, said = self._accept_callback(), [Said("ok")]
        elif how is None:
            answer, said = self._accept(type, sent, meddles)
        elif how == "gone" and call.lane != type:
            self.counts[how] += 1
            answer, said = Answer(410), [Said("fail", no_retry=True)]
        else:
            self.counts[how] += 1
            answer, said = self._fail(how, sent)
            if call.lane != type:  # every attempt of a callback counts
                said = [what._replace(spared=False) for what in said]
        if how in ("hang", "slow"):
            wait_s = request.timeout_ms / 1000
        elif wait_s * 1000 >= request.timeout_ms:
            wait_s = request.timeout_ms / 1000
            answer, said = self._fail("slow", sent)
        return answer, said, wait_s

    def _accept_callback(self) -> Answer:
        """Any 2xx is success, whatever it says."""
        r = self._random
        garbage = b'{"results":[{"id":"t1","status":"retry"}]}'
        return Answer(r.choice([200, 201, 204]), JSON, r.choice([b"", garbage, *GARBAGE]), overlong=r.random() < 0.1)

    def _fail(self, how: str, sent: list[Sent]) -> tuple[Answer, list[Said]]:
        r = self._random
        said = [Said("fail", no_retry=how == "no-retry")] * len(sent)
        match how:
            case "refused":
                return Answer(error="connect", detail="connection refused"), said
            case "hang" | "slow":  # never arrived, or acted and then too late: the node can't tell
                return Answer(error="timeout"), said
            case "lost":
                return Answer(error="lost", detail="reset"), said
            case "retry-after":
                after = r.choice(["0", "2", "9", "soon", formatdate(self._clock.wall_ms / 1000 + 3, usegmt=True)])
                spared = [Said("fail", spared=after != "soon")] * len(sent)
                return Answer(r.choice([429, 503]), {"retry-after": after}), spared
            case "busy":
                if r.random() < 0.1:
                    return Answer(503, {"retry-after": "1"}), [Said("fail", spared=True)] * len(sent)
                return Answer(r.choice([429, 503]), {}, b"too much"), said
            case "no-retry":
                return Answer(r.choice([400, 500]), {"timerd-no-retry": "true"}, b"never again"), said
            case "garbage":
                return Answer(200, JSON, r.choice(GARBAGE)), said
            case "overlong":
                return Answer(200, JSON, b'{"results":[', overlong=True), said
            case "redirect":
                return Answer(302, {"location": "/elsewhere"}), said
            case "gone":
                return Answer(410), said
            case "proxy":
                return Answer(r.choice([502, 503, 504])), said
        return Answer(r.choice([400, 404, 500]), {}, b"no"), said

    def _accept(self, type: str, sent: list[Sent], mixed: bool) -> tuple[Answer, list[Said]]:
        r = self._random
        habits = self._habits[type]
        ok = [Said("ok")] * len(sent)
        if r.random() >= habits.mixed and not mixed:
            plain = [
                Answer(204),
                Answer(200, JSON),
                Answer(200, JSON, b"{}"),
                Answer(200, {"content-type": "text/html"}, b"<p>"),
                Answer(200, JSON, b'{"results":[]}'),
                Answer(202, JSON, b'{"batchItemFailures":[]}'),
            ]
            return r.choice(plain), ok
        if r.random() < 0.2 and not self.healthy:
            failed = [r.random() < 0.3 for _ in sent]
            items = [{"itemIdentifier": t.id} for t, bad in zip(sent, failed, strict=True) if bad]
            items.append({"itemIdentifier": "nobody"})
            said = [Said("retry") if bad else Said("ok") for bad in failed]
            return Answer(200, JSON, msgspec.json.encode({"batchItemFailures": items})), said
        results: list[dict[str, Any]] = [{"id": "nobody", "status": "dead"}]
        said = []
        for timer in sent:
            result, what = self._judge(timer, habits.rearms)
            said.append(what)
            if result is not None:
                results.append(result)
        return Answer(200, JSON, msgspec.json.encode({"results": results})), said

    def _judge(self, timer: Sent, rearms: float) -> tuple[dict[str, Any] | None, Said]:
        r, id = self._random, timer.id
        if self.healthy or (draw := r.random()) < 0.4:
            return r.choice([None, {"id": id, "status": "ok"}]), Said("ok")
        if draw < 0.4 + rearms:
            payload = r.choice([None, None, b'{"n":%d}' % r.randrange(100), b'"' + b"y" * r.randint(511, 900) + b'"'])
            item: dict[str, Any] = {"id": id, "status": "rearm"}
            if payload is not None:
                item["payload"] = msgspec.Raw(payload)
            if r.random() < 0.5:
                item["delay"] = delay_s = r.randint(0, 8)
                return item, Said("rearm", -delay_s * 1000 - 1, payload)  # counted from when the node hears it
            fire_at = self._clock.wall_ms + r.randint(-1_000, 9_000)
            if r.random() < 0.4:
                fire_at = timer.fire_at + r.choice([100, 1_000, 7_000])  # a step on: it keeps its phase
            item["fire_at"] = fire_at
            return item, Said("rearm", fire_at, payload)
        if draw < 0.9:
            return {"id": id, "status": "drop"}, Said("drop")
        if draw < 0.93:
            return {"id": id, "status": "dead", "error": "hopeless"}, Said("dead")
        broken = [{"status": "retry", "error": "later"}, {"status": "huh"}, {"status": "rearm", "fire_at": "never"}]
        return {"id": id, **r.choice(broken)}, Said("retry")


_TROUBLES: Final = {
    "refused": 4, "hang": 2, "slow": 3, "lost": 4, "retry-after": 3, "no-retry": 1, "garbage": 3, "overlong": 1,
    "redirect": 1, "gone": 0.3, "proxy": 3, "error": 5,
}  # fmt: skip
"""What goes wrong with a POST, and how often in proportion."""


def hash_of(id: str) -> float:
    """Something in [0, 1) that an id always has."""
    return Random(id).random()


def _ms(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return round(moment.timestamp() * 1000)

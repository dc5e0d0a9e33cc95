"""NATS servers in memory, and connections to them: `timerd_cluster.connection.Connection` over lines that fail.

Replaced is the library under the connection, no more: what the shipped class makes of requests and answers is run. A
request takes its way, is handled at one instant, and its answer takes its way back; each can be lost, late or doubled.
A host can be cut off, with what is under way lost or kept for later, or be connected to a server that the others have
lost, and that does not know it; a stream can be without a leader; reads that any replica may answer can be behind; all
servers can be away; a store can be full.

Faults are knobs here. Who turns them, and when, is the nemesis's business.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextvars import Context, copy_context
from math import inf
from random import Random
from typing import Any, NamedTuple, Protocol

from tests.sim.jetstream import REPLICAS, STATUS, TOO_MANY, JetStream, Refusal, fits, read_json
from timerd_cluster.connection import ANSWER_S, Connection, NoAnswer, Nobody, Stored

NO_ROOM = (10047, "insufficient storage resources available")
READS = ("$JS.API.STREAM.INFO.", "$JS.API.STREAM.MSG.GET.")  # by the leader, or by who takes itself for it
MEMBERS = "-members"  # in each subject of that bucket
NEAR = "$JS.API.DIRECT.GET."  # by any replica


class Loop(Protocol):
    """What is needed of one."""

    def time(self) -> float: ...
    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any: ...


class Reply(NamedTuple):
    """As the client library has it."""

    data: bytes
    headers: Mapping[str, str] | None = None


class Lost(Exception):
    """The connection broke: nobody will give this answer any more."""


class Minority(NamedTuple):
    """What a host has that is connected to a server which the others have lost."""

    at_s: float
    """Since then it learns nothing,"""
    leads_until_s: float
    """and until then it takes itself for the leader of what it led."""
    until_s: float


class FakeServers:
    """All of them. Times are true time."""

    def __init__(self, loop: Loop, random: Random, *, latency_s: float = 0.0) -> None:
        self.jetstream = JetStream()
        self.version = "2.12.4"
        self.max_payload = 1 << 20
        self.sync_always = True
        self.latency_s = latency_s
        """One way, at most."""
        self.lose_requests = 0.0
        self.lose_answers = 0.0
        self.double = 0.0
        """The share of requests of which a copy arrives later."""
        self.lag_s = 0.0
        """So much may a replica be behind."""
        self.full = False
        self.away = False
        """All servers are gone."""
        self.cut_off: set[str] = set()
        """Hosts that reach no server."""
        self.unheard: set[str] = set()
        """Hosts whose heartbeats are lost, and nothing else: alive, and taken for dead."""
        self.untold: set[str] = set()
        """Hosts that hear nothing of who is there, nor of the plan."""
        self.on_told: Callable[[str, Any], None] = lambda subject, by: None
        """Told of each message that nobody answers, as it is sent, and by whom."""
        self.counts: Counter[str] = Counter()
        self.lines: list[Line] = []
        self.loop = loop
        self.random = random
        self.outside = Context()
        self._leaderless: dict[str, float] = {}
        self._minority: dict[str, Minority] = {}
        self._ears: list[tuple[str, Line, Callable[[str, bytes], None], Context]] = []

    # ---- what happens to them

    def elect(self, name: str, lasts_s: float) -> None:
        """A stream has no leader for a while."""
        self._leaderless[name] = self.loop.time() + lasts_s
        self.counts["elections"] += 1

    def strand(self, host: str, lasts_s: float) -> None:
        """A host's connection leads to a server that the others have lost, some time ago."""
        now_s = self.loop.time()
        at_s = max(0.0, now_s - 5.0 * self.random.random())
        self._minority[host] = Minority(at_s, at_s + 10.0, now_s + lasts_s)
        self.counts["minorities"] += 1

    def join(self, host: str) -> None:
        """A host that was cut off reaches them again: what was on its way comes late, or never."""
        self.cut_off.discard(host)
        for line in self.lines:
            if line.host == host:
                line.healed()

    def come_back(self) -> None:
        """All servers are there again; what they were asked is forgotten, and connections are new."""
        self.away = False
        for line in self.lines:
            line.reset()

    def calm(self) -> None:
        """Nothing is broken from now on."""
        self.lose_requests = self.lose_answers = self.double = self.lag_s = 0.0
        self.full = False
        self._leaderless.clear()
        self._minority.clear()
        self.unheard.clear()
        self.untold.clear()
        if self.away:
            self.come_back()
        for host in sorted(self.cut_off):
            self.join(host)

    # ---- requests

    def listen(self, pattern: str, line: "Line", told: Callable[[str, bytes], None]) -> None:
        """Tell a line of each message on a subject, as a plain subscriber hears it: at most once."""
        self._ears.append((pattern, line, told, copy_context()))

    def deaf(self, line: "Line") -> None:
        """It hears nothing more."""
        self._ears = [ear for ear in self._ears if ear[1] is not line]

    def way_s(self) -> float:
        """How long a message is under way."""
        return self.latency_s * (0.2 + 0.8 * self.random.random())

    def handle(
        self, line: "Line", subject: str, data: bytes, headers: Mapping[str, str], *, copy: bool = False
    ) -> list[Reply] | None:
        """A request has arrived; what is answered, or None: nothing."""
        now_s = self.loop.time()
        jetstream, r = self.jetstream, self.random
        name = jetstream.stream_of(subject)
        api = subject.startswith("$JS.API.")
        if not api:
            self._tell(subject, data)
            if name is None:
                return [Reply(b"", {STATUS: "503"})]
        if name is not None and self._leaderless.get(name, -inf) > now_s and not subject.startswith(NEAR):
            self.counts["asked without a leader"] += 1
            if not api and r.random() < 0.3 and not copy:  # proposed, and decided on by the next leader
                left_s = self._leaderless[name] - now_s + 0.01
                self.loop.call_later(left_s, self._late, line, subject, data, headers, context=self.outside)
            return None
        at_s, minority = now_s, self._minority.get(line.host)
        if minority is not None and minority.until_s > now_s:
            leads = hash_of(name or "") < 1 / len(REPLICAS) and now_s < minority.leads_until_s
            if not subject.startswith(NEAR) and not (leads and subject.startswith(READS)):
                return None  # it finds nobody to agree with
            at_s = minority.at_s
            self.counts["answers of a minority"] += 1
        if subject.startswith(NEAR):
            if name not in jetstream.streams:
                return [Reply(b"", {STATUS: "503"})]
            if self.lag_s and r.random() < 0.5:
                at_s -= self.lag_s * r.random()
                self.counts["reads of a replica behind"] += 1
            return [Reply(*each) for each in jetstream.get(name, read_json(data), at_s)]
        try:
            if api:
                return [_json(jetstream.ask(subject.removeprefix("$JS.API."), read_json(data), at_s, now_s))]
            assert name is not None
            if self.full and not name.startswith("KV_"):
                self.counts["no room"] += 1
                raise Refusal(*NO_ROOM)
            return [_json(jetstream.publish(name, subject, headers, data, now_s, line))]
        except Refusal as refusal:
            self.counts[f"refused {refusal.answer['error']['err_code']}"] += 1
            return [_json(refusal.answer)]

    def _late(self, line: "Line", subject: str, data: bytes, headers: Mapping[str, str]) -> None:
        if not self.away:
            self.counts["proposals decided late"] += 1
            self.handle(line, subject, data, headers, copy=True)

    def _tell(self, subject: str, data: bytes) -> None:
        for pattern, line, told, context in self._ears:
            if fits(pattern, subject) and not self.away and line.host not in self.cut_off:
                if line.host in self.untold and MEMBERS in subject:
                    continue
                self.loop.call_later(self.way_s(), line.hear, told, subject, data, context=context)


class Line:
    """One connection's way to the servers and back."""

    def __init__(self, servers: FakeServers, host: str, by: Any) -> None:
        self.host = host
        self.by = by
        """Whose it is: a process."""
        self.closed = False
        self._servers = servers
        self._waiting: dict[asyncio.Future[list[Reply]], None] = {}
        self._held: list[tuple[str, bytes, Mapping[str, str], asyncio.Future[list[Reply]]]] = []
        servers.lines.append(self)

    def send(self, subject: str, data: bytes, headers: Mapping[str, str]) -> "asyncio.Future[list[Reply]]":
        """Ask; the future may never be done, or raise Lost."""
        servers = self._servers
        future: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()
        if self.closed:
            future.set_exception(Lost("closed"))
            return future
        servers.counts["requests"] += 1
        self._waiting[future] = None
        future.add_done_callback(lambda _: self._waiting.pop(future, None))
        servers.loop.call_later(servers.way_s(), self._arrive, subject, data, headers, future, context=servers.outside)
        return future

    def hear(self, told: Callable[[str, bytes], None], subject: str, data: bytes) -> None:
        """A message for a subscriber arrives."""
        if not self.closed and self.host not in self._servers.cut_off:
            told(subject, data)

    def healed(self) -> None:
        """What was kept goes on, some of it; for the rest the connection is a new one."""
        held, self._held = self._held, []
        for subject, data, headers, future in held:
            if self._servers.random.random() < 0.5:
                self._servers.counts["requests that came late"] += 1
                self._arrive(subject, data, headers, future)
        if self._servers.random.random() < 0.5:
            self.reset()

    def reset(self) -> None:
        """The connection breaks, and comes back by itself."""
        self._held.clear()
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(Lost("the connection was lost"))

    def close(self) -> None:
        """It is over; what was sent is still on its way."""
        if not self.closed:
            self.closed = True
            self._servers.lines.remove(self)
            self._servers.deaf(self)

    def _arrive(
        self, subject: str, data: bytes, headers: Mapping[str, str], future: "asyncio.Future[list[Reply]]"
    ) -> None:
        servers, r = self._servers, self._servers.random
        if servers.away:
            return
        if self.host in servers.cut_off:
            self._held.append((subject, data, headers, future))
            return
        if self.host in servers.unheard and MEMBERS in subject and subject.startswith("$KV."):
            servers.counts["heartbeats lost"] += 1
            return
        if self.host in servers.untold and MEMBERS in subject:
            return
        if servers.lose_requests and r.random() < servers.lose_requests:
            servers.counts["requests lost"] += 1
            return
        if servers.double and r.random() < servers.double:
            servers.counts["requests doubled"] += 1
            late_s = r.choice([0.01, 0.5, 5.0]) * r.random()
            servers.loop.call_later(late_s, servers._late, self, subject, data, headers, context=servers.outside)
        answer = servers.handle(self, subject, data, headers)
        if answer is None:
            return
        if servers.lose_answers and r.random() < servers.lose_answers:
            servers.counts["answers lost"] += 1
            return
        servers.loop.call_later(servers.way_s(), self._answer, answer, future, context=servers.outside)

    def _answer(self, answer: list[Reply], future: "asyncio.Future[list[Reply]]") -> None:
        if not future.done() and not self._servers.away and self.host not in self._servers.cut_off:
            future.set_result(answer)


class FakeConnection(Connection):
    """The shipped connection over such a line."""

    def __init__(
        self, servers: FakeServers, host: str, by: Any, answer_s: float = ANSWER_S, line: type[Line] = Line
    ) -> None:
        super().__init__([], host, answer_s)
        self._servers_there = servers
        self.line = line(servers, host, by)

    @property
    def version(self) -> str:
        return self._servers_there.version

    @property
    def max_payload(self) -> int:
        return self._servers_there.max_payload

    async def gather(
        self, subject: str, wait_s: float, enough: Callable[[Sequence[Mapping[str, Any]]], bool]
    ) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        if not self._servers_there.away and self.line.host not in self._servers_there.cut_off:
            config = {"sync_always": self._servers_there.sync_always, "max_storage": 1 << 40}
            jetstream = {"config": config, "stats": {"storage": 0}}
            found = [{"server": {"name": name}, "data": {"jetstream": jetstream}} for name in REPLICAS]
        enough(found)
        return found

    async def watch(self, subject: str, told: Callable[[str, bytes], None]) -> None:
        """Be told of what is published, as long as this is connected."""
        self._servers_there.listen(subject, self.line, told)

    async def tell(self, subject: str, data: bytes) -> None:
        """As a request whose answer nobody waits for."""
        self._servers_there.on_told(subject, self.line.by)
        self.line.send(subject, data, {}).add_done_callback(lambda future: future.cancelled() or future.exception())

    async def close(self) -> None:
        self.line.close()

    async def _several(self, stream: str, wanted: Mapping[str, Any]) -> AsyncGenerator[Stored, None]:
        servers = self._servers_there
        for data, headers in await self._exchange(NEAR + stream, json.dumps(wanted).encode(), {}, self.answer_s):
            assert headers is not None
            if STATUS in headers:
                if headers[STATUS] == "503":
                    raise NoAnswer(f"nobody answers for stream {stream}")
                if headers[STATUS] == TOO_MANY:
                    raise NoAnswer(f"stream {stream} has more than can be told at once")
                return
            if servers.lose_answers and servers.random.random() < servers.lose_answers / 10:
                continue  # one of them is lost on its way
            yield Stored(int(headers["Nats-Sequence"]), headers, data, headers.get("Nats-Subject", ""))
        raise NoAnswer(f"reading stream {stream}: the end is missing")

    async def _request(  # type: ignore[override]
        self, subject: str, data: bytes, headers: dict[str, str] | None = None, answer_s: float | None = None
    ) -> Any:
        reply = (await self._exchange(subject, data, headers or {}, answer_s or self.answer_s))[0]
        if reply.headers and reply.headers.get(STATUS) == "503":
            raise Nobody(f"nobody listens on {subject}")
        return reply

    async def _exchange(self, subject: str, data: bytes, headers: Mapping[str, str], answer_s: float) -> list[Reply]:
        future = self.line.send(subject, data, headers)
        alarm = asyncio.get_running_loop().call_later(answer_s, _expire, future, subject)
        try:
            return await future
        except Lost as error:
            raise NoAnswer(f"{subject}: {error}") from None
        finally:
            alarm.cancel()


def hash_of(name: str) -> float:
    """Something in [0, 1) that a name always has."""
    return Random(name).random()


def _expire(future: "asyncio.Future[list[Reply]]", subject: str) -> None:
    if not future.done():
        future.set_exception(NoAnswer(f"{subject}: no answer in time"))


def _json(answer: Mapping[str, Any]) -> Reply:
    return Reply(json.dumps(answer).encode())

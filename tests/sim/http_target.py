"""The targets behind a network: the shipped delivery code meets them over HTTP/1.1. Implements `ports.Deliver`.

`Targets` decides what a target does; here it is done in bytes, and what goes wrong with it goes wrong on the way: no
name, no connection, a reset before or after the target has acted, an answer that never comes, comes late, in drops,
cut off, or is no HTTP. Good answers come in every form that a server may choose: with a length, in chunks, up to the
end of the connection, compressed, behind an interim answer.

Checked of each attempt: the target sees it at most once and as the contract has it; it is `connect` exactly if nothing
was handed to the network; an answer is what the target sent, whole; and a whole answer that came in time is heard.
"""

import asyncio
import errno
import gzip
import socket
from collections import Counter
from random import Random
from typing import Final

from tests.sim.account import Violation
from tests.sim.checker import Checker
from tests.sim.clock import SimClock
from tests.sim.deliveries import Said
from tests.sim.network import CALL, Heard, Peer
from tests.sim.swarm import Swarm
from tests.sim.target import Attempt, Targets
from timerd.deliver import HttpDeliver
from timerd.ports import Answer, Request

POLITE_S: Final = 5.0  # servers that keep connections this long never close one that we would use
SETTLE_S: Final = 1.0
NO_HTTP: Final = (b"\x00\x01\x02\x03\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n", b"220 smtp.test ESMTP\r\n", b"HTTP/1.1 200")
CONNECT_ERRORS: Final = (errno.ECONNREFUSED, errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT)


class HttpTargets:
    """Implements `network.Hosts`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, swarm: Swarm, targets: Targets, random: Random, clock: SimClock,
        checker: Checker,
    ) -> None:  # fmt: skip
        self.counts: Counter[str] = Counter()
        self.targets = targets
        self.slept_at = -SETTLE_S
        """When the machine last woke up, and its connections had been idle for longer than it knows."""
        self._loop = loop
        self._swarm = swarm
        self._random = random
        self._clock = clock
        self._checker = checker
        self._names = {f"{name}.test": name for name in swarm.habits}
        self._types: dict[str, str] = {}
        for number, name in enumerate(swarm.habits):
            self._types[f"10.0.0.{number}"] = self._types[f"10.0.1.{number}"] = name

    # ---- names and connections

    def resolve(self, name: str) -> list[str]:
        type = self._names[name]
        if not self._is_good(type) and self._random.random() < self._swarm.habits[type].trouble / 4:
            self.counts["unresolved"] += 1
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        addresses = [address for address, of in self._types.items() if of == type]
        return addresses if self._swarm.twins else addresses[:1]

    def connect(self, address: str) -> tuple[float, int | None]:
        r, type = self._random, self._types[address]
        wait_s = self._swarm.latency_s * (0.5 + r.random())
        if self._swarm.twins and address.startswith("10.0.0"):  # the first of two is not there
            self.counts["half there"] += 1
            return (wait_s, errno.ECONNREFUSED) if r.random() < 0.5 else (float("inf"), None)
        if self.targets.healthy:
            return wait_s, None
        down = self.targets.down.get(type)
        if down == "refused":
            self.counts["refused"] += 1
            return wait_s, errno.ECONNREFUSED
        if down == "hang" and r.random() < 0.5:
            self.counts["connect hangs"] += 1
            return float("inf"), None
        if r.random() >= self._swarm.habits[type].trouble / 2:
            return wait_s, None
        if r.random() < 0.5:
            self.counts["refused"] += 1
            return wait_s, r.choice(CONNECT_ERRORS)
        self.counts["connect hangs"] += 1
        return (float("inf"), None) if r.random() < 0.5 else (wait_s + 3 * r.random(), None)

    def idle_s(self, address: str, random: Random) -> float:
        if self._is_good(self._types[address]):
            return POLITE_S
        return random.choice([0.0, 0.05, 1.0, 3.9, POLITE_S, POLITE_S])

    # ---- requests

    def heard(self, peer: Peer, request: Heard) -> None:
        call = request.call
        if not isinstance(call, Attempt):
            raise Violation(f"a request of nobody's: {request}")
        call.arrivals += 1
        self._check(call, request)
        answer, said, wait_s = self.targets.answer(call)
        self._loop.call_later(wait_s, self._respond, peer, call, answer)
        call.said = said

    def _check(self, call: Attempt, request: Heard) -> None:
        if call.arrivals > 1:
            raise Violation(f"handed over {call.arrivals} times in one attempt: {request}")
        if request.body != call.request.body or request.line != "POST /hook HTTP/1.1":
            raise Violation(f"the target hears something else: {request}, {call.request}")
        wanted = {name.lower(): value for name, value in call.request.headers.items()}
        wanted |= {"host": f"{call.type}.test", "content-length": str(len(call.request.body))}
        if request.headers != wanted | {"accept": "*/*"} and request.headers != wanted:
            raise Violation(f"the target hears {request.headers}, expected {wanted}")
        self._checker.arrived(call.sent)

    def _respond(self, peer: Peer, call: Attempt, answer: Answer) -> None:
        r = peer.random
        match answer.error:
            case None:
                self._send(peer, call, answer)
            case "connect":
                self.counts["reset before"] += 1
                peer.break_off()
            case "timeout" if r.random() < 0.5:
                self.counts["answer never"] += 1
            case "timeout":  # it has acted, and nobody listens any more
                self.counts["answer late"] += 1
                peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                peer.idle()
            case _:
                self._lose(peer)

    def _lose(self, peer: Peer) -> None:
        """The target has acted, and its answer does not come through."""
        r = peer.random
        whole = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n" + b'{"results":[      ]}'
        )
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{    \r\n"
        packed = gzip.compress(b'{"results":[]}', mtime=0)[:-9]
        zipped = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(packed), packed)
        how = r.randrange(6)
        name = ("reset after", "closed after", "truncated", "truncated", "no http", "truncated")[how]
        self.counts[name] += 1
        match how:
            case 0:
                peer.break_off()
                return
            case 2:
                peer.send(whole[: r.randint(1, len(whole) - 1)], 2)
            case 3:
                peer.send(chunked, 2)
            case 4:
                peer.send(r.choice(NO_HTTP))
            case 5:
                peer.send(zipped, 2)
        if r.random() < 0.5:
            peer.hang_up()
        else:
            peer.break_off()

    def _send(self, peer: Peer, call: Attempt, answer: Answer) -> None:
        """A whole answer, in one of the forms that it may have."""
        r = peer.random
        body = answer.body
        if answer.overlong:
            body += b" " * (call.request.answer_bytes_max + 1)
        call.answer = answer
        headers = dict(answer.headers)
        head = f"HTTP/1.1 {answer.status} Whatever\r\n"
        form = r.choice(["length", "length", "length", "chunks", "end", "gzip"]) if answer.status != 204 else "none"
        if form == "gzip" and body and not answer.overlong:
            body = gzip.compress(body, mtime=0)
            headers["Content-Encoding"] = "gzip"
        closes = form == "end" or r.random() < 0.05
        if closes and (form == "end" or self._is_good(call.type) or r.random() < 0.5):
            headers["Connection"] = "close"
        if form == "chunks":
            headers["Transfer-Encoding"] = "chunked"
            cut = r.randrange(len(body) + 1)
            body = b"".join(b"%x;n=1\r\n%s\r\n" % (len(p), p) for p in (body[:cut], body[cut:]) if p) + b"0\r\n\r\n"
        elif form in ("length", "gzip"):
            headers["Content-Length"] = str(len(body))
        if r.random() < 0.05:
            peer.send(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
        data = head.encode() + body
        pieces = 1 if r.random() < 0.8 else r.randint(2, 4)
        peer.send(data, pieces, None if form == "end" or answer.overlong else call)
        if closes:
            peer.hang_up()
        else:
            peer.idle()

    def is_sure(self, type: str) -> bool:
        """Whether nothing of the target's or the network's can keep an answer from coming."""
        return self._swarm.habits[type].calm and not self._swarm.twins and self._loop.time() > self.slept_at + SETTLE_S

    def _is_good(self, type: str) -> bool:
        return self.targets.healthy or self._swarm.habits[type].calm


class NetDeliver:
    """The shipped `HttpDeliver` of one process, watched from both ends."""

    def __init__(self, hosts: HttpTargets, loop: asyncio.AbstractEventLoop) -> None:
        self._hosts = hosts
        self._loop = loop
        self._http = HttpDeliver()

    async def post(self, request: Request) -> Answer:
        targets = self._hosts.targets
        call = targets.begin(request)
        token = CALL.set(call)
        try:
            answer = await self._http.post(request)
        finally:
            CALL.reset(token)
        self._judge(call, answer)
        targets.end(call, answer, [Said("fail")] * len(call.sent) if answer.error else call.said)
        return answer

    async def close(self) -> None:
        await self._http.close()

    def _judge(self, call: Attempt, answer: Answer) -> None:
        if answer.error is not None:
            if self._hosts.is_sure(call.type):
                raise Violation(f"nothing went wrong on the way, and it is {answer}")
            if (answer.error == "connect") == call.wrote:
                raise Violation(f"{'some' if call.wrote else 'nothing'} was handed over, and it is {answer}")
            if call.heard_at is not None and call.heard_at < self._loop.time():
                raise Violation(f"a whole answer had come in at {call.heard_at}, and it is {answer}")
            return
        sent = call.answer
        if sent is None:
            raise Violation(f"no answer was sent, and it is {answer}")
        shown = {name.lower(): value for name, value in sent.headers.items()}
        same = answer.body.startswith(sent.body) if answer.overlong else answer.body == sent.body
        if (answer.status, answer.overlong) != (sent.status, sent.overlong) or not same:
            raise Violation(f"{sent} was sent, and it is {answer}")
        if any(answer.headers.get(name) != value for name, value in shown.items()):
            raise Violation(f"{sent} was sent, and it is {answer}")

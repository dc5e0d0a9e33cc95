"""The simulator's servers where a real one would be: so that the same tests show that they behave alike."""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tests.cluster.nats_server import NatsServer
from tests.cluster.proxy import Proxy
from tests.sim.servers import FakeConnection, FakeServers, Line, Reply
from timerd_cluster.connection import Connection

_known: dict[str, "FakeServer"] = {}
_numbers = itertools.count(1)


class RealLoop:
    """The loop of whichever test is running."""

    def time(self) -> float:
        return time.monotonic()

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        return asyncio.get_running_loop().call_later(delay, callback, *args, context=context)


class FakeServer:
    """Has a url like a server, which `connect` knows."""

    def __init__(self) -> None:
        self.servers = FakeServers(RealLoop(), Random("fake"), latency_s=0.0005)
        self.url = f"fake://{next(_numbers)}"
        self.proxies: dict[str, FakeProxy] = {}
        _known[self.url] = self


class FakeProxy:
    """What proxy.py's does, on the lines of one url."""

    def __init__(self, server: FakeServer) -> None:
        self.url = f"{server.url}/{len(server.proxies)}"
        self.lose_answers = False
        self.lose_requests = False
        self.hold_appends = False
        self.held = asyncio.Event()
        self.holding: list[tuple[Callable[[], None], bytes]] = []
        self.lines: list[ProxiedLine] = []
        server.proxies[self.url] = self
        _known[self.url] = server

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def heal(self) -> None:
        self.lose_answers = self.lose_requests = self.hold_appends = False
        for go_on, _ in self.holding:
            go_on()
        self.holding.clear()

    def cut(self) -> None:
        for line in self.lines:
            line.reset()


class ProxiedLine(Line):
    """A line through a proxy."""

    proxy: FakeProxy

    def _arrive(
        self, subject: str, data: bytes, headers: Mapping[str, str], future: "asyncio.Future[list[Reply]]"
    ) -> None:
        arrive = super()._arrive
        if self.proxy.hold_appends and headers:
            text = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
            self.proxy.holding.append((lambda: arrive(subject, data, headers, future), text))
        elif not self.proxy.lose_requests:
            return arrive(subject, data, headers, future)
        self.proxy.held.set()
        return None

    def _answer(self, answer: list[Reply], future: "asyncio.Future[list[Reply]]") -> None:
        if self.proxy.lose_answers:
            self.proxy.held.set()
        else:
            super()._answer(answer, future)


def connect(url: str, answer_s: float) -> Connection | None:
    """A connection to a fake server; None: the url is a real one's."""
    server = _known.get(url)
    if server is None:
        return None
    proxy = server.proxies.get(url)
    if proxy is None:
        return FakeConnection(server.servers, url, None, answer_s)
    connection = FakeConnection(server.servers, url, None, answer_s, ProxiedLine)
    assert isinstance(connection.line, ProxiedLine)
    connection.line.proxy = proxy
    proxy.lines.append(connection.line)
    return connection


def proxy_before(server: NatsServer | FakeServer) -> Proxy | FakeProxy:
    """A proxy of the server's kind."""
    return FakeProxy(server) if isinstance(server, FakeServer) else Proxy(server.port)

"""Safe targets: what a callback's connection is made to, whatever its URL and the name service say."""

import asyncio
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web

from timerd.deliver import HttpDeliver
from timerd.engine.address import Targets, parse_network
from timerd.guard import AddrInfo, ForbiddenAddress, open_socket
from timerd.ports import Answer, Request


class Names:
    """A name service: each look-up of a name gives its next list of addresses, the last one for ever."""

    def __init__(self, **names: list[list[str]]) -> None:
        self.names = {name.replace("_", "."): answers for name, answers in names.items()}
        self.asked: list[str] = []

    def __call__(self, host: str, port: int, family: int) -> list[AddrInfo]:
        self.asked.append(host)
        answers = self.names.get(host)
        if answers is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            (socket.AF_INET6 if ":" in a else socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in addresses
        ]


class Server:
    """A server on loopback that counts what it gets."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.port = 0

    async def handle(self, request: web.BaseRequest) -> web.Response:
        self.got.append(request.headers["Host"])
        # The connection is closed, so that each attempt makes one of its own.
        return web.Response(headers={"Connection": "close"})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    runner = web.ServerRunner(web.Server(server.handle))  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()


def to(url: str, **fields: object) -> Request:
    return Request(url, {}, b"x", 5_000, 1_000, guarded=True, **fields)  # type: ignore[arg-type]


async def ask(url: str, names: Names | None = None, allow: str | None = None) -> Answer:
    targets = Targets([parse_network(allow)] if allow else [])
    deliver = HttpDeliver(targets, look_up=names)
    try:
        return await deliver.post(to(url))
    finally:
        await deliver.close()


async def test_without_leave_nothing_on_this_machine_is_reached(server: Server) -> None:
    names = Names(inner_example=[["127.0.0.1"]], both_example=[["127.0.0.1", "10.0.0.1"]])
    for host in ("127.0.0.1", "inner.example", "both.example", "[::1]", "[::ffff:127.0.0.1]"):
        answer = await ask(f"http://{host}:{server.port}/", names)
        assert answer.error == "forbidden", (host, answer)
    assert server.got == []


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.0.0.1", "0177.0.0.1", "127.0.0.1.", "localhost"])
async def test_however_it_is_written(server: Server, host: str) -> None:
    answer = await ask(f"http://{host}:{server.port}/")
    assert answer.error in ("forbidden", "connect")
    assert server.got == []


async def test_with_leave_it_is(server: Server) -> None:
    names = Names(inner_example=[["127.0.0.1"]])
    for host in ("127.0.0.1", "inner.example"):
        assert (await ask(f"http://{host}:{server.port}/", names, "127.0.0.0/8")).status == 200
    assert len(server.got) == 2


async def test_the_address_that_was_looked_at_is_the_one_that_is_used(server: Server) -> None:
    """The name changes its mind between two look-ups (DNS rebinding): there is only one."""
    names = Names(rebind_example=[["127.0.0.1"], ["10.0.0.1"]])
    assert (await ask(f"http://rebind.example:{server.port}/", names, "127.0.0.0/8")).status == 200
    assert names.asked == ["rebind.example"]
    names = Names(rebind_example=[["192.0.2.1"], ["127.0.0.1"]])
    answer = await ask(f"http://rebind.example:{server.port}/", names)
    assert (answer.error, names.asked) == ("forbidden", ["rebind.example"])


async def test_each_attempt_looks_anew_at_the_name(server: Server) -> None:
    names = Names(rebind_example=[["127.0.0.1"], ["10.0.0.1"]])
    deliver = HttpDeliver(Targets([parse_network("127.0.0.0/8")]), look_up=names)
    try:
        assert (await deliver.post(to(f"http://rebind.example:{server.port}/"))).status == 200
        assert deliver._guarded is not None
        deliver._guarded.connector.clear_dns_cache()  # type: ignore[union-attr]  # as after ten seconds
        assert (await deliver.post(to(f"http://rebind.example:{server.port}/"))).error == "forbidden"
    finally:
        await deliver.close()


async def test_of_several_addresses_only_those_allowed_are_tried(server: Server) -> None:
    names = Names(mixed_example=[["10.0.0.1", "127.0.0.1", "169.254.169.254"]])
    assert (await ask(f"http://mixed.example:{server.port}/", names, "127.0.0.1/32")).status == 200


async def test_what_leads_astray_in_a_url_does_not(server: Server) -> None:
    for url in (f"http://8.8.8.8@127.0.0.1:{server.port}/", f"http://127.0.0.1:{server.port}#@8.8.8.8/"):
        assert (await ask(url)).error == "forbidden"
    assert server.got == []


async def test_an_unknown_name_is_no_forbidden_target() -> None:
    answer = await ask("http://nowhere.example/", Names())
    assert answer.error == "connect"


async def test_a_processor_may_be_anywhere_and_its_connections_are_not_shared(server: Server) -> None:
    async def keep(request: web.BaseRequest) -> web.Response:
        server.got.append("x")
        return web.Response()

    server.handle = keep  # type: ignore[method-assign]
    runner = web.ServerRunner(web.Server(keep))  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    deliver = HttpDeliver()
    try:
        assert (await deliver.post(Request(url, {}, b"{}", 5_000, 1_000))).status == 200
        assert (await deliver.post(to(url))).error == "forbidden"
    finally:
        await deliver.close()
        await runner.cleanup()


@pytest.mark.parametrize("address", ["127.1", "127.0.0.1", "::1", "fe80::1%lo", "", "example.com", "8.8.8.8 "])
def test_no_socket_is_made_for_what_is_not_allowed(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with pytest.raises(ForbiddenAddress):
        open_socket(Targets(), (family, socket.SOCK_STREAM, 0, "", (address, 80)))


async def test_a_name_service_that_hangs_is_a_timeout_and_no_thread_is_waited_for(server: Server) -> None:
    let_go = threading.Event()

    def hang(host: str, port: int, family: int) -> list[AddrInfo]:
        let_go.wait(30)
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    deliver = HttpDeliver(look_up=hang)
    try:
        answer = await deliver.post(Request("http://slow.example/", {}, b"", 200, 1_000, guarded=True))
        assert (answer.error, answer.detail) == ("connect", "no connection within 200 ms")
    finally:
        await deliver.close()
        let_go.set()
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "look-up")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
@pytest.mark.parametrize("body", [b"", b"x"])
async def test_a_request_leaves_as_it_is_and_is_known_to_have_left_without_a_body_too(method: str, body: bytes) -> None:
    arrived: list[bytes] = []
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        arrived.append(head + await reader.readexactly(len(body)))
        writer.write(answer)
        writer.close()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/a%2Fb?c=%20"
    deliver = HttpDeliver(Targets([parse_network("127.0.0.1")]))
    request = Request(url, {"X-Own": "1"}, body, 5_000, 1_000, method, guarded=True)
    try:
        assert (await deliver.post(request)).status == 200
        answer = b""
        assert (await deliver.post(request)).error == "lost", "it may have been acted on"
    finally:
        await deliver.close()
        listener.close()
    first, second = arrived
    assert first == second
    assert first.startswith(f"{method} /a%2Fb?c=%20 HTTP/1.1\r\nHost: 127.0.0.1:".encode())
    assert (b"X-Own: 1\r\n" in first, first.endswith(b"\r\n\r\n" + body)) == (True, True)


# ---- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=hook.example"),
            *("-addext", "subjectAltName=DNS:hook.example", "-keyout", "key.pem", "-out", "cert.pem"),
        ],
        cwd=path,
        check=True,
        capture_output=True,
    )
    return path


@pytest.fixture
def contexts(certificate: Path) -> Callable[[bool], ssl.SSLContext]:
    def context(trusting: bool) -> ssl.SSLContext:
        made = ssl.create_default_context()
        if trusting:
            made.load_verify_locations(certificate / "cert.pem")
            made.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
        return made

    return context


@pytest.mark.parametrize(
    ("trusting", "host", "status"),
    [(True, "hook.example", 200), (False, "hook.example", None), (True, "other.example", None)],
)
async def test_certificates_are_verified_and_one_of_ours_is_shown(
    certificate: Path,
    contexts: Callable[[bool], ssl.SSLContext],
    trusting: bool,
    host: str,
    status: int | None,
) -> None:
    shown: list[object] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        assert request.transport is not None
        shown.append(request.transport.get_extra_info("peercert"))
        return web.Response()

    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    server_side.load_verify_locations(certificate / "cert.pem")
    server_side.verify_mode = ssl.CERT_REQUIRED
    runner = web.ServerRunner(web.Server(handle))  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_side).start()
    names = Names(hook_example=[["127.0.0.1"]], other_example=[["127.0.0.1"]])
    deliver = HttpDeliver(Targets([parse_network("127.0.0.1")]), contexts(trusting), names)
    try:
        answer = await deliver.post(to(f"https://{host}:{runner.addresses[0][1]}/"))
        assert answer.status == status
        assert answer.error == (None if status else "connect")
        assert bool(shown and shown[0]) == bool(status)
    finally:
        await deliver.close()
        await runner.cleanup()
        await asyncio.sleep(0)

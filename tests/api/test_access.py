"""Access: keys, hosts and origins."""

import msgspec
import pytest

from tests.api.asgi import HOST, JSON, call
from tests.api.fake_service import NOW_MS, FakeService
from timerd_api.app import create_app
from timerd_api.settings import ApiSettings

PATHS = ["/v1/timers", "/v1/status", "/metrics", "/openapi.json", "/docs", "/nothing", "/healthz/", "/%68ealthz"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer wrong",
        b"Bearer k3",
        b"Bearer k3yy",
        b"Basic k3y",
        b"k3y",
        b"Bearer \xff",
    ],
)
async def test_without_the_key(service: FakeService, path: str, header: bytes | None) -> None:
    app = create_app(service, ApiSettings(api_key="k3y"))
    headers = [HOST] if header is None else [HOST, (b"authorization", header)]
    answer = await call(app, "GET", path, headers=headers)
    assert (answer.status, answer.problem) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    arm = b'{"timers":[{"id":"a","type":"poll","delay":1}]}'
    assert (await call(app, "POST", "/v1/timers", arm, [*headers, JSON])).status == 401
    assert service.asked == []


@pytest.mark.parametrize("header", [b"Bearer k3y", b"bearer k3y", b"Bearer  k3y "])
async def test_with_the_key(service: FakeService, header: bytes) -> None:
    app = create_app(service, ApiSettings(api_key="k3y"))
    answer = await call(app, "GET", "/v1/timers", headers=[(b"host", b"timerd.example"), (b"authorization", header)])
    assert answer.status == 200


async def test_a_key_may_be_any_text(service: FakeService) -> None:
    app = create_app(service, ApiSettings(api_key="schlüssel"))
    headers = [HOST, (b"authorization", "Bearer schlüssel".encode())]
    assert (await call(app, "GET", "/v1/timers", headers=headers)).status == 200


@pytest.mark.parametrize("settings", [ApiSettings(), ApiSettings(api_key="k3y"), ApiSettings(insecure=True)])
async def test_probes_are_open(service: FakeService, settings: ApiSettings) -> None:
    app = create_app(service, settings)
    for path in ("/healthz", "/readyz"):
        assert (await call(app, "GET", path, headers=[(b"host", b"elsewhere.example")])).status == 200
        assert (await call(app, "HEAD", path, headers=[])).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8470",
        "127.8.9.1",
        "localhost",
        "LocalHost:1",
        "[::1]",
        "[::1]:8470",
        "[::ffff:127.0.0.1]",
    ],
)
async def test_loopback_hosts(service: FakeService, host: str) -> None:
    app = create_app(service, ApiSettings())
    for _ in range(2):
        assert (await call(app, "GET", "/v1/timers", headers=[(b"host", host.encode())])).status == 200


FOREIGN = [
    "", "example.com", "localhost.example.com", "127.0.0.1.example.com", "example.com:8470", "10.0.0.1", "0.0.0.0",
    "[::]", "[fe80::1]", "localhost@example.com", "localhost:8470:1", "[::1", "::1", "2130706433", "0x7f.1", "\xff",
    "localhost, example.com",
]  # fmt: skip


@pytest.mark.parametrize("host", FOREIGN)
async def test_other_hosts(service: FakeService, host: str) -> None:
    app = create_app(service, ApiSettings())
    answer = await call(app, "GET", "/v1/timers", headers=[(b"host", host.encode("latin-1"))])
    assert (answer.status, answer.problem) == (403, "forbidden")
    insecure = create_app(service, ApiSettings(insecure=True))
    assert (await call(insecure, "GET", "/v1/timers", headers=[(b"host", host.encode("latin-1"))])).status == 200


async def test_no_host(service: FakeService) -> None:
    assert (await call(create_app(service, ApiSettings()), "GET", "/v1/timers", headers=[])).status == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8470", 200),
        ("http://127.0.0.1:3000", 200),
        ("https://[::1]", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("", 403),
        ("http://localhost.evil.example", 403),
    ],
)
async def test_pages_from_elsewhere(service: FakeService, origin: str, status: int) -> None:
    app = create_app(service, ApiSettings())
    answer = await call(app, "POST", "/v1/types/poll:pause", headers=[HOST, (b"origin", origin.encode())])
    assert answer.status == status


def test_settings_that_can_not_be() -> None:
    for key in ("", " ", "\t\r\n", "\u00a0"):
        with pytest.raises(ValueError, match="empty"):
            ApiSettings(api_key=key)
    with pytest.raises(ValueError, match="below"):
        ApiSettings(max_body_bytes=2, max_bodies_in_progress_bytes=1)
    with pytest.raises(ValueError, match="above 0"):
        ApiSettings(body_grace_ms=0)
    with pytest.raises(ValueError, match="above 0"):
        ApiSettings(body_bytes_per_s=0)


@pytest.mark.parametrize("key", ["", " ", "\n"])
def test_no_key_is_no_key_whoever_made_the_settings(service: FakeService, key: str) -> None:
    settings = ApiSettings(api_key="k3y")
    msgspec.structs.force_setattr(settings, "api_key", key)
    with pytest.raises(ValueError, match="empty"):
        create_app(service, settings)


async def test_space_around_a_key_is_none_of_it(service: FakeService) -> None:
    app = create_app(service, ApiSettings(api_key=" k3y\n"))
    headers = [HOST, (b"authorization", b"Bearer k3y")]
    assert (await call(app, "GET", "/v1/timers", headers=headers)).status == 200
    for nothing in (b"Bearer", b"Bearer ", b"Bearer   "):
        assert (await call(app, "GET", "/v1/timers", headers=[HOST, (b"authorization", nothing)])).status == 401


@pytest.mark.parametrize(("scopes", "expires_at"), [(("read",), None), (("admin",), NOW_MS)])
async def test_a_stored_key_of_the_same_text_does_not_lock_the_owner_out(
    service: FakeService, scopes: tuple[str, ...], expires_at: int | None
) -> None:
    done = await service.keys.create("n", scopes, expires_at, None, None)
    assert isinstance(done, tuple)
    app = create_app(service, ApiSettings(api_key=done[1]))
    headers = [HOST, (b"authorization", f"Bearer {done[1]}".encode())]
    assert (await call(app, "POST", "/v1/types/poll:pause", headers=headers)).status == 200

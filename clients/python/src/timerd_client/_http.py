"""Between the contract's values and httpx's. The only module beside the two shells that knows httpx.

The transports are used without httpx's client around them: redirects are never followed, proxies are never taken from
the environment, cookies are never kept, and a request costs a third less. What a failure means for a write, that it
may have been sent or can't have been, is decided here and nowhere else.
"""

import ssl
from collections.abc import Sequence
from os import PathLike
from typing import Any, Final

import httpx

from timerd_client._coalesce import OPEN_MAX
from timerd_client._exchange import Failed, Send
from timerd_client._protocol import Reply
from timerd_client._version import VERSION

OWNERS_MAX: Final = 256  # nodes of one cluster
ANSWER_BYTES_MAX: Final = 64 << 20  # 1,000 timers of 64 KiB on a page
# Below uvicorn's 5 s: a connection that the server closes while we write on it leaves a write's outcome open.
KEEPALIVE_S: Final = 4.0
LIMITS: Final = httpx.Limits(max_connections=OPEN_MAX, max_keepalive_connections=OPEN_MAX, keepalive_expiry=KEEPALIVE_S)
UNKNOWN_ISSUER: Final = frozenset({18, 19, 20, 21})  # OpenSSL's X509_V_ERR_*: the chain leads to nobody who is trusted
NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def trust(ca_file: str | PathLike[str] | None) -> ssl.SSLContext | bool:
    """What a server's certificate is checked against: this file alone, or what the public trusts. Raises OSError."""
    return True if ca_file is None else ssl.create_default_context(cafile=ca_file)


Urls = str | Sequence[str]


class Wire:
    """Builds httpx requests for one key and for nodes of one service: the first, until it can't be reached."""

    def __init__(self, urls: Urls, key: str | None) -> None:
        given = [urls] if isinstance(urls, str) else list(urls)
        if not given:
            raise ValueError("no address of a server")
        self._nodes = [_Node(url, key) for url in given]
        self._at = 0
        self._key = key
        self._owners: dict[str, _Node] = {}  # by the address that the ring has
        self.secure = all(node.secure for node in self._nodes)
        """Whether nothing is ever sent in the clear."""

    def request(self, send: Send, now: float) -> httpx.Request:
        if send.request.base:
            return self._owner(send.request.base).request(send, now)
        return self._nodes[self._at].request(send, now)

    def _owner(self, address: str) -> "_Node":
        if address not in self._owners:
            if len(self._owners) >= OWNERS_MAX:
                self._owners.clear()
            self._owners[address] = _Node(address, self._key)
        return self._owners[address]

    def failed(self, error: httpx.TransportError | httpx.StreamError, at: float, request: httpx.Request) -> Failed:
        """What became of a request. The next one goes to the next node, unless another has gone there already."""
        node = self._nodes[self._at]
        failed = node.failed(error, at)
        if len(self._nodes) > 1:
            failed = Failed(failed.sent, failed.reason, failed.at)  # another node may have what this one lacks
            if node.is_at(request):
                self._at = (self._at + 1) % len(self._nodes)
        return failed


class _Node:
    """Builds httpx requests for one server and one key."""

    def __init__(self, url: str, key: str | None) -> None:
        base = httpx.URL(url)
        if base.userinfo:  # and it is not shown
            raise ValueError("an address has no user or password here; a key is given as key=")
        if base.scheme not in ("http", "https") or not base.host or base.query or base.fragment:
            raise ValueError(f"not the address of a server: {url!r}")
        self._base = str(base).rstrip("/")
        self._plain = base.scheme == "http"
        self.secure = not self._plain
        host = base.netloc
        self._headers: list[tuple[bytes, bytes]] = [
            (b"host", host),
            (b"accept", b"application/json"),
            (b"user-agent", f"timerd-client-python/{VERSION}".encode()),
        ]
        if key is not None:
            if not isinstance(key, str):
                raise TypeError(f"a key is a str, not {type(key).__name__}")
            if not key.isascii() or not key.isprintable() or " " in key:
                raise ValueError("a key is printable ASCII without spaces")
            self._headers.append((b"authorization", f"Bearer {key}".encode()))
        self._urls: dict[str, httpx.URL] = {}

    def request(self, send: Send, now: float) -> httpx.Request:
        path = send.request.path
        url = self._urls.get(path) or httpx.URL(self._base + path)
        if path in ("/v1/timers", "/v1/timers:cancel"):  # parsing an address costs as much as sending one
            self._urls[path] = url
        headers = self._headers
        if send.request.body:
            headers = [*headers, (b"content-type", b"application/json")]
        if send.expires is not None:
            headers = [*headers, (b"timerd-expires", send.expires.encode())]
        left = max(0.001, send.until - now)
        timeouts: dict[str, Any] = {"connect": left, "read": left, "write": left, "pool": left}
        return httpx.Request(
            send.request.method,
            url,
            headers=[*headers, (b"content-length", str(len(send.request.body)).encode())],
            content=send.request.body,
            extensions={"timeout": timeouts},
        )

    def is_at(self, request: httpx.Request) -> bool:
        """Whether a request was one to this server."""
        return str(request.url).startswith(self._base + "/")

    def failed(self, error: httpx.TransportError | httpx.StreamError, at: float) -> Failed:
        tls = _tls_error(error)
        hint = None if tls is None else _hint(tls)
        if hint is None and self._plain and isinstance(error, httpx.RemoteProtocolError):
            # What a server that speaks TLS does when it is not spoken to so; and what one that is stopping does.
            return Failed(True, f"{type(error).__name__}: {error}; https:// and not http://?", at)
        text = f"{type(error).__name__}: {error}{hint or ''}"
        return Failed(not isinstance(error, NOT_SENT), text, at, hint is not None)


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


def _hint(error: ssl.SSLError) -> str | None:
    """What to do about an error of TLS that every attempt would meet; None: it may pass."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "; ca_file= names a PEM file of who may have signed it" if error.verify_code in UNKNOWN_ISSUER else ""
    return (
        "; no TLS is spoken there: http:// and not https://?"
        if getattr(error, "reason", "") == "WRONG_VERSION_NUMBER"
        else None
    )


def too_late(at: float) -> Failed:
    """The answer trickles in and its time is up: httpx bounds each read, not all of them."""
    return Failed(True, "the answer did not end in time", at)


def too_large(at: float) -> Failed:
    return Failed(True, "the answer has no end", at)


def replied(response: httpx.Response, chunks: list[bytes], at: float) -> Reply:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers.raw}
    return Reply(response.status_code, headers, b"".join(chunks), at)

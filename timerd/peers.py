"""The other nodes over HTTP: one POST a question, with the cluster's secret.

What it must get right is whether a question may have arrived (`NoReply.sent`): nothing of it was handed to the kernel,
or the peer has answered that it won't read it, and then it has not; anything else is not known. Nothing is sent twice
here. How many questions wait, and how much of them, is bounded: what is too much is not sent.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final

import aiohttp
import structlog

from timerd.ports import Member, NoReply
from timerd.sending import Body, send
from timerd.wording import wording

PATH: Final = "/cluster/v1/ask"
HEADER: Final = "Timerd-Cluster-Secret"
MEDIA_TYPE: Final = "application/msgpack"
CONNECTIONS_MAX: Final = 64  # to one member; further questions to it wait their turn, within their time
QUESTIONS_MAX: Final = 4_096  # of which no answer has come
QUESTION_BYTES_MAX: Final = 256 << 20  # of all of them
ANSWER_BYTES_MAX: Final = 64 << 20
KEEP_ALIVE_S: Final = 4.0  # shorter than the server's 5 s: it never closes what we are about to use
CONNECT_S: Final = 2.0  # a member that is there takes a connection within a round trip
_REFUSED: Final = frozenset({400, 401, 403, 404, 405, 408, 411, 413, 415, 503})
"""Statuses of a peer that has not taken the question up."""

log = structlog.get_logger()


class HttpPeers:
    """`ports.Peers` over one aiohttp session, made at its first use (it belongs to the loop that runs then)."""

    def __init__(self, secret: str, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: what verifies members with https urls; None: what the system trusts."""
        self._headers: Mapping[str, str] = {HEADER: secret, "Content-Type": MEDIA_TYPE}
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._questions = 0
        self._question_bytes = 0
        self._complained: dict[str, int] = {}

    def __repr__(self) -> str:
        return "HttpPeers(***)"

    async def ask(self, member: Member, question: bytes, timeout_s: float) -> bytes | NoReply:
        """See the port."""
        if self._questions >= QUESTIONS_MAX or self._question_bytes + len(question) > QUESTION_BYTES_MAX:
            return NoReply(False, "too many questions to other nodes are waiting")
        self._questions += 1
        self._question_bytes += len(question)
        try:
            return await self._ask(member, question, timeout_s)
        finally:
            self._questions -= 1
            self._question_bytes -= len(question)

    async def close(self) -> None:
        """Let go of all connections."""
        if self._session is not None:
            await self._session.close()
        self._session = None

    async def _ask(self, member: Member, question: bytes, timeout_s: float) -> bytes | NoReply:
        body = Body(question, MEDIA_TYPE)
        try:
            async with asyncio.timeout(timeout_s):
                return await send(body, lambda: self._exchange(member, body))
        except TimeoutError:
            return NoReply(body.left, f"no answer within {timeout_s:g} s" if body.left else "no connection in time")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return NoReply(body.left, wording(error)[:200])

    async def _exchange(self, member: Member, body: Body) -> bytes | NoReply:
        url = member.url.rstrip("/") + PATH
        async with self._open().post(url, data=body, headers=self._headers, allow_redirects=False) as response:
            if response.status == 200:
                data = await response.content.read(ANSWER_BYTES_MAX + 1)
                chunks = [data]
                size = len(data)
                while data and size <= ANSWER_BYTES_MAX:
                    data = await response.content.read(ANSWER_BYTES_MAX + 1 - size)
                    chunks.append(data)
                    size += len(data)
                if size > ANSWER_BYTES_MAX:
                    response.close()
                    return NoReply(True, "its answer is too long")
                self._complained.pop(member.name, None)
                return b"".join(chunks)
            if self._complained.get(member.name) != response.status:
                self._complained[member.name] = response.status
                log.warning("peer_refuses", peer=member.name, status=response.status)
            return NoReply(response.status not in _REFUSED, f"it answers with status {response.status}")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0,
                limit_per_host=CONNECTIONS_MAX,
                keepalive_timeout=KEEP_ALIVE_S,
                ssl=self._tls if self._tls is not None else True,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
                trust_env=False,
                auto_decompress=False,
            )
            self._session._retry_connection = False  # see `deliver`: a question is one request
        return self._session

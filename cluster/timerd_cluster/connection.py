"""The connection to the NATS servers: requests that end with an answer or without one, and nothing in between.

A request that got no answer may have been carried out: `NoAnswer` says no more than that. What follows from it is for
the caller to know. The connection comes back by itself, for as long as it takes.

This module knows the client library; no other one does.
"""

import asyncio
import base64
import contextlib
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

CONNECT_S: Final = 5  # for the first connection, and for each server tried later
FIRST_TRIES: Final = 2  # at each server, a second apart: whoever starts us will start us again
RECONNECT_S: Final = 0.25  # between two tries at one server
RECONNECT_CONNECT_S: Final = 2  # of a try: one that stands still takes connections, and never says a word
PING_S: Final = 2  # a server that is gone without a word is noticed within three of these
ANSWER_S: Final = 2.0  # then it is looked into, which costs little; a leader that was killed never answers
BATCH_MESSAGES: Final = 256  # asked for at once
BATCH_BYTES: Final = 4 << 20
LAST_MAX: Final = 1_024  # more subjects than this no server gives the last messages of
STATUS: Final = "Status"

log = structlog.get_logger()


class NoAnswer(Exception):
    """Nothing came back in time: the request may have been carried out, or not."""


class Nobody(NoAnswer):
    """Nobody listens on the subject, by what the server knows just now."""


class Unreachable(Exception):
    """No server could be connected to."""


class UserRefused(Unreachable):
    """A server is there, and refuses user or password."""


class ApiError(Exception):
    """JetStream has answered that it won't. `code` is its own number."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code
        self.text = text


class Stored(NamedTuple):
    """A message of a stream."""

    sequence: int
    headers: Mapping[str, str]
    data: bytes
    subject: str = ""


class Connection:
    """Made by `connect`."""

    def __init__(self, servers: Sequence[str], name: str, answer_s: float) -> None:
        self.answer_s = answer_s
        """How long an answer is waited for."""
        self.appends_unknown = self.shards_fenced = 0
        """Counted by those who append, for whoever watches."""
        self._servers = list(servers)
        self._name = name
        self._client = Client()
        self._closed = False
        self._complaint = ""
        self._dialling: asyncio.Task[None] | None = None
        self._watches: list[tuple[str, Callable[[str, bytes], None]]] = []

    @classmethod
    async def connect(cls, servers: Sequence[str], name: str, answer_s: float = ANSWER_S) -> "Connection":
        """Raises Unreachable."""
        connection = cls(servers, name, answer_s)
        connection._client = await connection._dial()
        return connection

    @property
    def is_connected(self) -> bool:
        """Whether a server is there, as far as is known."""
        return self._client.is_connected

    @property
    def version(self) -> str:
        """Of the server that this is connected to."""
        return str(self._client._server_info["version"])

    @property
    def local_host(self) -> str:
        """This machine's address, as the server sees it that this is connected to."""
        writer = getattr(self._client._transport, "_io_writer", None)
        name = None if writer is None else writer.get_extra_info("sockname")
        return str(name[0]) if name else "127.0.0.1"

    @property
    def max_payload(self) -> int:
        """What a message may hold, headers and data."""
        return self._client.max_payload

    async def publish(self, subject: str, data: bytes, headers: dict[str, str], answer_s: float | None = None) -> int:
        """Put a message into the stream of its subject; its sequence. Raises ApiError, NoAnswer."""
        return int(_checked(await self._request(subject, data, headers, answer_s))["seq"])

    async def api(
        self, verb: str, body: Mapping[str, Any] | None = None, answer_s: float | None = None
    ) -> Mapping[str, Any]:
        """Ask JetStream. Raises ApiError, NoAnswer."""
        return _checked(await self._request(f"$JS.API.{verb}", _json(body), answer_s=answer_s))

    async def message(self, stream: str, what: Mapping[str, Any], answer_s: float | None = None) -> Stored | None:
        """One message, from the stream's leader: {"seq": n} or {"last_by_subj": subject}. Raises ApiError, NoAnswer."""
        try:
            found = (await self.api(f"STREAM.MSG.GET.{stream}", what, answer_s))["message"]
        except ApiError as error:
            if error.code == 10037:
                return None
            raise
        headers = _headers(base64.b64decode(found.get("hdrs", "")))
        return Stored(found["seq"], headers, base64.b64decode(found.get("data", "")))

    async def near_message(self, stream: str, what: Mapping[str, Any], answer_s: float | None = None) -> Stored | None:
        """The same from any replica, sooner and without base64; None may only mean that it is behind."""
        reply = await self._request(f"$JS.API.DIRECT.GET.{stream}", _json(what), answer_s=answer_s)
        headers = reply.headers or {}
        if STATUS in headers:
            return None
        return Stored(int(headers["Nats-Sequence"]), headers, reply.data)

    def messages(self, stream: str, sequence: int) -> AsyncGenerator[Stored, None]:
        """One batch of what lies at `sequence` and behind; empty when nothing does, by what a replica knows.

        Raises NoAnswer.
        """
        return self._several(stream, {"seq": sequence, "batch": BATCH_MESSAGES, "max_bytes": BATCH_BYTES})

    def last_messages(self, stream: str, subjects: str) -> AsyncGenerator[Stored, None]:
        """The last message of each subject that fits, by what a replica knows. Raises NoAnswer, also
        when there are more than `LAST_MAX`."""
        return self._several(stream, {"multi_last": [subjects], "batch": LAST_MAX})

    async def _several(self, stream: str, wanted: Mapping[str, Any]) -> AsyncGenerator[Stored, None]:
        inbox = self._client.new_inbox()
        replies = None
        found: deque[Msg] = deque()
        bell = asyncio.Event()

        async def take(reply: Msg) -> None:
            found.append(reply)
            bell.set()

        try:
            # What came in one piece is handed on in one piece: to wait for each message costs as much as to read it.
            replies = await self._client.subscribe(inbox, cb=take, pending_bytes_limit=0)
            await self._client.publish(f"$JS.API.DIRECT.GET.{stream}", _json(wanted), reply=inbox)
            while True:
                if not found:
                    bell.clear()
                    async with asyncio.timeout(self.answer_s):
                        await bell.wait()
                reply = found.popleft()
                headers = reply.headers or {}
                if STATUS in headers:
                    if headers[STATUS] == "503":
                        raise NoAnswer(f"nobody answers for stream {stream}")
                    if headers[STATUS] == "413":
                        raise NoAnswer(f"stream {stream} has too many subjects")
                    return
                yield Stored(int(headers["Nats-Sequence"]), headers, reply.data, headers.get("Nats-Subject", ""))
        except (nats.errors.Error, TimeoutError) as error:
            raise NoAnswer(f"reading stream {stream}: {error}") from None
        finally:
            if replies is not None and not self._client.is_closed:
                await replies.unsubscribe()

    async def gather(
        self, subject: str, wait_s: float, enough: Callable[[Sequence[Mapping[str, Any]]], bool]
    ) -> list[Mapping[str, Any]]:
        """What everybody who listens on a subject answers, until it is enough or nothing comes for a while."""
        inbox = self._client.new_inbox()
        replies = await self._client.subscribe(inbox)
        found: list[Mapping[str, Any]] = []
        try:
            await self._client.publish(subject, b"", reply=inbox)
            while not enough(found):
                reply = await replies.next_msg(timeout=wait_s)
                if STATUS in (reply.headers or {}):
                    break
                found.append(json.loads(reply.data))
        except (nats.errors.Error, TimeoutError):
            pass  # that was all
        finally:
            await replies.unsubscribe()
        return found

    async def watch(self, subject: str, told: Callable[[str, bytes], None]) -> None:
        """Be told, with subject and data, what is published from now on while this is connected: no more than that."""
        self._watches.append((subject, told))
        with contextlib.suppress(nats.errors.Error, OSError):  # it is dialled again, and subscribed then
            await _subscribe(self._client, subject, told)

    async def tell(self, subject: str, data: bytes) -> None:
        """Tell whoever watches a subject, if this is connected and they are: no more than that. Never raises."""
        with contextlib.suppress(nats.errors.Error, OSError, RuntimeError):
            if self._client.is_connected:  # what is kept for later would be untrue then
                await self._client.publish(subject, data)

    async def close(self) -> None:
        """Let go of the connection."""
        self._closed = True
        if self._dialling is not None:
            self._dialling.cancel()
        # It wants to send what is left, and while its server is away there is nothing to send it on.
        with contextlib.suppress(nats.errors.Error, OSError, RuntimeError):
            await self._client.close()

    async def _dial(self) -> Client:
        """A client that is connected, and from then on comes back by itself. Raises Unreachable."""
        client = Client()

        async def lost() -> None:
            if not self._closed:
                log.warning("nats_disconnected")
            for answer in list(client._resp_map.values()):  # nobody will give these answers any more
                if not answer.done():
                    answer.set_exception(nats.errors.ConnectionClosedError())

        async def back() -> None:
            self._complaint = ""
            url = client.connected_url
            log.info("nats_reconnected", server=f"{url.hostname}:{url.port}" if url else "")

        async def ended() -> None:
            if not self._closed and self._client is client:  # the library has given up; we don't
                self._dialling = asyncio.get_running_loop().create_task(self._dial_again())

        try:
            async with asyncio.timeout(CONNECT_S):
                await client.connect(
                    self._servers,
                    name=self._name,
                    error_cb=self._complain,
                    disconnected_cb=lost,
                    reconnected_cb=back,
                    closed_cb=ended,
                    connect_timeout=CONNECT_S,
                    allow_reconnect=False,
                    max_reconnect_attempts=FIRST_TRIES,
                    reconnect_time_wait=1,
                    ping_interval=PING_S,
                    max_outstanding_pings=2,
                )
        except (nats.errors.Error, OSError, TimeoutError) as error:
            if "authorization" in str(error).lower():
                raise UserRefused(
                    f"the NATS server at {self._shown()} refuses user or password ({error}): see --cluster "
                    "(TIMERD_CLUSTER), and the accounts of the server"
                ) from None
            raise Unreachable(f"no NATS server at {self._shown()}: {error or 'no answer'}") from None
        for subject, told in self._watches:
            await _subscribe(client, subject, told)
        client.options["allow_reconnect"] = True
        client.options["max_reconnect_attempts"] = -1
        client.options["reconnect_time_wait"] = RECONNECT_S
        client.options["connect_timeout"] = RECONNECT_CONNECT_S
        return client

    async def _dial_again(self) -> None:
        while True:
            try:
                self._client = await self._dial()
            except Unreachable as error:
                log.warning("nats_unreachable", reason=str(error))
                await asyncio.sleep(1)
            else:
                return

    async def _complain(self, error: Exception) -> None:
        """Each complaint once in a row: while a server is away there are four a second."""
        text = str(error) or type(error).__name__
        if text != self._complaint:
            self._complaint = text
            log.warning("nats", error=text)

    def _shown(self) -> str:
        """The servers, without the passwords that may be in their urls."""
        return ", ".join(server.rpartition("@")[2] for server in self._servers)

    async def _request(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None, answer_s: float | None = None
    ) -> Msg:
        try:
            return await self._client.request(subject, data, answer_s or self.answer_s, headers=headers)
        except nats.errors.NoRespondersError:
            raise Nobody(f"nobody listens on {subject}") from None
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise NoAnswer(f"{subject}: {error or type(error).__name__}") from None


async def _subscribe(client: Client, subject: str, told: Callable[[str, bytes], None]) -> None:
    async def handle(message: Msg) -> None:
        told(message.subject, message.data)

    await client.subscribe(subject, cb=handle)


def _json(body: Mapping[str, Any] | None) -> bytes:
    return b"" if body is None else json.dumps(body).encode()


def _checked(reply: Msg) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = json.loads(reply.data)
    if (error := answer.get("error")) is not None:
        raise ApiError(error.get("err_code", 0), error.get("description", "an error without a description"))
    return answer


def _headers(block: bytes) -> dict[str, str]:
    lines = block.decode(errors="replace").split("\r\n")[1:]
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines) if name}

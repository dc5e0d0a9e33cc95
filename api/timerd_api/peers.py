"""Peers: how another node of the cluster asks this one, `POST /cluster/v1/ask`.

Internal: it is no part of the contract, has no scope and takes no API key. Who asks shows the cluster's secret, which
is compared before anything of the body is read. What it asks, and what that comes to, is not looked into here.
Questions have a gate of their own, so that neither callers nor other nodes can take all there is from each other.
"""

import hmac
from collections.abc import Mapping
from typing import Final, Protocol

import msgspec
from starlette.types import Receive, Send

from timerd_api.admission import Admission
from timerd_api.body import MSGPACK, Intake
from timerd_api.problem import MALFORMED, OVERLOADED, UNAUTHORIZED, Problem

PATH: Final = b"/cluster/v1/ask"
HEADER: Final = b"timerd-cluster-secret"
ASKING_MAX: Final = 1_024  # questions that are being answered; each waits for the log at most


class Hears(Protocol):
    """What answers questions of other nodes."""

    async def hear(self, data: bytes) -> bytes:
        """Raises msgspec.MsgspecError for what is no question. Never asks another node."""
        ...


class PeerDoor:
    """Of a node in a cluster. Raises Problem."""

    def __init__(self, hears: Hears, secret: str, question_bytes_max: int) -> None:
        if not secret:
            raise ValueError("a cluster's secret may not be empty")
        self._hears = hears
        self._secret = secret.encode()
        self._intake = Intake(question_bytes_max, 4 * question_bytes_max)
        self._admission = Admission()
        self._asking = 0

    def __repr__(self) -> str:
        return "PeerDoor(***)"

    async def post(self, headers: Mapping[bytes, bytes], receive: Receive, send: Send) -> None:
        """Answer one question."""
        if not hmac.compare_digest(headers.get(HEADER, b""), self._secret):
            raise Problem(UNAUTHORIZED, "only nodes of this cluster may ask here", headers={"Connection": "close"})
        if self._asking >= ASKING_MAX or self._admission.is_full():
            raise Problem(OVERLOADED, "too many questions of other nodes at once")
        self._asking += 1
        try:
            body = await self._intake.read(headers, receive)
            try:
                await self._admission.enter(len(body))
                data = await self._hears.hear(body)
            except (msgspec.MsgspecError, RecursionError) as error:  # also of one that is too deep
                raise Problem(MALFORMED, str(error)) from None
            finally:
                self._intake.release(body)
        finally:
            self._asking -= 1
        lines = [(b"content-type", MSGPACK.encode()), (b"content-length", b"%d" % len(data))]
        await send({"type": "http.response.start", "status": 200, "headers": lines})
        await send({"type": "http.response.body", "body": data})

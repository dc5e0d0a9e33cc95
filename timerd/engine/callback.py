"""A callback's request: how it is kept, and how it leaves.

It is the payload of its timer, in one canonical encoding, so that whatever holds for payloads holds for it: above 512
bytes it lies apart, `unchanged` compares it, re-arms and conditions need to know nothing of it. The encoding is a
MessagePack array, whose first byte no JSON text begins with, so a payload says by itself what it is (`is_request`).

Values have been checked by the API. What is added to a request on its way, and nothing else, is in `request_headers`.
"""

import re
from typing import Final

import msgspec

from timerd.engine.secrecy import masked_repr
from timerd.engine.timer import Payload, Timer

TEXT: Final = "body"
JSON: Final = "json"
BASE64: Final = "body_base64"
NONE: Final = ""

ANSWER_BYTES_MAX: Final = 64 * 1024  # of an answer's body only the first 200 bytes of a refusal are ever of use


class CallbackRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What to send. New fields go to the end, with a default."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...]
    """In the order in which they were given."""
    form: str
    """How the body was given, and is shown: body | json | body_base64, or empty: there is none."""
    body: bytes

    def __repr__(self) -> str:
        return masked_repr(self, "headers", "body")


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(CallbackRequest).decode
_HOST: Final = re.compile(r"(?i)(https?)://(\[[0-9a-f:.]*\]|[^/?#:]*)(?::([0-9]*))?(?=[/?#]|$)")


def encode_request(request: CallbackRequest) -> bytes:
    """As it is kept. Equal requests give equal bytes."""
    return _encode(request)


def decode_request(payload: bytes) -> CallbackRequest:
    """Raises ValueError for what is no request."""
    return _decode(payload)


def is_request(payload: Payload) -> bool:
    """Whether these bytes are a request and not JSON."""
    # An array's head is 0x90 to 0x9f, and UTF-8 has these bytes only inside of a character.
    return isinstance(payload, bytes) and len(payload) > 0 and payload[0] & 0xF0 == 0x90


def host_of(url: str) -> str:
    """Whom a URL belongs to, as far as slots, breaker and pauses go: scheme, name and port, as one lower-case text."""
    found = _HOST.match(url)
    if found is None:
        return url.lower()
    scheme, name, port = found[1].lower(), found[2].lower().rstrip("."), found[3]
    return f"{scheme}://{name}:{port or (443 if scheme == 'https' else 80)}"


def request_headers(
    request: CallbackRequest, timer: Timer, webhook_id: str, timestamp_s: int, version: str, repeat: bool
) -> dict[str, str]:
    """The headers without a signature. A request's own come as they are; those that timerd sets it can't have."""
    headers = dict(request.headers)
    given = {name.lower() for name in headers}
    if request.form == JSON and "content-type" not in given:
        headers["Content-Type"] = "application/json"
    if "user-agent" not in given:
        headers["User-Agent"] = f"timerd/{version}"
    headers["webhook-id"] = webhook_id
    headers["webhook-timestamp"] = str(timestamp_s)
    headers["Timerd-Timer-Id"] = header_text(timer.id)
    headers["Timerd-Generation"] = str(timer.generation)
    headers["Timerd-Attempt"] = str(timer.failure.attempts + 1 if timer.failure else 1)
    if repeat:
        headers["Timerd-Possible-Duplicate"] = "true"
    return headers


def header_text(id: str) -> str:
    """An id as a header can hold it: percent-encoded UTF-8 where it is no printable ASCII, and where it has a %."""
    if id.isascii() and "%" not in id and id == id.strip():
        return id
    return _NO_HEADER_TEXT.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), id)


_NO_HEADER_TEXT: Final = re.compile(r"[^\x21-\x24\x26-\x7e]")

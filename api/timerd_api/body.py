"""Bodies: how they come in, and in which of two encodings they are read and written.

`Intake` reads: it knows bytes and limits. `Form` decodes one kind of body from JSON or MessagePack. `answer` encodes.
None of them knows what a body means.

Invariants: no more than the limit of one body is ever held for a request, and no more than the limit of all for all
of them, whatever was announced. JSON that is accepted is valid UTF-8 through and through, raw payloads included (the
decoder looks into the strings it decodes, but not into those it skips). Bodies that come slowly or not at all keep
nobody out: each has to keep a pace, and the last part of the room for all is for small ones alone.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from timerd_api.problem import (
    BODY_TOO_LARGE,
    MALFORMED,
    OVERLOADED,
    UNSUPPORTED_MEDIA_TYPE,
    Fault,
    Problem,
    faulty,
    pointer_token,
)
from timerd_api.settings import BODY_BYTES_PER_S, BODY_GRACE_MS

SMALL_BYTES: Final = 64 * 1024  # a body that has a share of the room kept for it: a single arm, or a few hundred
SMALL_SHARE: Final = 8  # the part of the room that is kept for small bodies; hundreds of them at the usual size

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
_JSON_BYTES: Final = JSON.encode()

T = TypeVar("T")


class Intake:
    """Reads request bodies, and counts those in progress: from their first byte until `release`."""

    def __init__(
        self,
        one_bytes_max: int,
        all_bytes_max: int,
        grace_ms: int = BODY_GRACE_MS,
        bytes_per_s: int = BODY_BYTES_PER_S,
    ) -> None:
        self._one_bytes_max = one_bytes_max
        self._all_bytes_max = all_bytes_max
        self._large_bytes_max = max(all_bytes_max - all_bytes_max // SMALL_SHARE, one_bytes_max)
        self._grace_s = grace_ms / 1000
        self._bytes_per_s = bytes_per_s
        self.held_bytes = 0

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        """The whole body; it counts until it is given to `release`. Raises Problem, and then nothing counts."""
        announced = headers.get(b"content-length", b"0")  # what is announced falsely is still counted as it comes
        if announced.isdigit() and int(announced[:20]) > self._one_bytes_max:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._grace_s) as pace:
                return await self._read(receive, pace)
        except TimeoutError:
            slow = f"the body came too slowly: it must keep up with {self._bytes_per_s} bytes a second"
            raise Problem(MALFORMED, slow, headers={"Connection": "close"}) from None

    async def _read(self, receive: Receive, pace: asyncio.Timeout) -> bytes:
        message = await receive()
        body: bytes = message.get("body", b"")
        if message["type"] == "http.request" and not message.get("more_body", False):
            self._admit(0, len(body))
            return body
        chunks = bytearray()
        now = asyncio.get_running_loop().time
        try:
            while True:
                if message["type"] != "http.request":
                    raise Problem(MALFORMED, "the connection ended before the body did")
                chunk: bytes = message.get("body", b"")
                self._admit(len(chunks), len(chunk))
                chunks += chunk
                if not message.get("more_body", False):
                    return bytes(chunks)
                # Each byte buys its time, but no more than the grace is ever saved up: who sends fast and then stops
                # is given up as soon as who never began.
                due = pace.when()
                assert due is not None
                pace.reschedule(min(now() + self._grace_s, due + len(chunk) / self._bytes_per_s))
                message = await receive()
        except BaseException:  # a cancelled request gives its bytes back as well
            self.held_bytes -= len(chunks)
            raise

    def release(self, body: bytes) -> None:
        self.held_bytes -= len(body)

    async def read_form(self, request: Request, form: "Form[T]") -> T:
        """What a whole body says, in this form; the body counts until then. Raises Problem."""
        headers = dict(request.scope["headers"])
        packed = is_packed(headers)
        body = await self.read(headers, request.receive)
        try:
            return form.read(body, packed)
        finally:
            self.release(body)

    def _admit(self, have: int, more: int) -> None:
        if have + more > self._one_bytes_max:
            raise self._too_large()
        room = self._all_bytes_max if have + more <= SMALL_BYTES else self._large_bytes_max
        if self.held_bytes + more > room:
            raise Problem(OVERLOADED, "too many request bodies are on their way in at once")
        self.held_bytes += more

    def _too_large(self) -> Problem:
        return Problem(BODY_TOO_LARGE, f"a request body may have at most {self._one_bytes_max} bytes")


def is_packed(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the body is MessagePack; else it is JSON. Raises Problem for any other type, and for none.

    A body without a type is refused too: a web page can send one to a local address without asking first.
    """
    coding = headers.get(b"content-encoding")
    if coding is not None and coding.strip().lower() not in (b"", b"identity"):
        raise Problem(UNSUPPORTED_MEDIA_TYPE, "a body is taken as it is: compressed ones are not")
    given = headers.get(b"content-type", b"")
    if given == _JSON_BYTES:  # how nearly everybody writes it
        return False
    media_type = given.decode("latin-1").partition(";")[0].strip().lower()
    if media_type == JSON:
        return False
    if media_type == MSGPACK:
        return True
    raise Problem(UNSUPPORTED_MEDIA_TYPE, f"the body must be {JSON} or {MSGPACK}, with a Content-Type that says which")


class Form(Generic[T]):
    """One kind of request body, in either encoding."""

    def __init__(self, type: type[T]) -> None:
        self._json = msgspec.json.Decoder(type)
        self._msgpack = msgspec.msgpack.Decoder(type)
        self._choices = _choices(msgspec.inspect.type_info(type))

    def decode(self, body: bytes, packed: bool) -> T:
        """Raises Problem if the body can't be read, msgspec.ValidationError if it is of another shape."""
        try:
            if packed:
                return self._msgpack.decode(body)
            if not body.isascii():
                body.decode()
            return self._json.decode(body)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Problem(MALFORMED, str(error) if body.strip() else "the body is empty") from None
        except RecursionError:
            raise Problem(MALFORMED, "the body is nested too deeply") from None

    def read(self, body: bytes, packed: bool) -> T:
        """Raises Problem with a pointer to what is wrong."""
        try:
            return self.decode(body, packed)
        except msgspec.ValidationError as error:
            raise faulty([self.fault(error)]) from None

    def fault(self, error: msgspec.ValidationError, at: str = "") -> Fault:
        """What the decoder found; of a word that is none of a few, which those are."""
        fault = _fault(error, at)
        steps = fault.pointer.split("/")
        words = self._choices.get(steps[-2] if steps[-1].isdigit() and len(steps) > 1 else steps[-1])
        if words and fault.detail.startswith("Invalid enum value"):
            fault = fault._replace(detail=f"{fault.detail}: must be one of {', '.join(words)}")
        return fault


def _choices(root: msgspec.inspect.Type) -> dict[str, list[str]]:
    """The members, by name, that are one of a few words; a name has the same meaning wherever it is in a form."""
    found: dict[str, list[str]] = {}
    waiting = [("", root)]
    while waiting:
        name, node = waiting.pop()
        match node:
            case msgspec.inspect.Metadata():
                waiting.append((name, node.type))
            case msgspec.inspect.StructType():
                waiting += [(field.encode_name, field.type) for field in node.fields]
            case msgspec.inspect.ListType():
                waiting.append((name, node.item_type))
            case msgspec.inspect.UnionType():
                waiting += [(name, part) for part in node.types]
            case msgspec.inspect.LiteralType():
                found[name] = [str(word) for word in node.values]
    return found


_WHERE: Final = re.compile(r"(?s)(.*) - at (?:`key` in )?`\$(.*)`")
_STEP: Final = re.compile(r"\.([A-Za-z0-9_]+)|\[([0-9]+)\]|\[\.\.\.\]")
_MEMBER: Final = re.compile(r"(?s)Object (?:contains unknown|missing required) field `(.*)`")


def _fault(error: msgspec.ValidationError, at: str) -> Fault:
    """What the decoder found, with its `$.a[3].b` as a JSON pointer behind `at`.

    A missing or unknown member is pointed at itself. A value in a free mapping is pointed at by the mapping, because
    the decoder does not say which one it was.
    """
    detail, path = str(error), ""
    if found := _WHERE.fullmatch(detail):
        detail, path = found.groups()
    pointer = at + "".join(f"/{step[1] or step[2]}" for step in _STEP.finditer(path) if step[0] != "[...]")
    if member := _MEMBER.fullmatch(detail):
        pointer += "/" + pointer_token(member[1])
    return Fault(pointer, detail)


def wants_msgpack(accept: bytes) -> bool:
    """Whether an Accept header puts MessagePack before JSON. JSON is the answer to everything unclear."""
    if b"msgpack" not in accept.lower():
        return False
    best = {JSON: (0.0, 0), MSGPACK: (0.0, 0)}  # quality, then what is named first
    for place, part in enumerate(accept.decode("latin-1").split(",")):
        media_range, *parameters = [piece.strip().lower() for piece in part.split(";")]
        if media_range not in best:
            continue
        quality = next((_quality(p[2:]) for p in parameters if p.startswith("q=")), 1.0)
        best[media_range] = (quality, -place)
    return best[MSGPACK] > best[JSON] and best[MSGPACK][0] > 0


def _quality(text: str) -> float:
    return float(text) if re.fullmatch(r"[01](\.[0-9]{0,3})?", text) else 0.0


def answer(request: Request, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`value` in the encoding asked for.

    MessagePack is the JSON answer written differently, so that the two can't drift apart. A payload may hold numbers
    that MessagePack has no room for; then the answer stays JSON, and its Content-Type says so.
    """
    body = msgspec.json.encode(value)
    if wants_msgpack(b",".join(v for k, v in request.scope["headers"] if k == b"accept")):
        try:
            packed = msgspec.msgpack.encode(msgspec.json.decode(body))
        except (msgspec.DecodeError, OverflowError, RecursionError):
            pass
        else:
            return Response(packed, status, headers, MSGPACK)
    return Response(body, status, headers, JSON)

"""Standard Webhooks signatures, verified with what Python brings.

What is signed is `<webhook-id>.<webhook-timestamp>.<body>`, with HMAC-SHA256; the header holds any number of
`v1,<base64>` separated by spaces, and one of them must fit one of the secrets. The timestamp is part of it, so an old
delivery can't be played again later than the tolerance.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final

from timerd_client._errors import TimerdError

PREFIX: Final = "whsec_"
SIGNATURES_MAX: Final = 16  # more than anyone rotates through; each costs a comparison for every secret


class InvalidSignature(TimerdError):
    """The delivery is not signed with a secret that we know, or is too old."""


def parse_secret(text: str) -> bytes:
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("a secret is whsec_ and base64") from error
    if not secret:
        raise ValueError("a secret is whsec_ and base64")
    return secret


def sign(secret: bytes, id: str, timestamp: str, body: bytes) -> str:
    """One signature, as it stands in the header."""
    signed = id.encode() + b"." + timestamp.encode() + b"." + body
    return "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()


def verify(secrets: Sequence[bytes], headers: Mapping[str, str], body: bytes, *, now: float, tolerance: float) -> None:
    """Return if the delivery is genuine, else raise InvalidSignature. Header names are in lower case."""
    try:
        id, timestamp, given = (headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
    except KeyError as missing:
        raise InvalidSignature(f"no header {missing}") from None
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise InvalidSignature("webhook-timestamp is no number of seconds")
    if abs(now - int(timestamp)) > tolerance:
        raise InvalidSignature("webhook-timestamp is too far from now")
    signatures = [part.encode("latin-1", "replace") for part in given.split()][:SIGNATURES_MAX]
    genuine = False
    for secret in secrets:
        expected = sign(secret, id, timestamp, body).encode()
        for signature in signatures:  # all are compared, so that the time taken does not tell which one fits
            genuine |= hmac.compare_digest(expected, signature)
    if not genuine:
        raise InvalidSignature("no signature fits")

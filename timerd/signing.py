"""Signatures of deliveries, by the Standard Webhooks specification; and the forms of what a type has for them.

Its own library does it, but for a body that is no text: the library takes only text, the specification any bytes.

A type has secrets, or references to them: `env:NAME`, `file:PATH`. What these lead to is not known here (`references`).
"""

import base64
import binascii
import hmac
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from standardwebhooks import Webhook

from timerd.engine.secrecy import scrub

PREFIX: Final = "whsec_"
ENV: Final = "env:"
FILE: Final = "file:"
PATH_BYTES_MAX: Final = 512
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def is_reference(secret: str) -> bool:
    """Whether it says where a secret is. That is no secret."""
    return secret.startswith((ENV, FILE))


def reference_fault(reference: str) -> str | None:
    """Why this can't be a reference; it is not looked where it leads."""
    if reference.startswith(ENV):
        if not _NAME.fullmatch(reference.removeprefix(ENV)):
            return f"must be a variable's name behind {ENV}, {_NAME.pattern}"
    else:
        path = reference.removeprefix(FILE)
        if not path.startswith("/") or not path.isprintable():
            return f"must be an absolute path behind {FILE}, of printable characters"
        if len(path.encode()) > PATH_BYTES_MAX:
            return f"must be a path of at most {PATH_BYTES_MAX} bytes behind {FILE}"
    if scrub(reference) != reference:
        return "must name a secret, and looks like one itself; references are shown"
    return None


def secret_fault(secret: str) -> str | None:
    """Why this can't sign."""
    if not secret.startswith(PREFIX):
        return f"must begin with {PREFIX}, {ENV} or {FILE}"
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return f"must be base64 behind {PREFIX}"
    return None if key else "is empty"


def sign(secrets: Sequence[str], batch_id: str, timestamp_s: int, body: bytes) -> str:
    """The value of `webhook-signature`: one signature a secret, space separated, so that secrets can be rotated.

    Raises ValueError for a secret that is no base64 (with or without `whsec_`) or empty; the API
    refuses such a secret when it is set.
    """
    moment = datetime.fromtimestamp(timestamp_s, UTC)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        signed = f"{batch_id}.{timestamp_s}.".encode() + body
        digests = [hmac.digest(_key(secret), signed, "sha256") for secret in secrets]
        return " ".join([f"v1,{base64.b64encode(digest).decode()}" for digest in digests])
    return " ".join([_signer(secret).sign(batch_id, moment, text) for secret in secrets])


def _key(secret: str) -> bytes:
    _signer(secret)
    return base64.b64decode(secret.removeprefix(PREFIX) + "==")  # as the library reads it


@lru_cache(maxsize=1024)
def _signer(secret: str) -> Webhook:
    try:
        return Webhook(secret)
    except Exception as wrong:  # binascii.Error, or the library's own class, which it does not export
        raise ValueError("is no signing secret: base64, with or without whsec_ in front") from wrong

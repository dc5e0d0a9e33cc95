"""Signatures of deliveries, by the Standard Webhooks specification.

Its own library does it, but for a body that is no text: the library takes only text, the specification any bytes.
"""

import base64
import hmac
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache

from standardwebhooks import Webhook


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
    return base64.b64decode(secret.removeprefix("whsec_") + "==")  # as the library reads it


@lru_cache(maxsize=1024)
def _signer(secret: str) -> Webhook:
    try:
        return Webhook(secret)
    except Exception as wrong:  # binascii.Error, or the library's own class, which it does not export
        raise ValueError("is no signing secret: base64, with or without whsec_ in front") from wrong

"""Signatures of deliveries, by the Standard Webhooks specification: its own library does it."""

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
    text = body.decode()
    return " ".join([_signer(secret).sign(batch_id, moment, text) for secret in secrets])


@lru_cache(maxsize=1024)
def _signer(secret: str) -> Webhook:
    try:
        return Webhook(secret)
    except Exception as wrong:  # binascii.Error, or the library's own class, which it does not export
        raise ValueError("is no signing secret: base64, with or without whsec_ in front") from wrong

"""Settings: what the API is told once, at the start. Values only; where they come from is the roof's business."""

from typing import Final

import msgspec

from timerd.engine.address import Targets
from timerd.engine.secrecy import masked_repr

BODY_GRACE_MS: Final = 10_000
BODY_BYTES_PER_S: Final = 64 * 1024


class ApiSettings(msgspec.Struct, frozen=True):
    """How the API listens, whom it lets in, and how much it takes."""

    host: str = "127.0.0.1"
    port: int = 8470
    tls: bool = False
    """Whether the server in front of this speaks TLS."""
    api_key: str | None = None
    """The bearer key that opens everything; None = no key is asked for."""
    insecure: bool = False
    """Without a key: serve requests for any host, from anywhere. Never a default."""
    max_body_bytes: int = 16 * 1024 * 1024
    """One request body. 10,000 items of 1.6 KiB; what is larger is better sent in parts."""
    max_bodies_in_progress_bytes: int = 256 * 1024 * 1024
    """All request bodies at once; at least `max_body_bytes`, or the largest body could never come in."""
    body_grace_ms: int = BODY_GRACE_MS
    """How far a body may fall behind `body_bytes_per_s`; one that stops is given up after this. What is sent at all is
    sent within a second or two; ten let a bad line come back, and give what a stopped sender holds back soon enough."""
    body_bytes_per_s: int = BODY_BYTES_PER_S
    """The least pace of a body. A slow line does twice that, and the largest body is through in minutes at worst."""
    max_payload_bytes: int = 64 * 1024
    """One payload, encoded as JSON."""
    max_horizon_ms: int = 3_652 * 86_400_000
    """How far ahead a timer may be armed: ten years, two or three leap days among them."""
    targets: Targets = Targets()
    """Which addresses callbacks may go to."""

    def __repr__(self) -> str:
        return masked_repr(self, "api_key")

    def __post_init__(self) -> None:
        if self.api_key is not None and not self.api_key.strip():
            raise ValueError("an API key may not be empty")
        if self.max_bodies_in_progress_bytes < self.max_body_bytes:
            raise ValueError("max_bodies_in_progress_bytes is below max_body_bytes")
        if self.body_grace_ms <= 0 or self.body_bytes_per_s <= 0:
            raise ValueError("body_grace_ms and body_bytes_per_s must be above 0")

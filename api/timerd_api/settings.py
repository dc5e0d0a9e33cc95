"""Settings: what the API is told once, at the start. Values only; where they come from is the roof's business."""

import msgspec


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
    max_payload_bytes: int = 64 * 1024
    """One payload, encoded as JSON."""
    max_horizon_ms: int = 3_652 * 86_400_000
    """How far ahead a timer may be armed: ten years, two or three leap days among them."""

    def __post_init__(self) -> None:
        if self.api_key is not None and not self.api_key:
            raise ValueError("an API key may not be empty")
        if self.max_bodies_in_progress_bytes < self.max_body_bytes:
            raise ValueError("max_bodies_in_progress_bytes is below max_body_bytes")

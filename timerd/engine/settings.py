"""Limits of the service, as the engine and the shell need them. Frozen, made once by the roof."""

import msgspec


class Settings(msgspec.Struct, frozen=True):
    """Sizes in bytes, times in ms. See docs/configuration.md for what each is for."""

    node: str = "timerd"
    shards: int | None = None
    """Only for a new data directory; None: 8 there, and whatever an old one has."""
    shard_capacity: int = 100_000
    max_payload_bytes: int = 65_536
    max_horizon_ms: int = 10 * 366 * 86_400_000
    max_retry_after_ms: int = 3_600_000
    dead_letters_kept: int = 100_000
    """Of each type, over all shards."""

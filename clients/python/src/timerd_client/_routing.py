"""Where ids live, so that a request can go to the owner of its timers by itself. Pure: no I/O, no clock.

A hint and no more: any node takes any request, so what is unknown, stale or can't be reached goes to the nodes that the
client was given. The hash is xxhash's, which comes with `timerd-client[routing]`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from timerd_client._protocol import Reply, Request

RING: Final = Request("GET", "/v1/ring")
FRESH_S: Final = 30.0  # until it is read again although nothing seems wrong with it
AGAIN_S: Final = 1.0  # after it could not be read, or was wrong


class _Shard(msgspec.Struct):
    id: int
    address: str | None = None


class _Ring(msgspec.Struct):
    hash: str
    slots: list[int]
    shards: list[_Shard]


class Routing:
    """Of one client; its answers may be a moment old. `secure`: only https addresses are taken."""

    def __init__(self, secure: bool) -> None:
        self._hash = _xxh3()
        self._secure = secure
        self._slots: list[int] = []
        self._addresses: dict[int, str] = {}
        self._read_at = 0.0  # not before

    def is_due(self, now: float) -> bool:
        """Whether the ring is to be read before the next request."""
        return now >= self._read_at

    def asks(self, now: float) -> None:
        """It is being read: nobody else needs to."""
        self._read_at = now + AGAIN_S

    def heard(self, reply: Reply, now: float) -> None:
        """Take up an answer to `RING`; one that is none of ours changes nothing."""
        if reply.status != 200:
            return
        try:
            ring = msgspec.json.decode(reply.body, type=_Ring)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        if ring.hash != "xxh3_64" or not ring.slots or len(ring.slots) & (len(ring.slots) - 1):
            return
        self._slots = ring.slots
        self._addresses = {shard.id: shard.address or "" for shard in ring.shards if self._may_use(shard.address)}
        self._read_at = now + FRESH_S

    def wrong(self, now: float) -> None:
        """An address could not be reached, or was not the owner's: go by none until it has been read again."""
        self._slots = []
        self._read_at = min(self._read_at, now + AGAIN_S)

    def address_of(self, id: str) -> str:
        """Where the owner of an id is reached; empty: not known."""
        if not self._slots:
            return ""
        slot = self._hash(id.encode()) & (len(self._slots) - 1)
        return self._addresses.get(self._slots[slot], "")

    def by_owner(self, ids: Sequence[str]) -> dict[str, list[int]]:
        """Which of these go where, by number, each in order."""
        found: dict[str, list[int]] = {}
        for number, id in enumerate(ids):
            found.setdefault(self.address_of(id), []).append(number)
        return found

    def _may_use(self, address: Any) -> bool:
        return isinstance(address, str) and address.startswith(
            ("https://",) if self._secure else ("https://", "http://")
        )


def _xxh3() -> Callable[[bytes], int]:
    try:
        from xxhash import xxh3_64_intdigest
    except ImportError:
        raise ImportError("routing=True needs xxhash: pip install 'timerd-client[routing]'") from None
    return xxh3_64_intdigest

"""API keys: made, kept as digests, revoked. One change at a time, durable before it counts.

A key is `td_<id>_<secret>`: the id is in the clear, so that a key found somewhere can be revoked without being tried;
the secret is 256 random bits. Of those only the SHA-256 of the whole key is kept. A slow hash protects what people
think up, by making each guess dear; 2^256 guesses are out of reach whatever each of them costs, and a slow hash would
be paid for with every request.
"""

import asyncio
import base64
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from timerd.catalogue import FULL
from timerd.clock import refused_if_late
from timerd.engine.errors import CatalogFull, UnreadableCatalog
from timerd.engine.message import Refused
from timerd.ports import ApiKey, Catalog, Clock

PREFIX: Final = "td_"
KEYS_MAX: Final = 1_000  # they are all in memory and in one list; more than that wants users and groups, not keys
_ID_BYTES: Final = 5  # 8 characters of base32
_ID_CHARS: Final = 8
_SECRET_BYTES: Final = 32


def digest_of(key: bytes) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key).digest()


def id_in(key: bytes) -> str:
    """What stands where a key of ours has its id; of anything else it is some text that no key has for an id."""
    return key[len(PREFIX) : len(PREFIX) + _ID_CHARS].decode("latin-1")


class Keys:
    """All keys of the catalogue."""

    def __init__(
        self,
        keys: Sequence[ApiKey],
        catalog: Catalog,
        clock: Clock,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._catalog = catalog
        self._clock = clock
        self._random_bytes = random_bytes
        self._lock = asyncio.Lock()
        self.known: Mapping[str, ApiKey] = MappingProxyType({key.id: key for key in keys})
        """By id; replaced whole at each change."""
        self.patience_s: float | None = None
        """How long a change may wait for the catalogue; None: for ever."""

    async def refresh(self) -> None:
        """Read all keys again, where others change them too. Raises what the catalogue does.

        Where one can't be read the others count all the same, and that one opens nothing: no key that was revoked is to
        go on for want of it. Were there no others, who has no key would be let in; then all stay as they were.
        """
        async with self._lock:
            try:
                self._know(await self._catalog.keys())
            except UnreadableCatalog as error:
                if error.read:
                    self._know(error.read)
                raise

    def _know(self, keys: Sequence[ApiKey]) -> None:
        stored = {key.id: key for key in keys}
        if stored != self.known:
            self.known = MappingProxyType(stored)

    async def create(
        self,
        name: str,
        scopes: tuple[str, ...],
        key_expires_at: int | None,
        max_per_second: float | None,
        expires_at: int | None,
    ) -> tuple[ApiKey, str] | Refused:
        """A new key, and its text, which nobody will see again. `expires_at` is the request's own."""
        async with self._lock:
            if refused := refused_if_late(self._clock.now(), expires_at):
                return refused
            if len(self.known) >= KEYS_MAX:
                return Refused("validation", f"there are {KEYS_MAX} keys already; revoke some")
            id = self._new_id()
            text = f"{PREFIX}{id}_{_text(self._random_bytes(_SECRET_BYTES))}"
            digest = digest_of(text.encode())
            key = ApiKey(id, name, scopes, digest, self._clock.now().wall_ms, key_expires_at, max_per_second)
            if refused := await self._change(self._catalog.put_key(key)):
                return refused
            self.known = MappingProxyType({**self.known, id: key})
            return key, text

    async def revoke(self, id: str, expires_at: int | None) -> ApiKey | Refused:
        """The key that is no more: when this returns, no request with it is let in."""
        async with self._lock:
            if refused := refused_if_late(self._clock.now(), expires_at):
                return refused
            if (key := self.known.get(id)) is None:
                return Refused("key-not-found", "there is no key of this id; an id is the 8 characters behind td_")
            if refused := await self._change(self._catalog.delete_key(id)):
                return refused
            self.known = MappingProxyType({other: kept for other, kept in self.known.items() if other != id})
            return key

    async def _change(self, change: Awaitable[None]) -> Refused | None:
        try:
            async with asyncio.timeout(self.patience_s):
                await change
        except CatalogFull:
            return FULL
        except TimeoutError:
            return Refused("shard-unavailable", "the catalogue does not answer; what became of it is not known")
        return None

    def _new_id(self) -> str:
        while (id := base64.b32encode(self._random_bytes(_ID_BYTES)).decode().lower()) in self.known:
            pass
        return id


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

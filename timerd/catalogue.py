"""The types as callers see them, over the catalogue: one change at a time, durable before it is seen."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from timerd.engine.errors import CatalogFull
from timerd.engine.message import Refused
from timerd.engine.timer import TimerType
from timerd.ports import Catalog

FULL = Refused("storage-full", "the catalogue could not be written: the disk is full")


class Types:
    """All timer types. `changed` is told the new mapping after each change."""

    def __init__(
        self,
        catalog: Catalog,
        types: Sequence[TimerType],
        changed: Callable[[Mapping[str, TimerType]], None],
    ) -> None:
        self._catalog = catalog
        self._changed = changed
        self._all = {type.name: type for type in types}
        self._going: set[str] = set()
        self._lock = asyncio.Lock()
        self.known: Mapping[str, TimerType] = MappingProxyType(dict(self._all))
        """Those that may be armed; replaced whole at each change."""

    async def put(
        self, type: TimerType, keep_secrets: bool, live: Callable[[], Awaitable[int]]
    ) -> tuple[TimerType, bool] | Refused:
        """Put a type. `keep_secrets`: those that stand stay. Its kind can't change while `live` timers of it are left:
        what they carry is of the kind they were armed for."""
        async with self._lock:
            old = self._all.get(type.name)
            if old is not None and old.kind != type.kind:
                return await self._change_kind(old, type, keep_secrets, live)
            if keep_secrets and old is not None:
                type = msgspec.structs.replace(type, signing_secrets=old.signing_secrets)
            if refused := await self._store(type):
                return refused
            return type, old is None

    async def _change_kind(
        self, old: TimerType, new: TimerType, keep_secrets: bool, live: Callable[[], Awaitable[int]]
    ) -> tuple[TimerType, bool] | Refused:
        if keep_secrets:
            new = msgspec.structs.replace(new, signing_secrets=old.signing_secrets)
        self._going.add(new.name)  # so that none is armed meanwhile
        self._publish_known()
        try:
            if count := await live():
                return Refused("type-in-use", f"{count} timers of type {new.name} live, of kind {old.kind}")
            return await self._store(new) or (new, False)
        finally:
            self._going.discard(new.name)
            self._publish_known()

    async def set_state(self, name: str, state: str) -> TimerType | Refused:
        """active | paused"""
        async with self._lock:
            old = self._all.get(name)
            if old is None:
                return not_found(name)
            type = msgspec.structs.replace(old, state=state)
            return await self._store(type) or type

    async def delete(self, name: str, live: Callable[[], Awaitable[int]]) -> Refused | None:
        """Delete a type unless `live` timers of it are left. While that is found out it can't be armed."""
        async with self._lock:
            if name not in self._all:
                return not_found(name)
            self._going.add(name)
            self._publish_known()
            try:
                if count := await live():
                    return Refused("type-in-use", f"{count} timers of type {name} live")
                try:
                    await self._catalog.delete_type(name)
                except CatalogFull:
                    return FULL
                del self._all[name]
                self._changed(MappingProxyType(dict(self._all)))
                return None
            finally:
                self._going.discard(name)
                self._publish_known()

    async def _store(self, type: TimerType) -> Refused | None:
        try:
            await self._catalog.put_type(type)
        except CatalogFull:
            return FULL
        self._all[type.name] = type
        self._publish_known()
        self._changed(MappingProxyType(dict(self._all)))  # one that can't be armed for the moment is there all the same
        return None

    def _publish_known(self) -> None:
        self.known = MappingProxyType({n: t for n, t in self._all.items() if n not in self._going})


def not_found(name: str) -> Refused:
    """The refusal for a type that is not there."""
    return Refused("type-not-found", f"there is no type {name}")

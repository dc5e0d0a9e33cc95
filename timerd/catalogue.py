"""The types as callers see them, over the catalogue: one change at a time, durable before it is seen.

A type that is to go, or to become another kind, stays to be seen until it does. That no timer of it lives is asked
twice: openly, which refuses what can't be done and disturbs nobody, and again while arms of it are held off.

Where the catalogue is shared with other nodes, what it holds is read again before each change of it (`refresh`), the
change is made in place of just that (`swap`) or begun again, and arms are held off at all of them (`elsewhere`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from functools import partial
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec
import structlog

from timerd.engine.errors import CatalogFull
from timerd.engine.message import Refused
from timerd.engine.timer import Timer, TimerType
from timerd.ports import Catalog

OVERTAKEN_MAX: Final = 8  # others change the same type all the time
PAUSE_AGAIN_S: Final = 1.0  # between two attempts to store that a type is paused
FULL = Refused("storage-full", "the catalogue could not be written: the disk is full")

Swap = Callable[[str, TimerType | None, TimerType | None], Awaitable[bool]]
Done = TypeVar("Done")

log = structlog.get_logger()


class Overtaken(Exception):
    """Another node has changed the type since it was read."""


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
        self._going: dict[str, int] = {}  # of which none may be armed for the moment, and by how many who see to that
        self._lock = asyncio.Lock()
        self.known: Mapping[str, TimerType] = MappingProxyType(dict(self._all))
        """All of them; replaced whole at each change."""
        self._published = 0
        self.shared = False
        """Others change the catalogue too."""
        self.swap: Swap | None = None
        """Of a shared catalogue: stores a type (None: none) by name in place of another, unless that has changed."""
        self.elsewhere: Callable[[str], AbstractAsyncContextManager[object]] = lambda name: nullcontext()
        """Holds off arms of a type at other nodes while it is entered."""

    async def refresh(self) -> bool:
        """Read all of them again; whether there was news. Waits for nobody's change. Raises what the catalogue does."""
        before = self._published
        stored = {type.name: type for type in await self._catalog.types()}
        if before != self._published or stored == self._all:
            return before != self._published  # what has been published meanwhile is no older than what was read
        self._all = stored
        self._publish()
        return True

    async def _changing(self, change: Callable[[], Awaitable[Done | Refused]]) -> Done | Refused:
        """One change at a time, of what there is by now."""
        async with self._lock:
            for _ in range(OVERTAKEN_MAX):
                if self.shared:
                    await self.refresh()
                with suppress(Overtaken):
                    return await change()
            return Refused("overloaded", "the type is being changed at other nodes", retry_after_s=1)

    async def put(
        self, type: TimerType, keep_secrets: bool, live: Callable[[], Awaitable[int]]
    ) -> tuple[TimerType, bool] | Refused:
        """Put a type. `keep_secrets`: those that stand stay. Its kind can't change while `live` timers of it are left:
        what they carry is of the kind they were armed for."""
        return await self._changing(partial(self._put, type, keep_secrets, live))

    async def _put(
        self, type: TimerType, keep_secrets: bool, live: Callable[[], Awaitable[int]]
    ) -> tuple[TimerType, bool] | Refused:
        old = self._all.get(type.name)
        if old is not None and old.kind != type.kind:
            return await self._change_kind(old, type, keep_secrets, live)
        if keep_secrets and old is not None:
            type = msgspec.structs.replace(type, signing_secrets=old.signing_secrets)
        return await self._store(type, old) or (type, old is None)

    async def _change_kind(
        self, old: TimerType, new: TimerType, keep_secrets: bool, live: Callable[[], Awaitable[int]]
    ) -> tuple[TimerType, bool] | Refused:
        if keep_secrets:
            new = msgspec.structs.replace(new, signing_secrets=old.signing_secrets)
        if count := await live():
            return in_use(old, count)
        with self.closed(old.name):
            async with self.elsewhere(old.name):
                if count := await live():
                    return in_use(old, count)
                return await self._store(new, old) or (new, False)

    async def set_state(self, name: str, state: str) -> TimerType | Refused:
        """active | paused"""
        return await self._changing(partial(self._set_state, name, state))

    async def _set_state(self, name: str, state: str) -> TimerType | Refused:
        old = self._all.get(name)
        if old is None:
            return not_found(name)
        type = msgspec.structs.replace(old, state=state)
        return await self._store(type, old) or type

    async def pause_durably(self, name: str) -> None:
        """Until it is stored the type looks active and is sent nothing; a full disk, or a shared catalogue that is
        away, must not leave it so."""
        while True:
            try:
                done = await self.set_state(name, "paused")
            except Exception as error:  # of whatever the catalogue is kept in
                if not self.shared:
                    raise
                reason = f"{type(error).__name__}: {error}"
            else:
                if not isinstance(done, Refused) or done.name == "type-not-found":
                    return
                reason = done.detail
            log.warning("type_not_paused_yet", type=name, reason=reason)
            await asyncio.sleep(PAUSE_AGAIN_S)

    async def delete(self, name: str, live: Callable[[], Awaitable[int]]) -> Refused | None:
        """Delete a type unless `live` timers of it are left."""
        return await self._changing(partial(self._delete, name, live))

    async def _delete(self, name: str, live: Callable[[], Awaitable[int]]) -> Refused | None:
        type = self._all.get(name)
        if type is None:
            return not_found(name)
        if count := await live():
            return in_use(type, count)
        with self.closed(name):
            async with self.elsewhere(name):
                if count := await live():
                    return in_use(type, count)
                return await self._store(None, type)

    def refuse(self, timers: Sequence[Timer], seen: Mapping[str, TimerType]) -> Refused | None:
        """Why timers that were checked against `seen`, which was `known`, are not to be armed at this moment."""
        if not self._going and self.known is seen:
            return None
        for name in {timer.type for timer in timers}:
            if name in self._going or kind_of(self.known, name) != kind_of(seen, name):
                return Refused("overloaded", f"type {name} is being deleted or changed", retry_after_s=1)
        return None

    @contextmanager
    def closed(self, name: str) -> Iterator[None]:
        """Let nothing of this type be armed, so that a count of its timers stays true. For a moment, and only when none
        has been found: who arms must come back, and the type may stay."""
        self._going[name] = self._going.get(name, 0) + 1
        try:
            yield
        finally:
            self._going[name] -= 1
            if not self._going[name]:
                del self._going[name]

    async def _store(self, type: TimerType | None, old: TimerType | None) -> Refused | None:
        """In place of `old`; None: none. Raises Overtaken."""
        either = type or old
        assert either is not None
        try:
            if self.swap is not None:
                if not await self.swap(either.name, old, type):
                    raise Overtaken
            elif type is not None:
                await self._catalog.put_type(type)
            else:
                await self._catalog.delete_type(either.name)
        except CatalogFull:
            return FULL
        if type is not None:
            self._all[either.name] = type
        else:
            self._all.pop(either.name, None)
        self._publish()
        return None

    def _publish(self) -> None:
        self._published += 1
        self.known = MappingProxyType(dict(self._all))
        self._changed(self.known)


def not_found(name: str) -> Refused:
    """The refusal for a type that is not there."""
    return Refused("type-not-found", f"there is no type {name}")


def in_use(type: TimerType, count: int) -> Refused:
    """The refusal for a type that can't go or become another kind."""
    return Refused("type-in-use", f"{count} timers of type {type.name} live, of kind {type.kind}")


def kind_of(types: Mapping[str, TimerType], name: str) -> str | None:
    """None: no such type."""
    type = types.get(name)
    return None if type is None else type.kind

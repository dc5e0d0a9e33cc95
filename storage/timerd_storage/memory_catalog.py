"""The catalogue in memory, for tests: the same port, nothing kept."""

from timerd.engine.errors import CatalogFull
from timerd.engine.ring import RingTable
from timerd.engine.timer import TimerType
from timerd.ports import ApiKey


class MemoryCatalog:
    """Implements `timerd.ports.Catalog`. `full` makes every change raise CatalogFull."""

    def __init__(self) -> None:
        self.full = False
        self._types: dict[str, TimerType] = {}
        self._keys: dict[str, ApiKey] = {}
        self._ring: RingTable | None = None

    async def types(self) -> list[TimerType]:
        return [self._types[name] for name in sorted(self._types)]

    async def put_type(self, type: TimerType) -> None:
        self._refuse_if_full()
        self._types[type.name] = type

    async def delete_type(self, name: str) -> None:
        self._refuse_if_full()
        self._types.pop(name, None)

    async def keys(self) -> list[ApiKey]:
        return [self._keys[id] for id in sorted(self._keys)]

    async def put_key(self, key: ApiKey) -> None:
        self._refuse_if_full()
        self._keys[key.id] = key

    async def delete_key(self, id: str) -> None:
        self._refuse_if_full()
        self._keys.pop(id, None)

    async def ring(self) -> RingTable | None:
        return self._ring

    async def put_ring(self, table: RingTable) -> None:
        self._refuse_if_full()
        self._ring = table

    async def close(self) -> None:
        """Nothing to let go of."""

    def _refuse_if_full(self) -> None:
        if self.full:
            raise CatalogFull("told to be full")

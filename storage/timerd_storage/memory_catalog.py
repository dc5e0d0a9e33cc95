"""The catalogue in memory, for tests: the same port, nothing kept."""

from collections.abc import Sequence

from timerd.engine.errors import CatalogFull
from timerd.engine.ring import RingTable
from timerd.engine.timer import TimerType
from timerd.ports import ApiKey, Utilisation


class MemoryCatalog:
    """Implements `timerd.ports.Catalog`. `full` makes every change raise CatalogFull."""

    def __init__(self) -> None:
        self.full = False
        self._types: dict[str, TimerType] = {}
        self._keys: dict[str, ApiKey] = {}
        self._ring: RingTable | None = None
        self._utilisation: dict[int, Utilisation] = {}

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

    async def utilisation(self) -> list[Utilisation]:
        return [self._utilisation[shard] for shard in sorted(self._utilisation)]

    async def put_utilisation(self, rows: Sequence[Utilisation]) -> None:
        self._refuse_if_full()
        self._utilisation.update({row.shard: row for row in rows})

    async def close(self) -> None:
        """Nothing to let go of."""

    def _refuse_if_full(self) -> None:
        if self.full:
            raise CatalogFull("told to be full")

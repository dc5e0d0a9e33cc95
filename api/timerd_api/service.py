"""The service behind the API: what the routes ask of the node, and nothing else of it.

Values of a request are checked before it is called; what only the node can know (whether a request has expired,
whether there is room, whether a type is in use) comes back as `Refused`. Nothing here raises for what a caller did.
All times are Unix milliseconds.
"""

import builtins
from collections.abc import Mapping
from typing import Protocol

from timerd.engine.message import ArmDone, ArmResult, CancelResult, Condition, Filter, Refused, TimerView
from timerd.engine.ring import RingTable
from timerd.engine.timer import Timer, TimerType
from timerd.keys import Keys
from timerd.ports import Clock
from timerd.report import NodeReport, NodeTally, RingReport, Scaled, ShardReport, StatusReport, Vitals

Views = builtins.list[TimerView]
Page = tuple[Views, str | None]
"""Views, and the token of the next page; no token = that was the last one."""


class Service(Protocol):
    """One timerd, whatever it is made of. A write is durable when it returns without a refusal."""

    @property
    def types(self) -> Mapping[str, TimerType]:
        """The types by name, as they are now."""
        ...

    @property
    def table(self) -> RingTable:
        """Where ids live."""
        ...

    @property
    def keys(self) -> Keys:
        """Who may call."""
        ...

    @property
    def clock(self) -> Clock: ...

    def busy(self) -> Refused | None:
        """Why an arm of many would be refused whatever is in it, so that it need not be read."""
        ...

    async def arm(
        self,
        timers: builtins.list[Timer],
        conditions: builtins.list[Condition] | None,
        want_results: bool,
        expires_at: int | None,
    ) -> ArmDone | Refused:
        """All of them or, refused, none; but for those that are `unavailable`. `conditions` is parallel to `timers`."""
        ...

    async def cancel(self, ids: builtins.list[str], expires_at: int | None) -> builtins.list[CancelResult] | Refused:
        """The results are parallel to the ids."""
        ...

    async def fire(self, id: str, expires_at: int | None) -> ArmResult | Refused | None:
        """None: there is no such timer."""
        ...

    async def get(self, id: str) -> TimerView | Refused | None: ...

    async def next(self, type: str | None, limit: int) -> Views | Refused: ...

    async def put_type(
        self, type: TimerType, keep_secrets: bool, expires_at: int | None
    ) -> tuple[TimerType, bool] | Refused:
        """The type as it was stored, and whether it is new. `keep_secrets`: those it has stay."""
        ...

    async def delete_type(self, name: str, expires_at: int | None) -> Refused | None: ...

    async def set_type_state(self, name: str, state: str, expires_at: int | None) -> TimerType | Refused: ...

    async def list_dead(self, type: str | None, page_size: int, page_token: str | None) -> Page | Refused: ...

    async def replay_dead(
        self, ids: builtins.list[str] | None, type: str | None, expires_at: int | None
    ) -> int | Refused: ...

    async def purge_dead(
        self, ids: builtins.list[str] | None, type: str | None, expires_at: int | None
    ) -> int | Refused: ...

    async def tally(self) -> NodeTally | Refused: ...

    async def status(self) -> StatusReport | Refused: ...

    async def shards(self) -> builtins.list[ShardReport] | Refused: ...

    async def scale(self, shards: int, expires_at: int | None) -> Scaled | Refused:
        """Have so many shards from now on."""
        ...

    def unready(self) -> str | None:
        """Why the node can't do its work now; None if it can."""
        ...

    async def list(self, filter: Filter, page_size: int, page_token: str | None) -> Page | Refused: ...


class Cluster(Protocol):
    """What a service of several nodes can say beside that."""

    async def learn_types(self) -> Refused | None:
        """Hear of types that were put elsewhere; a refusal if that can't be done now."""
        ...

    async def own_tally(self) -> NodeTally:
        """The counts of the node that answers, alone."""
        ...

    def vitals(self) -> Vitals:
        """How that node does."""
        ...

    def nodes(self) -> list[NodeReport]: ...

    def ring(self) -> RingReport: ...

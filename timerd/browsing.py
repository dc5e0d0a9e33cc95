"""Browsing: what readers are shown of all shards, wherever these are.

A page needs every shard, since any may hold what comes next; so one that can't be had is an error (`Away`) and never a
gap. Payloads that lie apart are asked for where they lie, once it is known which are shown.
"""

import builtins
from collections.abc import Callable, Sequence

from timerd.engine.message import Filter, Gone, Refused, TimerView
from timerd.engine.message import Page as ShardPage
from timerd.engine.ring import RingTable, slot_of
from timerd.engine.timer import BodyRef
from timerd.pages import BEGINNING, PAGE_BYTES_MAX, matches, page_token_of, read_page, read_token, share
from timerd.parts import soonest
from timerd.questions import Filled, FillIn, GetOne, Got, Pages, ReadPages, SoonestOf
from timerd.spreading import Away, Spread

Views = list[TimerView]


class Browse:
    """Of one node's front."""

    def __init__(self, spread: Spread, table: Callable[[], RingTable]) -> None:
        self._spread = spread
        self._table = table

    async def get(self, id: str) -> TimerView | Refused | None:
        """One timer, its payload in full."""
        slot = slot_of(id)
        answer = await self._spread.one(self._table().shards[slot], GetOne(id, slot))
        if isinstance(answer, Refused):
            return answer
        assert isinstance(answer, Got)
        return answer.view

    async def soonest(self, type: str | None, limit: int) -> Views:
        """The soonest due. Raises Away."""
        heard = await self._spread.read(self._table().shard_ids, lambda mine: SoonestOf(mine, type, limit))
        if isinstance(heard, Refused):
            raise Away(heard)
        views = soonest([view for one in heard if isinstance(one.answer, Filled) for view in one.answer.views], limit)
        return soonest(await self._filled(views, as_they_were=False), limit)  # one may have been moved meanwhile

    async def page(
        self, dead: bool, wanted: Filter, page_size: int, page_token: str | None
    ) -> tuple[Views, str | None] | Refused:
        """A page of timers, or of dead letters."""
        after = BEGINNING if page_token is None else read_token(page_token)
        if after is None:
            return Refused("validation", "the page token is not one of ours", [("page_token", "unknown token")])
        shards = self._table().shard_ids
        count = share(page_size, len(shards))

        async def ask_all(asked: tuple[int, str]) -> builtins.list[ShardPage | Gone]:
            heard = await self._spread.read(shards, lambda mine: ReadPages(mine, dead, wanted, asked, count))
            if isinstance(heard, Refused):
                raise Away(heard)
            return [page for one in heard if isinstance(one.answer, Pages) for page in one.answer.pages]

        async def look_up(id: str) -> TimerView | None:
            view = await self.get(id)
            if isinstance(view, Refused):
                raise Away(view)
            return view if view is not None and matches(wanted, view) else None

        read = await read_page(after, page_size, ask_all, look_up)
        if isinstance(read, Refused):
            return read
        found, upto = read
        # Unless every timer is asked for, one that changes meanwhile may be none of them.
        views = await self._filled(found, as_they_were=wanted != Filter())
        return views, None if upto is None else page_token_of(upto)

    async def _filled(self, views: Sequence[TimerView], *, as_they_were: bool) -> Views:
        """The views with the payloads that lie apart, from where they lie; a page of bytes at a time."""
        filled: dict[str, TimerView] = {}
        apart = [view for view in views if isinstance(view.payload, BodyRef)]
        while apart:
            room, size = PAGE_BYTES_MAX, 0
            for view in apart:
                room -= view.payload.length if isinstance(view.payload, BodyRef) else 0
                if size and room < 0:
                    break
                size += 1
            part, apart = apart[:size], apart[size:]
            by_shard: dict[int, Views] = {}
            for view in part:
                by_shard.setdefault(view.shard, []).append(view)

            def question(mine: Sequence[int], by_shard: dict[int, Views] = by_shard) -> FillIn:
                return FillIn([view for shard in mine for view in by_shard[shard]], as_they_were)

            heard = await self._spread.read(list(by_shard), question)
            if isinstance(heard, Refused):
                raise Away(heard)
            filled |= {view.id: view for one in heard if isinstance(one.answer, Filled) for view in one.answer.views}
        shown = [filled.get(view.id) if isinstance(view.payload, BodyRef) else view for view in views]
        return [view for view in shown if view is not None]

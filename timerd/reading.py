"""Reading: timers as callers see them, of all shards that are here, with payloads in full."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from timerd.engine.message import GONE, Filter, Get, Gone, Message, Next, Refused, TimerView
from timerd.pages import BEGINNING, matches, page_token_of, read_page, read_token, share
from timerd.payloads import with_bodies
from timerd.runners import Runners


class Reading:
    """Of one node, which lends how it asks the owner of an id, and how all shards."""

    def __init__(
        self,
        runners: Runners,
        ask_about: Callable[[str, Callable[[Any], Message]], Awaitable[Any]],
        ask_all: Callable[[Callable[[Any], Message]], Awaitable[list[Any]]],
    ) -> None:
        self._runners = runners
        self._ask_about = ask_about
        self._ask_all = ask_all

    async def get(self, id: str) -> TimerView | Refused | None:
        """One timer, its payload in full."""
        view: TimerView | Gone | None = await self._ask_about(id, partial(Get, id))
        if view is None or isinstance(view, Gone):
            return view
        shown = await self.with_bodies([view])
        return shown[0] if shown else None

    async def next(self, type: str | None, limit: int) -> list[TimerView] | Refused:
        """The soonest due timers."""
        answers = await self._ask_all(partial(Next, type, limit))
        if GONE in answers:
            return GONE
        views = sorted((view for answer in answers for view in answer), key=lambda v: (v.fire_at, v.generation))
        shown = await self.with_bodies(views[:limit])
        return sorted(shown, key=lambda v: (v.fire_at, v.generation))  # one may have been moved meanwhile

    async def with_bodies(self, views: Sequence[TimerView], *, as_they_were: bool = False) -> list[TimerView]:
        """The views, each with its payload in full."""

        def look_up(id: str) -> Awaitable[TimerView | None]:
            return self._look_up(id)

        return await with_bodies(views, self._runners.bodies, look_up, as_they_were=as_they_were)

    async def pages(
        self,
        page_size: int,
        page_token: str | None,
        ask: Callable[[tuple[int, str], int, Any], Message],
        wanted: Filter,
    ) -> tuple[list[TimerView], str | None] | Refused:
        """Ask all shards for what lies behind the token, and show it as far as all of them have looked."""
        after = BEGINNING if page_token is None else read_token(page_token)
        if after is None:
            return Refused("validation", "the page token is not one of ours", [("page_token", "unknown token")])

        async def look_up(id: str) -> TimerView | None:
            view = await self._look_up(id)
            return view if view is not None and matches(wanted, view) else None

        count = share(page_size, len(self._runners.shards))
        page = await read_page(after, page_size, lambda asked: self._ask_all(partial(ask, asked, count)), look_up)
        if isinstance(page, Gone):
            return page
        found, upto = page
        # Unless every timer is asked for, one that changes meanwhile may be none of them.
        views = await self.with_bodies(found, as_they_were=wanted != Filter())
        return views, None if upto is None else page_token_of(upto)

    async def _look_up(self, id: str) -> TimerView | None:
        view: TimerView | Gone | None = await self._ask_about(id, partial(Get, id))
        return None if isinstance(view, Gone) else view

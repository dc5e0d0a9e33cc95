"""The guard in front of every route: has this caller the scope for it? And the audit line of each admin call.

It stands behind the router, so that the question is asked of the very route that will answer. A route that the table in
`scopes` does not know can't be made.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog
from fastapi import Request, Response
from fastapi.routing import APIRoute

from timerd_api.access import CALLER, Caller, peer
from timerd_api.problem import Problem
from timerd_api.scopes import ADMIN, NEEDS

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_ABOUT: Final = "timerd.about"

ON_CHARS_MAX: Final = 256  # a path may have 32 KiB, and any key may ask

log: structlog.stdlib.BoundLogger = structlog.get_logger("timerd.audit")


def about(request: Request, what: str) -> None:
    """Say what an admin call is about, where its path does not: for its audit line. Never a body, never a secret."""
    request.scope[_ABOUT] = what


class GuardedRoute(APIRoute):
    """A route that is answered only to callers with its scope."""

    def get_route_handler(self) -> Handler:
        handler = super().get_route_handler()
        [method] = list(self.methods or [])
        call = f"{method} {self.path}"
        need = NEEDS[method.lower(), self.path]

        async def guarded(request: Request) -> Response:
            caller: Caller = request.scope[CALLER]
            caller.require(need)
            return await handler(request)

        async def audited(request: Request) -> Response:
            outcome = "failed"
            try:
                response = await guarded(request)
                outcome = str(response.status_code)
                return response
            except Problem as problem:
                outcome = f"{problem.kind.status} {problem.kind.name}"
                raise
            finally:
                _note(request, call, outcome)

        return audited if need == ADMIN else guarded


def _note(request: Request, call: str, outcome: str) -> None:
    """Who, from where, what, on what, and what came of it; when is in every line of the log."""
    caller: Caller = request.scope[CALLER]
    on = (request.scope.get(_ABOUT) or "/".join(request.path_params.values()) or "-")[:ON_CHARS_MAX]
    log.info(
        "audit",
        key=caller.id,
        key_name=caller.name,
        peer=peer(request.scope),
        call=call,
        on=on,
        outcome=outcome,
    )

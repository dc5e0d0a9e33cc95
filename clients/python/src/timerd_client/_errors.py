"""Errors: what a call can end with, as a flat tree under `TimerdError`.

Three kinds, and they ask for different reactions. A `ProblemError` is the server's word: it understood the call and
refused it, so nothing was changed. `Unavailable` means that nothing reached the server, so nothing was changed either.
`OutcomeUnknown` is the only one after which a write may or may not stand.

The names of the server's problems appear once, in `PROBLEMS`.
"""

from collections.abc import Sequence
from typing import Any, Final, Self

import msgspec


class TimerdError(Exception):
    """Base of everything this library raises, apart from ValueError and TypeError for wrong arguments."""

    results: Sequence[Any] = ()
    """For `arm_many` and `cancel_many`: the results of the requests before the one that failed; they stand."""

    def twin(self) -> Self:
        """Another instance that says the same: one failed request ends many calls, each with a traceback of its own."""
        twin = type(self).__new__(type(self), *self.args)
        twin.__dict__.update(self.__dict__)
        twin.__cause__ = self.__cause__
        return twin


class Unavailable(TimerdError):
    """The server could not be reached in time, or can't be at all. The call changed nothing."""

    final: bool = False
    """Another attempt would have met the same: a certificate that is not trusted, or no TLS at all."""


class OutcomeUnknown(TimerdError):
    """The answer to a write was lost: it may have been applied or not, but it will not be applied from now on.

    Reading the timer tells, and so does sending the same write again. The client lets no later write on the same id
    overtake what may still be under way.
    """


class UnexpectedAnswer(TimerdError):
    """The answer is none that timerd gives: a wrong address, or something between client and server."""


class ItemError(msgspec.Struct, frozen=True):
    """One thing that is wrong, and where: `pointer` is a JSON pointer into the request."""

    pointer: str = ""
    detail: str = ""
    type: str = ""


class ProblemError(TimerdError):
    """The server refused the call. `name` is the last part of the problem's type, e.g. `unknown-type`."""

    def __init__(
        self,
        name: str,
        status: int,
        detail: str = "",
        errors: Sequence[ItemError] = (),
        retry_after: float | None = None,
    ) -> None:
        shown = "; ".join(f"{e.pointer}: {e.detail}" if e.pointer else e.detail for e in errors[:3])
        super().__init__(f"{name} ({status}): {detail}" + (f" [{shown}]" if shown and shown != detail else ""))
        self.name = name
        self.status = status
        self.detail = detail
        self.errors = tuple(errors)
        self.retry_after = retry_after


class ValidationFailed(ProblemError):
    """Something in the request is wrong; `errors` says what. Nothing of the request was applied."""


class UnknownType(ValidationFailed):
    """No type of that name has been put."""


class HorizonExceeded(ValidationFailed):
    """The fire time is further away than the server takes."""


class TargetForbidden(ValidationFailed):
    """The server must not send requests to that address."""


class BodyTooLarge(ProblemError):
    """One item alone is larger than the server takes."""


class NotFound(ProblemError):
    """There is no timer, or no type, of that name."""


class GenerationMismatch(ProblemError):
    """The timer has another generation than the one the call named."""


class TypeInUse(ProblemError):
    """Timers of the type still live."""


class TimerDead(ProblemError):
    """The timer is a dead letter; arm it again, or replay it."""


class Expired(ProblemError):
    """The write reached the server too late and was refused, as asked."""


class Unauthorized(ProblemError):
    """The key is missing or unknown."""


class Forbidden(ProblemError):
    """The key does not allow this call."""


class RateLimited(ProblemError):
    """The key has used up what it may ask for in a second, and gets no more until the time is up."""


class Overloaded(ProblemError):
    """The server had no room in its queues until the time was up."""


class ShardUnavailable(ProblemError):
    """The owner of the timer was away until the time was up."""


class StorageFull(ProblemError):
    """The server's disk is full: it takes no arms."""


PROBLEMS: Final[dict[str, type[ProblemError]]] = {
    "validation": ValidationFailed,
    "unknown-type": UnknownType,
    "horizon-exceeded": HorizonExceeded,
    "target-forbidden": TargetForbidden,
    "body-too-large": BodyTooLarge,
    "timer-not-found": NotFound,
    "type-not-found": NotFound,
    "generation-mismatch": GenerationMismatch,
    "type-in-use": TypeInUse,
    "timer-dead": TimerDead,
    "expired": Expired,
    "unauthorized": Unauthorized,
    "forbidden": Forbidden,
    "rate-limited": RateLimited,
    "overloaded": Overloaded,
    "shard-unavailable": ShardUnavailable,
    "storage-full": StorageFull,
}


def problem(
    name: str, status: int, detail: str = "", errors: Sequence[ItemError] = (), retry_after: float | None = None
) -> ProblemError:
    """The error for a problem; a name that is not known yet gives a plain `ProblemError`."""
    return PROBLEMS.get(name, ProblemError)(name, status, detail, errors, retry_after)

"""Instants and durations: between Python's values and the wire's.

An instant goes out as whole milliseconds, rounded up, so that a timer never fires before the time that was asked for.
A datetime without an offset is refused: it would mean one thing here and another where it is read.
No clock is read here.
"""

import math
from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MIN_FIRE_AT_MS: Final = 10**11  # the server takes anything below for seconds

Duration = timedelta | float
"""A length of time: a timedelta, or seconds."""


def instant_ms(value: datetime) -> int:
    """Unix milliseconds, rounded up. Raises ValueError for a datetime without an offset."""
    if not isinstance(value, datetime):
        raise TypeError(f"expected a datetime, got {type(value).__name__}")
    if value.utcoffset() is None:
        raise ValueError(f"{value.isoformat()} has no UTC offset; give an aware datetime")
    since = value - EPOCH
    return (since.days * 86400 + since.seconds) * 1000 - (-since.microseconds // 1000)


def fire_at_ms(value: datetime) -> int:
    """As `instant_ms`, and refuse what the server would take for seconds."""
    ms = instant_ms(value)
    if ms < MIN_FIRE_AT_MS:
        raise ValueError(f"{value.isoformat()} is too long ago for a fire time")
    return ms


def duration(value: Duration | str) -> int | str:
    """The wire's form: whole seconds as a number, anything finer in whole milliseconds, rounded up.

    A string is taken for the wire's form already.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, timedelta):
        us = (value.days * 86400 + value.seconds) * 1_000_000 + value.microseconds
        ms = -(-us // 1000)
    else:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"expected a timedelta or seconds, got {type(value).__name__}")
        if not math.isfinite(value):
            raise ValueError("a duration must be finite")
        ms = value * 1000 if isinstance(value, int) else math.ceil(round(value * 1e6) / 1000)
        if isinstance(value, float) and value > 0 and ms == 0:
            ms = 1
    if ms < 0:
        raise ValueError("a duration must not be negative")
    return ms // 1000 if ms % 1000 == 0 else f"{ms}ms"


def to_rfc3339(ms: int) -> str:
    """RFC 3339 in UTC with milliseconds, as the server writes it."""
    seconds, fraction = divmod(ms, 1000)
    return (EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S") + f".{fraction:03d}Z"


def parse_ms(text: str) -> int | None:
    """Unix milliseconds of a header's RFC 3339 text (or integer), rounded down; None for anything else."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        return None
    if value.utcoffset() is None:
        return None
    since = value - EPOCH
    return (since.days * 86400 + since.seconds) * 1000 + since.microseconds // 1000

"""Instants and durations as people write them, to and from milliseconds.

Pure arithmetic on text: it knows no clock, no time zone database and no limit of the service (a horizon is the
caller's). Two rules hold everywhere here. What is finer than a millisecond rounds *up*, so that a timer can't fire
before the time that was written. And what could mean two things (no offset, a number that was meant as seconds) is
refused with a reason, never guessed.

Every parser raises ValueError with a reason fit to be shown to a caller, and nothing else.
"""

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from timerd.engine.timer import MIN_FIRE_AT

_MINUTE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2})")
_SECONDS_AND_OFFSET: Final = re.compile(r":([0-9]{2})(?:\.([0-9]+))?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))")
_DURATION: Final = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,15}))?(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DAY_MS: Final = 86_400_000
_MAX_SECONDS: Final = 10**15  # thirty million years: beyond it a float is no longer exact to the millisecond
_MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_TAILS: Final = tuple(f".{ms:03}Z" for ms in range(1000))

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TIME: Final = r"(?P<h>[0-9]{2}):(?P<mi>[0-9]{2}):(?P<s>[0-9]{2})"
_MONTH: Final = "(?P<m>" + "|".join(_MONTHS) + ")"
_HTTP_DATES: Final = (
    re.compile(rf"[A-Z][a-z]{{2}}, (?P<d>[0-9]{{2}}) {_MONTH} (?P<y>[0-9]{{4}}) {_TIME} GMT"),
    re.compile(rf"[A-Z][a-z]{{5,8}}, (?P<d>[0-9]{{2}})-{_MONTH}-(?P<y>[0-9]{{2}}) {_TIME} GMT"),
    re.compile(rf"[A-Z][a-z]{{2}} {_MONTH} (?P<d>[0-9 ][0-9]) {_TIME} (?P<y>[0-9]{{4}})"),
)


def parse_instant(value: int | str) -> int:
    """Unix ms of an RFC 3339 time with an offset, or of an integer that already is Unix ms.

    A leap second is the second that follows it, as in POSIX time. Times before 1970 are refused.
    """
    if isinstance(value, int):
        if isinstance(value, bool):
            raise ValueError("is neither an RFC 3339 time nor an integer of Unix milliseconds")
        if value < MIN_FIRE_AT:
            raise ValueError("is negative" if value < 0 else "is too small for milliseconds; was it seconds?")
        return value
    if not isinstance(value, str):
        raise ValueError("is neither an RFC 3339 time nor an integer of Unix milliseconds")
    rest = _SECONDS_AND_OFFSET.fullmatch(value, 16)
    if rest is None:
        raise ValueError("is no RFC 3339 time with an offset")
    seconds, fraction, sign, offset_hours, offset_minutes = rest.groups()
    ms = _minute_ms(value[:16]) + int(seconds) * 1000
    if fraction is not None:
        ms += int(fraction[:3].ljust(3, "0"))
        if fraction[3:].strip("0"):
            ms += 1
    if sign is not None:
        hours, minutes = int(offset_hours), int(offset_minutes)
        if hours > 23 or minutes > 59:
            raise ValueError("has an impossible offset")
        offset_ms = (hours * 60 + minutes) * 60_000
        ms += offset_ms if sign == "-" else -offset_ms
    if seconds >= "60" and (seconds > "60" or ms % _DAY_MS >= 1001):
        # Leap seconds are only ever put in at the end of a UTC day, and this has become the start of the next.
        raise ValueError("has an impossible second")
    if ms < 0:
        raise ValueError("is before 1970")
    return ms


def parse_duration(value: float | str) -> int:
    """Milliseconds of `250ms`, `10s`, `5m`, `36h`, `60d`, or of a number of seconds >= 0."""
    if isinstance(value, str):
        found = _DURATION.fullmatch(value)
        if found is None:
            raise ValueError("is no duration such as 250ms, 10s, 5m, 36h or 60d")
        whole, fraction, unit = found.groups()
        unit_ms = _UNIT_MS[unit]
        ms = int(whole) * unit_ms
        return ms if fraction is None else ms - (-int(fraction) * unit_ms // 10 ** len(fraction))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("is neither a duration nor a number of seconds")
    if not 0 <= value <= _MAX_SECONDS:  # NaN fails this too
        raise ValueError("is negative" if value < 0 else "is no usable number of seconds")
    if isinstance(value, int):
        return value * 1000
    nearest = round(value * 1000)
    # 1.1 * 1000 is a little more than 1100. Who wrote 1.1 meant 1100, so only what no whole number of milliseconds
    # stands for is finer than a millisecond.
    return nearest if nearest / 1000 == value else math.ceil(value * 1000)


def format_instant(ms: int) -> str:
    """`2026-11-30T08:00:00.123Z`."""
    return _second(ms // 1000) + _TAILS[ms % 1000]


def format_instants(times: Sequence[int]) -> list[str]:
    """`format_instant` for many, at half of the cost: the timers of a batch share a few seconds."""
    seconds = {second: _second(second) for second in {ms // 1000 for ms in times}}
    return [seconds[ms // 1000] + _TAILS[ms % 1000] for ms in times]


def parse_http_date(value: str) -> int:
    """Unix ms of an HTTP date in any of its three forms (RFC 9110, 5.6.7). A two-digit year is of 1970..2069."""
    for form in _HTTP_DATES:
        found = form.fullmatch(value)
        if found is not None:
            year = int(found["y"])
            if len(found["y"]) == 2:
                year += 1900 if year >= 70 else 2000
            days = _days(year, _MONTHS.index(found["m"]) + 1, int(found["d"]))
            hour, minute, second = int(found["h"]), int(found["mi"]), int(found["s"])
            if hour > 23 or minute > 59 or second > 60:
                break
            return ((days * 24 + hour) * 60 + minute) * 60_000 + second * 1000
    raise ValueError("is no HTTP date")


@lru_cache(maxsize=4096)
def _minute_ms(text: str) -> int:
    """Unix ms of `YYYY-MM-DDThh:mm`, taken as UTC. A batch of arms shares a few minutes, so they are worth keeping."""
    found = _MINUTE.fullmatch(text)
    if found is None:
        raise ValueError("is no RFC 3339 time with an offset")
    year, month, day, hour, minute = map(int, found.groups())
    if hour > 23 or minute > 59:
        raise ValueError("has an impossible time of day")
    return ((_days(year, month, day) * 24 + hour) * 60 + minute) * 60_000


def _days(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01. Raises ValueError for a date that does not exist.

    Years are counted from March, so that the leap day is their last (Hinnant: "chrono-compatible low-level date
    algorithms", days_from_civil).
    """
    if not 1 <= month <= 12:
        raise ValueError("has an impossible month")
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= day <= _MONTH_DAYS[month - 1] + (leap and month == 2):
        raise ValueError("has an impossible day")
    if month <= 2:
        year -= 1
    era, of_era = divmod(year, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + day_of_year - 719_468


@lru_cache(maxsize=4096)
def _second(second: int) -> str:
    """`YYYY-MM-DDThh:mm:ss` of a Unix second: the way back (civil_from_days)."""
    days, of_day = divmod(second, 86_400)
    era, of_era = divmod(days + 719_468, 146_097)
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    day_of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_era + era * 400 + (month <= 2)
    return f"{year:04}-{month:02}-{day:02}T{of_day // 3600:02}:{of_day // 60 % 60:02}:{of_day % 60:02}"

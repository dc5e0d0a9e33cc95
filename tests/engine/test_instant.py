"""Instants and durations: tables for what people write, and the standard library as the second opinion."""

from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerd.engine.instant import format_instant, parse_duration, parse_http_date, parse_instant

naive = partial(datetime, tzinfo=None)
EIGHT = 1_796_025_600_000  # 2026-11-30T08:00:00Z


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-11-30T08:00:00Z", EIGHT),
        ("2026-11-30t08:00:00z", EIGHT),
        ("2026-11-30T08:00:00-00:00", EIGHT),
        ("2026-11-30T09:30:00+01:30", EIGHT),
        ("2026-11-29T23:00:00-09:00", EIGHT),
        ("2026-11-30T08:00:00.1Z", EIGHT + 100),
        ("2026-11-30T08:00:00.123Z", EIGHT + 123),
        ("2026-11-30T08:00:00.123000000000000000000000Z", EIGHT + 123),
        ("2026-11-30T08:00:00.123000000000000000000001Z", EIGHT + 124),
        ("2026-11-30T07:59:59.9991Z", EIGHT),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),
        ("2016-12-31T23:59:60.9999Z", 1_483_228_801_000),
        ("2017-01-01T00:59:60+01:00", 1_483_228_800_000),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000),
        ("1970-01-01T00:00:00Z", 0),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        (EIGHT, EIGHT),
        (10**11, 10**11),
    ],
)
def test_an_instant(text: int | str, ms: int) -> None:
    assert parse_instant(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-11-30",
        "2026-11-30T08:00:00",
        "2026-11-30T08:00Z",
        "2026-11-30 08:00:00Z",
        "2026-11-30T08:00:00 Z",
        "2026-11-30T08:00:00.Z",
        "2026-11-30T08:00:00,5Z",
        "2026-11-30T08:00:00+0100",
        "2026-11-30T08:00:00+24:00",
        "2026-11-30T08:00:00+01:60",
        "2026-11-30T08:00:00Z\n",
        " 2026-11-30T08:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-00-01T00:00:00Z",
        "2026-02-29T00:00:00Z",
        "2100-02-29T00:00:00Z",
        "2026-11-31T00:00:00Z",
        "2026-11-30T24:00:00Z",
        "2026-11-30T08:60:00Z",
        "2026-11-30T08:00:60Z",
        "2026-11-30T23:59:61Z",
        "2026-11-30T23:59:60+01:00",
        "12026-11-30T08:00:00Z",
        "-2026-11-30T08:00:00Z",
        "0000-01-01T00:00:00Z",
        "1969-12-31T23:59:59Z",
        "２０２６-11-30T08:00:00Z",
        0,
        -EIGHT,
        EIGHT // 1000,
        10**11 - 1,
        True,
        float(EIGHT),
        float("nan"),
        None,
    ],
)
def test_no_instant(text: object) -> None:
    with pytest.raises(ValueError, match=r"^(is|has) "):
        parse_instant(text)  # type: ignore[arg-type]


@given(
    st.datetimes(naive(1971, 1, 1), naive(9998, 1, 1)),
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
)
def test_instants_agree_with_datetime(when: datetime, offset_minutes: int) -> None:
    aware = when.replace(tzinfo=timezone(timedelta(minutes=offset_minutes)))
    exact_us = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert parse_instant(aware.isoformat()) == -(-exact_us // 1000)


@given(st.integers(0, 253_402_300_799_999))
def test_format_agrees_with_datetime_and_parses_back(ms: int) -> None:
    text = format_instant(ms)
    expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    assert text == f"{expected:%Y}".zfill(4) + f"{expected:-%m-%dT%H:%M:%S}.{ms % 1000:03}Z"
    assert parse_instant(text) == ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250ms", 250),
        ("10s", 10_000),
        ("5m", 300_000),
        ("36h", 129_600_000),
        ("60d", 5_184_000_000),
        ("0s", 0),
        ("1.5s", 1_500),
        ("0.0001s", 1),
        ("0.1ms", 1),
        (0, 0),
        (10, 10_000),
        (0.25, 250),
        (1.1, 1_100),
        (0.007, 7),
        (4.35, 4_350),
        (1e-9, 1),
        (0.0010001, 2),
    ],
)
def test_a_duration(text: float | str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        *("", "10", "s", "-1s", "1 s", "1S", "1h30m", "1w", "1.s", ".5s", "1e3s", "9" * 20 + "s", "１s", "1s\n"),
        *(-1, -0.001, float("nan"), float("inf"), 1e300, True, None),
    ],
)
def test_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match=r"^is "):
        parse_duration(text)  # type: ignore[arg-type]


@given(st.integers(0, 10**12))
def test_a_number_of_seconds_written_in_milliseconds_is_exact(ms: int) -> None:
    assert parse_duration(ms / 1000) == ms


@pytest.mark.parametrize(
    "text",
    ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"],
)
def test_an_http_date_has_three_forms(text: str) -> None:
    assert parse_http_date(text) == 784_111_777_000


@pytest.mark.parametrize(
    "text",
    ["", "tomorrow", "Sun, 06 Nov 1994 08:49:37 CET", "Sun, 31 Feb 1994 08:49:37 GMT", "Sun, 06 Nov 1994 25:00:00 GMT"],
)
def test_no_http_date(text: str) -> None:
    with pytest.raises(ValueError):
        parse_http_date(text)


@given(st.datetimes(naive(1970, 1, 1), naive(9999, 1, 1)))
def test_http_dates_agree_with_email(when: datetime) -> None:
    aware = when.replace(tzinfo=UTC, microsecond=0)
    expected = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert parse_http_date(format_datetime(aware, usegmt=True)) == expected

"""Instants and durations, and the server's time: tables."""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerd_client import Arm, Timerd, rearm
from timerd_client._instants import EPOCH, duration, instant_ms, parse_ms, to_rfc3339
from timerd_client._protocol import encode_arm
from timerd_client._server_time import ServerTime

NOON = datetime(2030, 6, 1, 12, tzinfo=UTC)


def test_a08_naive_datetimes_raise_at_once() -> None:
    naive = datetime(2030, 1, 1)  # noqa: DTZ001
    with Timerd("http://127.0.0.1:9") as client:
        with pytest.raises(ValueError, match="no UTC offset"):
            client.arm("x", "poll", fire_at=naive)
        with pytest.raises(ValueError, match="no UTC offset"):
            list(client.list(fire_before=naive))
    with pytest.raises(ValueError, match="no UTC offset"):
        Arm("x", "poll", fire_at=naive)
    with pytest.raises(ValueError, match="no UTC offset"):
        rearm("x", fire_at=naive)


def test_a08_two_folds_are_an_hour_apart() -> None:
    berlin = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    assert instant_ms(berlin.replace(fold=1)) - instant_ms(berlin.replace(fold=0)) == 3_600_000


@pytest.mark.parametrize("hours", [5.5, -8, 0, 14])
def test_a08_one_instant_in_any_zone_is_one_number(hours: float) -> None:
    assert instant_ms(NOON.astimezone(timezone(timedelta(hours=hours)))) == instant_ms(NOON)


@pytest.mark.parametrize(("us", "ms"), [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2), (999_999, 1000)])
def test_finer_than_a_millisecond_rounds_up(us: int, ms: int) -> None:
    assert instant_ms(NOON + timedelta(microseconds=us)) == instant_ms(NOON) + ms


@given(st.datetimes(timezones=st.timezones(), min_value=datetime(1975, 1, 1), max_value=datetime(2200, 1, 1)))  # noqa: DTZ001
def test_an_instant_is_never_early_and_less_than_a_millisecond_late(at: datetime) -> None:
    gap = EPOCH + timedelta(milliseconds=instant_ms(at)) - at.astimezone(UTC)
    assert timedelta(0) <= gap < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (0, 0),
        (5, 5),
        (1.5, "1500ms"),
        (0.0001, "1ms"),
        (1.001, "1001ms"),
        (1e-9, "1ms"),
        (timedelta(days=60), 5_184_000),
        (timedelta(microseconds=1), "1ms"),
        ("36h", "36h"),
    ],
)
def test_durations(value: float | timedelta | str, wire: int | str) -> None:
    assert duration(value) == wire


@pytest.mark.parametrize("value", [-1, -0.5, float("nan"), float("inf"), timedelta(seconds=-1)])
def test_durations_that_are_none(value: float | timedelta) -> None:
    with pytest.raises(ValueError, match="duration"):
        Arm("x", "poll", delay=value)


def test_a_time_is_needed_and_only_one() -> None:
    with pytest.raises(ValueError, match="fire_at or delay"):
        Arm("x", "poll")
    with pytest.raises(ValueError, match="not both"):
        Arm("x", "poll", fire_at=NOON, delay=1)
    with pytest.raises(ValueError, match="too long ago"):
        Arm("x", "poll", fire_at=EPOCH)


@pytest.mark.parametrize("payload", [float("nan"), {"a": [1, float("inf")]}, [None, -float("inf")]])
def test_a22_nan_is_refused_and_not_sent_as_null(payload: object) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        encode_arm(Arm("x", "poll", delay=1, payload=payload))


@given(st.integers(10**11, 10**13))
def test_instants_survive_the_wire(ms: int) -> None:
    assert parse_ms(to_rfc3339(ms)) == ms


@pytest.mark.parametrize("text", ["", "now", "2030-01-01T00:00:00", "²"])
def test_what_is_no_server_time(text: str) -> None:
    assert parse_ms(text) is None


@given(
    offset=st.integers(10**11, 10**13),
    trips=st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2), st.floats(0, 60)), min_size=1, max_size=20),
)
def test_an_expiry_has_passed_at_the_server_when_it_has_here(
    offset: int, trips: list[tuple[float, float, float]]
) -> None:
    """Whatever the answers' travel times: at our `at` the server shows at least `shows_at_least(at)`."""
    server_time, now = ServerTime(), 0.0
    for out, back, gap in trips:
        stamped = now + out
        server_time.observe(int(offset + stamped * 1000), now, stamped + back)
        now = stamped + back
        for ahead in (0.0, 4.0, 60.0):
            assert server_time.shows_at_least(now + ahead) <= offset + (now + ahead) * 1000 + 1e-3
        assert server_time.shows_at_least(now) >= offset + now * 1000 - back * 1000 - 2
        now += gap


def test_a_stepped_server_clock_is_believed_at_once() -> None:
    server_time = ServerTime()
    server_time.observe(2_000_000_000_000, 0.0, 0.01)
    server_time.observe(1_900_000_000_000, 1.0, 1.01)
    assert server_time.shows_at_least(1.01) == 1_900_000_000_000

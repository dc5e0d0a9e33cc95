"""What must not be shown is not, whatever it got into."""

import json

import pytest

from timerd.config import Config
from timerd.engine.secrecy import MASK, scrub
from timerd.engine.timer import TimerType
from timerd.ports import Request
from timerd.serve import configure_logging
from timerd_api.schema import TypeBody
from timerd_api.settings import ApiSettings

KEY = "td_abcdefgh_" + "Zx9-_" * 8 + "abc"
WEBHOOK = "whsec_" + "QUJDREVG+/" * 4 + "=="
OWN = "open sesame"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (KEY, f"td_abcdefgh_{MASK}"),
        (f"/v1/keys/{KEY}?a=b", f"/v1/keys/td_abcdefgh_{MASK}?a=b"),
        (f"[{WEBHOOK!r}]", f"['whsec_{MASK}']"),
        (f"Bearer {OWN}!", f"Bearer {MASK}!"),
        ("whsec_…abcd", "whsec_…abcd"),
        ("td_abcdefgh", "td_abcdefgh"),
        ("a\r\x1b[31mb\x00\x85", "a\\x0d\\x1b[31mb\\x00\\x85"),
        ("two\nlines", "two\nlines"),
    ],
)
def test_scrub(text, shown):
    assert scrub(text, [OWN, "x"]) == shown


@pytest.mark.parametrize(
    "value",
    [
        Config(api_key=OWN, types={"t": {"signing_secrets": [WEBHOOK], "headers": {"X": OWN}}}),
        ApiSettings(api_key=OWN),
        TimerType("t", signing_secrets=(WEBHOOK,), headers={"X": OWN}),
        TypeBody(signing_secrets=[WEBHOOK], headers={"X": OWN}),
        Request("http://h/", {"X": OWN}, b"a" + OWN.encode(), 1, 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_repr_shows_no_secret_and_all_the_rest(value):
    shown = f"{value!r} {value}"
    assert WEBHOOK not in shown
    assert OWN not in shown
    assert MASK in shown
    assert all(f"{name}=" in shown for name in value.__struct_fields__)


def test_a_repr_without_secrets_is_not_masked():
    assert MASK not in repr(Config()) + repr(TimerType("t"))


def test_no_line_of_the_log_has_one(capfd):
    import structlog

    configure_logging("info", [OWN])
    try:
        log = structlog.get_logger()
        log.info(f"event {KEY}", a=KEY, b=WEBHOOK, c=OWN, d=json.dumps({"key": KEY}), n=1)
        try:
            raise ValueError(KEY)
        except ValueError:
            log.exception("failed", path=f"/v1/keys/{KEY}")
    finally:
        structlog.reset_defaults()
    text = capfd.readouterr().err
    assert "ValueError" in text
    assert text.count(MASK) >= 6
    for secret in (KEY, KEY[12:], WEBHOOK, OWN):
        assert secret not in text

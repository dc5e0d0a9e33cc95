"""Every reader of bytes from outside, with the same random changes each time. The command `fuzz` draws new ones."""

import pytest

from tests.hostile import fuzz
from tests.hostile.connection_target import connection
from tests.hostile.targets import TARGETS

EXECUTIONS = {"connection": 1_500, "call": 3_000}


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_comes(name: str) -> None:
    run = fuzz.run(name, seed=1, executions=EXECUTIONS.get(name, 10_000))
    assert not run.failures, run.failures[0].why + run.failures[0].replay


def test_a_refusal_is_said_once_and_an_answer_to_a_head_has_no_body() -> None:
    asked = b"GET /none HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nHEAD /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    assert connection(asked + b"GET /healthz HTTP/1.1\r\nHost: 127.0." + b"\x81\xa1\x86" * 900) == (404, 200, 400)

"""Signing secrets by reference: what leads to a secret and what does not, and what becomes of deliveries meanwhile."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from tests.callbacks.conftest import ALLOW
from tests.callbacks.target import Target
from tests.support.process import Process
from timerd import references
from timerd.engine.timer import TimerType
from timerd.references import FILE_BYTES_MAX, References, Unresolved
from timerd.signing import reference_fault

OLD, NEW, THIRD = ("whsec_" + letter * 32 for letter in "ABC")
QUICK = {"min_backoff": "50ms", "max_backoff": "100ms", "jitter": 0}


def verifies(secret: str, headers: Any, body: Any) -> bool:
    try:
        Webhook(secret).verify(body, dict(headers))
    except WebhookVerificationError:
        return False
    return True


# ---- what a reference leads to


@pytest.mark.parametrize(
    ("reference", "fault"),
    [
        ("env:NAME", None),
        ("env:_n1", None),
        ("env:", "a variable's name"),
        ("env:A-B", "a variable's name"),
        ("env:1A", "a variable's name"),
        ("env:" + "A" * 129, "a variable's name"),
        ("env:" + OLD, "looks like one itself"),
        ("file:/run/secrets/hook key", None),
        ("file:/" + "a" * 511, None),
        ("file:/" + "a" * 512, "at most 512 bytes"),
        ("file:", "an absolute path"),
        ("file:secrets/hook", "an absolute path"),
        ("file:./hook", "an absolute path"),
        ("file:///hook\n", "printable"),
        ("file:/a\0b", "printable"),
        ("file:/" + OLD, "looks like one itself"),
    ],
)
def test_the_form_of_a_reference(reference: str, fault: str | None) -> None:
    found = reference_fault(reference)
    assert found is None if fault is None else fault in str(found)
    assert OLD not in str(found)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


CONTENTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "as it is": (lambda path: path.write_text(OLD), OLD),
    "a line": (lambda path: path.write_text(OLD + "\n"), OLD),
    "a line of elsewhere": (lambda path: path.write_bytes(OLD.encode() + b"\r\n"), OLD),
    "none": (lambda path: None, "(No such file or directory)"),
    "empty": (lambda path: path.write_text("\n"), "no signing secret"),
    "no prefix": (lambda path: path.write_text(OLD.removeprefix("whsec_")), "no signing secret"),
    "two": (lambda path: path.write_text(f"{OLD}\n{NEW}\n"), "no signing secret"),
    "no text": (lambda path: path.write_bytes(b"whsec_\xff\xfe"), "no signing secret"),
    "largest": (lambda path: path.write_text(OLD + "\n" * (FILE_BYTES_MAX - len(OLD))), OLD),
    "too large": (lambda path: path.write_text(OLD + "\n" * (FILE_BYTES_MAX + 1 - len(OLD))), "more than 4096 bytes"),
    "directory": (Path.mkdir, "no regular file"),
    "FIFO": (_fifo, "no regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
    "loop": (lambda path: path.symlink_to(path), "can't be read"),
    "link": (lambda path: (path.with_suffix(".real").write_text(OLD), path.symlink_to(path.with_suffix(".real"))), OLD),
}


@pytest.mark.parametrize("case", CONTENTS)
async def test_what_a_file_may_be(tmp_path: Path, case: str) -> None:
    make, expected = CONTENTS[case]
    make(path := tmp_path / "secret")
    reference = f"file:{path}"
    found = await References().resolve(TimerType("t", signing_secrets=(NEW, reference)))
    if expected == OLD:
        assert isinstance(found, TimerType)
        assert found.signing_secrets == (NEW, OLD)
    else:
        assert isinstance(found, Unresolved)
        assert found.reference == reference
        assert expected in found.reason
        assert "not signed, so not sent: " in found.error
        assert OLD not in repr(found)


async def test_variables_are_looked_up_each_time() -> None:
    environment = {"OTHER": "sesame"}
    found = References(environment)
    missing = await found.resolve(TimerType("t", signing_secrets=("env:HOOK",)))
    assert missing == Unresolved("env:HOOK", "there is no such variable")
    wrong = await found.resolve(TimerType("t", signing_secrets=("env:OTHER",)))
    assert isinstance(wrong, Unresolved)
    assert "sesame" not in repr(wrong) + wrong.error
    environment["HOOK"] = OLD
    there = await found.resolve(TimerType("t", signing_secrets=("env:HOOK",)))
    assert isinstance(there, TimerType)
    assert there.signing_secrets == (OLD,)


async def test_a_file_is_read_once_for_all_who_want_it_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    read = references._read_secret

    def counted(path: str) -> tuple[str | None, str]:
        nonlocal reads
        reads += 1
        return read(path)

    monkeypatch.setattr(references, "_read_secret", counted)
    monkeypatch.setattr(references, "FRESH_S", 60.0)
    (tmp_path / "secret").write_text(OLD)
    type = TimerType("t", signing_secrets=(f"file:{tmp_path}/secret",))
    found = References()
    assert len({str(each) for each in await asyncio.gather(*(found.resolve(type) for _ in range(50)))}) == 1
    (tmp_path / "secret").write_text(NEW)
    assert isinstance(before := await found.resolve(type), TimerType)
    assert (before.signing_secrets, reads) == ((OLD,), 1)
    monkeypatch.setattr(references, "FRESH_S", 0.0)
    found.keep([])
    for _ in range(2):
        assert isinstance(after := await found.resolve(type), TimerType)
        assert after.signing_secrets == (NEW,)
    assert reads == 3


async def test_a_disk_that_hangs_holds_up_its_own_secrets_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good").write_text(OLD)
    hangs = threading.Event()
    read = references._read_secret

    def hanging(path: str) -> tuple[str | None, str]:
        if path == "/hangs":
            hangs.wait()
            return NEW, ""
        return read(path)

    monkeypatch.setattr(references, "_read_secret", hanging)
    monkeypatch.setattr(references, "READ_S", 0.05)
    found = References()
    stuck, well = (
        TimerType("a", signing_secrets=("file:/hangs",)),
        TimerType("b", signing_secrets=(f"file:{tmp_path}/good",)),
    )
    assert isinstance(late := await found.resolve(stuck), Unresolved)
    assert "could not be read within" in late.reason
    monkeypatch.setattr(references, "READ_S", 60.0)
    assert isinstance(await found.resolve(stuck), Unresolved), "and the next does not wait for the same read"
    assert isinstance(await found.resolve(well), TimerType)
    hangs.set()
    async with asyncio.timeout(30):
        while isinstance(await found.resolve(stuck), Unresolved):
            await asyncio.sleep(0.01)


# ---- the process


async def wait_for_error(timerd: Process, id: str, part: str, attempts: int = 1) -> None:
    """Until this timer has been held back so often, for this reason."""

    async def shown() -> bool:
        timer = await timerd.get(id) or {}
        return part in timer.get("last_error", "") and timer["attempt"] >= attempts

    await timerd.until(shown)


def signed_by(target: Target, *secrets: str) -> list[list[int]]:
    """For each request in order: which of the secrets it is signed with."""
    return [[n for n, secret in enumerate(secrets) if verifies(secret, got.headers, got.body)] for got in target.got]


async def test_a_secret_is_replaced_while_timers_fire(tmp_path: Path) -> None:
    """As Kubernetes does it: the path is a link into a directory that is itself a link, and that is swapped."""
    for name, secret in (("one", OLD), ("two", NEW)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hook").write_text(secret + "\n")
    (tmp_path / "current").symlink_to("one")
    (tmp_path / "hook").symlink_to("current/hook")
    reference = f"file:{tmp_path}/hook"
    async with Target() as target, Process(tmp_path / "data") as timerd:
        await timerd.put_type("t", url=target.url, signing_secrets=[reference, THIRD])
        _, type = await timerd.request("GET", "/v1/types/t")
        assert type["signing_secrets"] == [reference, "whsec_…" + THIRD[-4:]]
        await timerd.request("PUT", "/v1/types/t", {"url": target.url, "max_lag": 0})
        assert (await timerd.request("GET", "/v1/types/t"))[1] == type, "left out, they stay"
        armed: list[str] = []

        async def fire_until(secret: int) -> None:
            async with asyncio.timeout(30):
                while not target.got or secret not in signed_by(target, OLD, NEW)[-1]:
                    armed.append(f"{len(armed)}")
                    await timerd.arm([{"id": armed[-1], "type": "t", "delay": 0}])
                    await target.until(lambda: len(target.got) == len(armed))

        await fire_until(0)
        (tmp_path / "next").symlink_to("two")
        (tmp_path / "next").rename(tmp_path / "current")
        await fire_until(1)
        which = signed_by(target, OLD, NEW, THIRD)
        assert which == sorted(which), "the old one, and from some moment on the new one"
        assert all(one in ([0, 2], [1, 2]) for one in which)
        await timerd.kill_and_start()
        await fire_until(1)
        assert not [line for line in timerd.log + timerd.stderr if OLD[6:] in line or NEW[6:] in line]
        assert not timerd.complaints()
        assert await timerd.stop() == 0
    stored = b"".join(file.read_bytes() for file in (tmp_path / "data").iterdir())
    assert reference.encode() in stored
    assert not [secret for secret in (OLD, NEW) if secret.encode() in stored]


@pytest.mark.parametrize("kind", ["processor", "callback"])
async def test_nothing_leaves_unsigned_and_nothing_is_lost(tmp_path: Path, kind: str) -> None:
    """One secret of two is missing for a while, for timers that may fail once at most."""
    path = tmp_path / "hook"
    async with Target() as target, Process(tmp_path / "data", *ALLOW, env={"HOOK": THIRD}) as timerd:
        where = {"kind": "callback"} if kind == "callback" else {"url": target.url}
        retry = {"max_attempts": 1, **QUICK}
        await timerd.put_type("t", **where, signing_secrets=["env:HOOK", f"file:{path}"], retry=retry)
        await timerd.until(lambda: logged(timerd, "signing_secret_missing", f"file:{path}"))
        what = {"request": {"url": target.url, "body": "1"}} if kind == "callback" else {}
        await timerd.arm([{"id": f"{n}", "type": "t", "delay": 0, **what} for n in range(20)])
        troubles: list[tuple[Callable[[], object], str]] = [
            (lambda: None, "No such file"),
            (lambda: os.mkfifo(path), "no regular file"),
            (lambda: (path.unlink(), path.mkdir()), "no regular file"),
            (lambda: (path.rmdir(), path.write_text("x" * 5_000)), "more than 4096 bytes"),
            (lambda: path.write_text("sesame"), "no signing secret"),
        ]
        for spoil, error in troubles:
            spoil()
            for id in ("0", "19"):
                await wait_for_error(timerd, id, error, attempts=3)
                await wait_for_error(timerd, id, f"file:{path}")
            assert (await timerd.request("GET", "/healthz"))[0] == 200
        assert target.got == []
        if kind == "processor":
            how = (await timerd.stats("t"))["target"]
            assert (how["breaker"], how["window"], how["held_until"]) == ("closed", how["bound"], None), "it is well"
        (tmp_path / "new").write_text(NEW)
        (tmp_path / "new").rename(path)
        await timerd.until(lambda: fired(timerd, 20))
        assert {tuple(which) for which in signed_by(target, NEW, THIRD)} == {(0, 1)}
        assert await timerd.dead_letters() == []
        assert await logged(timerd, "delivery_failed", "No such file")
        assert not [line for line in timerd.log + timerd.stderr if "sesame" in line or NEW[6:] in line]
        assert not timerd.complaints()
        assert await timerd.stop() == 0


async def fired(timerd: Process, count: int) -> bool:
    return bool((await timerd.stats("t"))["fired"] == count)


async def logged(timerd: Process, event: str, part: str) -> bool:
    return any(f"event={event} " in line and part in line for line in timerd.log + timerd.stderr)


async def test_types_of_the_file_may_be_put_before_their_secrets_are_there(tmp_path: Path) -> None:
    async with Target() as target:
        config = tmp_path / "timerd.toml"
        config.write_text(
            f'[types.t]\nurl = "{target.url}"\nmax_lag = 0\nsigning_secrets = ["env:HOOK", "file:{tmp_path}/hook"]\n'
            '[types.t.retry]\nmin_backoff = "50ms"\nmax_backoff = "100ms"\n'
        )
        async with Process(tmp_path / "data", "--config", str(config)) as timerd:
            assert await logged(timerd, "signing_secret_missing", "env:HOOK")
            await timerd.arm([{"id": "a", "type": "t", "delay": 0}])
            await wait_for_error(timerd, "a", "there is no such variable: env:HOOK")
            assert await timerd.stop() == 0
            timerd.env["HOOK"] = OLD
            (tmp_path / "hook").write_text(NEW)
            await timerd.start()
            await target.until(lambda: len(target.got) == 1)
            assert signed_by(target, OLD, NEW) == [[0, 1]]
            config.write_text(config.read_text().replace("env:HOOK", "file:hook"))
            assert await timerd.stop() == 0
            assert not await (await timerd.spawn())
            assert await timerd.wait() == 2
            assert "signing_secrets/0" in timerd.stderr[-1]
            assert "absolute path" in timerd.stderr[-1]

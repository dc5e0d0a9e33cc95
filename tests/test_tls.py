"""TLS at a real timerd: what the commands and the client library make of a certificate, and one that is renewed."""

import asyncio
import contextlib
import json
import re
import signal
import ssl
from pathlib import Path

import aiohttp
import pytest
from typer.testing import CliRunner

from tests.support import certificates
from tests.support.certificates import Certificate
from tests.support.process import Process
from timerd import listening
from timerd.cli.app import app
from timerd.config import Config, ConfigError
from timerd_client import Arm, AsyncTimerd, Timerd, Unavailable

ENV = {"TIMERD_API_KEY": "open-sesame"}
BEARER = {"Authorization": "Bearer open-sesame"}


def tls(made: Certificate) -> tuple[str, ...]:
    return "--tls-cert", str(made.cert), "--tls-key", str(made.key)


async def shown(timerd: Process, ca: Certificate) -> bool:
    """Whether a new connection finds a certificate of this authority."""
    host, port = timerd.url.removeprefix("https://").split(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port), ssl=ca.trust())
    except ssl.SSLCertVerificationError:
        return False
    writer.close()
    with contextlib.suppress(ssl.SSLError):
        await writer.wait_closed()
    return True


async def test_everybody_speaks_tls_and_a_renewed_certificate_is_taken_up(tmp_path: Path) -> None:
    ca, other = certificates.authority(tmp_path), certificates.authority(tmp_path, "other")
    made = certificates.server(tmp_path, ca)
    async with Process(tmp_path / "data", *tls(made), "--host", "0.0.0.0", env=ENV) as timerd:
        assert timerd.url.startswith("https://0.0.0.0:")
        timerd.url = timerd.url.replace("0.0.0.0", "127.0.0.1")
        trusted = {"ssl": ca.trust(), "headers": BEARER}
        status, _ = await timerd.request("PUT", "/v1/types/t", {"url": "http://127.0.0.1:9/"}, **trusted)
        assert status == 201

        async with AsyncTimerd(timerd.url, key="open-sesame", ca_file=ca.cert) as client:
            arms = [Arm(f"{n}", "t", delay=3_600, payload="x" * 2_000) for n in range(2_000)]
            assert all(result.armed for result in await client.arm_many(arms))
            assert await client.get("7") is not None
        with pytest.raises(
            Unavailable, match=r"CERTIFICATE_VERIFY_FAILED.*ca_file="
        ):  # nothing but the file is trusted
            await asyncio.to_thread(_get, timerd.url, other)
        await asyncio.to_thread(_get, timerd.url, ca)
        with pytest.raises(Unavailable, match="https:// and not http://"):
            await asyncio.to_thread(_get, timerd.url.replace("https", "http"), ca, 0.5)

        env = {"TIMERD_URL": timerd.url, "TIMERD_API_KEY": "open-sesame"}
        for ca_file, code in ((ca.cert, 0), (other.cert, 1), (None, 1), (tmp_path / "none", 2)):
            more = {"TIMERD_CA_FILE": str(ca_file)} if ca_file else {}
            done = await asyncio.to_thread(CliRunner().invoke, app, ["get", "7"], env={**env, **more})
            assert done.exit_code == code, done.output
            assert ("--ca-file (TIMERD_CA_FILE)" in done.output) == (code == 1)
        plain = {**env, "TIMERD_URL": timerd.url.replace("https", "http")}
        done = await asyncio.to_thread(CliRunner().invoke, app, ["get", "7"], env=plain)
        assert (done.exit_code, "https:// and not http://?" in done.output) == (1, True), done.output
        flag = ["get", "7", "--ca-file", str(ca.cert)]
        done = await asyncio.to_thread(CliRunner().invoke, app, flag, env=env)
        assert json.loads(done.stdout)["id"] == "7"

        with pytest.raises(aiohttp.ClientError):
            await timerd.session.get(timerd.url.replace("https", "http") + "/healthz")

        made.cert.write_bytes(b"half written")
        timerd.signal(signal.SIGHUP)
        await timerd.until(lambda: _logged(timerd, "certificate_not_reloaded"))
        assert await shown(timerd, ca)
        renewed = certificates.server(tmp_path, other, "renewed")
        made.cert.write_bytes(renewed.cert.read_bytes())
        timerd.signal(signal.SIGHUP)  # the key is still the old one's
        await timerd.until(lambda: _logged(timerd, "certificate_not_reloaded", 2))
        assert await shown(timerd, ca)
        made.key.write_bytes(renewed.key.read_bytes())
        timerd.signal(signal.SIGHUP)
        await timerd.until(lambda: _logged(timerd, "certificate_reloaded"))
        assert await shown(timerd, other)
        assert not await shown(timerd, ca)
        assert (await timerd.request("GET", "/v1/timers/7", **trusted))[0] == 200  # a connection from before goes on
        assert (await timerd.request("GET", "/v1/timers/7", ssl=other.trust(), headers=BEARER))[0] == 200
        assert await timerd.stop() == 0
        assert not [line for line in timerd.complaints() if "certificate_not_reloaded" not in line]


def _get(url: str, ca: Certificate, timeout: float = 60) -> None:
    """With the whole of a long timeout left, what no other attempt would mend is told at once."""
    with Timerd(url, key="open-sesame", ca_file=ca.cert, timeout=timeout) as client:
        assert client.get("7") is not None


async def _logged(timerd: Process, event: str, times: int = 1) -> bool:
    return sum(f"event={event}" in line for line in timerd.stderr) >= times


def test_a_certificate_that_can_not_be_used_is_refused_by_its_name(tmp_path: Path) -> None:
    ca = certificates.authority(tmp_path)
    made, other = certificates.server(tmp_path, ca), certificates.server(tmp_path, ca, "other")
    locked = certificates.server(tmp_path, ca, "locked", passphrase="sesame")
    listening.check_certificate(Config())
    listening.check_certificate(Config(tls_cert=str(made.cert), tls_key=str(made.key)))
    for cert, key in ((made.cert, other.key), (tmp_path / "none.pem", made.key), (locked.cert, locked.key)):
        with pytest.raises(ConfigError, match=re.escape(f"--tls-cert {cert}")):
            listening.check_certificate(Config(tls_cert=str(cert), tls_key=str(key)))

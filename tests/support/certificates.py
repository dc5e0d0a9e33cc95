"""Certificates for tests, made by the `openssl` command: an authority, and servers that it vouches for."""

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Certificate(NamedTuple):
    """Two PEM files. Of an authority, `cert` is also what a client is told to trust."""

    cert: Path
    key: Path

    def trust(self) -> ssl.SSLContext:
        """A client's context that takes this authority's word, and nobody else's."""
        return ssl.create_default_context(cafile=self.cert)


def authority(directory: Path, name: str = "ca") -> Certificate:
    """A new authority."""
    return _made(directory, name, "basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")


def server(directory: Path, by: Certificate, name: str = "server", passphrase: str = "") -> Certificate:
    """A certificate for 127.0.0.1 and localhost."""
    options = ["-CA", str(by.cert), "-CAkey", str(by.key)]
    extensions = ("basicConstraints=critical,CA:FALSE", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    return _made(directory, name, *extensions, options=options, passphrase=passphrase)


def _made(
    directory: Path, name: str, *extensions: str, options: list[str] | None = None, passphrase: str = ""
) -> Certificate:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command")
    made = Certificate(directory / f"{name}.pem", directory / f"{name}.key")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"]
    command += ["-subj", f"/CN=timerd tests {name}", "-keyout", str(made.key), "-out", str(made.cert), *(options or [])]
    command += ["-passout", f"pass:{passphrase}"] if passphrase else ["-nodes"]
    for extension in extensions:
        command += ["-addext", extension]
    subprocess.run(command, check=True, capture_output=True)
    return made

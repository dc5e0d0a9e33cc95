"""Carry out the Dockerfile, step by step, in fresh Debian trees: for machines without a Docker engine.

    sudo python3 deploy/rehearse_dockerfile.py [--keep DIR]

Each FROM becomes a tree of its own, made by debootstrap: Debian 12 and its python3, for the official image. COPY
copies, RUN runs in a chroot, USER, ENV, WORKDIR hold from then on. At the end ENTRYPOINT and CMD are started as the
image's user, the HEALTHCHECK is run, a timer is armed, the process is killed and started again, and the timer must
still be there, in files that belong to that user. Exit 0: all of it worked.

It knows the instructions that our Dockerfile uses, and refuses others.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent
SUITE = "bookworm"
PORT = "18470"
KEY = "rehearsal"
IGNORED = shutil.ignore_patterns("__pycache__")
PASSED_ON = ("PIP_", "SSL_CERT", "http_proxy", "https_proxy", "no_proxy")  # how this machine reaches its package index


def instructions(text: str) -> list[tuple[str, str]]:
    """(name, rest) of every instruction; continuation lines joined, comments dropped."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    found = []
    for line in joined.splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            found.append((name.upper(), rest.strip()))
    return found


class Stage:
    """One FROM: a tree, and what has been said about running in it."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.env: dict[str, str] = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.workdir = "/"
        self.user = "root"

    def path(self, inside: str) -> Path:
        """Where a path of the image lies here."""
        return self.tree / (Path(self.workdir) / inside).relative_to("/")

    def command(self, argv: list[str]) -> list[str]:
        """What runs `argv` inside, as the user, in the work directory."""
        inside = f"cd {shlex.quote(self.workdir)} && exec {shlex.join(argv)}"
        user = [] if self.user == "root" else [f"--userspec={self.user}"]
        return ["chroot", *user, str(self.tree), "sh", "-c", inside]

    def run(self, argv: list[str], **more: str) -> None:
        """Run it, or end the rehearsal."""
        subprocess.run(self.command(argv), check=True, env={**self.env, **more})


class Rehearsal:
    """All stages of one Dockerfile."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.base = work / "base"
        self.stages: dict[str, Stage] = {}
        self.stage = Stage(work)
        self.entrypoint: list[str] = []
        self.cmd: list[str] = []
        self.health: list[str] = []
        self.volume = ""
        self.passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}

    def carry_out(self, name: str, rest: str) -> None:
        """One instruction."""
        stage = self.stage
        match name:
            case "FROM":
                self._from(rest)
            case "WORKDIR":
                stage.workdir = rest
                stage.path(".").mkdir(parents=True, exist_ok=True)
            case "ENV":
                for word in shlex.split(rest):
                    key, _, value = word.partition("=")
                    stage.env[key] = re.sub(r"\$(\w+)", lambda m: stage.env.get(m[1], ""), value)
            case "COPY":
                self._copy(shlex.split(rest))
            case "RUN":
                stage.run(["sh", "-c", rest], **self.passed)
            case "USER":
                stage.user = rest
            case "VOLUME":
                self.volume = rest
            case "ENTRYPOINT":
                self.entrypoint = json.loads(rest)
            case "CMD":
                self.cmd = json.loads(rest)
            case "HEALTHCHECK":
                self.health = json.loads(rest.partition(" CMD ")[2])
            case "EXPOSE" | "STOPSIGNAL":
                pass
            case _:
                raise SystemExit(f"no way to rehearse {name}")

    def _from(self, rest: str) -> None:
        image, _, alias = rest.partition(" AS ")
        if not image.startswith("python:3.11"):
            raise SystemExit(f"no way to rehearse FROM {image}")
        tree = self.work / (alias or "image")
        if not self.base.exists():
            bootstrap(self.base)
        # One file system: whatever is still mounted inside must not be copied.
        subprocess.run(["cp", "-a", "--one-file-system", str(self.base), str(tree)], check=True)
        self.stage = self.stages[alias or "image"] = Stage(tree)

    def _copy(self, words: list[str]) -> None:
        source_of = ROOT
        if words[0].startswith("--from="):
            source_of = self.stages[words.pop(0).partition("=")[2]].tree
        *sources, target = words
        for source in sources:
            origin = source_of / source.lstrip("/")
            goal = self.stage.path(target)
            if origin.is_dir():
                shutil.copytree(
                    origin, goal, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                goal = goal / origin.name if target.endswith("/") else goal
                goal.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(origin, goal)


def bootstrap(tree: Path) -> None:
    """A minimal Debian with python3, venv, and this machine's certificates and pip settings."""
    mirror = _mirror()
    subprocess.run(
        [
            "debootstrap",
            "--variant=minbase",
            "--include=python3,python3-venv,ca-certificates",
            SUITE,
            str(tree),
            *mirror,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    for mounted in ("proc", "sys"):
        subprocess.run(["umount", str(tree / mounted)], stderr=subprocess.DEVNULL)
    (tree / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    for name in ("etc/ssl/certs/ca-certificates.crt", "etc/resolv.conf", "etc/pip.conf", "etc/xdg/pip", "etc/hosts"):
        here = Path("/") / name
        if here.is_dir():
            shutil.copytree(here, tree / name, dirs_exist_ok=True)
        elif here.exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(here, tree / name)


def _mirror() -> list[str]:
    """The mirror that this machine gets the suite from; debootstrap's own choice if it can't be told."""
    for path in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]:
        for stanza in path.read_text().split("\n\n") if path.exists() else ():
            found = re.search(r"^(?:URIs:|deb(?: \[.*?\])?)\s+(\S+/debian/?)(?:\s|$)", stanza, re.M)
            if found and re.search(rf"\b{SUITE}\b", stanza):
                return [found[1]]
    return []


def try_out(rehearsal: Rehearsal) -> None:
    """Start the image, use it, kill it, start it again."""
    stage = rehearsal.stage
    owner = stage.path(rehearsal.volume).stat().st_uid
    if owner == 0:
        raise SystemExit("the volume belongs to root")
    env = {**stage.env, "TIMERD_API_KEY": KEY, "TIMERD_PORT": PORT}
    for round in ("first", "second"):
        process = subprocess.Popen(stage.command(rehearsal.entrypoint + rehearsal.cmd), env=env)
        try:
            until_healthy(stage.command(rehearsal.health), env)
            uid = int(re.search(r"^Uid:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text(), re.M)[1])  # type: ignore[index]
            if uid != owner:
                raise SystemExit(f"it runs as uid {uid}, the volume belongs to {owner}")
            if round == "first":
                call("PUT", "/v1/types/t", {"url": "http://127.0.0.1:9/"})
                call("POST", "/v1/timers", {"timers": [{"id": "a", "type": "t", "delay": "60d"}]})
                process.send_signal(signal.SIGKILL)
            else:
                print("after kill -9:", call("GET", "/v1/timers/a", None))
                process.send_signal(signal.SIGTERM)
            code = process.wait(40)
        finally:
            process.kill()
            process.wait()
    owners = {path.stat().st_uid for path in stage.path(rehearsal.volume).rglob("*")}
    print(f"exit code at SIGTERM: {code}; uid of the process and of all its files: {owner}, {sorted(owners)}")
    if code != 0 or owners != {owner}:
        raise SystemExit("not as it must be")


def until_healthy(health: list[str], env: dict[str, str]) -> None:
    """Run the health check as Docker would, until it passes."""
    for _ in range(60):
        if subprocess.run(health, env=env, stderr=subprocess.DEVNULL).returncode == 0:
            print("healthy")
            return
        time.sleep(0.5)
    raise SystemExit("never healthy")


def call(method: str, path: str, body: object) -> str:
    """One request with the key; its answer."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="work there, and leave the trees for another look")
    keep = parser.parse_args().keep
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        print("needs root and debootstrap", file=sys.stderr)
        return 2
    work = keep or Path(tempfile.mkdtemp(prefix="rehearsal-"))
    try:
        rehearsal = Rehearsal(work)
        for name, rest in instructions((ROOT / "Dockerfile").read_text()):
            print(f"== {name} {rest[:100]}", flush=True)
            rehearsal.carry_out(name, rest)
        try_out(rehearsal)
    finally:
        if keep is None:
            shutil.rmtree(work, ignore_errors=True)
    print("every step of the Dockerfile works")
    return 0


if __name__ == "__main__":
    sys.exit(main())

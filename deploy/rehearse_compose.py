"""Start deploy/compose.yaml as plain processes, and use it: for machines without a Docker engine.

    .venv/bin/python deploy/rehearse_compose.py [--keep DIR]

Each service becomes a process with the command, the environment, the volumes, the health check, the stop signal and the
patience that the file gives it; timerd's image is this checkout, with what the Dockerfile says of its environment. A
service has an address of its own in 127.0.0.0/8 in place of a host name and of 0.0.0.0, so ports stay what they are.

Then the cluster has to form; timers armed at any node have to arrive once; a node is stopped and comes back, one is
killed and comes back, a NATS server is stopped and comes back; and at the end all are stopped.
Exit 0: all of it worked.
"""

import argparse
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from rehearse_dockerfile import instructions

ROOT = Path(__file__).parent.parent
COMPOSE = ROOT / "deploy" / "compose.yaml"
VARIABLES = ("TIMERD_PASSWORD", "SYS_PASSWORD", "TIMERD_API_KEY", "TIMERD_CLUSTER_SECRET")
TIMERS = 300
READY_S = 90
RESTARTS_MAX = 5


def image_environment() -> dict[str, str]:
    """What the Dockerfile's ENV lines of its last stage say, but for PATH."""
    found: dict[str, str] = {}
    for name, rest in instructions((ROOT / "Dockerfile").read_text()):
        if name == "FROM":
            found = {}
        elif name == "ENV":
            found.update(dict(word.split("=", 1) for word in rest.split()))
    return {name: value for name, value in found.items() if name != "PATH"}


def seconds(text: str) -> float:
    """A duration of compose."""
    minutes, rest = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", text).groups()  # type: ignore[union-attr]
    return 60 * int(minutes or 0) + int(rest or 0)


class Service:
    """One service of the file, as a process."""

    def __init__(self, name: str, said: dict[str, Any], home: Path, addresses: dict[str, str]) -> None:
        self.name = name
        self.said = said
        self.address = addresses[name]
        self.home = home / name
        self._names = addresses
        self.restarts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._paths: dict[str, str] = {}
        for volume in said.get("volumes", ()):
            source, inside, *_ = volume.split(":")
            here = self.home / inside.strip("/").replace("/", "-")
            if source.startswith("."):
                shutil.copytree(COMPOSE.parent / source, here)
                for path in here.rglob("*.conf"):
                    path.write_text(self._here(path.read_text()))
            else:
                here.mkdir(parents=True)
            self._paths[inside] = str(here)
        for path in (each for here in self._paths.values() for each in Path(here).rglob("*.conf")):
            path.write_text(self._inside(path.read_text()))

    def _here(self, text: str) -> str:
        """Host names as addresses, any address as this service's."""
        text = re.sub(r"(?<=[/@])(\w+)(?=:\d)", lambda found: self._names.get(found[1], found[1]), text)
        return text.replace("0.0.0.0", self.address).replace("127.0.0.1:8", f"{self.address}:8")

    def _inside(self, text: str) -> str:
        """Paths of the container as paths here."""
        for inside, here in self._paths.items():
            text = re.sub(rf"{inside}(?=$|[/\s])", here, text)
        return text

    def start(self) -> None:
        """Start it, with nothing in its environment but what file and image say."""
        self.home.mkdir(parents=True, exist_ok=True)
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        if "command" in self.said:
            command = [self._inside(word) for word in self.said["command"]]
            command[0] = str(Path(sys.executable).parent / command[0])
        else:
            command = [sys.executable, "-m", "timerd", "serve"]
            environment |= image_environment() | {"TIMERD_DATA": str(self.home / "data")}
        environment |= self.said["environment"]
        environment = {name: self._here(value) for name, value in environment.items()}
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.home)

    def healthy(self) -> bool:
        """Whether the health check passes."""
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            if self.said["restart"] != "unless-stopped" or self.restarts == RESTARTS_MAX:
                raise SystemExit(f"{self.name} ended with {code}:\n{self.tail()}")
            self.restarts += 1
            print(f"         {self.name} ended with {code}, and is started again: {self.tail(1)}", flush=True)
            self.start()
        url = re.search(r"http://[^' ]+", self._here(" ".join(self.said["healthcheck"]["test"])))
        assert url is not None
        with contextlib.suppress(OSError), urllib.request.urlopen(url[0], timeout=3) as answer:
            return bool(answer.status == 200)
        return False

    def stop(self) -> tuple[int, float]:
        """As compose stops it; its exit code, and how long it took. Killed at the end of the patience is a failure."""
        assert self._process is not None
        begun = time.monotonic()
        self._process.send_signal(signal.Signals[self.said.get("stop_signal", "SIGTERM")])
        try:
            code = self._process.wait(seconds(self.said["stop_grace_period"]))
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{self.name} did not end in {self.said['stop_grace_period']}\n{self.tail()}") from None
        return code, time.monotonic() - begun

    def kill(self) -> None:
        """kill -9"""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def tail(self, lines: int = 30) -> str:
        """The last it has said."""
        return "\n".join((self.home / "log").read_text(errors="replace").splitlines()[-lines:])


class Processor(ThreadingHTTPServer):
    """Takes batches, and counts what came how often."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taker)
        self.came: Counter[str] = Counter()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class _Taker(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert isinstance(self.server, Processor)
        self.server.came.update(timer["id"] for timer in body["timers"])
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def call(node: Service, key: str, method: str, path: str, body: Any = None) -> Any:
    """One request; its answer. Asked again for half a minute while it is refused as unavailable."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{node.address}:8470{path}", data, headers, method=method)
    end = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(request, timeout=15) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > end:
                raise SystemExit(f"{method} {path} at {node.name}: {error.code} {error.read().decode()}") from None
            time.sleep(0.5)


def until(what: str, holds: Callable[[], bool], patience_s: float = READY_S) -> None:
    """Wait for it; say how long it took."""
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > patience_s:
            raise SystemExit(f"never: {what}")
        time.sleep(0.1)
    print(f"{time.monotonic() - begun:5.1f} s  {what}", flush=True)


class Rehearsal:
    """The services, and what is done with them."""

    def __init__(self, home: Path) -> None:
        given = {name: secrets.token_hex(16) for name in VARIABLES}
        text = re.sub(r"\$\{(\w+)(?::\?[^}]*)?\}", lambda found: given[found[1]], COMPOSE.read_text())
        said = yaml.safe_load(text)["services"]
        addresses = {name: f"127.84.70.{number}" for number, name in enumerate(said, 1)}
        self.key = given["TIMERD_API_KEY"]
        self.services = {name: Service(name, each, home, addresses) for name, each in said.items()}
        self.nodes = [each for name, each in self.services.items() if name.startswith("timerd")]
        self.servers = [each for name, each in self.services.items() if name not in {node.name for node in self.nodes}]
        self.processor = Processor()
        self._armed = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """All services from here on; none is left at the end."""
        try:
            waiting = dict(self.services)
            while waiting:
                begun = [
                    each for each in waiting.values() if not waiting.keys() & each.said.get("depends_on", {}).keys()
                ]
                for each in begun:
                    del waiting[each.name]
                    each.start()
                until(
                    f"healthy: {', '.join(each.name for each in begun)}",
                    lambda begun=begun: all(each.healthy() for each in begun),
                )
            yield
        finally:
            for each in self.services.values():
                each.kill()

    def formed(self, names: set[str]) -> bool:
        """Whether every node says that these are the members, and that between them they hold all shards."""
        for node in self.nodes:
            if node.name in names:
                found = call(node, self.key, "GET", "/v1/nodes")["nodes"]
                held = [each["shards"] if isinstance(each["shards"], int) else len(each["shards"]) for each in found]
                if {each["id"] for each in found} != names or sum(held) != self.shards or not all(held):
                    return False
        return True

    @property
    def shards(self) -> int:
        """How many there are."""
        return len(call(self.nodes[-1], self.key, "GET", "/v1/shards")["shards"])

    def arm(self, at: list[Service], delay_s: float) -> set[str]:
        """Arm some timers at each of these nodes."""
        ids = set()
        for node in at:
            timers = [
                {"id": f"t{self._armed + n}", "type": "rehearsed", "delay": delay_s, "payload": "x" * 600}
                for n in range(TIMERS)
            ]
            self._armed += TIMERS
            call(node, self.key, "POST", "/v1/timers", {"timers": timers})
            ids |= {timer["id"] for timer in timers}
        return ids

    def arrived(self, what: str, ids: set[str], *, once: bool) -> None:
        """All of them have to come; if `once`, none of them twice."""
        until(f"{len(ids)} timers arrive {what}", lambda: ids <= self.processor.came.keys())
        twice = [id for id in ids if self.processor.came[id] > 1]
        if once and twice:
            raise SystemExit(f"{len(twice)} timers came twice")

    def go(self) -> None:
        """All of it."""
        first, second, third = self.nodes
        names = {node.name for node in self.nodes}
        until("three nodes share all shards", lambda: self.formed(names))
        call(first, self.key, "PUT", "/v1/types/rehearsed", {"url": self.processor.url, "max_lag": 0})
        self.arrived("that were armed at each node", self.arm(self.nodes, 0), once=True)

        ids = self.arm(self.nodes, 4)
        code, took = first.stop()
        print(f"{took:5.1f} s  {first.name} stops, exit code {code}")
        if code != 0:
            raise SystemExit(first.tail())
        until("two nodes share all shards", lambda: self.formed(names - {first.name}))
        self.arrived("after a clean stop", ids, once=True)
        first.start()
        until(f"{first.name} is back", lambda: first.healthy() and self.formed(names))

        ids = self.arm(self.nodes, 4)
        second.kill()
        until(f"{second.name} was killed, and two nodes share all shards", lambda: self.formed(names - {second.name}))
        self.arrived("after a kill", ids, once=False)
        second.start()
        until(f"{second.name} is back", lambda: second.healthy() and self.formed(names))

        ids = self.arm(self.nodes, 4)
        server = self.servers[0]
        code, took = server.stop()
        print(f"{took:5.1f} s  {server.name} stops, exit code {code}")
        self.arrived("with two NATS servers", ids | self.arm(self.nodes, 0), once=True)
        server.start()
        until(f"{server.name} is back", server.healthy)
        self.arrived("with three of them again", self.arm(self.nodes, 0), once=True)
        for each in (first, second, third, *self.servers):
            code, took = each.stop()
            print(f"{took:5.1f} s  {each.name} stops, exit code {code}")
            if code != 0 and each in self.nodes:
                raise SystemExit(each.tail())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="work there, and leave logs and data for another look")
    keep = parser.parse_args().keep
    home = keep or Path(tempfile.mkdtemp(prefix="timerd-compose-"))
    try:
        rehearsal = Rehearsal(home)
        with rehearsal.running():
            rehearsal.go()
    finally:
        if keep is None:
            shutil.rmtree(home, ignore_errors=True)
    print("what the compose file describes works")
    return 0


if __name__ == "__main__":
    sys.exit(main())

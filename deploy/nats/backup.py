"""Copy all streams of a timerd cluster to a directory, and put them back: through JetStream's own snapshots.

    export TIMERD_CLUSTER=nats://timerd:...@nats1:4222
    python deploy/nats/backup.py backup DIR [--prefix timerd] [--quiet 3]
    python deploy/nats/backup.py restore DIR [--prefix timerd] [--stream NAME]

Stop every timerd first: a shard's log and its bodies are two streams, and only fit together when nobody writes. It
looks, and refuses otherwise. A restore wants servers on which no stream of that prefix is left, but for those that a
restore of the same backup has put back before it broke off: it goes on behind them. With --stream it puts one back that
was lost, beside those that are there. Each stream is a directory with `backup.json` (settings and state) and
`stream.tar.s2` (the snapshot). The members' bucket is left out: it says who is there, and nobody is. Needs nats-py,
which timerd's environment has, and the image (/opt/timerd/backup.py).
"""

import argparse
import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Final

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

CHUNK_BYTES: Final = 128 << 10
WAIT_S: Final = 30
QUIET_S: Final = 3.0  # a node writes to the members' bucket every second


class Refused(Exception):
    """Why it is not done."""


async def api(client: Client, subject: str, body: Any = None) -> dict[str, Any]:
    """One question to JetStream. Raises Refused."""
    data = b"" if body is None else json.dumps(body).encode()
    answer: dict[str, Any] = json.loads((await client.request(f"$JS.API.{subject}", data, timeout=WAIT_S)).data)
    if "error" in answer:
        raise Refused(f"{subject}: {answer['error']['description']}")
    return answer


async def streams(client: Client, prefix: str) -> list[str]:
    """All streams that timerd has made under this prefix."""
    found: list[str] = []
    while True:
        answer = await api(client, "STREAM.NAMES", {"offset": len(found)})
        found += answer["streams"] or ()
        if len(found) >= answer["total"] or not answer["streams"]:
            break
    # To the end: another cluster may have this prefix and more, as `timerd-blue` has `timerd`.
    ours = re.compile(rf"{re.escape(prefix)}-(log|bodies)-\d+|KV_{re.escape(prefix)}-(catalog|members)")
    return sorted(name for name in found if ours.fullmatch(name))


async def ends(client: Client, names: list[str]) -> dict[str, int]:
    """The last sequence of each."""
    return {name: (await api(client, f"STREAM.INFO.{name}"))["state"]["last_seq"] for name in names}


async def backup(client: Client, prefix: str, directory: Path, quiet_s: float) -> None:
    """All of it. Raises Refused."""
    if directory.exists():  # noqa: ASYNC240 - nobody waits for this loop
        raise Refused(f"{directory} is there already: each backup takes a directory of its own, which it makes")
    names = await streams(client, prefix)
    if not names:
        raise Refused(f"no streams of {prefix} here")
    if f"KV_{prefix}-catalog" not in names:
        raise Refused(f"the catalogue (KV_{prefix}-catalog) is missing, and no timerd starts without it")
    before = await ends(client, names)
    await asyncio.sleep(quiet_s)
    if (now := await ends(client, names)) != before:
        changed = ", ".join(name for name in names if now[name] != before[name])
        raise Refused(f"somebody writes to {changed}: stop every timerd first")
    directory.mkdir(parents=True)  # noqa: ASYNC240 - nobody waits for this loop
    for name in names:
        if not name.endswith("-members"):
            print(f"{name}: {await save(client, name, directory / name):,} bytes", flush=True)
    if await ends(client, names) != before:
        raise Refused("a timerd was started meanwhile: this backup is none")


async def save(client: Client, name: str, directory: Path) -> int:
    """One stream; how many bytes its snapshot has."""
    directory.mkdir()  # noqa: ASYNC240
    inbox = client.new_inbox()
    chunks: asyncio.Queue[Msg] = asyncio.Queue()
    subscription = await client.subscribe(inbox, cb=chunks.put)
    request = {"deliver_subject": inbox, "no_consumers": True, "chunk_size": CHUNK_BYTES}
    told = await api(client, f"STREAM.SNAPSHOT.{name}", request)
    size = 0
    with (directory / "stream.tar.s2").open("wb") as file:
        while chunk := await asyncio.wait_for(chunks.get(), WAIT_S):
            if status := (chunk.headers or {}).get("Status"):
                if status != "204":
                    raise Refused(f"{name}: {status} {(chunk.headers or {}).get('Description')}")
                break
            if not chunk.data:
                break
            file.write(chunk.data)
            size += len(chunk.data)
            if chunk.reply:
                await client.publish(chunk.reply, b"")  # the server sends so much ahead, and no more
        file.flush()
        os.fsync(file.fileno())
    await subscription.unsubscribe()
    (directory / "backup.json").write_text(json.dumps({"config": told["config"], "state": told["state"]}))
    return size


async def restore(client: Client, prefix: str, directory: Path, only: str | None) -> None:
    """All of it, or what is left of it, or one stream. Raises Refused."""
    paths = {path.name: path for path in directory.iterdir()}  # noqa: ASYNC240
    if not paths:
        raise Refused(f"{directory} is empty")
    if broken := sorted(name for name, path in paths.items() if not (path / "backup.json").is_file()):
        raise Refused(f"{directory} is no whole backup: {broken[0]} has no backup.json, which is written last")
    there = await streams(client, prefix)
    if only is not None:
        if only not in paths or only in there:
            raise Refused(f"{only} is not in {directory}" if only not in paths else f"{only} is there already")
        await load(client, paths[only])
        print(f"{only}: restored", flush=True)
        return
    for name in there:
        if name not in paths or name.startswith("KV_") or not await is_as_saved(client, paths[name]):
            raise Refused(
                f"{len(there)} streams of {prefix} are there already, and {name} is not what a restore of this backup "
                "has left that broke off: remove them all (nats stream rm; where nats is from is in "
                "docs/cluster.md), or restore to other servers"
            )
        print(f"{name}: is there already", flush=True)
    # The catalogue comes last: while streams are there without it, no timerd starts.
    for name in sorted(paths.keys() - set(there), key=lambda name: (name.startswith("KV_"), name)):
        await load(client, paths[name])
        print(f"{name}: restored", flush=True)


async def is_as_saved(client: Client, directory: Path) -> bool:
    """Whether a stream holds what was saved of it, and nothing since. A stream is there once all of it has come."""
    saved = json.loads((directory / "backup.json").read_text())["state"]
    found = (await api(client, f"STREAM.INFO.{directory.name}"))["state"]
    return all(found.get(what) == saved.get(what) for what in ("messages", "bytes", "first_seq", "last_seq"))


async def load(client: Client, directory: Path) -> None:
    """One stream."""
    told = await api(client, f"STREAM.RESTORE.{directory.name}", json.loads((directory / "backup.json").read_text()))
    with (directory / "stream.tar.s2").open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            await client.request(told["deliver_subject"], data, timeout=WAIT_S)
    end = json.loads((await client.request(told["deliver_subject"], b"", timeout=WAIT_S)).data)
    if "error" in end:
        raise Refused(f"{directory.name}: {end['error']['description']}")


async def run(given: argparse.Namespace, servers: str) -> None:
    """Connect, do it, and go."""
    client = await nats.connect(servers.replace(",", " ").split())
    try:
        if given.command == "backup":
            await backup(client, given.prefix, given.directory, given.quiet)
        else:
            await restore(client, given.prefix, given.directory, given.stream)
    finally:
        await client.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["backup", "restore"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--prefix", default="timerd")
    parser.add_argument("--quiet", type=float, default=QUIET_S, help="seconds in which nobody may have written")
    parser.add_argument("--stream", help="of a restore: this one alone")
    given = parser.parse_args()
    try:
        asyncio.run(run(given, os.environ["TIMERD_CLUSTER"]))
    except KeyError:
        print("TIMERD_CLUSTER has to name the servers", file=sys.stderr)
        return 2
    except (Refused, OSError, nats.errors.Error) as error:
        print(f"{given.command}: {error or type(error).__name__}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

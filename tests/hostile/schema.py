"""The served contract against its server: schemathesis over every operation, with data that fits and that does not.

Strict: the contract has `default` for what is no operation or a fault of ours; it is taken out here, so that a status
which an operation does not name is a failure. The server holds timers in every state, types and dead letters, and the
ids and names asked for are often those (see hooks.py).
"""

import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor

HOOKS = "tests.hostile.hooks"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "missing_required_header",
)
FAR = 2_050_000_000_000
KEY = {"TIMERD_API_KEY": "only-for-this-run"}  # without a key the calls about keys are refused
BEARER = f"Bearer {KEY['TIMERD_API_KEY']}"


class Result(NamedTuple):
    """What a run came to."""

    operations: int
    accepted: set[str]
    """The operations that have answered 2xx at least once."""
    cases: int
    statuses: Counter[int]
    failures: list[str]
    output: str
    """What schemathesis printed; it names the seed and how to say again what failed."""


def strict(document: dict[str, Any]) -> dict[str, Any]:
    """The contract without its `default` answers, and without what is no operation of the server."""
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("default", None)
    del document["webhooks"]
    return document


async def seed(timerd: Process, url: str) -> None:
    """Types, timers of every state that stays, and dead letters; their names are those of hooks.py."""
    await timerd.put_type("poll", url=url, max_lag="1s")
    await timerd.put_type("mail", url=url, headers={"X-Tenant": "a"}, signing_secrets=["whsec_" + "A" * 32])
    await timerd.put_type("dead", url=url)
    await timerd.put_type("slow", url=url, state="paused")
    await timerd.put_type("again", url=url, retry={"min_backoff": "1h", "max_backoff": "2h"})
    timers: list[dict[str, Any]] = [
        {"id": f"{type}:{n}", "type": type, "fire_at": FAR + n, "payload": {"n": n, "text": "x" * 100 * n}}
        for type in ("poll", "mail")
        for n in range(10)
    ]
    await timerd.put_type("call", kind="callback")
    timers += [
        {"id": f"call:{n}", "type": "call", "fire_at": FAR + n, "request": {"url": "https://example.com/", "json": n}}
        for n in range(10)
    ]
    timers += [{"id": f"{type}:{n}", "type": type, "delay": 0} for type in ("dead", "slow", "again") for n in range(10)]
    await timerd.arm(timers)

    async def settled() -> bool:
        stats = (await timerd.request("GET", "/v1/stats"))[1]["types"]
        return bool(stats["dead"]["dead_letters"] == 10 and stats["again"]["retrying"] == 10)

    await timerd.until(settled)


def processor_answer(delivery: Delivery) -> Answer:
    """By type: dead letters, retries, and success for the rest."""
    if delivery.body.get("type") == "dead":
        return Answer(200, {"results": [{"id": id, "status": "dead", "error": "no"} for id in delivery.ids]})
    if delivery.body.get("type") == "again":
        return Answer(200, {"results": [{"id": id, "status": "retry", "error": "later"} for id in delivery.ids]})
    return Answer()


async def run(seed_number: int, examples: int, phases: str) -> Result:
    """One run against a server of its own: `examples` an operation, in each of the phases."""
    with tempfile.TemporaryDirectory(prefix="timerd-schema-") as folder:
        room = Path(folder)
        async with Processor(processor_answer) as processor, Process(room / "data", env=KEY) as timerd:
            timerd.session.headers["Authorization"] = BEARER
            await seed(timerd, processor.url)
            document = (await timerd.request("GET", "/openapi.json"))[1]
            (room / "openapi.json").write_bytes(msgspec.json.encode(strict(document)))
            arguments = [
                "run", "openapi.json", "--url", timerd.url, "--seed", str(seed_number), "--max-examples", str(examples),
                "--checks", ",".join(CHECKS), "--phases", phases, "--mode", "all", "--no-shrink",
                "--continue-on-failure", "--warnings", "off", "--report", "ndjson", "--report-ndjson-path", "events",
                "--generation-database", "none", "--header", f"Authorization: {BEARER}",
                "--suppress-health-check", "all", "--request-timeout", "20",
            ]  # fmt: skip
            schemathesis = await asyncio.create_subprocess_exec(
                str(Path(sys.executable).parent / "schemathesis"), *arguments, cwd=room,
                env={**os.environ, "SCHEMATHESIS_HOOKS": HOOKS, "PYTHONPATH": os.getcwd(), "NO_COLOR": "1"},
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            output, _ = await schemathesis.communicate()
            result = read(room / "events", output.decode(errors="replace"))
            if await timerd.stop() != 0:
                result.failures.append("the server ended by itself")
            result.failures.extend(line for line in timerd.log if "request_failed" in line)
            return result


def read(events: Path, output: str) -> Result:
    """The result from the report, one event a line."""
    operations: set[str] = set()
    accepted: set[str] = set()
    statuses: Counter[int] = Counter()
    failures: list[str] = []
    cases = 0
    for line in events.read_text().splitlines() if events.exists() else ():
        event = json.loads(line)
        recorder = event.get("ScenarioFinished", {}).get("recorder", {})
        label = recorder.get("label", "")
        for id, interaction in recorder.get("interactions", {}).items():
            cases += 1
            operations.add(label)
            status = (interaction["response"] or {"status_code": 0})["status_code"]
            statuses[status] += 1
            if 200 <= status < 300:
                accepted.add(label)
            checks = recorder["checks"].get(id, ())
            failed = [check["name"] for check in checks if check["status"] == "failure"]
            failures.extend(f"{label}: {name} (case {id}, status {status})" for name in failed)
    if not cases:
        failures.append(f"no report: {output[-2000:]}")
    return Result(len(operations), accepted, cases, statuses, failures, output)

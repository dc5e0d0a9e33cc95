"""Nothing is lost quietly: for every type, from /metrics alone and at any moment,

    armed + revived = fired + cancelled + replaced + dead + dropped + live

through random work of every kind on the real process, a kill and a clean restart in between.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cases import millis, seeded, sized
from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor

TYPES = ("plain", "fussy", "far")
IDS = 400
ROUNDS = sized(400, 60)
IN = ("armed", "revived")
OUT = ("fired", "cancelled", "replaced", "dead", "dropped")
MODES = ("replace", "earliest", "latest", "keep")
MIN_OF_EACH = 5
"""How often each verb and each kind of answer must have come about, else the run proves little."""

Totals = dict[str, Counter[str]]


async def scrape(timerd: Process) -> Totals:
    """Type -> metric -> value, `dropped` summed over its reasons."""
    status, text = await timerd.request("GET", "/metrics")
    assert status == 200
    totals: Totals = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "type" in sample.labels and "quantile" not in sample.labels:
                name = sample.name.removeprefix("timerd_").removesuffix("_total")
                totals.setdefault(sample.labels["type"], Counter())[name] += int(sample.value)
    return totals


def check(totals: Totals) -> None:
    """The equation, type by type, and what else must hold among the numbers of one scrape."""
    for type, counts in totals.items():
        came, went = sum(counts[name] for name in IN), sum(counts[name] for name in OUT)
        assert came == went + counts["live"], f"{type}: {dict(counts)}"
        assert counts["dead"] == counts["revived"] + counts["purged"] + counts["dead_letters"], (
            f"{type}: {dict(counts)}"
        )
        assert 0 <= counts["in_flight"] + counts["retrying"] <= counts["live"], f"{type}: {dict(counts)}"


class Work:
    """Random calls, and random answers to the deliveries they lead to."""

    def __init__(self, timerd: Process, rng: Random) -> None:
        self.timerd = timerd
        self.rng = rng
        self.did: Counter[str] = Counter()
        self.gentle = False

    async def answer(self, delivery: Delivery) -> Answer:
        await asyncio.sleep(self.rng.random() * 0.2)  # so that something is in flight at any moment
        if self.gentle:
            return Answer()
        kind = self.rng.choices(
            ("items", "failures", "nothing", "500", "503", "redirect", "not json", "no retry", "drop"),
            (12, 3, 4, 2, 1, 1, 1, 1, 1),
        )[0]
        self.did[f"answered {kind}"] += 1
        ids = delivery.ids
        match kind:
            case "items":
                return Answer(body={"results": [self._item(id) for id in ids if self.rng.random() < 0.8]})
            case "failures":
                some = self.rng.sample(ids, len(ids) // 3)
                return Answer(body={"batchItemFailures": [{"itemIdentifier": id} for id in some]})
            case "500":
                return Answer(500)
            case "503":
                return Answer(503, headers={"Retry-After": "1"})
            case "redirect":
                return Answer(302, headers={"Location": "/ok"})
            case "not json":
                return Answer(headers={"Content-Type": "application/json"}, text="{")
            case "no retry":
                return Answer(422, headers={"Timerd-No-Retry": "true"})
            case "drop":
                return Answer(drop=True)
            case _:
                return Answer()

    def _item(self, id: str) -> dict[str, Any]:
        status = self.rng.choice(("ok", "ok", "retry", "drop", "dead", "rearm", "rearm", "nonsense", "stranger"))
        self.did[f"item {status}"] += 1
        match status:
            case "rearm":
                return {"id": id, "status": status, "delay": self.rng.uniform(0, 5), "payload": self._payload()}
            case "nonsense":
                return {"id": id, "status": "rearm", "delay": -1}
            case "stranger":
                return {"id": "nobody", "status": "dead"}
            case _:
                return {"id": id, "status": status, "error": "as the dice fell"}

    async def some(self) -> None:
        """One random call."""
        verbs: list[Callable[[], Awaitable[None]]] = [
            self._arm, self._arm, self._arm, self._arm, self._cancel, self._delete, self._fire, self._fire,
            self._replay, self._purge, self._pause,
        ]  # fmt: skip
        await self.rng.choice(verbs)()

    async def _call(self, method: str, path: str, body: Any = None, fine: tuple[int, ...] = (200, 201)) -> Any:
        status, answer = await self.timerd.request(method, path, body)
        assert status in fine, (method, path, status, answer)
        return answer

    async def _arm(self) -> None:
        timers = [self._timer() for _ in range(self.rng.choice((1, 5, 40)))]
        for result in (await self._call("POST", "/v1/timers", {"timers": timers}))["results"]:
            self.did[f"arm {result['status']}"] += 1

    def _timer(self) -> dict[str, Any]:
        type = self.rng.choice(TYPES)
        timer: dict[str, Any] = {"id": self._id(), "type": type, "mode": self.rng.choice(MODES)}
        if type == "far":
            timer["fire_at"] = millis(time.time() // 60 * 60) + self.rng.randrange(1, 4) * 3_600_000
        else:
            timer["delay"] = self.rng.choice((0, 0.1, 0.5, 2, 30))
        if (payload := self._payload()) is not None:
            timer["payload"] = payload
        if self.rng.random() < 0.1:
            timer["if_generation"] = self.rng.choice((0, 1))
        return timer

    def _payload(self) -> Any:
        return self.rng.choice((None, "p", "p" * 600))

    def _id(self) -> str:
        return f"id-{self.rng.randrange(IDS)}"

    async def _cancel(self) -> None:
        answer = await self._call("POST", "/v1/timers:cancel", {"ids": [self._id() for _ in range(5)]})
        self.did["cancelled"] += answer["cancelled"]
        self.did["cancelled in flight"] += sum(result["in_flight"] for result in answer["results"])

    async def _delete(self) -> None:
        answer = await self._call("DELETE", f"/v1/timers/{self._id()}", fine=(200, 404))
        self.did["deleted"] += "generation" in answer

    async def _fire(self) -> None:
        answer = await self._call("POST", f"/v1/timers/{self._id()}:fire", fine=(200, 404, 409))
        self.did[f"fire {answer['status']}"] += 1

    async def _replay(self) -> None:
        some = {"type": "fussy"} if self.rng.random() < 0.3 else {"ids": await self._dead_ids()}
        self.did["replayed"] += (await self._call("POST", "/v1/dead-letters:replay", some))["replayed"]

    async def _purge(self) -> None:
        some = {"type": "fussy"} if self.rng.random() < 0.05 else {"ids": (await self._dead_ids())[:3]}
        self.did["purged"] += (await self._call("POST", "/v1/dead-letters:purge", some))["purged"]

    async def _dead_ids(self) -> list[str]:
        answer = await self._call("GET", "/v1/dead-letters?page_size=20")
        return [letter["id"] for letter in answer["dead_letters"]] or ["nobody"]

    async def _pause(self) -> None:
        await self._call("POST", "/v1/types/plain:pause")
        await self._call("POST", "/v1/types/plain:resume")


@pytest.mark.slow
async def test_the_counters_balance_at_any_moment(tmp_path: Path) -> None:
    rng = seeded()
    timerd = Process(tmp_path / "data", "--segment-bytes", "65536")
    work = Work(timerd, rng)
    in_flight_seen = 0
    last: Totals = {}

    async def look(*, survived: bool = False) -> None:
        """Scrape and check. `survived`: a start lies before this; no total may have gone back."""
        nonlocal in_flight_seen, last
        totals = await scrape(timerd)
        check(totals)
        for type, counts in totals.items():
            in_flight_seen += counts["in_flight"] > 0
            for name in (*IN, *OUT, "purged"):
                assert counts[name] >= last.get(type, Counter())[name], (
                    f"{type}: {name} went back{survived * ' in a start'}"
                )
        last = totals

    async def rounds(count: int) -> None:
        for _ in range(count):
            await asyncio.gather(look(), *(work.some() for _ in range(8)), look())

    async with Processor(work.answer) as processor, timerd:
        retry = {"min_backoff": "50ms", "max_backoff": "200ms"}
        await timerd.put_type("plain", url=processor.url, max_lag="50ms", batch_size=20, retry=retry)
        await timerd.put_type("fussy", url=processor.url, batch_size=5, retry={**retry, "max_attempts": 2})
        await timerd.put_type("far", url=processor.url)
        await rounds(ROUNDS)
        timerd.kill()
        await timerd.start()
        await look(survived=True)
        await rounds(ROUNDS)
        assert await timerd.stop() == 0
        await timerd.start()
        await look(survived=True)
        await rounds(ROUNDS)

        # Everything becomes due and is answered: then what is live is 0, and the same equation says where all went.
        work.gentle = True
        for timer in await timerd.list():
            if timer["state"] != "dead":
                await timerd.arm([{"id": timer["id"], "type": timer["type"], "delay": 0}])

        async def all_done() -> bool:
            await look()
            return all(counts["live"] == 0 for counts in last.values())

        await timerd.until(all_done, 60)
        for type in TYPES:
            stats = await timerd.stats(type)
            stats["dropped"] = sum(stats["dropped"].values())
            for name in (*IN, *OUT, "purged", "superseded", "retried", "live", "in_flight", "batches"):
                assert stats[name] == last[type][name], (type, name)
        print({type: {name: counts[name] for name in (*IN, *OUT, "purged")} for type, counts in last.items()})
        print(dict(sorted(work.did.items())))
        print(f"{in_flight_seen} scrapes of a type with timers in flight")
        assert in_flight_seen >= MIN_OF_EACH
        rare = {"arm conflict", "arm kept", "arm unchanged", "arm moved", "cancelled", "replayed", "purged"}
        assert (
            min(work.did[name] for name in {*rare, *work.did} - {"cancelled in flight", "fire unchanged", "fire 409"})
            > 0
        )
        total: Counter[str] = sum(last.values(), Counter())
        assert min(total[name] for name in (*IN, *OUT, "purged", "superseded")) >= MIN_OF_EACH
        assert not timerd.complaints()

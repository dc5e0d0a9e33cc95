"""Probes, status, counts and metrics."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.api.fake_service import FakeService
from timerd.engine.message import Refused
from timerd.engine.timer import TimerType
from timerd.report import HostsReport, TargetReport, TypeReport
from timerd_api.operations import type_stats
from timerd_api.stats_schema import HostItem, TargetItem


async def test_probes(client: httpx.AsyncClient, service: FakeService) -> None:
    assert (await client.get("/healthz?from=monitor")).json() == {"status": "ok"}
    ready = await client.get("/readyz?x")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    service.reason = "recovering"
    unready = await client.get("/readyz")
    assert (unready.status_code, unready.json()) == (503, {"status": "unready", "reason": "recovering"})
    assert (await client.get("/healthz")).status_code == 200


async def test_status_and_shards(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/status")).json() == {
        "version": "0.1.0", "durability": "fsync", "replicas": 1, "sync": "always",
        "now": "2026-11-30T08:00:00.000Z", "uptime_s": 12.5, "node": "here",
        "timers": {"armed": 3, "due": 0, "in_flight": 1, "retrying": 1, "dead": 0},
        "oldest_due_at": "2026-11-30T08:00:00.000Z", "log_live_bytes": 1_000, "log_disk_bytes": 4_096,
        "ring_version": 1,
    }  # fmt: skip
    assert (await client.get("/v1/shards")).json() == {
        "shards": [{"id": 0, "owner": "here", "epoch": 1, "timers": 3, "capacity": 100_000, "utilisation": 0.00003,
                    "in_flight": 1, "slots": 16_384, "moving_in": 0, "moving_out": 12}]
    }  # fmt: skip


async def test_shards_are_scaled(client: httpx.AsyncClient, service: FakeService) -> None:
    done = await client.post("/v1/shards:scale", json={"shards": 16})
    assert (done.status_code, done.json()) == (200, {"shards": 16, "ring_version": 2, "moving": True})
    for body in ({"shards": 0}, {"shards": 1_025}, {"shards": "4"}, {}, {"shards": 4, "more": 1}):
        assert (await client.post("/v1/shards:scale", json=body)).status_code == 422
    service.refusal = Refused("shards-moving", "under way", (), 5)
    refused = await client.post("/v1/shards:scale", json={"shards": 4})
    assert (refused.status_code, refused.headers["retry-after"]) == (409, "5")
    assert [asked for asked in service.asked if asked[0] == "scale"] == [("scale", 16, None), ("scale", 4, None)]


async def test_stats(client: httpx.AsyncClient, service: FakeService) -> None:
    service.types["idle"] = TimerType("idle")
    types = (await client.get("/v1/stats")).json()["types"]
    assert list(types) == ["idle", "poll"]
    assert types["poll"]["mean_batch_size"] == 3.5
    assert types["poll"]["lag"] == {"p50_ms": 1.5, "p99_ms": 20.0, "max_ms": 40.0}
    assert types["poll"]["dropped"] == {"misfire": 1}
    assert types["idle"]["armed"] == 0
    assert types["idle"]["lag"] == {"p50_ms": None, "p99_ms": None, "max_ms": None}
    named = set(TypeReport.__struct_fields__) - {"batch_timers"} | {"mean_batch_size"}
    assert set(types["poll"]) == named, "every count of a report is shown"


def test_how_targets_are_is_shown() -> None:
    held = TargetReport("closed", 2, 4, 1_796_025_600_000, None, "HTTP 429", 1_796_025_500_000, "https://a:443")
    of_processor = type_stats(TypeReport(target=TargetReport("probing", 1, 16)))
    assert of_processor.target == TargetItem(None, "probing", 1, 16, None, None, "")
    assert of_processor.hosts is None
    report = TypeReport(hosts=HostsReport(3, 0, 1, 1, [held]))
    shown = type_stats(report).hosts
    assert shown is not None
    until = "2026-11-30T08:00:00.000Z"
    since = "2026-11-30T07:58:20.000Z"
    assert shown.troubled == [HostItem(since, "closed", 2, 4, until, None, "HTTP 429", host="https://a:443")]
    assert (report.slowed, report.held) == (1, 1)


async def test_metrics_balance_by_themselves(client: httpx.AsyncClient, service: FakeService) -> None:
    service.types["idle"] = TimerType("idle")
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }

    def total(name: str, type: str) -> float:
        return sum(v for (n, *labels), v in samples.items() if n == f"timerd_{name}" and ("type", type) in labels)

    for type, armed in (("poll", 9), ("idle", 0)):
        assert samples["timerd_armed_total", ("type", type)] == armed
        came = total("armed_total", type) + total("revived_total", type)
        went = sum(total(f"{n}_total", type) for n in ("fired", "cancelled", "replaced", "dead", "dropped"))
        assert came == went + total("live", type)
    assert samples["timerd_dropped_total", ("reason", "misfire"), ("type", "poll")] == 1
    assert samples["timerd_shard_timers", ("shard", "0")] == 3
    assert samples["timerd_lag_seconds", ("quantile", "0.99"), ("type", "poll")] == 0.02
    assert samples[("timerd_turns_total",)] == 12
    assert samples[("timerd_log_live_bytes",)] == 1_000
    assert samples[("timerd_log_disk_bytes",)] == 4_096
    assert samples[("timerd_bodies_accepted_bytes_total",)] == 900
    assert samples[("timerd_bodies_copied_bytes_total",)] == 450
    assert samples[("timerd_oldest_due_timestamp_seconds",)] == 1_796_025_600
    assert samples[("process_resident_memory_bytes",)] > 0
    assert all(name.startswith(("timerd_", "process_")) for name, *_ in samples)
    assert (await client.get("/metrics")).status_code == 200  # nothing is registered twice


async def test_unknown_parameters(client: httpx.AsyncClient) -> None:
    for path in ("/v1/status", "/v1/shards", "/v1/stats", "/v1/types", "/v1/types/poll"):
        response = await client.get(f"{path}?verbose=1")
        assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "verbose")

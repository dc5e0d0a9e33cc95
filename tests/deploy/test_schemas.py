"""What deploy/ holds is what Kubernetes, the Prometheus operator and compose take, by the schemas that they publish:
check-jsonschema carries the one of compose, kubernetes-validate those of Kubernetes. The operator's are in no package
that could be pinned, so the few fields in use are described here.

Fields that a schema does not know are refused: a misspelt one would be ignored, and nobody would be told.
"""

import json
from importlib.resources import files
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from jsonschema.validators import validator_for

from tests.deploy.manifests import KUBERNETES, compose, kubernetes

VERSIONS = ("1.30", "1.37")  # the oldest that the manifests are meant for, and the newest whose schemas are published
OBJECTS = kubernetes() + kubernetes("secrets.example.yaml", "backup.yaml")


def check(schema: Any, found: Any) -> None:
    validator_for(schema)(schema).validate(found)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_every_object(version: str) -> None:
    assert len(OBJECTS) == 14
    for each in OBJECTS:
        kubernetes_validate.validate(each, version, strict=True)


def test_a_misspelt_field_would_be_found() -> None:
    (found,) = [each for each in kubernetes("timerd.yaml") if each["kind"] == "StatefulSet"]
    found["spec"]["template"]["spec"]["terminationGracePeriod"] = 60
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(found, VERSIONS[1], strict=True)


# The part of monitoring.coreos.com/v1 that servicemonitor.yaml uses, by https://prometheus-operator.dev/docs/api-reference/api/
DURATION = {"type": "string", "pattern": "^([0-9]+(ms|[smhdwy]))+$"}
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}


def fields(required: str, **properties: Any) -> Any:
    """An object with these fields and no others."""
    return {"type": "object", "required": required.split(), "properties": properties, "additionalProperties": False}


CREDENTIALS = fields("key", name={"type": "string"}, key={"type": "string"}, optional={"type": "boolean"})
ENDPOINT = fields(
    "",
    port={"type": "string"},
    path={"type": "string"},
    scheme={"enum": ["http", "https"]},
    interval=DURATION,
    scrapeTimeout=DURATION,
    authorization=fields("", type={"type": "string"}, credentials=CREDENTIALS),
)
SERVICE_MONITOR = fields(
    "apiVersion kind metadata spec",
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "ServiceMonitor"},
    metadata=fields("name", name={"type": "string"}, labels=LABELS),
    spec=fields(
        "selector endpoints",
        selector=fields("", matchLabels=LABELS),
        endpoints={"type": "array", "minItems": 1, "items": ENDPOINT},
    ),
)


def test_the_prometheus_operator_takes_the_service_monitor() -> None:
    (found,) = kubernetes("servicemonitor.yaml")
    check(SERVICE_MONITOR, found)
    found["spec"]["endpoints"][0]["intervall"] = "15s"
    with pytest.raises(jsonschema.ValidationError, match="intervall"):
        check(SERVICE_MONITOR, found)


def test_compose_takes_the_compose_file() -> None:
    schema = json.loads((files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())
    found = compose()
    check(schema, found)
    found["services"]["timerd1"]["stop_grace"] = "50s"
    with pytest.raises(jsonschema.ValidationError, match="stop_grace"):
        check(schema, found)


def test_every_manifest_is_in_the_kustomization_or_said_to_come_beside_it() -> None:
    named = (KUBERNETES / "kustomization.yaml").read_text()
    for path in KUBERNETES.glob("*.yaml"):
        assert path.name == "kustomization.yaml" or path.name in named, path

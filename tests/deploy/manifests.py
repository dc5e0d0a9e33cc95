"""What deploy/ holds, as data: the compose file with its variables filled in, and all Kubernetes objects."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
GIVEN = {
    "TIMERD_PASSWORD": "a1b2",
    "SYS_PASSWORD": "c3d4",
    "TIMERD_API_KEY": "bootstrap",
    "TIMERD_CLUSTER_SECRET": "5ec1e7" * 8,
}
"""What whoever starts it sets."""

Data = dict[str, Any]


def filled(text: str, values: dict[str, str]) -> str:
    """`text` with each ${NAME} and ${NAME:?why} replaced, as compose does it. KeyError: it is not given."""
    return re.sub(r"\$\{(\w+)(?::\?[^}]*)?\}", lambda found: values[found[1]], text)


def compose(values: dict[str, str] = GIVEN) -> Data:
    """The compose file, as it is once variables and anchors are resolved."""
    found: Data = yaml.safe_load(filled((DEPLOY / "compose.yaml").read_text(), values))
    return found


def kubernetes(*files: str) -> list[Data]:
    """All objects in these files; if none is named, those that the kustomization has and makes."""
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    names = files or kustomization["resources"]
    found = [each for name in names for each in yaml.safe_load_all((KUBERNETES / name).read_text())]
    return found if files else found + [_made(each) for each in kustomization["configMapGenerator"]]


def _made(generator: Data) -> Data:
    data = {name: (KUBERNETES / name).read_text() for name in generator["files"]}
    metadata = {"name": generator["name"], "labels": generator["options"]["labels"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def only(kind: str, name: str) -> Data:
    """The one object of that kind and name."""
    (found,) = [each for each in kubernetes() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pod(name: str) -> Data:
    """The pod that this StatefulSet makes."""
    found: Data = only("StatefulSet", name)["spec"]["template"]
    return found


def container(name: str) -> Data:
    """Its only container."""
    (found,) = pod(name)["spec"]["containers"]
    return dict(found)


def environment(name: str, values: dict[str, str] = GIVEN) -> dict[str, str]:
    """What its processes find in their environment: secrets as given, the pod's fields made up."""
    found: dict[str, str] = {}
    for each in container(name)["env"]:
        if "value" in each:
            found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda reference: found[reference[1]], each["value"])
        elif "secretKeyRef" in each["valueFrom"]:
            found[each["name"]] = values[each["valueFrom"]["secretKeyRef"]["key"]]
        else:
            assert each["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
            found[each["name"]] = f"{name}-0"
    return found


def seconds(text: str) -> int:
    """A duration as compose and NATS write it."""
    parts = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", text)
    assert parts is not None
    assert text, "no duration"
    return 60 * int(parts[1] or 0) + int(parts[2] or 0)


def size(text: str) -> int:
    """Bytes: `120Gi` as Kubernetes writes it, `100G` as NATS does."""
    number, unit = re.fullmatch(r"(\d+)(Gi|Mi|G|M)", text).groups()  # type: ignore[union-attr]
    return int(number) * {"Gi": 1 << 30, "Mi": 1 << 20, "G": 10**9, "M": 10**6}[unit]

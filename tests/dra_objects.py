"""Kubernetes objects of a small cluster of a made-up driver, as plain mappings."""

from typing import Any

Json = dict[str, Any]


def node(name: str, **fields: object) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": fields}


def resource_slice(node_name: str, *devices: Json, driver: str = "gpu.example") -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"slice-{driver}-{node_name}"},
        "spec": {
            "driver": driver,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def device(name: str, model: str = "A") -> Json:
    return {"name": name, "attributes": {"model": {"string": model}}}


def device_class(name: str = "gpu", driver: str = "gpu.example") -> Json:
    selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [selector]},
    }


def spec(count: int = 1, model: str = "", class_name: str = "gpu") -> Json:
    exactly: Json = {"deviceClassName": class_name, "count": count}
    if model:
        exactly["selectors"] = [
            {"cel": {"expression": f"device.attributes['gpu.example'].model == '{model}'"}}
        ]
    return {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}


def claim(name: str, **given: Any) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": spec(**given),
    }


def template(name: str, **given: Any) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": spec(**given)},
    }


def pod(name: str, *, claims: tuple[str, ...] = (), templates: tuple[str, ...] = (), **fields: Any) -> Json:
    entries = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    entries += [{"name": template, "resourceClaimTemplateName": template} for template in templates]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "main:1"}], "resourceClaims": entries, **fields},
    }


TWO_NODES = (
    node("n1"),
    node("n2"),
    device_class(),
    resource_slice("n1", device("a"), device("b", "B")),
    resource_slice("n2", device("a"), device("b", "B"), device("c", "B")),
)

"""The `scale` subresource of Deployments (autoscaling/v1), which `kubectl scale` writes."""

from typing import Any

from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import Resource
from tangram.testing.apiserver.answers import bad_patch, invalid_kind
from tangram.testing.apiserver.catalog import DEPLOYMENTS
from tangram.testing.apiserver.decoding import DecodeError, Decoder
from tangram.testing.apiserver.options import WriteOptions
from tangram.testing.apiserver.problems import invalid
from tangram.testing.apiserver.registry import Mutation, Registry
from tangram.testing.apiserver.store import Object

SCALABLE = frozenset({DEPLOYMENTS})
_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def view(obj: Object) -> Object:
    """The Scale of an object."""
    selector = (obj["spec"].get("selector") or {}).get("matchLabels") or {}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: obj["metadata"][key] for key in _METADATA},
        "spec": {"replicas": obj["spec"]["replicas"]},
        "status": {
            "replicas": obj["status"].get("replicas", 0),
            "selector": ",".join(f"{key}={value}" for key, value in sorted(selector.items())),
        },
    }


def change(
    registry: Registry, resource: Resource, key: ObjectKey, mutation: Mutation, options: WriteOptions
) -> Object:
    """A PUT or PATCH of the Scale; the Scale after it."""
    changed = mutation(view(registry.get(resource, key)))
    try:
        scale = Decoder().struct("Scale", changed)
    except DecodeError as error:
        raise bad_patch(str(error)) from error
    replicas = scale["spec"].get("replicas", 0)
    if replicas < 0:
        problem = invalid("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid_kind("Scale", key.name, [problem], group="autoscaling")
    version = scale["metadata"].get("resourceVersion")

    def mutate(old: Object) -> Any:
        metadata = {**old["metadata"], **({"resourceVersion": version} if version else {})}
        return {**old, "metadata": metadata, "spec": {**old["spec"], "replicas": replicas}}

    return view(registry.update(resource, key, mutate, options=options))

"""Claims for the embedded API server, as they are when the kubelet sees them."""

from benchlib.world import NODE, World
from tangram import DRIVER_NAME
from tangram.kube.resources import RESOURCE_CLAIMS
from tangram.kubeletplugin.driver import ClaimReference
from tangram.model.devices import pool_name


def allocated_claim(world: World, name: str, device: str) -> ClaimReference:
    """A claim with that device, reserved for a pod."""
    result = {
        "request": "gpu", "driver": DRIVER_NAME, "pool": pool_name(DRIVER_NAME, NODE), "device": device,
    }  # fmt: skip
    created = world.server.create(
        RESOURCE_CLAIMS,
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER_NAME}}]}},
            "status": {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": f"pod-{name}", "uid": f"pod-of-{name}"}],
            },
        },
    )
    return ClaimReference(namespace="default", name=name, uid=created["metadata"]["uid"])


def delete_claim(world: World, claim: ClaimReference) -> None:
    """As after the end of its pod."""
    world.server.delete(RESOURCE_CLAIMS, name=claim.name, namespace=claim.namespace)

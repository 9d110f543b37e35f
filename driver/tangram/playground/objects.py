"""Small questions about pods and claims, shared by the stand-ins."""

from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

Object = dict[str, Any]


def uid(obj: Mapping[str, Any]) -> str:
    """Of any stored object."""
    return str(obj["metadata"]["uid"])


class Place(TypedDict):
    """The keywords by which the server's methods take an object."""

    name: str
    namespace: str


def place(obj: Mapping[str, Any]) -> Place:
    """Where an object is."""
    return {"name": obj["metadata"]["name"], "namespace": obj["metadata"].get("namespace", "")}


def phase(pod: Mapping[str, Any]) -> str:
    """Of a pod."""
    return str((pod.get("status") or {}).get("phase", "Pending"))


def finished(pod: Mapping[str, Any]) -> bool:
    """Whether its containers have ended for good."""
    return phase(pod) in {"Succeeded", "Failed"}


def leaving(obj: Mapping[str, Any]) -> bool:
    """Whether its deletion has been asked for."""
    return "deletionTimestamp" in obj["metadata"]


def owned_by(obj: Mapping[str, Any], owner_uid: str) -> bool:
    """Whether an ownerReference names the owner."""
    return any(ref["uid"] == owner_uid for ref in obj["metadata"].get("ownerReferences") or ())


def owner_reference(owner: Mapping[str, Any]) -> Object:
    """The controlling reference to `owner`."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": uid(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def claim_names(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(entry of the pod, name of its claim; "" while it is not generated)."""
    generated = {
        entry["name"]: entry.get("resourceClaimName", "")
        for entry in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    for entry in (pod.get("spec") or {}).get("resourceClaims") or ():
        yield entry["name"], entry.get("resourceClaimName") or generated.get(entry["name"], "")


def results(claim: Mapping[str, Any]) -> list[Object]:
    """The devices a claim is allocated; empty while it is not."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())


def allocated(claim: Mapping[str, Any]) -> bool:
    """Whether the claim has an allocation."""
    return bool((claim.get("status") or {}).get("allocation"))


def attribute(device: Object, name: str) -> Any:
    """The value of one of our attributes; None where the device has none of that name."""
    given = (device.get("attributes") or {}).get(name) or {}
    return next(iter(given.values()), None)


def gpu_of(device: Object) -> str:
    """The UUID of the GPU that a published device is, or is a part of."""
    return str(attribute(device, "parentUUID" if attribute(device, "type") == "mig" else "uuid"))

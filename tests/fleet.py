"""Builders of nodes, classes, claims and pods for tests: short to write, real in form."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tangram import DRIVER_NAME
from tangram.allocation.structured import Cluster
from tangram.controller.inventory import Inventory, decode_slice
from tangram.model.devices import Allocator, Kind, pool_name
from tangram.model.gpu import Gpu, GpuUuid, Machine, NvLink
from tangram.model.kubernetes import DeviceClass
from tangram.model.offers import offers
from tangram.model.publishing import published
from tangram.node.pools import wire_device

GUARD = (
    f'device.driver == "{DRIVER_NAME}" && has(device.attributes["{DRIVER_NAME}"].allocator) && '
    f'device.attributes["{DRIVER_NAME}"].allocator == "scheduler" && '
    f'device.attributes["{DRIVER_NAME}"].type == "gpu"'
)

KIND_CLASSES: Mapping[Kind, str] = {
    "gpu": DRIVER_NAME,
    "mig": f"mig.{DRIVER_NAME}",
    "mps": f"mps.{DRIVER_NAME}",
    "timeslice": f"timeslice.{DRIVER_NAME}",
}

_WHOLE: tuple[Kind, ...] = ("gpu",)

# The hybrid cube mesh of a DGX-1V: GPU → {peer: links}.
CUBE_MESH: Mapping[int, Mapping[int, int]] = {
    0: {1: 1, 2: 1, 3: 2, 4: 2},
    1: {0: 1, 2: 2, 3: 1, 5: 2},
    2: {0: 1, 1: 2, 3: 2, 6: 1},
    3: {0: 2, 1: 1, 2: 2, 7: 1},
    4: {0: 2, 5: 1, 6: 1, 7: 2},
    5: {1: 2, 4: 1, 6: 2, 7: 1},
    6: {2: 1, 4: 1, 5: 2, 7: 2},
    7: {3: 1, 4: 2, 5: 1, 6: 2},
}


def machine(
    product: str = "NVIDIA A100-SXM4-80GB",
    *,
    count: int = 8,
    memory_gib: float = 80,
    switch_links: int = 0,
    mesh: Mapping[int, Mapping[int, int]] | None = None,
    seed: str = "",
) -> Machine:
    """A machine of equal GPUs; `switch_links` to a switch, or direct links by `mesh`."""

    def bus(index: int) -> str:
        return f"0000:{index + 1:02x}:00.0"

    gpus = []
    for index in range(count):
        if switch_links:
            links = (NvLink(to_switch=True),) * switch_links
        else:
            links = tuple(
                NvLink(peer_bus_id=bus(peer))
                for peer, n in (mesh or {}).get(index, {}).items()
                for _ in range(n)
            )
        gpus.append(
            Gpu(
                uuid=GpuUuid(f"GPU-{index:08x}-0000-0000-0000-{sum(seed.encode()):012x}"),
                index=index,
                minor=index,
                product_name=product,
                memory_bytes=int(memory_gib * 2**30),
                multiprocessors=108,
                pci_bus_id=bus(index),
                pcie_root=f"pci0000:{index:02x}",
                numa_node=index // 4,
                nvlinks=links,
            )
        )
    return Machine(gpus=tuple(gpus), driver_version="570.86.15", cuda_driver_version="12.8")


def slices(
    node: str,
    of: Machine,
    *,
    allocator: Allocator = "controller",
    generation: int = 1,
    unhealthy: Iterable[int] = (),
    kinds: Collection[Kind] = _WHOLE,
    dynamic: bool = False,
    replicas: int = 4,
) -> list[dict[str, Any]]:
    """One ResourceSlice per GPU; `unhealthy`: positions of GPUs. `dynamic`: MIG mode may be switched."""
    broken = frozenset(of.gpus[position].uuid for position in unhealthy)
    offered = offers(of, kinds=kinds, dynamic=dynamic)
    devices = published(offered, of, allocator=allocator, replicas=replicas, unhealthy=broken)
    by_gpu: dict[str, list[dict[str, Any]]] = {}
    for offer, device in zip(offered, devices, strict=True):
        by_gpu.setdefault(offer.gpu.uuid, []).append(wire_device(device))
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{index:05x}-{DRIVER_NAME}-{node}"},
            "spec": {
                "driver": DRIVER_NAME,
                "nodeName": node,
                "pool": {
                    "name": pool_name(DRIVER_NAME, node),
                    "generation": generation,
                    "resourceSliceCount": len(by_gpu),
                },
                "devices": own,
            },
        }
        for index, own in enumerate(by_gpu.values())
    ]


def node(name: str, of: Machine, *, unhealthy: Iterable[int] = (), classes: Iterable[Any] = ()) -> Cluster:
    """A node as the allocator sees it, with the guarded class unless others are given."""
    inventory = Inventory()
    given = list(classes) or [device_class()]
    decoded = [msgspec.json.decode(json.dumps(item), type=DeviceClass) for item in given]
    inventory.set_classes({item.metadata.name: item for item in decoded})
    for item in slices(name, of, unhealthy=unhealthy):
        inventory.update(item["metadata"]["name"], None, decode_slice(json.dumps(item).encode()))
    return inventory.nodes[name]


def device_class(name: str = DRIVER_NAME, *expressions: str, config: Sequence[Any] = ()) -> dict[str, Any]:
    """A guarded class by default."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {
            "selectors": [{"cel": {"expression": text}} for text in expressions or (GUARD,)],
            "config": list(config),
        },
    }


def kind_class(kind: Kind) -> dict[str, Any]:
    """The class of one kind of devices, as the chart has it."""
    return device_class(KIND_CLASSES[kind], GUARD.replace('type == "gpu"', f'type == "{kind}"'))


def parameters(**fields: Any) -> dict[str, Any]:
    """A config entry with GPUClaimParameters."""
    return {
        "opaque": {
            "driver": DRIVER_NAME,
            "parameters": {
                "apiVersion": f"{DRIVER_NAME}/v1alpha1",
                "kind": "GPUClaimParameters",
                **fields,
            },
        }
    }


def claim(
    name: str,
    *requests: Mapping[str, Any],
    count: int = 1,
    selectors: Sequence[str] = (),
    match: str = "",
    config: Sequence[Any] = (),
    owner: Mapping[str, Any] | None = None,
    namespace: str = "default",
    class_name: str = DRIVER_NAME,
) -> dict[str, Any]:
    """A ResourceClaim; without `requests` one request `gpu` of `count` devices."""
    given = list(requests) or [
        {
            "name": "gpu",
            "exactly": {
                "deviceClassName": class_name,
                "allocationMode": "ExactCount",
                "count": count,
                "selectors": [{"cel": {"expression": text}} for text in selectors],
            },
        }
    ]
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    if owner is not None:
        metadata["ownerReferences"] = [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "controller": True,
            }
        ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {
            "devices": {
                "requests": given,
                "constraints": [{"matchAttribute": match}] if match else [],
                "config": list(config),
            }
        },
    }


def pod(name: str, *claims: str, namespace: str = "default", **spec: Any) -> dict[str, Any]:
    """A pending pod that names these claims."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "containers": [{"name": "main", "image": "busybox"}],
            "resourceClaims": [
                {"name": f"claim-{index}", "resourceClaimName": claim_name}
                for index, claim_name in enumerate(claims)
            ],
            **spec,
        },
        "status": {"phase": "Pending"},
    }


def kube_node(name: str, *, cpu: str = "8", **spec: Any) -> dict[str, Any]:
    """A ready node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": "64Gi", "pods": "110"}},
    }

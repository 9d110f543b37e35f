"""Under which attributes, capacities and counters the devices of a node are published. Pure.

At most 32 attributes and capacities per device (`resource/v1/types.go`): the whole GPU and its shares have
30, MIG devices 29.
"""

from collections.abc import Mapping, Sequence

from tangram.model.devices import (
    STANDARD_DOMAIN,
    Allocator,
    AttributeValue,
    Kind,
    PublishedDevice,
    RequestPolicy,
    Version,
    gpu_devices,
)
from tangram.model.gpu import Gpu, GpuUuid, Machine
from tangram.model.mig import MigProfile
from tangram.model.offers import Offer
from tangram.model.quantity import format_bytes

MEBIBYTE = 2**20
SMALLEST_SHARE_BYTES = 256 * MEBIBYTE
"""A CUDA context alone needs about as much."""
FULL_CORES = 100
"""`cores` of a whole GPU: percent of its multiprocessors."""
Isolation = Mapping[Kind, str]
"""What is enforced by kind: `hardware`, `limit` or `none`."""
SHARED_KINDS: tuple[Kind, ...] = ("mps", "timeslice")
"""Of whose devices many claims have a share each."""
ISOLATION: Isolation = {"gpu": "hardware", "mig": "hardware", "mps": "none", "timeslice": "none"}

_OF_MIG = {
    *("productName", "gpuType", "architecture", "driverVersion", "cudaDriverVersion"),
    *("cudaComputeCapability", "ordinal", "migMode", "healthy", "allocator"),
    *(f"{STANDARD_DOMAIN}/{name}" for name in ("pcieRoot", "pciBusID", "numaNode")),
}
"""Attributes of the GPU that hold for its MIG devices as well."""
_ENGINES = {
    "copyEngines": ("copy-engines", "copy_engines"),
    "decoders": ("decoders", "decoders"),
    "encoders": ("encoders", "encoders"),
    "jpegEngines": ("jpeg-engines", "jpeg_engines"),
    "ofaEngines": ("ofa-engines", "ofa_engines"),
}
"""Capacity → counter, field of a profile."""


def published(
    offers: Sequence[Offer],
    machine: Machine,
    *,
    allocator: Allocator,
    replicas: int,
    unhealthy: frozenset[GpuUuid] = frozenset(),
    counters: bool = False,
    isolation: Isolation = ISOLATION,
) -> tuple[PublishedDevice, ...]:
    """The devices as they go into slices, in the order of `offers`.

    `replicas`: how many claims share a GPU by time-slicing, and the share that one gets which does not say.
    `counters`: with consumption of the GPU's counter set, for nodes that kube-scheduler allocates.
    """
    whole = {
        gpu.uuid: device
        for gpu, device in zip(
            machine.gpus, gpu_devices(machine, allocator=allocator, unhealthy=unhealthy), strict=True
        )
    }
    devices = []
    for offer in offers:
        base = whole[offer.gpu.uuid]
        attributes: dict[str, AttributeValue | Version]
        capacity, policies = dict(base.capacity), dict[str, RequestPolicy]()
        if offer.kind == "mig":
            attributes, capacity = _mig(offer, base)
        else:
            attributes = dict(base.attributes)
        if offer.kind in SHARED_KINDS:
            # As an attribute as well: servers before 1.36 drop the policies that follow from it.
            attributes["replicas"] = replicas
            capacity = _shared_capacity(offer.kind, base, replicas)
            policies = share_policies(offer.kind, capacity, replicas=replicas)
        devices.append(
            PublishedDevice(
                name=offer.name,
                attributes=attributes | {"type": offer.kind, "isolation": isolation[offer.kind]},
                capacity=capacity,
                policies=policies,
                shared=offer.kind in SHARED_KINDS,
                counter_set=base.name if counters else "",
                consumes=_consumed(offer) if counters else {},
            )
        )
    return tuple(devices)


def counter_set(gpu: Gpu) -> dict[str, int]:
    """All counters of a GPU: what the whole GPU, or a share of it, consumes.

    A GPU without MIG has one, so that its kinds exclude each other. Engines are counted as what the profile
    that takes most of them takes: the driver tells no totals.
    """
    if not gpu.mig_profiles:
        return {"gpu": 1}
    totals = {f"memory-slice-{slice_}": 1 for slice_ in range(gpu.memory_slices)}
    totals["compute-slices"] = gpu.compute_slices
    for counter, field in _ENGINES.values():
        totals[counter] = max(getattr(each, field) * each.max_instances for each in gpu.mig_profiles)
    return {name: value for name, value in totals.items() if value}


def _consumed(offer: Offer) -> dict[str, int]:
    if offer.kind != "mig" or not offer.gpu.mig_profiles:
        return counter_set(offer.gpu)
    profile, placement = offer.profile, offer.placement
    assert profile is not None  # of every MIG offer
    assert placement is not None
    consumed = {
        f"memory-slice-{slice_}": 1 for slice_ in range(placement.start, placement.start + placement.size)
    }
    consumed["compute-slices"] = profile.compute_slices
    consumed |= {counter: getattr(profile, field) for counter, field in _ENGINES.values()}
    known = counter_set(offer.gpu)
    return {name: value for name, value in consumed.items() if value and name in known}


def _mig(offer: Offer, base: PublishedDevice) -> tuple[dict[str, AttributeValue | Version], dict[str, int]]:
    profile, placement = offer.profile, offer.placement
    assert profile is not None  # of every MIG offer
    assert placement is not None
    attributes = {name: value for name, value in base.attributes.items() if name in _OF_MIG}
    instances = offer.instance.compute_instances if offer.instance else ()
    attributes |= {
        # An instance that is made when a claim needs it gets its UUID then.
        "uuid": instances[0].uuid if instances else "none",
        "parentUUID": offer.gpu.uuid,
        "profile": profile.name[:64],
        "placementStart": placement.start,
        "placementSize": placement.size,
        "computeSlices": profile.compute_slices,
        "maxInstances": profile.max_instances,
    }
    return attributes, _mig_capacity(profile)


def _mig_capacity(profile: MigProfile) -> dict[str, int]:
    capacity = {name: getattr(profile, field) for name, (_, field) in _ENGINES.items()}
    if profile.memory_bytes is not None:
        capacity["memory"] = profile.memory_bytes
    if profile.multiprocessors is not None:
        capacity["multiprocessors"] = profile.multiprocessors
    return capacity


def _shared_capacity(kind: Kind, base: PublishedDevice, replicas: int) -> dict[str, int]:
    capacity = {name: value for name, value in base.capacity.items() if not name.endswith("Slices")}
    return capacity | ({"cores": FULL_CORES} if kind == "mps" else {"replicas": replicas})


def share_policies(kind: Kind, capacity: Mapping[str, int], *, replicas: int) -> dict[str, RequestPolicy]:
    """What a claim may take of each capacity of a GPU shared by `mps` or `timeslice`, divided into so many
    `replicas`; `capacity` as published. One without a policy would go to the first claim as a whole; of
    multiprocessors, which all use in turns or by `cores`, nobody takes any.
    """
    policies: dict[str, RequestPolicy] = {}
    if "multiprocessors" in capacity:
        policies["multiprocessors"] = RequestPolicy(default=0, minimum=0, step=1, maximum=0)
    if (memory_bytes := capacity.get("memory", 0)) >= 2 * SMALLEST_SHARE_BYTES:
        policies["memory"] = RequestPolicy(
            default=default_share_bytes(memory_bytes, replicas=replicas),
            minimum=SMALLEST_SHARE_BYTES,
            step=MEBIBYTE,
            maximum=memory_bytes - memory_bytes % MEBIBYTE,
        )
    if kind == "mps":
        policies["cores"] = RequestPolicy(
            default=default_cores(replicas), minimum=1, step=1, maximum=FULL_CORES
        )
    else:
        policies["replicas"] = RequestPolicy(default=1, minimum=1, step=1, maximum=replicas)
    return policies


def as_quantity(capacity: str, amount: int) -> str:
    """An amount of a capacity as slices have it: bytes with a binary suffix, all else as plain numbers."""
    return format_bytes(amount) if capacity == "memory" else str(amount)


def default_share_bytes(memory_bytes: int, *, replicas: int) -> int:
    """The memory of a share whose claim does not say: an equal part, in whole MiB."""
    part = memory_bytes // replicas
    return max(SMALLEST_SHARE_BYTES, part - part % MEBIBYTE)


def default_cores(replicas: int) -> int:
    """The percent of the multiprocessors of an MPS share whose claim does not say."""
    return max(1, FULL_CORES // replicas)

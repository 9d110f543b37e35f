"""From a machine description to the machine that it stands for."""

import uuid

from tangram.hardware.machines import MachineDescription
from tangram.hardware.machines.description import SWITCH, GpuPlace
from tangram.hardware.machines.migtables import offered_profiles
from tangram.model.gpu import Gpu, GpuUuid, Machine, NvLink

_UUID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "gpu.resource.admin")


def describe_machine(
    description: MachineDescription, *, node_name: str, lost: frozenset[GpuUuid] = frozenset()
) -> Machine:
    """The machine that a description stands for on the node of that name.

    GPUs without a literal UUID get one derived from the node's name and their bus id: the same after every
    restart, another one on every node. Links to a GPU that is lost or absent are down.
    """
    uuids = [_uuid_of(gpu, position, node_name) for position, gpu in enumerate(description.gpus)]
    gone = {
        gpu.pci_bus_id
        for gpu, gpu_uuid in zip(description.gpus, uuids, strict=True)
        if gpu.state != "present" or gpu_uuid in lost
    }
    gpus: list[Gpu] = []
    failures: dict[str, str] = {}
    places = zip(description.gpus, uuids, description.indices(), strict=True)
    for position, (place, gpu_uuid, index) in enumerate(places):
        if index is None:
            continue
        if place.state == "lost" or gpu_uuid in lost:
            failures[gpu_uuid] = "GPU is lost"
        else:
            gpus.append(_gpu(description, place, gpu_uuid, index=index, position=position, gone=gone))
    return Machine(
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.uuid)),
        driver_version=description.driver_version,
        cuda_driver_version=description.cuda_driver_version,
        failures=failures,
    )


def _uuid_of(gpu: GpuPlace, position: int, node_name: str) -> GpuUuid:
    if gpu.uuid is not None:
        return GpuUuid(gpu.uuid)
    place = gpu.pci_bus_id or f"position {position}"
    return GpuUuid(f"GPU-{uuid.uuid5(_UUID_NAMESPACE, f'{node_name}/{place}')}")


def _gpu(
    description: MachineDescription,
    place: GpuPlace,
    gpu_uuid: GpuUuid,
    *,
    index: int,
    position: int,
    gone: set[str | None],
) -> Gpu:
    model = description.model(place.model)
    mig_mode = place.mig_mode or model.mig_mode
    geometry = description.mig_geometry(model) if mig_mode != "unsupported" else None
    major, minor = model.compute_capability.split(".")
    return Gpu(
        uuid=gpu_uuid,
        index=index,
        minor=position if place.minor is None else place.minor,
        product_name=model.product_name,
        brand=model.brand,
        architecture=model.architecture,
        compute_capability=(int(major), int(minor)),
        memory_bytes=None if model.memory_mib is None else model.memory_mib * 2**20,
        multiprocessors=model.multiprocessors,
        pci_bus_id=place.pci_bus_id,
        pcie_root=place.pcie_root,
        numa_node=place.numa_node,
        virtual=description.virtual_machine,
        mig_mode=mig_mode,
        mig_profiles=offered_profiles(geometry) if geometry else (),
        nvlinks=tuple(
            NvLink(to_switch=True) if peer == SWITCH else NvLink(peer_bus_id=peer)
            for peer, links in place.nvlinks.items()
            if peer not in gone
            for _ in range(links)
        ),
        fabric_clique=place.fabric_clique,
    )

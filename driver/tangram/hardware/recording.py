"""From a discovered machine to the description that the simulator replays, with or without identifiers."""

import json
import re
from collections import Counter
from uuid import UUID

import msgspec
import yaml

from tangram.hardware.machines import MachineDescription, parse_machine
from tangram.hardware.machines.description import SWITCH, GpuModel, GpuPlace
from tangram.hardware.machines.migtables import MigGeometry, geometry_of, shipped_name
from tangram.model.gpu import Gpu, Machine
from tangram.model.product import gpu_type

_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def record(machine: Machine) -> MachineDescription:
    """The description whose simulation is this machine again.

    GPUs that did not answer (`Machine.failures`) are left out; the others keep their indices. Memory is
    rounded down to MiB. Of NVLinks, those are kept that count for `Machine.links`: the matrix is the same.
    """
    tables = _Tables()
    gpus = sorted(machine.gpus, key=lambda gpu: gpu.index)
    models: dict[GpuModel, GpuModel] = {}
    names: Counter[str] = Counter()
    links = _counted_links(gpus)
    places = []
    for position, gpu in enumerate(gpus):
        unnamed = msgspec.structs.replace(_unnamed_model(gpu), mig=tables.name(gpu))
        if unnamed not in models:
            name = gpu_type(gpu.product_name).lower()[:48]
            names[name] += 1
            suffix = f"-{names[name]}" if names[name] > 1 else ""
            models[unnamed] = msgspec.structs.replace(unnamed, name=name + suffix, mig_mode=gpu.mig_mode)
        places.append(_place(gpu, models[unnamed], position=position, nvlinks=links[position]))
    return MachineDescription(
        api_version="tangram/v1alpha1",
        kind="MachineDescription",
        driver_version=machine.driver_version,
        cuda_driver_version=machine.cuda_driver_version,
        models=tuple(models.values()),
        gpus=tuple(places),
        mig_tables=tables.own,
        virtual_machine=any(gpu.virtual for gpu in machine.gpus),
    )


class _Tables:
    """Names for what MIG offers: of the shipped table that says the same, else of one of its own."""

    def __init__(self) -> None:
        self.own: dict[str, MigGeometry] = {}

    def name(self, gpu: Gpu) -> str | None:
        geometry = geometry_of(gpu.mig_profiles)
        if geometry is None or gpu.mig_mode == "unsupported":
            return None
        known = next((name for name, own in self.own.items() if own == geometry), None)
        if (name := known or shipped_name(gpu.mig_profiles)) is None:
            name = f"{gpu_type(gpu.product_name).lower()[:48]}-{len(self.own) + 1}"
            self.own[name] = geometry
        return name


def _unnamed_model(gpu: Gpu) -> GpuModel:
    major, minor = gpu.compute_capability
    return GpuModel(
        name="unnamed",
        product_name=gpu.product_name,
        brand=gpu.brand,
        architecture=gpu.architecture,
        compute_capability=f"{major}.{minor}",
        memory_mib=(gpu.memory_bytes or 0) // 2**20 or None,
        multiprocessors=gpu.multiprocessors,
    )


def _place(gpu: Gpu, model: GpuModel, *, position: int, nvlinks: dict[str, int]) -> GpuPlace:
    return GpuPlace(
        model=model.name,
        uuid=gpu.uuid,
        index=None if gpu.index == position else gpu.index,
        minor=None if gpu.minor == position else gpu.minor,
        pci_bus_id=gpu.pci_bus_id,
        pcie_root=gpu.pcie_root,
        numa_node=gpu.numa_node,
        mig_mode=None if gpu.mig_mode == model.mig_mode else gpu.mig_mode,
        nvlinks=nvlinks,
        fabric_clique=gpu.fabric_clique,
    )


def _counted_links(gpus: list[Gpu]) -> list[dict[str, int]]:
    """Links by GPU: all to the switch where it has one, else those whose other end is a GPU that agrees."""
    on_switch = [sum(link.to_switch for link in gpu.nvlinks) for gpu in gpus]
    direct = {
        gpu.pci_bus_id: Counter(link.peer_bus_id for link in gpu.nvlinks)
        for gpu, switch_links in zip(gpus, on_switch, strict=True)
        if gpu.pci_bus_id and not switch_links
    }
    result: list[dict[str, int]] = []
    for gpu, switch_links in zip(gpus, on_switch, strict=True):
        if switch_links:
            result.append({SWITCH: switch_links})
            continue
        own = direct.get(gpu.pci_bus_id or "", Counter())
        both = {
            peer: min(count, direct[peer][gpu.pci_bus_id])
            for peer, count in own.items()
            if peer and peer in direct and peer != gpu.pci_bus_id
        }
        result.append({peer: count for peer, count in both.items() if count})
    return result


def anonymize(description: MachineDescription) -> MachineDescription:
    """The same machine with made-up UUIDs of GPUs and of NVLink fabrics; equal ones stay equal.

    The new UUIDs of GPUs sort like the old ones, so that the simulation publishes the GPUs in the same order.
    Nothing else in a description identifies a machine: serial numbers and host names are not part of it.
    """
    uuids = sorted(gpu.uuid for gpu in description.gpus if gpu.uuid)
    gpu_uuids = {uuid: f"GPU-{UUID(int=number << 96)}" for number, uuid in enumerate(uuids, start=1)}
    clusters = sorted({_cluster(gpu) for gpu in description.gpus} - {""})
    cluster_uuids = {cluster: str(UUID(int=number << 96)) for number, cluster in enumerate(clusters, start=1)}
    gpus = []
    for gpu in description.gpus:
        clique, cluster = gpu.fabric_clique, _cluster(gpu)
        if clique is not None:
            clique = cluster_uuids[cluster] + clique.removeprefix(cluster)
        uuid = gpu_uuids[gpu.uuid] if gpu.uuid else None
        gpus.append(msgspec.structs.replace(gpu, uuid=uuid, fabric_clique=clique))
    return msgspec.structs.replace(description, gpus=tuple(gpus))


def _cluster(gpu: GpuPlace) -> str:
    """The `<cluster uuid>` of the clique; all of it where it has no dot; empty where there is no clique."""
    clique = gpu.fabric_clique or ""
    return clique.rpartition(".")[0] or clique


def without_uuids(text: str) -> str:
    """A message with the UUIDs of GPUs blotted out."""
    return _UUID.sub("GPU-********", text)


def as_json(description: MachineDescription) -> str:
    """The description as JSON, itself a valid description file. Errors as of `as_yaml`."""
    return _checked(json.dumps(msgspec.to_builtins(description), indent=2, ensure_ascii=False) + "\n")


def as_yaml(description: MachineDescription) -> str:
    """The description as the text of a file; InvalidObjectError if no simulator could read it back."""
    content = msgspec.to_builtins(description)
    return _checked(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=110))


def _checked(text: str) -> str:
    parse_machine(text.encode(), source="made from this machine")
    return text

"""A machine as text for people: a table of its GPUs, its NVLinks, and what MIG offers."""

from collections.abc import Sequence

from tangram.hardware.machines import MachineDescription
from tangram.model.devices import GROUP_SIZES, gpu_device_name, short_ids
from tangram.model.gpu import Gpu, Machine
from tangram.model.links import disjoint_groups
from tangram.model.product import gpu_type

_UNKNOWN = "-"


def machine_text(machine: Machine, description: MachineDescription) -> str:
    """Some paragraphs, ending in a line break. GPUs are in the order of their indices."""
    paragraphs = [_heading(machine), _gpu_table(machine), _nvlink(machine), *_mig(description)]
    return "\n\n".join(paragraphs) + "\n"


def _heading(machine: Machine) -> str:
    count = len(machine.gpus)
    return (
        f"{count} GPU{'s' if count != 1 else ''}, driver {machine.driver_version or 'unknown'}"
        f", CUDA {machine.cuda_driver_version or 'unknown'}"
    )


def _by_index(machine: Machine) -> list[tuple[int, Gpu]]:
    """(ordinal, GPU), by index."""
    return sorted(enumerate(machine.gpus), key=lambda pair: pair[1].index)


def _gpu_table(machine: Machine) -> str:
    ids = short_ids(gpu.uuid for gpu in machine.gpus)
    head = ("INDEX", "DEVICE", "PRODUCT", "TYPE", "MEMORY", "SMS", "PCI BUS ID", "PCIE ROOT", "NUMA", "MIG")
    rows = [
        (
            str(gpu.index),
            gpu_device_name(ids[gpu.uuid]),
            gpu.product_name,
            gpu_type(gpu.product_name),
            _UNKNOWN if gpu.memory_bytes is None else f"{gpu.memory_bytes // 2**20} MiB",
            _UNKNOWN if gpu.multiprocessors is None else str(gpu.multiprocessors),
            gpu.pci_bus_id or _UNKNOWN,
            gpu.pcie_root or _UNKNOWN,
            _UNKNOWN if gpu.numa_node is None else str(gpu.numa_node),
            _UNKNOWN if gpu.mig_mode == "unsupported" else gpu.mig_mode,
        )
        for _, gpu in _by_index(machine)
    ]
    return _columns([head, *rows])


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _nvlink(machine: Machine) -> str:
    matrix = machine.links()
    if not any(matrix.peers(ordinal) for ordinal in matrix.rows):
        return "NVLink: none between these GPUs"
    switch_links = {row.switch_links for row in matrix.rows.values()}
    if len(switch_links) == 1 and 0 not in switch_links:
        text = f"NVLink: every GPU has {switch_links.pop()} links to one switch"
    else:
        ordered = _by_index(machine)
        cells = [["", *(f"GPU{gpu.index}" for _, gpu in ordered)]]
        for ordinal, gpu in ordered:
            counts = (_UNKNOWN if o == ordinal else str(matrix.links(ordinal, o) or ".") for o, _ in ordered)
            cells.append([f"GPU{gpu.index}", *counts])
        text = "NVLinks between the GPUs:\n" + _columns(cells)
    groups = {size: disjoint_groups(matrix, size) for size in GROUP_SIZES}
    sizes = [f"{len(found)} of {size}" for size, found in groups.items() if found]
    return f"{text}\nFully linked sets (nvlinkGroup2, 4, 8): {', '.join(sizes)}"


def _mig(description: MachineDescription) -> list[str]:
    """What MIG offers on each model that can MIG."""
    lines = []
    for model in description.models:
        geometry = description.mig_geometry(model)
        if geometry is not None:
            offers = ", ".join(f"{profile.max_instances} of {profile.name}" for profile in geometry.profiles)
            lines.append(f"MIG profiles of {model.product_name} (at most):\n{offers}")
        elif model.mig_mode != "unsupported":
            lines.append(f"MIG profiles of {model.product_name}: the driver does not tell them")
    return lines

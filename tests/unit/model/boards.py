"""Machines in any MIG mode, of any board there is a table of."""

from dataclasses import replace

from tangram.hardware.machines import load_machine
from tangram.hardware.machines.migtables import load_mig_table, offered_profiles
from tangram.hardware.simulated import describe_machine
from tangram.model.devices import Kind
from tangram.model.gpu import Gpu, GpuUuid, Machine, MigMode
from tangram.model.mig import ComputeInstance, GpuInstance, MigPlacement

ALL: tuple[Kind, ...] = ("gpu", "mig", "mps", "timeslice")


def machine(name: str, *, mode: MigMode | None = None, hopper: bool = False) -> Machine:
    """A shipped machine, with all its GPUs in one MIG mode."""
    found = describe_machine(load_machine(name), node_name="node-1")
    gpus = tuple(
        replace(
            gpu,
            mig_mode=mode if mode and gpu.mig_mode != "unsupported" else gpu.mig_mode,
            compute_capability=(9, 0) if hopper else gpu.compute_capability,
        )
        for gpu in found.gpus
    )
    return replace(found, gpus=gpus)


def board(table: str, *, gpus: int, mode: MigMode = "enabled") -> Machine:
    """GPUs of any board there is a MIG table of."""
    profiles = offered_profiles(load_mig_table(table))
    return Machine(
        gpus=tuple(
            Gpu(
                uuid=GpuUuid(f"GPU-{number:08x}-0000-4000-8000-000000000000"),
                index=number,
                minor=number,
                product_name="NVIDIA H100 80GB HBM3",
                compute_capability=(9, 0),
                memory_bytes=80 * 2**30,
                multiprocessors=132,
                pci_bus_id=f"0000:{number:02x}:00.0",
                pcie_root="pci0000:00",
                numa_node=0,
                mig_mode=mode,
                mig_profiles=profiles,
            )
            for number in range(gpus)
        )
    )


def instance(profile_id: int, start: int, *, number: int = 1, computes: int = 1) -> GpuInstance:
    return GpuInstance(
        gpu_instance_id=number,
        profile_id=profile_id,
        placement=MigPlacement(start, 4),
        compute_instances=tuple(
            ComputeInstance(compute_instance_id=one, uuid=f"MIG-{number}-{one}") for one in range(computes)
        ),
    )

"""Which devices a node offers, and what each stands for. Pure.

A kind is offered only where the GPU's MIG mode reaches it without a reset: mode off offers the whole GPU and
its shares, mode on offers MIG placements. From Hopper on the mode can be switched while nobody uses the GPU:
there all kinds are offered if the administrator lets the driver switch.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tangram.model.devices import Kind, gpu_device_name, short_ids
from tangram.model.gpu import Gpu, GpuUuid, Machine
from tangram.model.mig import GpuInstance, MigPlacement, MigProfile

_SWITCHES_WITHOUT_RESET = (9, 0)
"""Compute capability of Hopper: older GPUs need a reset to switch MIG mode."""
_PROFILE_NAME = re.compile(r"([0-9]c\.)?[0-9]{1,2}g\.[0-9]{1,4}gb([+-][a-z.]{1,12})?")
_SUFFIXES: dict[Kind, str] = {"gpu": "", "mps": "-mps", "timeslice": "-ts"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A device of the node. `profile` and `placement` are set for kind `mig` alone; `instance` where somebody
    else made the MIG instance: it is used as it is, never made or destroyed.
    """

    name: str
    kind: Kind
    gpu: Gpu
    profile: MigProfile | None = None
    placement: MigPlacement | None = None
    instance: GpuInstance | None = None


def switches_without_reset(gpu: Gpu) -> bool:
    """Whether MIG mode can be switched on this GPU while it is idle; not in a virtual machine."""
    return (
        gpu.mig_mode != "unsupported"
        and gpu.compute_capability >= _SWITCHES_WITHOUT_RESET
        and not gpu.virtual
    )


def offers(
    machine: Machine,
    *,
    kinds: Collection[Kind],
    dynamic: bool = False,
    stuck: Collection[GpuUuid] = (),
    foreign: Mapping[GpuUuid, Sequence[GpuInstance]] | None = None,
) -> tuple[Offer, ...]:
    """The devices of the machine: GPUs in their order (that of UUIDs), devices of one GPU by name.

    `dynamic`: MIG mode may be switched, but not that of `stuck` GPUs. `foreign` are MIG instances that are
    not ours: a GPU with one offers these alone.
    """
    ids = short_ids(gpu.uuid for gpu in machine.gpus)
    found: list[Offer] = []
    for gpu in machine.gpus:
        instances = (foreign or {}).get(gpu.uuid, ())
        switches = dynamic and gpu.uuid not in stuck
        own = _of_gpu(gpu, ids[gpu.uuid], kinds=kinds, dynamic=switches, instances=instances)
        found += sorted(own, key=lambda offer: offer.name)
    return tuple(found)


def _of_gpu(
    gpu: Gpu, short_id: str, *, kinds: Collection[Kind], dynamic: bool, instances: Sequence[GpuInstance]
) -> list[Offer]:
    name = gpu_device_name(short_id)
    if instances:
        return (
            [_static(gpu, name, each) for each in instances if _is_one_device(each)] if "mig" in kinds else []
        )
    both = dynamic and switches_without_reset(gpu)
    found: list[Offer] = []
    if gpu.mig_mode != "enabled" or both:
        found += [
            Offer(name=name + suffix, kind=kind, gpu=gpu)
            for kind, suffix in _SUFFIXES.items()
            # MPS limits memory, which cannot be told of a board that has none of its own.
            if kind in kinds and (kind != "mps" or gpu.memory_bytes is not None)
        ]
    if "mig" in kinds and (gpu.mig_mode == "enabled" or both):
        found += [
            Offer(
                name=mig_device_name(name, profile.name, profile.profile_id, placement.start),
                kind="mig",
                gpu=gpu,
                profile=profile,
                placement=placement,
            )
            for profile in gpu.mig_profiles
            for placement in profile.placements
        ]
    return found


def _is_one_device(instance: GpuInstance) -> bool:
    """An instance cut into several compute instances, or into none, is no device that one name could mean."""
    return len(instance.compute_instances) == 1


def _static(gpu: Gpu, name: str, instance: GpuInstance) -> Offer:
    profile = next((each for each in gpu.mig_profiles if each.profile_id == instance.profile_id), None)
    return Offer(
        name=mig_device_name(
            name, profile.name if profile else "", instance.profile_id, instance.placement.start
        ),
        kind="mig",
        gpu=gpu,
        profile=profile or _unknown_profile(instance),
        placement=instance.placement,
        instance=instance,
    )


def _unknown_profile(instance: GpuInstance) -> MigProfile:
    """Of an instance whose profile the driver does not list: what can be known is its place."""
    return MigProfile(
        name=f"profile-{instance.profile_id}",
        profile_id=instance.profile_id,
        compute_slices=0,
        memory_bytes=None,
        multiprocessors=None,
        max_instances=1,
        placements=(instance.placement,),
    )


def mig_device_name(gpu_name: str, profile: str, profile_id: int, start: int) -> str:
    """`<gpu>-mig-<profile>-<start>`: dots dropped, `+x` as `-with-x`, `-x` as `-no-x`; a profile that is not
    named as expected goes by its number."""
    text = profile.lower()
    if _PROFILE_NAME.fullmatch(text):
        text = text.replace(".", "").replace("-", "-no-").replace("+", "-with-")
    else:
        text = f"profile-{profile_id}"
    return f"{gpu_name}-mig-{text}-{start}"

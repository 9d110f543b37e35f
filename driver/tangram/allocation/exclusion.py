"""The devices of one GPU exclude each other: as counters, where our controller allocates.

A GPU is published as several devices: whole, shared by MPS or by time-slicing, and one for each place where a
MIG instance can lie. On nodes that kube-scheduler allocates the slices carry shared counters (KEP-4815) that
say so. On the others none are published, for they would make kube-scheduler slow; here the same counters are
derived from the attributes. What a MIG instance takes follows NVML's rule for free places (MIG user guide,
"GPU instance profiles"): its memory slices, compute slices, one of the instances of its profile, and its
engines. Instances that somebody else has made exist already, one beside the other: they exclude nothing.
"""

from collections import Counter as Counts
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from tangram.allocation.structured import Slice, prepare_slice
from tangram.model.kubernetes import (
    AnyQuantity,
    Counter,
    CounterSet,
    Device,
    DeviceCounterConsumption,
    ResourceSlice,
)
from tangram.model.quantity import parse_quantity

_NOT_ENGINES = frozenset({"memory", "multiprocessors"})
_MOST_SLICES = 64
_WHOLE = "gpu"
"""The counter of a GPU that no MIG device is published of."""


def prepare_excluding(item: ResourceSlice) -> Slice:
    """The slice with a counter set for each of its GPUs, from which all devices of the GPU consume.

    A GPU with a single device, and devices that do not say of which GPU they are, are left as they are.
    Raises InvalidObjectError as `prepare_slice`.
    """
    by_gpu: dict[str, list[Device]] = {}
    for device in item.spec.devices or ():
        if gpu := _gpu(device):
            by_gpu.setdefault(gpu, []).append(device)
    parted = {
        gpu: _parts(devices)
        for gpu, devices in by_gpu.items()
        if len(devices) > 1 and not any(map(is_made, devices))
    }
    devices = [_consuming(device, parted) for device in item.spec.devices or ()]
    sets = [CounterSet(name=gpu, counters=_counters(parts.everything)) for gpu, parts in parted.items()]
    spec = msgspec.structs.replace(item.spec, devices=devices)
    return prepare_slice(msgspec.structs.replace(item, spec=spec), derived_sets=sets)


class _Parts(NamedTuple):
    """What a GPU has, and what its MIG devices consume of that, by name. All its other devices, the whole GPU
    and shares of it, consume everything."""

    everything: Mapping[str, int]
    of_mig: Mapping[str, Mapping[str, int]]


def _consuming(device: Device, parted: Mapping[str, _Parts]) -> Device:
    gpu = _gpu(device)
    if gpu not in parted:
        return device
    amounts = parted[gpu].of_mig[device.name] or parted[gpu].everything
    consumed = DeviceCounterConsumption(counter_set=gpu, counters=_counters(amounts))
    return msgspec.structs.replace(device, consumes_counters=[consumed])


def _parts(devices: Iterable[Device]) -> _Parts:
    of_mig = {device.name: _of_mig(device) for device in devices}
    return _Parts(_totals(devices, of_mig), of_mig)


def _of_mig(device: Device) -> dict[str, int]:
    """Empty for a device that is no MIG placement."""
    start, size = _integer(device, "placementStart"), _integer(device, "placementSize")
    if _text(device, "type") != "mig" or not 0 <= start < start + size <= _MOST_SLICES:
        return {}
    consumed = {f"memory-slice-{number}": 1 for number in range(start, start + size)}
    consumed["compute-slices"] = _integer(device, "computeSlices")
    consumed[f"profile-{_text(device, 'profile')}"] = 1
    for name, capacity in (device.capacity or {}).items():
        if name not in _NOT_ENGINES:
            consumed[f"engine-{name}"] = _whole(capacity.value)
    return {name: amount for name, amount in consumed.items() if amount > 0}


def _totals(devices: Iterable[Device], consumed: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """What the GPU has: its memory slices, and of the rest what the instances of one profile take at most."""
    totals: Counts[str] = Counts({_WHOLE: 1})
    for device in devices:
        instances = max(1, _integer(device, "maxInstances"))
        for name, amount in consumed[device.name].items():
            if name.startswith("memory-slice-"):
                totals[name] = 1
            else:
                totals[name] = max(totals[name], amount * instances)
    return dict(totals)


def _counters(amounts: Mapping[str, int]) -> dict[str, Counter]:
    return {name: Counter(value=amount) for name, amount in amounts.items()}


def is_made(device: Device) -> bool:
    """Whether this is an instance of somebody else: ours get their UUID when a claim needs them."""
    return _text(device, "type") == "mig" and _text(device, "uuid").startswith("MIG-")


def _gpu(device: Device) -> str:
    """The UUID of the GPU that a device is of."""
    return _text(device, "parentUUID" if _text(device, "type") == "mig" else "uuid")


def _whole(value: AnyQuantity) -> int:
    try:
        return max(0, int(parse_quantity(str(value))))
    except ValueError:
        return 0  # preparing the slice names it


def _text(device: Device, name: str) -> str:
    attribute = (device.attributes or {}).get(name)
    return (attribute.string if attribute is not None else None) or ""


def _integer(device: Device, name: str) -> int:
    attribute = (device.attributes or {}).get(name)
    return (attribute.int_ if attribute is not None else None) or 0

"""From ResourceSlices to the devices the allocator sees: newest complete generation of each node's pool."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from sys import intern

import msgspec

from tangram import DRIVER_NAME
from tangram.allocation import Device, DeviceId, NodeDevices, topology_of
from tangram.allocation.published import facts_of, guarded
from tangram.base.errors import InvalidObjectError
from tangram.cel import CelDevice, by_domain
from tangram.kube.decoding import CORRECT_IT, decode
from tangram.kube.objects import Device as WireDevice
from tangram.kube.objects import DeviceAttribute, ResourceSlice
from tangram.model.devices import GROUP_SIZES, pool_name
from tangram.model.quantity import parse_quantity
from tangram.model.semver import SemVer

_MAXIMUM_GPUS = 64
"""Of one node. There is no such machine; a pool that claims to be one is not worth a table of its links."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnDevice:
    """A device this controller allocates, with what its neighbours need to know of it."""

    device: Device
    ordinal: int
    links: str
    groups: dict[int, str]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SliceRecord:
    """What is kept of a ResourceSlice: never the raw object (5,000 MIG nodes are 630 MB of JSON).

    `foreign`: how many more GPUs there are, which kube-scheduler allocates.
    """

    node: str
    pool: str
    generation: int
    slice_count: int
    devices: tuple[OwnDevice, ...]
    foreign: int = 0


def decode_slice(raw: msgspec.Raw | bytes) -> SliceRecord:
    """The record of a slice of our driver.

    Devices of other types than `gpu`, or that kube-scheduler allocates, are left out. Raises
    InvalidObjectError for an object that is no ResourceSlice.
    """
    item = decode(raw, ResourceSlice)
    spec = item.spec
    pool = intern(spec.pool.name)
    try:
        devices = tuple(d for wire in spec.devices or () if (d := _own_device(pool, wire)) is not None)
    except (ValueError, OverflowError) as error:  # no version, no quantity, or one beyond all reason
        raise InvalidObjectError(
            str(error),
            object_name=f"ResourceSlice {item.metadata.name}",
            field="spec.devices",
            next_step=CORRECT_IT,
        ) from error
    return SliceRecord(
        node=intern(spec.node_name or ""),
        pool=pool,
        generation=spec.pool.generation,
        slice_count=spec.pool.resource_slice_count,
        devices=devices,
        foreign=sum(_is_foreign(wire) for wire in spec.devices or ()),
    )


def _is_foreign(wire: WireDevice) -> bool:
    values = wire.attributes or {}
    return all(
        (attribute := values.get(name)) is not None and attribute.string == value
        for name, value in (("type", "gpu"), ("allocator", "scheduler"))
    )


def _own_device(pool: str, wire: WireDevice) -> OwnDevice | None:
    values = {
        intern(name): value
        for name, attribute in (wire.attributes or {}).items()
        if (value := _value(attribute)) is not None  # of a kind that this version does not know
    }
    if values.get("type") != "gpu" or values.get("allocator") != "controller":
        return None
    cel = CelDevice(
        driver=DRIVER_NAME,
        attributes=by_domain(DRIVER_NAME, values),
        capacity=by_domain(
            DRIVER_NAME,
            {intern(name): parse_quantity(str(item.value)) for name, item in (wire.capacity or {}).items()},
        ),
        allow_multiple_allocations=bool(wire.allow_multiple_allocations),
    )
    device = Device(
        id=DeviceId(pool, intern(wire.name)),
        cel=cel,
        guarded=guarded(cel),
        facts=facts_of(cel),
        healthy=values.get("healthy") is True,
    )
    ordinal = values.get("ordinal")
    return OwnDevice(
        device,
        ordinal if isinstance(ordinal, int) and not isinstance(ordinal, bool) else -1,
        str(values.get("nvlinkLinks", "")),
        {size: str(values[key]) for size in GROUP_SIZES if (key := f"nvlinkGroup{size}") in values},
    )


def _value(attribute: DeviceAttribute) -> object:
    if attribute.bool_ is not None:
        return attribute.bool_
    if attribute.int_ is not None:
        return attribute.int_
    if attribute.string is not None:
        return intern(attribute.string)
    if attribute.version is not None:
        return SemVer(attribute.version)
    return None


class Inventory:
    """All pools of our driver."""

    def __init__(self) -> None:
        self._slices: dict[str, dict[str, SliceRecord]] = {}
        self._changed: set[str] = set()
        self._nodes: dict[str, NodeDevices] = {}
        self.foreign: Counter[str] = Counter()
        """Node → GPUs there that kube-scheduler allocates."""

    def update(self, name: str, old: SliceRecord | None, new: SliceRecord | None) -> None:
        """Takes one slice (by object name) in, out, or replaces it."""
        if old is not None:
            slices = self._slices.get(old.node, {})
            slices.pop(name, None)
            if not slices:
                self._slices.pop(old.node, None)
            self._changed.add(old.node)
            self.foreign[old.node] -= old.foreign
            if not self.foreign[old.node]:
                del self.foreign[old.node]
        if new is not None:
            self._slices.setdefault(new.node, {})[name] = new
            self._changed.add(new.node)
            if new.foreign:
                self.foreign[new.node] += new.foreign

    @property
    def nodes(self) -> Mapping[str, NodeDevices]:
        """What snapshots are made from: replaced when slices have changed, never changed itself.

        A pool comes in many slices; it is put together once, when somebody asks.
        """
        if self._changed:
            nodes = dict(self._nodes)
            for node in self._changed:
                devices = node_devices(node, self._slices.get(node, {}).values())
                if devices is None:
                    nodes.pop(node, None)
                else:
                    nodes[node] = devices
            self._nodes = nodes
            self._changed.clear()
        return self._nodes


def node_devices(node: str, records: Iterable[SliceRecord]) -> NodeDevices | None:
    """The devices of a node's pool; None if it has none for us.

    A pool is complete when the newest generation has as many slices as it says; until then nothing may be
    allocated from it (KEP-4381), and the result says so in `incomplete`.
    """
    mine = [record for record in records if record.pool == pool_name(DRIVER_NAME, node)]
    if not node or not mine:
        return None
    newest = max(record.generation for record in mine)
    current = [record for record in mine if record.generation == newest]
    own = sorted((device for record in current for device in record.devices), key=lambda d: d.ordinal)
    if not own:
        return None
    incomplete = _incomplete(current, own)
    if len(own) > _MAXIMUM_GPUS:
        own = own[:_MAXIMUM_GPUS]
    return NodeDevices(
        node=node,
        devices=tuple(device.device for device in own),
        topology=topology_of(
            tuple(device.links for device in own),
            {size: tuple(device.groups.get(size) for device in own) for size in GROUP_SIZES},
        ),
        incomplete=incomplete,
    )


def _incomplete(current: Sequence[SliceRecord], own: Sequence[OwnDevice]) -> str:
    """Why a pool must not be allocated from."""
    expected = max(record.slice_count for record in current)
    if len(current) != expected:
        return f"{len(current)} of {expected} are there"
    if len(own) > _MAXIMUM_GPUS:
        return f"more than {_MAXIMUM_GPUS} GPUs"
    if [device.ordinal for device in own] != list(range(len(own))):
        return "its devices do not agree on their order"
    if len({device.device.id for device in own}) != len(own):
        return "a device name occurs twice"
    return ""

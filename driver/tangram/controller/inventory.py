"""From ResourceSlices to the devices the allocator sees: newest complete generation of each node's pool."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from sys import intern

import msgspec

from tangram import DRIVER_NAME
from tangram.allocation import Device, DeviceId, NodeDevices, topology_of
from tangram.api import DeviceFacts
from tangram.base.errors import InvalidObjectError
from tangram.cel import CelDevice
from tangram.kube.client import decode
from tangram.kube.objects import Device as WireDevice
from tangram.kube.objects import DeviceAttribute, ResourceSlice
from tangram.model.devices import GROUP_SIZES, STANDARD_DOMAIN, pool_name
from tangram.model.product import nominal_gigabytes
from tangram.model.quantity import parse_quantity
from tangram.model.semver import SemVer


@dataclass(frozen=True, slots=True, eq=False)
class OwnDevice:
    """A device this controller allocates, with what its neighbours need to know of it."""

    device: Device
    ordinal: int
    links: str
    groups: dict[int, str]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SliceRecord:
    """What is kept of a ResourceSlice: never the raw object (5,000 MIG nodes are 630 MB of JSON)."""

    node: str
    pool: str
    generation: int
    slice_count: int
    devices: tuple[OwnDevice, ...]


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
    except ValueError as error:
        raise InvalidObjectError(
            str(error), object_name=f"ResourceSlice {item.metadata.name}", field="spec.devices"
        ) from error
    return SliceRecord(
        node=intern(spec.node_name or ""),
        pool=pool,
        generation=spec.pool.generation,
        slice_count=spec.pool.resource_slice_count,
        devices=devices,
    )


def _own_device(pool: str, wire: WireDevice) -> OwnDevice | None:
    values = {intern(name): _value(attribute) for name, attribute in (wire.attributes or {}).items()}
    if values.get("type") != "gpu" or values.get("allocator") != "controller":
        return None
    by_domain = _by_domain(values)
    capacity = {
        DRIVER_NAME: {intern(k): parse_quantity(str(c.value)) for k, c in (wire.capacity or {}).items()}
    }
    memory = capacity[DRIVER_NAME].get("memory")
    memory_bytes = int(memory) if memory is not None else None
    product = str(values.get("productName", ""))
    own = by_domain[DRIVER_NAME]
    device = Device(
        id=DeviceId(pool, intern(wire.name)),
        cel=CelDevice(
            driver=DRIVER_NAME,
            attributes=by_domain,
            capacity=capacity,
            allow_multiple_allocations=bool(wire.allow_multiple_allocations),
        ),
        guarded=CelDevice(
            driver=DRIVER_NAME,
            attributes={**by_domain, DRIVER_NAME: {**own, "allocator": "scheduler"}},
            capacity=capacity,
            allow_multiple_allocations=bool(wire.allow_multiple_allocations),
        ),
        facts=DeviceFacts(
            memory_bytes=memory_bytes,
            nominal_gb=nominal_gigabytes(product, memory_bytes),
            gpu_type=str(values.get("gpuType", "")),
            product_name=product,
        ),
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


def _by_domain(values: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """CEL sees bare names under the driver's own domain."""
    domains: dict[str, dict[str, object]] = {DRIVER_NAME: {}, STANDARD_DOMAIN: {}}
    for name, value in values.items():
        domain, _, bare = name.rpartition("/")
        domains.setdefault(domain or DRIVER_NAME, {})[bare] = value
    return domains


class Inventory:
    """All pools of our driver. `nodes` is what snapshots are made from; it is replaced, never changed."""

    def __init__(self) -> None:
        self._slices: dict[str, dict[str, SliceRecord]] = {}
        self.nodes: Mapping[str, NodeDevices] = {}

    def update(self, name: str, old: SliceRecord | None, new: SliceRecord | None) -> None:
        """Takes one slice (by object name) in, out, or replaces it."""
        touched: set[str] = set()
        for record in (old, new):
            if record is not None:
                touched.add(record.node)
        if old is not None:
            self._slices.get(old.node, {}).pop(name, None)
        if new is not None:
            self._slices.setdefault(new.node, {})[name] = new
        nodes = dict(self.nodes)
        for node in touched:
            devices = node_devices(node, self._slices.get(node, {}).values())
            if devices is None:
                nodes.pop(node, None)
            else:
                nodes[node] = devices
        self.nodes = nodes


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
    incomplete = ""
    expected = max(record.slice_count for record in current)
    if len(current) != expected:
        incomplete = f"{len(current)} of {expected} slices are there"
    elif [device.ordinal for device in own] != list(range(len(own))):
        incomplete = "its devices do not agree on their order"
    elif len({device.device.id for device in own}) != len(own):
        incomplete = "a device name occurs twice"
    return NodeDevices(
        node=node,
        devices=tuple(device.device for device in own),
        topology=topology_of(
            tuple(device.links for device in own),
            {size: tuple(device.groups.get(size) for device in own) for size in GROUP_SIZES},
        ),
        incomplete=incomplete,
    )

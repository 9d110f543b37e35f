"""From ResourceSlices to the devices that decisions are made on: one `Cluster` per node."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from sys import intern

import msgspec

from tangram import DRIVER_NAME
from tangram.allocation.exclusion import prepare_excluding
from tangram.allocation.shareable import with_shares
from tangram.allocation.structured import Cluster, Slice
from tangram.kube.decoding import decode
from tangram.kube.objects import Device, DeviceClass, ResourceSlice
from tangram.model.devices import pool_name


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SliceRecord:
    """What is kept of a ResourceSlice: the devices this controller allocates.

    `foreign`: how many GPUs more there are, which kube-scheduler allocates. `forgets_shares`: the API server
    has dropped that devices may be shared, as it will drop which shares of them claims are given.
    """

    node: str
    slice: Slice
    foreign: int = 0
    forgets_shares: bool = False


def decode_slice(raw: msgspec.Raw | bytes) -> SliceRecord:
    """The record of a slice of our driver.

    Devices that kube-scheduler allocates are left out. Raises InvalidObjectError for an object that is no
    ResourceSlice.
    """
    item = decode(raw, ResourceSlice)
    devices = item.spec.devices or []
    own = [device for device in devices if _string(device, "allocator") == "controller"]
    spec = msgspec.structs.replace(item.spec, devices=own, shared_counters=None)
    whole, forgets_shares = with_shares(msgspec.structs.replace(item, spec=spec))
    return SliceRecord(
        node=intern(item.spec.node_name or ""),
        slice=prepare_excluding(whole),
        foreign=sum(
            _string(device, "allocator") == "scheduler" and _string(device, "type") == "gpu"
            for device in devices
        ),
        forgets_shares=forgets_shares,
    )


def _string(device: Device, name: str) -> str | None:
    attribute = (device.attributes or {}).get(name)
    return attribute.string if attribute is not None else None


class Inventory:
    """All pools of our driver."""

    def __init__(self) -> None:
        self._slices: dict[str, dict[str, SliceRecord]] = {}
        self._classes: Mapping[str, DeviceClass] = {}
        self._changed: set[str] = set()
        self._nodes: dict[str, Cluster] = {}
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

    def forgets_shares(self, node: str) -> bool:
        """Whether the API server forgets what claims are given of the node's shared GPUs, unless the
        allocation's configuration says it (`tangram.api.with_grants`)."""
        return any(record.forgets_shares for record in self._slices.get(node, {}).values())

    def set_classes(self, classes: Mapping[str, DeviceClass]) -> None:
        """Takes the device classes as they are now."""
        self._classes = classes
        self._changed.update(self._slices)

    @property
    def nodes(self) -> Mapping[str, Cluster]:
        """What snapshots are made from: replaced when slices or classes have changed, never changed itself.

        A pool comes in many slices; it is put together once, when somebody asks.
        """
        if self._changed:
            nodes = dict(self._nodes)
            for node in self._changed:
                cluster = _cluster(node, self._slices.get(node, {}), self._classes)
                if cluster is None:
                    nodes.pop(node, None)
                else:
                    nodes[node] = cluster
            self._nodes = nodes
            self._changed.clear()
        return self._nodes


def _cluster(
    node: str, records: Mapping[str, SliceRecord], classes: Mapping[str, DeviceClass]
) -> Cluster | None:
    """The devices of a node's pool; None if it has none for us."""
    pool = pool_name(DRIVER_NAME, node)
    mine = [record.slice for record in records.values() if record.slice.pool.pool == pool]
    if not node or not any(item.devices for item in mine):
        return None
    return Cluster.of(mine, classes)

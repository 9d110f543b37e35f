"""Devices that claims hold although they are published no more: what overlaps them is held with them.

A GPU goes on running what was given away while its slice loses devices: somebody else made MIG instances on
it, or it came back from a reboot in another MIG mode. No slice says then what the lost device takes, so it
counts as the whole GPU; only instances that exist already cannot overlap another one (MIG user guide).
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from weakref import WeakKeyDictionary

from tangram import DRIVER_NAME
from tangram.allocation.exclusion import is_made
from tangram.allocation.structured import Allocated, Cluster, DeviceId
from tangram.model.devices import short_id_of

_MIG = "-mig-"

_Published = Mapping[DeviceId, bool]
"""Devices of our driver of the newest slices → whether they are instances that exist already."""
_published: "WeakKeyDictionary[Cluster, _Published]" = WeakKeyDictionary()


def with_withdrawn(cluster: Cluster, allocated: Allocated) -> Allocated:
    """The same state, where all devices are held of which a lost one may take a part."""
    published = _of(cluster)
    lost = [
        device
        for device in (*allocated.held, *allocated.shared)
        if device.driver == DRIVER_NAME and device not in published
    ]
    if not lost:
        return allocated
    held = dict(allocated.held)
    for gone in lost:
        holder = allocated.held.get(gone) or allocated.shared[gone].holders[0]
        for device in _overlapping(gone, published):
            held.setdefault(device, holder)
    return Allocated(held=MappingProxyType(held), shared=allocated.shared)


def _overlapping(gone: DeviceId, published: _Published) -> Iterable[DeviceId]:
    short_id = short_id_of(gone.device)
    if not short_id:
        return
    for device, made in published.items():
        other = short_id_of(device.device)
        # An id gets longer when another GPU of the node begins like it.
        same = other and (other.startswith(short_id) or short_id.startswith(other))
        if same and device.pool == gone.pool and not (made and _MIG in gone.device):
            yield device


def _of(cluster: Cluster) -> _Published:
    found = _published.get(cluster)
    if found is None:
        found = _published[cluster] = {
            device.id: is_made(device.wire)
            for slices in cluster.by_pool.values()
            for newest in (max(each.generation for each in slices),)
            for item in slices
            if item.generation == newest
            for device in item.devices
            if device.id.driver == DRIVER_NAME
        }
    return found

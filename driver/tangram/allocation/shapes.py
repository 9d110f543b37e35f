"""Nodes that are alike: the same devices, taken in the same places, whatever their names and UUIDs.

A cluster has many nodes of few kinds. What one of them answers to claims, all answer that are alike, if the
claims do not look at what tells one node's devices from another's.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from tangram import DRIVER_NAME
from tangram.allocation.structured import Allocated, Cluster, DeviceId, reads
from tangram.model.devices import STANDARD_DOMAIN
from tangram.model.kubernetes import DeviceClass, ResourceClaim

_IDENTITIES = frozenset(
    {
        *("uuid", "parentUUID", "nvlinkDomain", "nvlinkGroup2", "nvlinkGroup4", "nvlinkGroup8"),
        *(f"{STANDARD_DOMAIN}/{name}" for name in ("pcieRoot", "pciBusID")),
    }
)
"""Attributes whose values differ between nodes that are alike. Which devices of a node have equal ones
matters: constraints compare them."""
_QUALIFIED = frozenset(name if "/" in name else f"{DRIVER_NAME}/{name}" for name in _IDENTITIES)


class Shape(NamedTuple):
    """`slices`: equal for nodes with like devices. `positions`: the devices in the order that makes them
    so."""

    slices: tuple[int, ...]
    positions: Mapping[DeviceId, int]


_REMEMBERED = 4096
"""Kinds of slices."""
_numbers: dict[Hashable, int] = {}
_next = count()
_shapes: "WeakKeyDictionary[Cluster, Shape]" = WeakKeyDictionary()


def shape_of(cluster: Cluster) -> Shape:
    """The shape of a node's devices; worked out once."""
    shape = _shapes.get(cluster)
    if shape is None:
        devices = [device.id for item in cluster.slices for device in item.devices]
        shape = Shape(
            tuple([_number(content) for content in _contents(cluster)]),
            {device: position for position, device in enumerate(devices)},
        )
        _shapes[cluster] = shape
    return shape


def _number(content: Hashable) -> int:
    """A number instead of a content that is as large as a slice; none is ever used again."""
    number = _numbers.get(content)
    if number is None:
        if len(_numbers) >= _REMEMBERED:
            _numbers.clear()
        number = _numbers[content] = next(_next)
    return number


def _contents(cluster: Cluster) -> Iterable[Hashable]:
    """All that decisions see of a node's slices, identities by the place where each was met first."""
    met: dict[tuple[str, Hashable], int] = {}

    def place(name: str, value: Hashable) -> int:
        return met.setdefault((name, value), len(met))

    for item in cluster.slices:
        every = (*item.counter_sets, *item.derived_sets)
        sets = [(place("set", name), tuple(sorted(counters.items()))) for name, counters in every]
        content: list[Hashable] = [item.generation, item.slice_count, place("pool", item.pool), tuple(sets)]
        for device in item.devices:
            content += [place("name", device.id.device), device.unreadable]
            attributes = device.attributes.items()
            content += [(n, place(n, v) if n in _IDENTITIES else v) for n, v in sorted(attributes)]
            content += sorted(device.capacity.items())
            content += [(place("set", c.counter_set), c.counters, c.groups) for c in device.consumes]
            rest = msgspec.structs.replace(
                device.wire, name="", attributes=None, capacity=None, consumes_counters=None
            )
            content.append(msgspec.json.encode(rest))
        yield tuple(content)


def taken_of(shape: Shape, allocated: Allocated) -> Hashable:
    """Who has what, by positions: equal for nodes of one shape whose devices are taken alike."""
    held = [shape.positions[device] for device in allocated.held if device in shape.positions]
    shared = [
        (shape.positions[device], None if shares.consumed is None else tuple(sorted(shares.consumed.items())))
        for device, shares in allocated.shared.items()
        if device in shape.positions
    ]
    return frozenset(held), frozenset(shared)


def looks_at_identities(claims: Sequence[ResourceClaim], classes: Mapping[str, DeviceClass]) -> bool:
    """Whether a selector of the claims, or of their classes, may tell nodes apart that are alike; of derived
    attributes, which are rare, it is assumed."""
    texts = []
    for claim in claims:
        for request in claim.spec.devices.requests or ():
            for item in (request.exactly, *(request.first_available or ())):
                if item is None:
                    continue
                if item.derived_attributes:
                    return True
                found = classes.get(item.device_class_name)
                selectors = [*(item.selectors or ()), *((found.spec.selectors or ()) if found else ())]
                texts += [selector.cel.expression for selector in selectors if selector.cel is not None]
    return any(map(_reads_identities, texts))


@lru_cache(maxsize=1024)
def _reads_identities(text: str) -> bool:
    parts = reads(text)
    if parts is None:
        return False  # not valid: the same error everywhere
    return any(
        part.field == "attributes"
        and (part.domain is None or part.id is None or f"{part.domain}/{part.id}" in _QUALIFIED)
        for part in parts
    )

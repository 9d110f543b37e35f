"""What drivers publish, prepared once for many decisions: slices, their devices, and device classes."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, TypeVar

import msgspec

from tangram.allocation.published import guarded
from tangram.allocation.structured.quantities import Quantity, quantity
from tangram.base.errors import InvalidObjectError
from tangram.cel import CelDevice, by_domain
from tangram.model.kubernetes import (
    AnyQuantity,
    CapacityRequestPolicy,
    Counter,
    CounterSet,
    DeviceAttribute,
    DeviceClass,
    DeviceCounterConsumption,
    NodeSelector,
    ResourceSlice,
)
from tangram.model.kubernetes import Device as WireDevice
from tangram.model.quantity import parse_quantity
from tangram.model.semver import SemVer

T = TypeVar("T")


class DeviceId(NamedTuple):
    """What makes a device unique in the cluster."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


class PoolId(NamedTuple):
    """What makes a pool unique in the cluster."""

    driver: str
    pool: str

    def __str__(self) -> str:
        return "/".join(self)


class Attribute(NamedTuple):
    """The value of an attribute as constraints compare it: its type, and its values (one if `scalar`)."""

    kind: str
    values: frozenset[object]
    scalar: bool

    def __str__(self) -> str:
        return ", ".join(sorted(str(value) for value in self.values)) or "an empty list"


class Policy(NamedTuple):
    """`requestPolicy` of a capacity."""

    default: Quantity | None
    valid_values: tuple[Quantity, ...] | None
    has_range: bool
    minimum: Quantity | None
    maximum: Quantity | None
    step: Quantity | None


class Capacity(NamedTuple):
    """A capacity of a device."""

    value: Quantity
    policy: Policy | None


class Consumption(NamedTuple):
    """What a device takes from a counter set, in nano-units, and the compatibility groups it declares."""

    counter_set: str
    counters: tuple[tuple[str, int], ...]
    groups: frozenset[str]


class Device(msgspec.Struct, frozen=True, eq=False, kw_only=True, gc=False):
    """A published device.

    `cel` is what selectors see of it. `guarded` is what selectors of device classes see where our controller
    decides: the device with its `allocator` attribute as kube-scheduler would need it, so that the guard of
    our classes holds; the same as `cel` for devices that our controller does not allocate. `plain`: a request
    that says nothing of its capacities can have it, whole. `unreadable`: an attribute with a value of a kind
    that is unknown here, for which no selector can be asked about the device; empty if there is none.
    `counters`: how many it draws on.
    """

    id: DeviceId
    wire: WireDevice
    cel: CelDevice
    guarded: CelDevice
    attributes: Mapping[str, Attribute]
    capacity: Mapping[str, Capacity]
    consumes: tuple[Consumption, ...]
    counters: int
    has_lists: bool
    unreadable: str
    plain: bool

    @property
    def multiple(self) -> bool:
        return bool(self.wire.allow_multiple_allocations)

    def attribute(self, name: str) -> Attribute | None:
        """The value of a fully qualified attribute; a bare name means the driver's own domain."""
        found = self.attributes.get(name)
        if found is None:
            domain, slash, bare = name.partition("/")
            if slash and domain == self.id.driver:
                return self.attributes.get(bare)
        return found


class Slice(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A ResourceSlice. `counter_sets`: name → counter → nano-units, in the order published; a slice that has
    them publishes no devices. `derived_sets`: counter sets of its own devices that nobody publishes. `binds`:
    a device has binding conditions; `has_groups`: one declares compatibility groups."""

    name: str
    pool: PoolId
    generation: int
    slice_count: int
    node_name: str | None
    node_selector: NodeSelector | None
    all_nodes: bool
    per_device: bool | None
    devices: tuple[Device, ...]
    counter_sets: tuple[tuple[str, Mapping[str, int]], ...]
    skip_node_operations: list[str] | None
    derived_sets: tuple[tuple[str, Mapping[str, int]], ...] = ()
    binds: bool
    has_groups: bool


class Cluster:
    """Slices and classes, never changed.

    `views`: what decisions have worked out about its nodes, kept here so that it goes away with the cluster.
    Raises InvalidObjectError for an object with a quantity or version that is none.
    """

    REMEMBERED = 4096
    """Views kept."""

    def __init__(self, *, slices: Iterable[ResourceSlice], classes: Iterable[DeviceClass]) -> None:
        self._take(map(prepare_slice, slices), {item.metadata.name: item for item in classes})

    @classmethod
    def of(cls, slices: Iterable[Slice], classes: Mapping[str, DeviceClass]) -> "Cluster":
        """From slices that are prepared already, and classes by name."""
        cluster = cls.__new__(cls)
        cluster._take(slices, classes)
        return cluster

    def _take(self, slices: Iterable[Slice], classes: Mapping[str, DeviceClass]) -> None:
        self.classes = classes
        self.slices = tuple(sorted(slices, key=lambda item: item.name))
        self.views: dict[Hashable, object] = {}
        self.by_node: dict[str, list[Slice]] = {}
        self.by_pool: dict[PoolId, list[Slice]] = {}
        for item in self.slices:
            self.by_node.setdefault(item.node_name or "", []).append(item)
            self.by_pool.setdefault(item.pool, []).append(item)


def prepare_slice(item: ResourceSlice, *, derived_sets: Sequence[CounterSet] = ()) -> Slice:
    """What decisions need of a slice. Raises InvalidObjectError for a quantity or version that is none."""
    spec = item.spec
    pool = PoolId(spec.driver, spec.pool.name)
    where = f"ResourceSlice {item.metadata.name}"
    field = ""
    devices: list[Device] = []
    counter_sets: list[tuple[str, Mapping[str, int]]] = []
    try:
        for index, wire in enumerate(spec.devices or ()):
            field = f"spec.devices[{index}]"
            devices.append(_device(pool, wire))
        for index, item_set in enumerate(spec.shared_counters or ()):
            field = f"spec.sharedCounters[{index}].counters"
            counter_sets += _counter_sets((item_set,))
    except (ValueError, OverflowError) as error:
        raise InvalidObjectError(
            str(error),
            object_name=where,
            field=".".join((field, *getattr(error, "__notes__", ()))),
            next_step="see to the driver that has published it",
        ) from None
    return Slice(
        name=item.metadata.name,
        pool=pool,
        generation=spec.pool.generation,
        slice_count=spec.pool.resource_slice_count,
        node_name=spec.node_name,
        node_selector=spec.node_selector,
        all_nodes=bool(spec.all_nodes),
        per_device=spec.per_device_node_selection,
        devices=tuple(devices),
        counter_sets=tuple(counter_sets),
        skip_node_operations=spec.skip_node_operations,
        derived_sets=_counter_sets(derived_sets),
        binds=any(device.wire.binding_conditions is not None for device in devices),
        has_groups=any(taken.groups for device in devices for taken in device.consumes),
    )


def _counter_sets(wire: Iterable[CounterSet]) -> tuple[tuple[str, Mapping[str, int]], ...]:
    return tuple((item.name, dict(_amounts(item.counters))) for item in wire)


def _amounts(counters: Mapping[str, Counter] | None) -> Iterable[tuple[str, int]]:
    """By name, in nano-units."""
    return [(name, quantity(counter.value).nano) for name, counter in (counters or {}).items()]


def _device(pool: PoolId, wire: WireDevice) -> Device:
    """Raises ValueError and OverflowError with a note: the field of the device."""
    at = ("", "")
    attributes: dict[str, Attribute] = {}
    values: dict[str, object] = {}
    has_lists, unreadable = False, ""
    capacity: dict[str, Capacity] = {}
    amounts: dict[str, Fraction] = {}
    plain = True
    try:
        for name, attribute in (wire.attributes or {}).items():
            at = ("attributes", name)
            if (known := _attribute(attribute)) is not None:
                attributes[name], values[name] = known
                has_lists = has_lists or not known[0].scalar
            else:
                unreadable = name
        for name, item in (wire.capacity or {}).items():
            at = ("capacity", name)
            policy = item.request_policy
            text = str(item.value)
            plain = plain and policy is None and not text.startswith("-")
            capacity[name] = _whole(text) if policy is None else Capacity(quantity(text), _policy(policy))
            amounts[name] = parse_quantity(text)
        at = ("consumesCounters", "")
        consumes = tuple(map(_consumption, wire.consumes_counters)) if wire.consumes_counters else ()
    except (ValueError, OverflowError) as error:
        error.add_note(f"{at[0]}[{at[1]}]" if at[1] else at[0])
        raise
    cel = CelDevice(
        driver=pool.driver,
        attributes=by_domain(pool.driver, values),
        capacity=by_domain(pool.driver, amounts),
        allow_multiple_allocations=bool(wire.allow_multiple_allocations),
    )
    return Device(
        id=DeviceId(*pool, wire.name),
        wire=wire,
        cel=cel,
        guarded=guarded(cel),
        attributes=attributes,
        capacity=capacity,
        consumes=consumes,
        counters=sum(len(consumption.counters) for consumption in consumes),
        has_lists=has_lists,
        unreadable=unreadable,
        plain=plain,
    )


def _consumption(wire: DeviceCounterConsumption) -> Consumption:
    groups = frozenset(wire.compatibility_groups) if wire.compatibility_groups else _NO_GROUPS
    return Consumption(wire.counter_set, tuple(_amounts(wire.counters)), groups)


_NO_GROUPS: frozenset[str] = frozenset()


def _attribute(wire: DeviceAttribute) -> tuple[Attribute, object] | None:
    """The value as constraints compare it, and as selectors see it: a list as a tuple in the order published.
    None for a value of a kind that this version does not know."""
    if wire.ints or wire.bools or wire.strings or wire.versions:
        return _list(wire)
    if wire.int_ is not None:
        return _scalar("int", wire.int_)
    if wire.bool_ is not None:
        return _scalar("bool", wire.bool_)
    if wire.string is not None:
        return _scalar("string", wire.string)
    return None if wire.version is None else _scalar("version", wire.version)


def _list(wire: DeviceAttribute) -> tuple[Attribute, object]:
    lists: tuple[tuple[str, Sequence[object] | None], ...] = (
        ("int", wire.ints),
        ("bool", wire.bools),
        ("string", wire.strings),
        ("version", wire.versions),
    )
    kind, values = next((kind, values) for kind, values in lists if values)
    seen = map(_version, wire.versions or ()) if kind == "version" else values
    return Attribute(kind, frozenset(values), scalar=False), tuple(seen)


@lru_cache(maxsize=4096, typed=True)
def _scalar(kind: str, value: str | int) -> tuple[Attribute, object]:
    """Devices have few different values."""
    seen = _version(str(value)) if kind == "version" else value
    return Attribute(kind, frozenset((value,)), scalar=True), seen


_version = lru_cache(maxsize=1024)(SemVer)


@lru_cache(maxsize=4096)
def _whole(value: str) -> Capacity:
    """A capacity without a policy; devices have few different ones."""
    return Capacity(quantity(value), None)


def _policy(wire: CapacityRequestPolicy) -> Policy:
    limits = wire.valid_range
    return Policy(
        default=_optional(wire.default),
        valid_values=tuple(map(quantity, wire.valid_values)) if wire.valid_values is not None else None,
        has_range=limits is not None,
        minimum=_optional(limits.min_) if limits else None,
        maximum=_optional(limits.max_) if limits else None,
        step=_optional(limits.step) if limits else None,
    )


def _optional(value: AnyQuantity | None) -> Quantity | None:
    return None if value is None else quantity(value)

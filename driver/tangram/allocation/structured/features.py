"""What an allocator can do, and which faults it has: the versions of Kubernetes as data.

`Features` says which parts of the API are honoured (the feature gates of kube-scheduler that reach
`k8s.io/dynamic-resource-allocation/structured`) and where a version departs from what the API documents
(`Fault`). The default, `latest`, honours everything and has no fault.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from tangram.base.errors import UsageError
from tangram.cel import Environment


class Gate(StrEnum):
    """A feature, by the name of its field in `structured.Features` (Go)."""

    ADMIN_ACCESS = "AdminAccess"
    PRIORITIZED_LIST = "PrioritizedList"
    PARTITIONABLE_DEVICES = "PartitionableDevices"
    DEVICE_TAINTS = "DeviceTaints"
    DEVICE_BINDING_AND_STATUS = "DeviceBindingAndStatus"
    CONSUMABLE_CAPACITY = "ConsumableCapacity"
    LIST_TYPE_ATTRIBUTES = "ListTypeAttributes"
    FRACTIONAL_CAPACITY_RANGE = "FractionalCapacityRange"
    COMPATIBILITY_GROUPS = "CompatibilityGroups"
    OPTIONAL_NODE_OPERATIONS = "OptionalNodeOperations"
    DERIVED_ATTRIBUTES = "DerivedAttributes"


class Fault(StrEnum):
    """Where a version of kube-scheduler departs from the API's documentation. Values are for people."""

    COUNTERS_PER_SLICE = "counters are defined and summed up per slice, not per pool"
    COUNTERS_BY_POOL_NAME = "pools of the same name of two drivers share one account of counters"
    COUNTER_SLICES_ON_ALL_NODES = "a slice with counters belongs to every node"
    OVERDRAWN_COUNTER_BLOCKS_POOL = "an overdrawn counter blocks all devices of its pool that use counters"
    SHARES_WITHOUT_CAPACITY_FORGOTTEN = "a shared device without consumed capacity pays its counters again"
    SHARED_DEVICES_USE_NO_COUNTERS = "devices with allocated shares use no counters"
    EVERY_SHARE_PAYS_COUNTERS = "every share of a device pays its counters"
    DISTINCT_REMEMBERS_LAST = "distinctAttribute remembers only the last device of each request"
    DISTINCT_COMPARES_DEVICES = "distinctAttribute takes the values of two devices always as different"
    INTERSECTION_NOT_RESTORED = "matchAttribute on lists keeps a narrowed set after backtracking"
    REJECTION_LEAKS = "a refused or withdrawn device is not wholly taken off the accounts"
    CONFIG_PER_REQUEST = "a claim's configuration is repeated for each request that it names"
    ALL_BY_REMAINING_CAPACITY = "allocationMode All leaves out devices whose remaining capacity is too small"
    UNREPRESENTABLE_CAPACITY_WRAPS = "capacities rounded beyond 64 bits wrap around"
    ROUNDED_IN_BINARY = "a capacity that was rounded to a step is written as a binary quantity"
    BINDING_SLICES_LAST = "slices with binding conditions come after the others of their pool"
    PERMUTATIONS = "one request may get the same shared device twice"
    ALL_LOSES_SUBREQUEST = (
        "a subrequest for all devices goes on as the first subrequest after one device; the second is "
        "listed by the selectors of the first"
    )
    INCOMPLETE_POOLS_USED = "devices of incomplete pools are allocated"
    INVALID_POOL_FATAL = "an invalid pool that the search reaches is fatal for the pod"
    ALL_TAINTS_BLOCK = "taints of every effect block"
    TOLERATIONS_NOT_COPIED = "results do not repeat the tolerations"
    NO_FEATURE_NO_TOLERATIONS = "with no feature on, results do not repeat the tolerations"
    CAPACITY_OF_WRONG_DEVICE = "remaining capacity is checked on the device at the place of the slot"
    ALL_CONSTRAINED_IS_FATAL = (
        "a constraint that keeps All from a device is fatal, whatever was chosen before"
    )
    ADMIN_ACCESS_PAYS_COUNTERS = "admin access needs free counters"
    ADMIN_ACCESS_BLOCKS = "a device given with admin access blocks normal requests decided with it"


@dataclass(frozen=True, slots=True)
class Features:
    """`gates` that are on, and `faults` that are reproduced; `name` is what was asked for.

    `basic` gates: if no other is on, the version decides with its oldest code, which lacks more than what the
    other gates switch (see `is_basic`). None: there is only one code. `version`: whose CEL selectors are.
    """

    name: str
    gates: frozenset[Gate]
    faults: frozenset[Fault] = frozenset()
    basic: frozenset[Gate] | None = None
    version: str = "k8s-1.37"

    @property
    def environment(self) -> Environment:
        """What selectors may use."""
        return Environment.of(self.version, list_attributes=self.on(Gate.LIST_TYPE_ATTRIBUTES))

    def on(self, gate: Gate) -> bool:
        """True if the feature is honoured."""
        return gate in self.gates

    def has(self, fault: Fault) -> bool:
        """True if the fault is reproduced."""
        return fault in self.faults

    @property
    def is_basic(self) -> bool:
        """The oldest code: no distinctAttribute, no bindsToNode, CEL sees no allowMultipleAllocations."""
        return self.basic is not None and self.gates <= self.basic

    @property
    def reads_137(self) -> bool:
        """True if fields that came with 1.37 are read: compatibilityGroups, lists for CEL."""
        return not self.has(Fault.CONFIG_PER_REQUEST)

    @property
    def skips_operations(self) -> bool:
        """True if skipNodeOperations is heeded: 1.37 does so only with a feature that is alpha there."""
        return self.reads_137 and (self.basic is None or bool(self.gates & _ALPHA_37))

    @property
    def copies_tolerations(self) -> bool:
        """True if results repeat the tolerations of their request."""
        bare = not self.gates and self.has(Fault.NO_FEATURE_NO_TOLERATIONS)
        return not (bare or self.has(Fault.TOLERATIONS_NOT_COPIED))

    @property
    def late_taints(self) -> bool:
        """True if taints must be looked at after counters, as upstream: where that leaves traces."""
        return self.has(Fault.REJECTION_LEAKS) or self.has(Fault.COUNTERS_BY_POOL_NAME)

    @property
    def permutes(self) -> bool:
        """Each device of a request is looked for from the start: a shared one may be found twice."""
        return self.is_basic or self.has(Fault.PERMUTATIONS)


_ALPHA_37 = frozenset(
    {
        Gate.LIST_TYPE_ATTRIBUTES,
        Gate.OPTIONAL_NODE_OPERATIONS,
        Gate.DERIVED_ATTRIBUTES,
        Gate.COMPATIBILITY_GROUPS,
    }
)
_ALWAYS = frozenset(
    {
        Fault.OVERDRAWN_COUNTER_BLOCKS_POOL,
        Fault.ALL_CONSTRAINED_IS_FATAL,
        Fault.ADMIN_ACCESS_PAYS_COUNTERS,
        Fault.ADMIN_ACCESS_BLOCKS,
    }
)
_UNTIL_36 = frozenset(
    {
        *_ALWAYS,
        Fault.COUNTER_SLICES_ON_ALL_NODES,
        Fault.SHARES_WITHOUT_CAPACITY_FORGOTTEN,
        Fault.DISTINCT_REMEMBERS_LAST,
        Fault.INTERSECTION_NOT_RESTORED,
        Fault.CONFIG_PER_REQUEST,
        Fault.ALL_BY_REMAINING_CAPACITY,
        Fault.UNREPRESENTABLE_CAPACITY_WRAPS,
        Fault.ROUNDED_IN_BINARY,
    }
)
_UNTIL_35 = frozenset(
    {
        *_UNTIL_36,
        Fault.COUNTERS_BY_POOL_NAME,
        Fault.BINDING_SLICES_LAST,
        Fault.PERMUTATIONS,
        Fault.ALL_LOSES_SUBREQUEST,
        Fault.REJECTION_LEAKS,
    }
)
_35 = _UNTIL_35 | {Fault.SHARED_DEVICES_USE_NO_COUNTERS, Fault.NO_FEATURE_NO_TOLERATIONS}
_34 = frozenset(
    {
        *(_UNTIL_35 - {Fault.COUNTERS_BY_POOL_NAME, Fault.COUNTER_SLICES_ON_ALL_NODES}),
        Fault.COUNTERS_PER_SLICE,
        Fault.DISTINCT_COMPARES_DEVICES,
        Fault.SHARED_DEVICES_USE_NO_COUNTERS,
        Fault.EVERY_SHARE_PAYS_COUNTERS,
        Fault.INCOMPLETE_POOLS_USED,
        Fault.INVALID_POOL_FATAL,
        Fault.ALL_TAINTS_BLOCK,
        Fault.TOLERATIONS_NOT_COPIED,
        Fault.CAPACITY_OF_WRONG_DEVICE,
    }
)

_GATES_34 = frozenset({Gate.ADMIN_ACCESS, Gate.PRIORITIZED_LIST})
_GATES_36 = _GATES_34 | {
    Gate.PARTITIONABLE_DEVICES,
    Gate.DEVICE_TAINTS,
    Gate.DEVICE_BINDING_AND_STATUS,
    Gate.CONSUMABLE_CAPACITY,
}
_GATES_37 = _GATES_36 | {Gate.FRACTIONAL_CAPACITY_RANGE}

_BASIC = _GATES_34 | {Gate.PARTITIONABLE_DEVICES, Gate.DEVICE_TAINTS}

LATEST = Features("latest", frozenset(Gate))


def _preset(version: str, gates: frozenset[Gate], faults: frozenset[Fault]) -> Features:
    return Features(version, gates, faults, _BASIC, version)


_PRESETS = {
    "latest": LATEST,
    "none": Features("none", frozenset()),
    "k8s-1.34": _preset("k8s-1.34", _GATES_34, _34),
    "k8s-1.35": _preset("k8s-1.35", _GATES_34, _35),
    "k8s-1.36": _preset("k8s-1.36", _GATES_36, _UNTIL_36 | {Fault.COUNTERS_BY_POOL_NAME}),
    "k8s-1.36.6": _preset("k8s-1.36.6", _GATES_36, _UNTIL_36),
    "k8s-1.37": _preset("k8s-1.37", _GATES_37, _ALWAYS),
}


def parse_features(text: str) -> Features:
    """The features of a preset (`latest`, `none`, `k8s-1.34` … `k8s-1.37`: that version with the gates that
    are on by default, and its faults), or of a comma list.

    A list of upstream's names, fields or feature gates, means the default engine with exactly these; after a
    preset, `Name` adds and `-Name` takes away, and `none` takes all away: `k8s-1.36,none,DeviceTaints`.
    Raises UsageError.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError("no features given", next_step=_NEXT_STEP)
    preset = _PRESETS.get(words[0])
    names = {gate.value for gate in preset.gates} if preset else set()
    if preset:  # beta since 1.33, and of no effect alone
        names.add(_STATUS)
    for word in words[1:] if preset else words:
        if word == "none":
            names.clear()
            continue
        name = word.removeprefix("-").removeprefix("DRA")
        name = _NAMES.get(name, name)
        if name not in (*Gate, _BINDING, _STATUS):
            raise UsageError(f"{word!r} is no feature", next_step=_NEXT_STEP)
        if word.startswith("-"):
            names -= _WITHOUT.get(name, {name})
        else:
            names.add(name)
    gates = {gate for gate in Gate if gate in names}
    if names >= _HALVES:
        gates.add(Gate.DEVICE_BINDING_AND_STATUS)
    return replace(preset or LATEST, name=text, gates=frozenset(gates))


_BINDING, _STATUS = "DeviceBinding", "DeviceStatus"
_HALVES = frozenset({_BINDING, _STATUS})
"""Both together are DeviceBindingAndStatus: the two fields of 1.34."""
_WITHOUT = {
    Gate.DEVICE_BINDING_AND_STATUS.value: {Gate.DEVICE_BINDING_AND_STATUS, _BINDING},
    _BINDING: {Gate.DEVICE_BINDING_AND_STATUS, _BINDING},
    _STATUS: {Gate.DEVICE_BINDING_AND_STATUS, _STATUS},
}
"""What goes with one of them."""
_NAMES = {
    "DeviceBindingConditions": _BINDING,
    "ResourceClaimDeviceStatus": _STATUS,
    "DeviceCompatibilityGroups": Gate.COMPATIBILITY_GROUPS.value,
}
"""Feature gates whose names differ from the fields, without `DRA`."""
_NEXT_STEP = f"give one of {', '.join(_PRESETS)}, or a comma list of {', '.join(gate.value for gate in Gate)}"

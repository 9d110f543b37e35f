"""Which devices a node can reach: the newest complete generation of each pool, as each version sees it.

Follows `GatherPools` of `k8s.io/dynamic-resource-allocation/structured`; pools in order of (driver, name),
those with binding conditions last, slices by name, devices as listed.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tangram.allocation.structured.cluster import Cluster, Device, PoolId, Slice
from tangram.allocation.structured.features import Fault, Features, Gate
from tangram.allocation.structured.nodes import NodeFacts, NodeSelectorError, selects
from tangram.allocation.structured.outcome import FatalError
from tangram.model.kubernetes import NodeSelector


class Pool(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A pool as a node sees it.

    `incomplete` and `invalid` say why nothing may be allocated from it (empty: it may). `slices` have the
    devices; `others` are slices of the pool that the node cannot reach, whose devices use counters, too.
    """

    id: PoolId
    incomplete: str = ""
    invalid: str = ""
    slices: tuple[Slice, ...] = ()
    others: tuple[Slice, ...] = ()
    counter_sets: Mapping[str, Mapping[str, int]] = {}

    @property
    def has_binding_conditions(self) -> bool:
        return any(item.binds for item in self.slices)


def gather(cluster: Cluster, node: NodeFacts, features: Features) -> tuple[Pool, ...]:
    """The pools a node can reach, in the order in which they are searched.

    Raises FatalError for a node selector that cannot be understood.
    """
    reachable: dict[PoolId, list[Slice]] = {}
    for item in _candidates(cluster, node, features):
        if _relevant(item, node, features):
            _add(reachable, item)
    pools: list[Pool] = []
    binding: list[Pool] = []
    for pool_id in sorted(reachable):
        pool = _pool(cluster, pool_id, reachable[pool_id], features)
        if pool is not None:
            (binding if pool.has_binding_conditions else pools).append(pool)
    return (*pools, *binding)


def _candidates(cluster: Cluster, node: NodeFacts, features: Features) -> Iterable[Slice]:
    yield from cluster.by_node.get(node.name, ()) if node.name else ()
    if not features.has(Fault.COUNTER_SLICES_ON_ALL_NODES):
        yield from cluster.by_node.get("", ())
        return
    for item in cluster.slices:
        if item.node_name != node.name and (not item.node_name or item.counter_sets):
            yield item


def _relevant(item: Slice, node: NodeFacts, features: Features) -> bool:
    if not features.on(Gate.PARTITIONABLE_DEVICES) and (
        item.per_device is not None or (item.counter_sets and not features.has(Fault.COUNTERS_PER_SLICE))
    ):
        return False
    if not features.on(Gate.COMPATIBILITY_GROUPS) and _hidden(item, features):
        return False
    if features.has(Fault.COUNTER_SLICES_ON_ALL_NODES) and item.counter_sets:
        return True
    if item.node_name or item.all_nodes or item.node_selector is not None:
        return _reaches(node, item.node_name, item.all_nodes, item.node_selector, f"slice {item.name}")
    return bool(item.per_device) and any(reaches_device(node, device) for device in item.devices)


def _hidden(item: Slice, features: Features) -> bool:
    """Versions that know compatibility groups but do not honour them leave such slices alone."""
    return features.reads_137 and item.has_groups


def reaches_device(node: NodeFacts, device: Device) -> bool:
    """True if a device with a node selection of its own can be reached. Raises FatalError."""
    wire = device.wire
    return _reaches(node, wire.node_name, bool(wire.all_nodes), wire.node_selector, f"device {device.id}")


def _reaches(
    node: NodeFacts, name: str | None, all_nodes: bool, selector: NodeSelector | None, where: str
) -> bool:
    if name:
        return name == node.name
    if all_nodes or selector is None:
        return all_nodes
    try:
        return selects(selector, node)
    except NodeSelectorError as error:
        raise FatalError(f"{where}: {error}") from None


def _add(pools: dict[PoolId, list[Slice]], item: Slice) -> None:
    known = pools.setdefault(item.pool, [])
    if known and item.generation < known[0].generation:
        return
    if known and item.generation > known[0].generation:
        known.clear()
    known.append(item)


def _pool(cluster: Cluster, pool_id: PoolId, found: list[Slice], features: Features) -> Pool | None:
    """None if a newer generation is on its way."""
    count, generation = found[0].slice_count, found[0].generation
    if features.has(Fault.COUNTERS_PER_SLICE):
        return _pool_by_slice(pool_id, found)
    everywhere = found
    if len(found) != count:
        everywhere = [s for s in cluster.by_pool[pool_id] if s.generation >= generation]
        if any(item.generation > generation for item in everywhere):
            return None
        if not features.on(Gate.COMPATIBILITY_GROUPS):
            everywhere = [item for item in everywhere if not _hidden(item, features)]
        if len(everywhere) != count:
            return Pool(id=pool_id, incomplete=f"{len(everywhere)} of its {count} slices are there")
    return _complete_pool(pool_id, found, everywhere, features)


def _complete_pool(
    pool_id: PoolId, found: list[Slice], everywhere: Sequence[Slice], features: Features
) -> Pool:
    last = features.has(Fault.BINDING_SLICES_LAST)
    found = sorted(found, key=lambda item: (last and item.binds, item.name))
    partitionable = features.on(Gate.PARTITIONABLE_DEVICES)
    mine = {item.name for item in found}
    rest = [item for item in everywhere if item.name not in mine]
    devices = tuple(item for item in found if not (partitionable and item.counter_sets))
    if repeated := _repeated(device.id.device for item in devices for device in item.devices):
        return Pool(id=pool_id, invalid=f"device name {repeated} occurs twice")
    if not partitionable:
        return Pool(id=pool_id, slices=devices)
    only_found = features.has(Fault.COUNTER_SLICES_ON_ALL_NODES)
    sets = [pair for item in (found if only_found else [*found, *rest]) for pair in item.counter_sets]
    sets += [pair for item in found for pair in item.derived_sets]
    if repeated := _repeated(name for name, _ in sets):
        return Pool(id=pool_id, invalid=f"counter set {repeated} occurs twice")
    counter_sets = dict(sets)
    others = tuple(item for item in rest if only_found or not item.counter_sets)
    for item in (*(found if only_found else devices), *others):
        if unknown := _unknown_counter(counter_sets, item):
            return Pool(id=pool_id, invalid=unknown)
    return Pool(id=pool_id, slices=devices, others=others, counter_sets=counter_sets)


def _pool_by_slice(pool_id: PoolId, found: list[Slice]) -> Pool:
    """Kubernetes 1.34: counters belong to the slice that has the devices."""
    count = found[0].slice_count
    incomplete = "" if len(found) == count else f"{len(found)} of its {count} slices are there"
    repeated = _repeated(device.id.device for item in found for device in item.devices)
    return Pool(
        id=pool_id,
        incomplete=incomplete,
        invalid=f"device name {repeated} occurs twice" if repeated else "",
        slices=tuple(sorted(found, key=lambda item: (item.binds, item.name))),
    )


def _repeated(names: Iterable[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""


def _unknown_counter(counter_sets: Mapping[str, Mapping[str, int]], item: Slice) -> str:
    for device in item.devices:
        for consumed in device.consumes:
            counters = counter_sets.get(consumed.counter_set)
            if counters is None:
                return f"device {device.id.device} consumes the unknown counter set {consumed.counter_set}"
            for name, _ in consumed.counters:
                if name not in counters:
                    counter = f"{consumed.counter_set}/{name}"
                    return f"device {device.id.device} consumes the unknown counter {counter}"
    return ""

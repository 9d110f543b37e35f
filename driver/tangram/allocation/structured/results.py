"""From the devices of a solution to the `status.allocation` of each claim."""

from collections.abc import Iterable, Sequence
from uuid import NAMESPACE_URL, uuid5

from tangram.allocation.structured.candidates import Taken
from tangram.allocation.structured.features import Fault, Features, Gate
from tangram.allocation.structured.outcome import FatalError
from tangram.allocation.structured.requests import Alternative, Request
from tangram.allocation.structured.search import Solution
from tangram.allocation.structured.state import claim_name
from tangram.allocation.structured.view import View
from tangram.model.kubernetes import (
    AllocatedDevices,
    AllocationResult,
    AnyQuantity,
    DeviceAllocationResult,
    DeviceConfiguration,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ResourceClaim,
)


def allocations(
    solution: Solution, claims: Sequence[ResourceClaim], requests: Sequence[Request], view: View
) -> tuple[AllocationResult, ...]:
    """What is written to each claim, in order; without `allocationTimestamp`. Raises FatalError."""
    results = []
    for index, claim in enumerate(claims):
        taken = [item for item in solution.taken if item.alternative.claim == index]
        chosen = [
            request.alternatives[alternative]
            for request, alternative in zip(requests, solution.chosen, strict=True)
            if request.claim == index
        ]
        devices = AllocatedDevices(
            results=[_result(claim, item, number, view) for number, item in enumerate(taken)] or None,
            config=_configurations(claim, chosen, view.features) or None,
        )
        results.append(AllocationResult(devices=devices, node_selector=_node_selector(taken, view)))
    return tuple(results)


def _result(claim: ResourceClaim, taken: Taken, number: int, view: View) -> DeviceAllocationResult:
    alternative, features = taken.alternative, view.features
    place, device = view.places[taken.position], view.device(taken.position)
    binds, skips = features.on(Gate.DEVICE_BINDING_AND_STATUS), features.skips_operations
    consumed: dict[str, AnyQuantity] | None = None
    share_id = None
    if taken.share is not None:
        share_id = share_uuid(claim, alternative.name, number)
        consumed = {name: str(amount) for name, amount in sorted(taken.share.consumed.items())} or None
    return DeviceAllocationResult(
        request=alternative.name,
        driver=device.id.driver,
        pool=device.id.pool,
        device=device.id.device,
        admin_access=True if alternative.admin else None,
        tolerations=alternative.tolerations if features.copies_tolerations else None,
        binding_conditions=device.wire.binding_conditions if binds else None,
        binding_failure_conditions=device.wire.binding_failure_conditions if binds else None,
        share_id=share_id,
        consumed_capacity=consumed,
        skip_node_operations=place.slice.skip_node_operations if skips and place.slice else None,
    )


def share_uuid(claim: ResourceClaim, request: str, number: int) -> str:
    """The id of a share: the same for the same claim, request and place in its results."""
    identity = claim.metadata.uid or claim_name(claim)
    return str(uuid5(NAMESPACE_URL, f"urn:tangram:share:{identity}/{request}/{number}"))


# --- configuration ---


def _configurations(
    claim: ResourceClaim, chosen: Sequence[Alternative], features: Features
) -> list[DeviceConfiguration]:
    """Those of the classes, each once in order of first use, then those of the claim."""
    once = not features.has(Fault.CONFIG_PER_REQUEST)
    configurations = _of_classes(chosen)
    for config in claim.spec.devices.config or ():
        named = config.requests or []
        uses = [a for a in chosen if a.request in named or (a.subrequest and a.name in named)]
        copies = len(uses) if named else 1
        copy = DeviceConfiguration(source="FromClaim", requests=config.requests, opaque=config.opaque)
        configurations += [copy] * (min(copies, 1) if once else copies)
    if not once:
        return configurations
    return [_for_all(config, chosen) for config in configurations]


def _of_classes(chosen: Sequence[Alternative]) -> list[DeviceConfiguration]:
    users: dict[str, list[Alternative]] = {}
    for alternative in chosen:
        users.setdefault(alternative.device_class.metadata.name, []).append(alternative)
    return [
        DeviceConfiguration(source="FromClass", requests=[a.name for a in alternatives], opaque=config.opaque)
        for alternatives in users.values()
        for config in alternatives[0].device_class.spec.config or ()
    ]


def _for_all(config: DeviceConfiguration, chosen: Sequence[Alternative]) -> DeviceConfiguration:
    """Without the names of requests, where they are all there are."""
    named = config.requests or []
    if named and all(a.request in named or (a.subrequest and a.name in named) for a in chosen):
        return DeviceConfiguration(source=config.source, opaque=config.opaque)
    return config


# --- node selector ---


def _node_selector(taken: Iterable[Taken], view: View) -> NodeSelector | None:
    """Where the devices can be reached: one node by name, or what all their selectors require."""
    fields: list[NodeSelectorRequirement] = []
    expressions: list[NodeSelectorRequirement] = []
    for item in taken:
        place, wire = view.places[item.position], view.device(item.position).wire
        own = place.slice is not None and bool(place.slice.per_device)
        published = wire if own or place.slice is None else place.slice
        binds = bool(wire.binds_to_node) and not view.features.is_basic
        if published.node_name is not None or binds:
            requirement = NodeSelectorRequirement(key="metadata.name", operator="In", values=[view.node.name])
            return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[requirement])])
        terms = published.node_selector.node_selector_terms or [] if published.node_selector else []
        if len(terms) > 1:
            raise FatalError(f"unsupported ResourceSlice.NodeSelector with {len(terms)} terms")
        for found in terms:
            _add(fields, found.match_fields or [])
            _add(expressions, found.match_expressions or [])
    if not fields and not expressions:
        return None
    term = NodeSelectorTerm(match_expressions=expressions or None, match_fields=fields or None)
    return NodeSelector(node_selector_terms=[term])


def _add(known: list[NodeSelectorRequirement], found: Iterable[NodeSelectorRequirement]) -> None:
    for requirement in found:
        values = frozenset(requirement.values or ())
        if not any(
            (requirement.key, requirement.operator, values) == (k.key, k.operator, frozenset(k.values or ()))
            for k in known
        ):
            known.append(requirement)

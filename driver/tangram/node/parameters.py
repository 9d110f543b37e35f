"""The opaque parameters of a claim against what it was given: the node is the last to notice a contradiction.

kube-scheduler, where it allocates, does not know them; a controller may be older or wrong.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from tangram import DRIVER_NAME
from tangram.api import Demand, DeviceFacts, GPUClaimParameters, decode_parameters, is_grant, lower, merge
from tangram.base.errors import ClaimNotPreparableError
from tangram.kube.objects import DeviceAllocationResult, ResourceClaim
from tangram.model.gpu import Gpu
from tangram.model.links import LinkMatrix
from tangram.model.offers import Offer
from tangram.model.product import gpu_type
from tangram.node.inventory import Inventory
from tangram.node.request import claim_label


def demands_of(claim: ResourceClaim, results: Iterable[DeviceAllocationResult]) -> dict[str, Demand]:
    """What the parameters ask of each request, as results name it; none for a request without parameters.

    Raises InvalidObjectError for parameters that are wrong.
    """
    entries = _own_entries(claim)
    if not entries:
        return {}
    classes = _classes(claim)
    return {
        request: lower(
            merge(
                *(decoded for requests, decoded in entries if not requests or _names(request) & {*requests})
            ),
            class_name=classes.get(request, ""),
            object_name=claim_label(claim),
        )
        for request in dict.fromkeys(result.request for result in results)
    }


def check_demands(
    claim: ResourceClaim,
    demands: Mapping[str, Demand],
    results: Iterable[DeviceAllocationResult],
    inventory: Inventory,
) -> None:
    """Raises ClaimNotPreparableError for a device that is not what its request asks for, or devices that are
    not linked as they should be."""
    label = claim_label(claim)
    by_request: dict[str, list[str]] = {}
    for result in results:
        by_request.setdefault(result.request, []).append(result.device)
    for request, demand in demands.items():
        offers = [offer for name in by_request[request] if (offer := inventory.offer(name))]
        for offer in offers:
            if reason := demand.accepts(_facts(offer)):
                raise _contradiction(label, f"device {offer.name} is", request, reason)
        size = demand.linked_set_size
        if not _linked_sets([offer.gpu for offer in offers], size=size, inventory=inventory):
            what = f"the set of allocated devices ({len(offers)}) is"
            raise _contradiction(label, what, request, f"fully linked sets of {size} (nvLinkPeers)")


def _contradiction(label: str, what: str, request: str, reason: str) -> ClaimNotPreparableError:
    return ClaimNotPreparableError(
        f"{label}: {what} not what the parameters of request {request} ask for: {reason}",
        next_step="where kube-scheduler allocates, ask by selectors: it does not read parameters",
    )


def _linked_sets(gpus: Sequence[Gpu], *, size: int, inventory: Inventory) -> bool:
    """Whether the GPUs are so many sets of `size`, each GPU of a set linked with every other of it."""
    if size == 1:
        return True
    ordinals = {gpu.uuid: ordinal for ordinal, gpu in enumerate(inventory.machine.gpus)}
    return len(gpus) % size == 0 and _divides(
        inventory.machine.links(), frozenset(ordinals[gpu.uuid] for gpu in gpus), size
    )


def _divides(matrix: LinkMatrix, ordinals: frozenset[int], size: int) -> bool:
    if not ordinals:
        return True
    first = min(ordinals)
    peers = sorted(ordinals & set(matrix.peers(first)))
    return any(
        matrix.fully_linked(others) and _divides(matrix, ordinals - {first, *others}, size)
        for others in combinations(peers, size - 1)
    )


def _own_entries(claim: ResourceClaim) -> list[tuple[list[str], GPUClaimParameters]]:
    """The parameters for this driver with the requests they are for, of classes first, then of the claim."""
    allocation = claim.allocation
    config = (allocation.devices.config or []) if allocation else []
    return [
        (
            entry.requests or [],
            decode_parameters(
                bytes(entry.opaque.parameters),
                object_name=claim_label(claim),
                field=f"status.allocation.devices.config[{position}].opaque.parameters",
            ),
        )
        for position, entry in enumerate(config)
        if entry.opaque is not None and entry.opaque.driver == DRIVER_NAME and not is_grant(entry)
    ]


def _classes(claim: ResourceClaim) -> Mapping[str, str]:
    """Request, or request/subrequest → its device class."""
    classes: dict[str, str] = {}
    for request in claim.spec.devices.requests or []:
        if request.exactly is not None:
            classes[request.name] = request.exactly.device_class_name
        for alternative in request.first_available or []:
            classes[f"{request.name}/{alternative.name}"] = alternative.device_class_name
    return classes


def _names(request: str) -> set[str]:
    """The names by which a configuration may mean the request of a result."""
    return {request, request.partition("/")[0]}


def _facts(offer: Offer) -> DeviceFacts:
    gpu, profile = offer.gpu, offer.profile
    return DeviceFacts.of(
        kind=offer.kind,
        product_name=gpu.product_name,
        gpu_type=gpu_type(gpu.product_name),
        memory_bytes=profile.memory_bytes if profile else gpu.memory_bytes,
        profile=profile.name if profile else "",
    )

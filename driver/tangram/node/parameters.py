"""The opaque parameters of a claim against what it was given: the node is the last to notice a contradiction.

kube-scheduler, where it allocates, does not know them; a controller may be older or wrong.
"""

from collections.abc import Iterable, Mapping

from tangram import DRIVER_NAME
from tangram.api import DeviceFacts, GPUClaimParameters, decode_parameters, lower, merge
from tangram.base.errors import ClaimNotPreparableError
from tangram.kube.objects import DeviceAllocationResult, ResourceClaim
from tangram.model.gpu import Gpu
from tangram.model.product import gpu_type, nominal_gigabytes
from tangram.node.inventory import Inventory
from tangram.node.request import claim_label


def check_parameters(
    claim: ResourceClaim, results: Iterable[DeviceAllocationResult], inventory: Inventory
) -> None:
    """Raises InvalidObjectError for parameters that are wrong, ClaimNotPreparableError for a device that is
    not what they ask for."""
    label = claim_label(claim)
    entries = _own_entries(claim)
    if not entries:
        return
    classes = _classes(claim)
    gpus = inventory.by_device()
    for result in results:
        parameters = [
            decoded for requests, decoded in entries if not requests or _names(result.request) & set(requests)
        ]
        demand = lower(merge(*parameters), class_name=classes.get(result.request, ""), object_name=label)
        gpu = gpus.get(result.device)
        if gpu is None:
            continue
        if reason := demand.accepts(_facts(gpu)):
            raise ClaimNotPreparableError(
                f"{label}: device {result.device} is not what the parameters of request {result.request} ask"
                f" for: {reason}",
                next_step="where kube-scheduler allocates, ask by selectors: it does not read parameters",
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
        if entry.opaque is not None and entry.opaque.driver == DRIVER_NAME
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


def _facts(gpu: Gpu) -> DeviceFacts:
    return DeviceFacts(
        memory_bytes=gpu.memory_bytes,
        nominal_gb=nominal_gigabytes(gpu.product_name, gpu.memory_bytes),
        gpu_type=gpu_type(gpu.product_name),
        product_name=gpu.product_name,
    )

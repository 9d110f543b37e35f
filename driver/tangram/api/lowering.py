"""GPUClaimParameters → Demand: defaults, rules across fields, and what this version does not do yet."""

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from msgspec import UNSET, UnsetType

from tangram import DRIVER_NAME
from tangram.api.demand import Demand, GpuType, Sharing
from tangram.api.parameters import GPUClaimParameters, decode_parameters, merge
from tangram.base.errors import InvalidObjectError
from tangram.model.devices import Kind
from tangram.model.kubernetes import DeviceConfiguration
from tangram.model.quantity import parse_quantity
from tangram.model.shares import WantedShare

CLASS_SHARING: dict[str, Sharing] = {
    DRIVER_NAME: "exclusive",
    f"mig.{DRIVER_NAME}": "mig",
    f"mps.{DRIVER_NAME}": "mps",
    f"timeslice.{DRIVER_NAME}": "timeSlice",
}
"""What the devices of our classes are; of a class that an administrator made, nothing is known."""

_KINDS: dict[Sharing, Kind] = {"exclusive": "gpu", "mig": "mig", "mps": "mps", "timeSlice": "timeslice"}

T = TypeVar("T")
_Invalid = Callable[..., InvalidObjectError]


def demand_of(
    names: Collection[str],
    *,
    class_name: str,
    class_config: Sequence[DeviceConfiguration],
    claim_name: str,
    claim_config: Sequence[DeviceConfiguration],
) -> Demand | None:
    """The demand of a request, from the configuration of its class, overridden by that of the claim.

    `names`: what entries of the claim call the request, `name` and perhaps `name/subrequest`; `claim_name`
    is `namespace/name`. None where no entry has parameters of our driver. Raises InvalidObjectError.
    """
    found: list[GPUClaimParameters] = []
    for owner, prefix, entries in (
        (f"DeviceClass {class_name}", "spec.config", class_config),
        (f"ResourceClaim {claim_name}", "spec.devices.config", claim_config),
    ):
        for index, entry in enumerate(entries):
            if entry.opaque is None or entry.opaque.driver != DRIVER_NAME:
                continue
            if entry.requests and not set(names) & set(entry.requests):
                continue
            field = f"{prefix}[{index}].opaque.parameters"
            parameters = bytes(entry.opaque.parameters)
            found.append(decode_parameters(parameters, object_name=owner, field=field))
    if not found:
        return None
    return lower(merge(*found), class_name=class_name, object_name=f"ResourceClaim {claim_name}")


def linked_count(demand: Demand | None, count: int, *, object_name: str, field: str) -> int:
    """How many devices a request for `count` gets: a whole number of linked sets, at least one.

    Raises InvalidObjectError where linked sets do not add up to the count.
    """
    linked = demand.linked_set_size if demand else 1
    count = max(count, linked)
    if count % linked:
        raise InvalidObjectError(
            f"is {count}, which sets of {linked} linked GPUs (nvLinkPeers) do not add up to",
            object_name=object_name,
            field=field,
            next_step=f"ask for a multiple of {linked}",
        )
    return count


def lower(parameters: GPUClaimParameters, *, class_name: str, object_name: str) -> Demand:
    """The demand of a request of device class `class_name`, from its merged parameters.

    Raises InvalidObjectError naming the fields that contradict each other or the class, or a field whose
    effect is not built yet (unless it states what holds anyway).
    """

    def invalid(field: str, cause: str, next_step: str = "") -> InvalidObjectError:
        return InvalidObjectError(cause, object_name=object_name, field=field, next_step=next_step)

    peers = _stated(parameters.nv_link_peers) or 1
    profile = _stated(parameters.mig_profile)
    if profile is not None and peers > 1:
        raise invalid(
            "migProfile",
            f"{profile} contradicts nvLinkPeers {peers}: MIG devices have no NVLink",
            "leave one of the two out",
        )
    sharing = _sharing(parameters, class_name, invalid)
    _refuse_later(parameters, invalid)
    text = _stated(parameters.gpu_type)
    try:
        gpu_type = None if text is None else GpuType.parse(text)
    except ValueError as error:
        raise invalid("gpuType", str(error), "write a model such as H100 or H100-80GB") from None
    return Demand(
        memory_gb=_stated(parameters.memory_gb),
        gpu_type=gpu_type,
        linked_set_size=peers,
        sharing=sharing,
        kinds=_kinds(parameters, class_name, sharing),
        mig_profile=profile,
        share=_share(parameters, sharing, invalid),
    )


def _stated(value: T | UnsetType | None) -> T | None:
    return None if value is UNSET else value


def _sharing(parameters: GPUClaimParameters, class_name: str, invalid: _Invalid) -> Sharing:
    """How the devices are used: as the class says; shPolicy and migProfile may repeat that, or say it for
    other classes."""
    policy: Sharing | None = _stated(parameters.sh_policy)
    profile = _stated(parameters.mig_profile)
    given = CLASS_SHARING.get(class_name)
    if given is None:
        if profile is not None and policy not in (None, "exclusive"):
            raise invalid(
                "migProfile",
                f"{profile} contradicts shPolicy {policy}: a MIG device is not shared",
                "leave one of the two out",
            )
        return "mig" if profile is not None else policy or "exclusive"
    # A MIG device that one claim has to itself is exclusive as well.
    if policy is not None and policy != given and (policy, given) != ("exclusive", "mig"):
        raise invalid(
            "shPolicy",
            f"{policy} contradicts device class {class_name}, whose devices are for {given} use",
            f"ask for device class {_class_of(policy)}, or leave shPolicy out",
        )
    if profile is not None and given != "mig":
        raise invalid(
            "migProfile",
            f"{profile} contradicts device class {class_name}, whose devices are for {given} use",
            f"ask for device class {_class_of('mig')}, or leave migProfile out",
        )
    return given


def _class_of(sharing: Sharing) -> str:
    return next(name for name, of_class in CLASS_SHARING.items() if of_class == sharing)


def _kinds(parameters: GPUClaimParameters, class_name: str, sharing: Sharing) -> frozenset[Kind] | None:
    """The kinds of devices that will do. Of a class that an administrator made, its selectors decide, unless
    the parameters say."""
    if class_name in CLASS_SHARING or _stated(parameters.mig_profile) is not None:
        return frozenset({_KINDS[sharing]})
    if _stated(parameters.sh_policy) is None:
        return None
    return frozenset({"gpu", "mig"} if sharing == "exclusive" else {_KINDS[sharing]})


def _share(parameters: GPUClaimParameters, sharing: Sharing, invalid: _Invalid) -> WantedShare:
    mps = _stated(parameters.mps)
    percent = _stated(mps.thread_percent) if mps is not None else None
    pinned = _stated(mps.pinned_memory) if mps is not None else None
    replicas = _stated(parameters.replicas)
    checks: tuple[tuple[str, int | str | None, Sharing], ...] = (
        ("mps.threadPercent", percent, "mps"),
        ("mps.pinnedMemory", pinned, "mps"),
        ("replicas", replicas if replicas != 1 else None, "timeSlice"),
    )
    for field, stated, only in checks:
        if stated is not None and sharing != only:
            raise invalid(
                field,
                f"{stated} is for {only} use, and the devices are for {sharing} use",
                f"ask for device class {_class_of(only)}, or leave the field out",
            )
    memory_gb = _stated(parameters.memory_gb)
    memory_bytes = None if memory_gb is None else memory_gb * 10**9
    if pinned is not None:
        memory_bytes = int(parse_quantity(pinned))
        if memory_bytes <= 0:
            raise invalid("mps.pinnedMemory", f"{pinned} is no memory", "write a quantity such as 16Gi")
    return WantedShare(memory_bytes=memory_bytes, cores=percent, replicas=replicas)


def _refuse_later(parameters: GPUClaimParameters, invalid: _Invalid) -> None:
    """Refuses by name what this version does not do; a value that changes nothing is welcome."""
    later = {
        "alternatives": bool(_stated(parameters.alternatives)),
        "latencySensitive": _stated(parameters.latency_sensitive) is True,
        "longKernels": _stated(parameters.long_kernels) is True,
    }
    for field, asked in later.items():
        if asked:
            raise invalid(field, "is not supported yet by this version", "leave the field out")

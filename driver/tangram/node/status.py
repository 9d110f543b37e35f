"""The state of a node for people and programs (`tangram node status`), made of what is seen of it. Pure."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from tangram.model.devices import Kind
from tangram.model.gpu import Gpu, GpuUuid, Machine
from tangram.node.drains import Drain
from tangram.node.held import HeldClaim, HeldDevice, HeldShare, Phase
from tangram.node.sight import Api, PluginState, Published, Sight

GpuState = Literal["healthy", "warning", "drained", "unhealthy", "gone", "unknown"]
"""`gone`: a claim holds it and the driver does not know it. `unknown`: the hardware cannot be looked at."""
_WRONG: frozenset[GpuState] = frozenset({"unhealthy", "gone", "unknown"})
_SEE_DOCTOR = "tangram node doctor looks for the reason"
_BY_INDEX = "index "
"""How `Machine.failures` names a GPU that does not even tell its UUID."""


class _Struct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what is printed."""


class Holder(_Struct, frozen=True, kw_only=True):
    """A device that a claim holds, as its file on the node says. `pods` is None where nobody can tell."""

    namespace: str
    name: str
    uid: str
    phase: Phase
    device: str
    kind: Kind
    share: HeldShare | None = None
    admin_access: bool = False
    pods: tuple[str, ...] | None = None


class GpuStatus(_Struct, frozen=True, kw_only=True):
    """One GPU. `offers`: how many devices of which kind; `published`: as in the node's slices, None where it
    is in none or they cannot be read. `index`, `product_name` and the like are None where it is not seen."""

    uuid: GpuUuid
    state: GpuState
    cause: str = ""
    drained: Drain | None = None
    published: Published | None = None
    index: int | None = None
    product_name: str | None = None
    memory_bytes: int | None = None
    mig_mode: str | None = None
    offers: dict[Kind, int] = {}
    holders: tuple[Holder, ...] = ()


class PluginStatus(_Struct, frozen=True, kw_only=True):
    """The node plugin's process."""

    state: PluginState
    waiting_for: tuple[str, ...] = ()


class Problem(_Struct, frozen=True, kw_only=True):
    """Something that is wrong, and what to do about it."""

    cause: str
    next_step: str = ""


class NodeStatus(_Struct, frozen=True, kw_only=True):
    """All of it. `notes` say what could not be learnt and need not be wrong."""

    node_name: str
    hardware: str
    plugin: PluginStatus
    driver_version: str = ""
    cuda_driver_version: str = ""
    gpus: tuple[GpuStatus, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong; a drained GPU is not."""
        return not self.problems and not any(gpu.state in _WRONG for gpu in self.gpus)


def node_status(sight: Sight, *, node_name: str, hardware: str) -> NodeStatus:
    """`hardware`: `nvml` or `simulated`."""
    machine = sight.gpus.inventory.machine if sight.gpus.inventory else None
    return NodeStatus(
        node_name=node_name,
        hardware=hardware,
        plugin=PluginStatus(state=sight.plugin.state, waiting_for=sight.plugin.waiting_for),
        driver_version=machine.driver_version if machine else "",
        cuda_driver_version=machine.cuda_driver_version if machine else "",
        gpus=tuple(_gpus(sight)),
        problems=tuple(_problems(sight)),
        notes=tuple(_notes(sight)),
    )


def holders(sight: Sight, uuid: str) -> tuple[Holder, ...]:
    """Who holds a part of a GPU, in order of names."""
    found = [
        _holder(claim, device, sight.api)
        for claim in sight.files.held.claims.values()
        for device in claim.devices
        if device.uuid == uuid
    ]
    return tuple(sorted(found, key=lambda one: (one.namespace, one.name, one.device)))


def known_gpus(sight: Sight) -> dict[GpuUuid, Gpu | None]:
    """All GPUs that anything tells of, by UUID; None for one that the driver does not know now."""
    machine = sight.gpus.inventory.machine if sight.gpus.inventory else Machine(gpus=())
    seen = {gpu.uuid: gpu for gpu in machine.gpus}
    told = {GpuUuid(label) for label in machine.failures if not label.startswith(_BY_INDEX)}
    told |= {GpuUuid(uuid) for claim in sight.files.held.claims.values() for uuid in claim.gpus}
    told |= sight.files.drains.keys() | (sight.api.published or {}).keys()
    return {uuid: seen.get(uuid) for uuid in sorted(seen.keys() | told)}


def _gpus(sight: Sight) -> list[GpuStatus]:
    """In order of indices, those without one last."""
    offered = sight.gpus.inventory.devices.values() if sight.gpus.inventory else ()
    offers = Counter((offer.gpu.uuid, offer.kind) for offer in offered)
    found = []
    for uuid, gpu in known_gpus(sight).items():
        state, cause = _state(uuid, gpu, sight)
        found.append(
            GpuStatus(
                uuid=uuid,
                state=state,
                cause=cause,
                drained=sight.files.drains.get(uuid),
                published=(sight.api.published or {}).get(uuid),
                index=gpu.index if gpu else None,
                product_name=gpu.product_name if gpu else None,
                memory_bytes=gpu.memory_bytes if gpu else None,
                mig_mode=gpu.mig_mode if gpu else None,
                offers={kind: count for (of, kind), count in offers.items() if of == uuid},
                holders=holders(sight, uuid),
            )
        )
    return sorted(found, key=lambda one: (one.index is None, one.index or 0, one.uuid))


def _state(uuid: GpuUuid, gpu: Gpu | None, sight: Sight) -> tuple[GpuState, str]:
    inventory = sight.gpus.inventory
    published = (sight.api.published or {}).get(uuid)
    drained = uuid in sight.files.drains
    if inventory is None:
        return "unknown", sight.gpus.problem
    if cause := inventory.unhealthy.get(uuid) or inventory.machine.failures.get(uuid):
        return "unhealthy", cause
    if gpu is None:
        return "gone", "the driver does not know it"
    if published == "unhealthy" and not drained and sight.plugin.runs:
        # XID errors are told once, and only the plugin has heard them.
        return "unhealthy", "the plugin publishes it as unhealthy: its log says why (gpu_xid, gpus_changed)"
    if drained:
        return "drained", "still published as healthy" if published == "healthy" else ""
    mps = inventory.mps_failing.get(uuid) if "mps" in inventory.policy.kinds else None
    warnings = [
        inventory.warnings.get(uuid, ""),
        f"no shares by MPS: {mps}" if mps else "",
    ]
    if any(warnings):
        return "warning", "; ".join(filter(None, warnings))
    return "healthy", ""


def _holder(claim: HeldClaim, device: HeldDevice, api: Api) -> Holder:
    return Holder(
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
        phase=claim.phase,
        device=device.device,
        kind=device.kind,
        share=device.share,
        admin_access=device.admin_access,
        pods=api.pods.get(claim.uid),
    )


def _problems(sight: Sight) -> Iterable[Problem]:
    plugin, gpus, files = sight.plugin, sight.gpus, sight.files
    if plugin.state == "not running":
        yield Problem(
            cause="the node plugin does not run",
            next_step="look at its pod and its log: kubectl --namespace tangram-system get pods; what is held"
            " is on disk and stays held",
        )
    elif plugin.state == "not answering":
        yield Problem(
            cause="the node plugin's process is there and does not answer",
            next_step="look at its log; delete its pod to start it again: running pods are not disturbed",
        )
    for what in plugin.waiting_for:
        yield Problem(cause=f"the node plugin waits for {what}", next_step=_SEE_DOCTOR)
    if gpus.problem:
        yield Problem(cause=f"the GPUs cannot be looked at: {gpus.problem}", next_step=_SEE_DOCTOR)
    for label, cause in gpus.inventory.machine.failures.items() if gpus.inventory else ():
        if label.startswith(_BY_INDEX):
            yield Problem(cause=f"the GPU of {label} does not answer: {cause}", next_step=_SEE_DOCTOR)
    for damage in files.held.damaged.values():
        yield Problem(
            cause=f"the held file of claim uid {damage.uid} cannot be used: {damage.cause}",
            next_step="the plugin sets it aside within a minute, or at its next start, and rebuilds it",
        )
    for error in files.problems:
        yield Problem(cause=error.cause, next_step=error.next_step)


def _notes(sight: Sight) -> Iterable[str]:
    if sight.api.problem is not None:
        yield f"pods and published devices are not known: {sight.api.problem.cause}"
    for path in sight.files.set_aside:
        yield f"{path} is a held file that could not be used; its claim was rebuilt or freed"

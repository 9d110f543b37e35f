"""What happened to every pod, kept while it happens: a claim forgets its devices when its pod has ended."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tangram.kube.resources import EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tangram.model.quantity import parse_quantity
from tangram.playground.objects import Object, attribute, claim_names, gpu_of, phase, results, uid
from tangram.playground.scheduler import WAITING
from tangram.testing.apiserver import FakeApiServer

_TROUBLES = frozenset(
    {"WaitingForDevices", "FailedPrepareDynamicResources", "FailedResourceClaimCreation", "Failed"}
)
SETTLED = frozenset({"Running", "Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSeen:
    """A GPU as its slice publishes it, by one or several devices; `links` is the row of the link matrix as
    published. `index` is the GPU's, or its `ordinal` where only MIG devices are published of it."""

    node: str
    devices: frozenset[str]
    uuid: str
    index: int
    ordinal: int
    product_name: str
    memory_bytes: int
    """0 where it has none of its own"""
    links: str
    healthy: bool = True

    @property
    def name(self) -> str:
        """That of the device of the whole GPU, with which all names of its devices begin."""
        return min(self.devices, key=len).partition("-mig-")[0]


@dataclass(slots=True, kw_only=True)
class PodSeen:
    """A pod, from its creation on. `why` are the events that explain its devices, or that it has none."""

    uid: str
    namespace: str
    name: str
    phase: str = "Pending"
    node: str = ""
    devices: list[tuple[str, str]] = field(default_factory=list)
    """(node, device)"""
    claims: dict[str, str] = field(default_factory=dict)
    """uid → `namespace/name`"""
    why: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """what of it is not done here"""
    ends: list[str] = field(default_factory=list)
    """how its containers ended, where that is more than their success"""
    waits: str = ""
    gone: bool = False

    @property
    def settled(self) -> bool:
        """It runs, has run, or has been told why it waits."""
        if self.phase in SETTLED:
            return self.gone or not self.claims or bool(self.why)
        return bool(self.waits)


class Recorder:
    """`observe` is called at every change."""

    def __init__(self, server: FakeApiServer, *, controller_log: Path) -> None:
        self._server = server
        self._controller_log = controller_log
        self.pods: dict[str, PodSeen] = {}

    def observe(self) -> None:
        """Looks at pods, claims and events."""
        claims = {
            (c["metadata"]["namespace"], c["metadata"]["name"]): c
            for c in self._server.objects(RESOURCE_CLAIMS)
        }
        present = set()
        for pod in self._server.objects(PODS):
            present.add(uid(pod))
            namespace = pod["metadata"]["namespace"]
            seen = self.pods.setdefault(
                uid(pod), PodSeen(uid=uid(pod), namespace=namespace, name=pod["metadata"]["name"])
            )
            seen.phase, seen.node = phase(pod), pod["spec"].get("nodeName", "")
            named = [(name, claims.get((namespace, name))) for _, name in claim_names(pod) if name]
            mine = [claim for _, claim in named if claim is not None]
            absent = [name for name, claim in named if claim is None]
            # What events say of it comes below, at each look.
            lacks = f"there is no ResourceClaim {absent[0]}" if absent and not seen.claims else ""
            seen.waits = lacks or _unschedulable(pod)
            seen.claims |= {uid(claim): f"{namespace}/{claim['metadata']['name']}" for claim in mine}
            devices = [
                (result["pool"].rpartition("/")[2], result["device"])
                for claim in mine
                for result in results(claim)
            ]
            seen.devices = devices or seen.devices
            seen.ends = list(_ends(pod)) or seen.ends
        for gone in self.pods.keys() - present:
            self.pods[gone].gone = True
        for event in self._server.objects(EVENTS):
            self._read(event)

    def _read(self, event: Object) -> None:
        about, reason, note = (
            (event.get("regarding") or {}).get("uid"),
            event.get("reason"),
            event.get("note") or "",
        )
        for pod in self.pods.values():
            if reason == "Allocated" and about in pod.claims and note not in pod.why:
                pod.why.append(note)
            if about == pod.uid and reason == "NotInPlayground" and note not in pod.notes:
                pod.notes.append(note)
            if about == pod.uid and reason in _TROUBLES:
                pod.waits = note

    def one_runs_with_devices(self) -> bool:
        """Whether a pod with a GPU has begun to run."""
        return any(pod.phase in SETTLED and pod.devices for pod in self.pods.values())

    def gpus(self) -> list[GpuSeen]:
        """All GPUs, by node and index."""
        published: dict[tuple[str, str], list[Object]] = {}
        for item in self._server.objects(RESOURCE_SLICES):
            for device in item["spec"].get("devices") or ():
                published.setdefault((item["spec"]["nodeName"], gpu_of(device)), []).append(device)
        found = [_gpu(node, uuid, devices) for (node, uuid), devices in published.items()]
        return sorted(found, key=lambda gpu: (gpu.node, gpu.index))

    def holders(self) -> dict[tuple[str, str], list[str]]:
        """Pods by (node, device) that hold it now; a claim that no pod uses any more counts by its name. Who
        has admin access only looks."""
        holding: dict[tuple[str, str], list[str]] = {}
        for claim in self._server.objects(RESOURCE_CLAIMS):
            using = [holder["name"] for holder in claim.get("status", {}).get("reservedFor") or ()]
            for result in (each for each in results(claim) if not each.get("adminAccess")):
                key = (result["pool"].rpartition("/")[2], result["device"])
                holding.setdefault(key, []).extend(using or [f"claim {claim['metadata']['name']}"])
        return holding

    def decisions(self) -> dict[str, dict[str, Any]]:
        """The controller's own log of its decisions by claim (`namespace/name`): terms and the runner-up."""
        found = {}
        for line in self._controller_log.read_text(errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and entry.get("event") == "claim_allocated":
                found[str(entry["claim"])] = {key: entry.get(key) for key in ("node", "terms", "runner_up")}
        return found


def _gpu(node: str, uuid: str, devices: Sequence[Object]) -> GpuSeen:
    whole = [device for device in devices if attribute(device, "type") != "mig"]
    device = (whole or devices)[0]
    memory = device["capacity"].get("memory", {"value": "0"}) if whole else {"value": "0"}
    return GpuSeen(
        node=node,
        devices=frozenset(each["name"] for each in devices),
        uuid=uuid,
        index=attribute(device, "index" if whole else "ordinal"),
        ordinal=attribute(device, "ordinal"),
        product_name=attribute(device, "productName"),
        memory_bytes=int(parse_quantity(memory["value"])),  # none where the CPU's is shared
        links=attribute(device, "nvlinkLinks") or "",
        healthy=all(attribute(each, "healthy") for each in devices),
    )


def _unschedulable(pod: Object) -> str:
    """Why it waits, where that is more than claims that are not allocated yet."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    messages = [each.get("message", "") for each in conditions if each["type"] == "PodScheduled"]
    return next((message for message in messages if message != WAITING), "")


def _ends(pod: Object) -> Iterator[str]:
    status = pod.get("status") or {}
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        ended = (each.get("state") or {}).get("terminated") or (each.get("lastState") or {}).get("terminated")
        if ended and (ended["exitCode"] or each["restartCount"]):
            again = f", restarted {each['restartCount']} times" if each["restartCount"] else ""
            yield f"container {each['name']} ended with exit code {ended['exitCode']}{again}"

"""The form of a scenario file. docs/development.md describes it for people."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Component = Literal["plugin", "controller", "kubelet"]
GpuState = Literal["present", "lost", "absent"]
ObjectKind = Literal["Pod", "ResourceClaim", "Deployment", "Job"]
Name = Annotated[str, Meta(min_length=1, max_length=253)]
Count = Annotated[int, Meta(ge=0, le=1000)]
Phase = Literal["Pending", "Running", "Succeeded", "Failed"]
Value = str | int | bool


class Strict(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Keys in camel case; an unknown one is an error."""


class ObjectName(Strict, frozen=True, kw_only=True):
    """An object of the scenario's namespace."""

    kind: ObjectKind
    name: Name


class Deletion(Strict, frozen=True, kw_only=True):
    """`force` as `kubectl delete --force --grace-period=0`. Does not wait for the end."""

    kind: ObjectKind
    name: Name
    force: bool = False


class Disturbance(Strict, frozen=True, kw_only=True):
    """`node` where there is one for each node; absent: all of them."""

    component: Component
    node: Name = ""


class GpuChange(Strict, frozen=True, kw_only=True):
    """GPUs of simulated machines: those of `pod`; or of `node`: `index`, the first that is `free`, or all."""

    state: GpuState
    pod: Name = ""
    node: Name = ""
    index: Annotated[int, Meta(ge=0, le=63)] | None = None
    free: bool = False


class Devices(Strict, frozen=True, kw_only=True):
    """What is said of devices, of each pod or claim by itself."""

    gpus: Count | None = None
    """how many"""
    attributes: dict[str, Value] = {}
    """what each of them has"""
    same: list[str] = []
    """attributes that have one value on all of them"""
    linked: bool = False
    """each is linked to each other by NVLink"""


class PodsExpectation(Devices, frozen=True, kw_only=True):
    """Pods, by their names or by labels."""

    pods: Annotated[list[Name], Meta(min_length=1)] | dict[str, str]
    count: Count | None = None
    phase: Phase | None = None
    node: Name = ""
    between: Literal["", "apart", "shared"] = ""
    """all pods have different devices, or all the same"""
    sees: bool = False
    """each container printed exactly its claims' devices: environment (`env`) and `/dev/nvidia*`"""
    unchanged: bool = False
    """the same pods, containers and devices as at the last `remember`"""


class ClaimsExpectation(Devices, frozen=True, kw_only=True):
    """One claim by its name, or all claims of a pod."""

    claim: Name = ""
    claims_of: Name = ""
    allocated: bool | None = None
    reserved_for: list[Name] | None = None
    ready: bool | None = None
    """each device, or at least one not, is Ready in `status.devices`"""
    message: str = ""
    """part of the message of such a condition"""


class EventExpectation(Strict, frozen=True, kw_only=True):
    """An event with this reason about a pod, or about one of its claims."""

    event: Name
    pod: Name = ""
    claims_of: Name = ""
    text: list[str] = []
    """parts of its message"""
    absent: bool = False


class LogExpectation(Strict, frozen=True, kw_only=True):
    """Parts of what a pod's container printed."""

    log: Name
    """the pod"""
    container: str = ""
    text: Annotated[list[str], Meta(min_length=1)]


class ObjectExpectation(Strict, frozen=True, kw_only=True):
    """An object has at least these fields and values, or is gone."""

    object: ObjectName
    has: dict[str, Any] = {}
    gone: bool = False


class HeldExpectation(Strict, frozen=True, kw_only=True):
    """So many claims are allocated, and nodes hold the state and CDI files of exactly those."""

    held: Count


class PublishedExpectation(Strict, frozen=True, kw_only=True):
    """How many GPUs each node publishes; with `healthy`, how many of them all are healthy."""

    published: Annotated[dict[str, Count], Meta(min_length=1)]
    healthy: Count | None = None


Expectation = (
    PodsExpectation
    | ClaimsExpectation
    | EventExpectation
    | LogExpectation
    | ObjectExpectation
    | HeldExpectation
    | PublishedExpectation
)
EXPECTATIONS: dict[str, type[Expectation]] = {
    "pods": PodsExpectation,
    "event": EventExpectation,
    "log": LogExpectation,
    "object": ObjectExpectation,
    "held": HeldExpectation,
    "published": PublishedExpectation,
    "claim": ClaimsExpectation,
    "claimsOf": ClaimsExpectation,
}


class RawStep(Strict, frozen=True, kw_only=True):
    """As written: exactly one of these, and `within_s` beside `expect`."""

    apply: list[dict[str, Any]] | None = None
    apply_file: Name | None = None
    delete: list[Deletion] | None = None
    restart: Disturbance | None = None
    kill: Disturbance | None = None
    gpus: GpuChange | None = None
    remember: list[Name] | None = None
    expect: list[dict[str, Any]] | None = None
    within_s: Annotated[int, Meta(ge=1, le=600)] | None = None


class RawScenario(Strict, frozen=True, kw_only=True):
    """A file as written."""

    api_version: Literal["tangram/v1alpha1"]
    kind: Literal["Scenario"]
    about: Annotated[str, Meta(min_length=1, max_length=200)]
    machines: Annotated[list[Name], Meta(min_length=1, max_length=16)]
    steps: Annotated[list[RawStep], Meta(min_length=1, max_length=200)]


class Apply(msgspec.Struct, frozen=True, kw_only=True):
    """As `kubectl apply`."""

    objects: tuple[dict[str, Any], ...]


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """One after the other."""

    objects: tuple[Deletion, ...]


class Disturb(msgspec.Struct, frozen=True, kw_only=True):
    """Stops a part of the cluster (`kill`: with SIGKILL) and sees that it starts again."""

    what: Disturbance
    kill: bool


class Remember(msgspec.Struct, frozen=True, kw_only=True):
    """Keeps what `unchanged` compares with."""

    pods: tuple[str, ...]


class Expect(msgspec.Struct, frozen=True, kw_only=True):
    """All of these hold at one moment, within a time."""

    expectations: tuple[Expectation, ...]
    within_s: int


Action = Apply | Delete | Disturb | GpuChange | Remember | Expect


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """`label` names file and step for messages."""

    label: str
    action: Action


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """`machines` is what each node simulates, node-1 first: as of `parse_machines`."""

    name: str
    about: str
    machines: tuple[str, ...]
    steps: tuple[Step, ...]

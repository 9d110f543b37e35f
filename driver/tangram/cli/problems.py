"""Kubernetes objects from files as an allocation problem: who asks for what, and where it may be."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple
from uuid import NAMESPACE_URL, uuid5

import msgspec

from tangram.allocation.structured import NodeFacts
from tangram.base.errors import InvalidObjectError
from tangram.cli.derivedrules import check_derived
from tangram.controller.nodefit import NodeRecord, decode_node
from tangram.kube.objectfiles import FileObject
from tangram.kube.objects import (
    DeviceClass,
    Metadata,
    Node,
    Pod,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceSlice,
)
from tangram.model.kubernetes import ApiStruct

_RESOURCE_API = "resource.k8s.io"
_VERSIONS = ("v1", "v1beta2")
"""Versions of one schema."""
_DEFAULT_NAMESPACE = "default"

ClaimName = tuple[str, str]
"""Namespace and name."""


class ClaimTemplateSpec(ApiStruct, frozen=True, kw_only=True):
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ClaimTemplate(ApiStruct, frozen=True, kw_only=True):
    """ResourceClaimTemplate of resource.k8s.io/v1."""

    metadata: Metadata
    spec: ClaimTemplateSpec = ClaimTemplateSpec()


class GivenNode(NamedTuple):
    """A Node object, as the allocation and as placing pods need it."""

    facts: NodeFacts
    record: NodeRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Claims that are decided together. `pod`: the pod that needs them; `fixed`: its other claims, which are
    allocated already or belong to an earlier group."""

    claims: tuple[ResourceClaim, ...]
    pod: Pod | None = None
    fixed: tuple[ClaimName, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Problem:
    """`groups` in the order of the objects; `claims` are all, those made from templates too.

    `pods`: namespace and name of each pod → its claims. `ignored`: kind → how many objects were of it.
    `places`: file and document of each slice and claim, by kind and name as errors name them.
    """

    slices: tuple[ResourceSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    nodes: Mapping[str, GivenNode] = field(default_factory=dict)
    claims: tuple[ResourceClaim, ...] = ()
    groups: tuple[Group, ...] = ()
    pods: Mapping[ClaimName, Sequence[ClaimName]] = field(default_factory=dict)
    ignored: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def by_name(self) -> Mapping[ClaimName, ResourceClaim]:
        """The claims by namespace and name."""
        return {(claim.metadata.namespace, claim.metadata.name): claim for claim in self.claims}

    def node_names(self) -> list[str]:
        """All nodes that objects speak of, sorted."""
        published = {item.spec.node_name for item in self.slices}
        published |= {device.node_name for item in self.slices for device in item.spec.devices or ()}
        return sorted({*self.nodes, *(name for name in published if name)})


def problem_of(objects: Iterable[FileObject], *, loose_together: bool) -> Problem:
    """The problem that these objects state.

    The open claims of a pod are a group; those of no pod are one group, or with `loose_together` unset a
    group each. Raises InvalidObjectError naming file, document and field.
    """
    return _Reader(loose_together).read(objects)


class _Reader:
    def __init__(self, loose_together: bool) -> None:
        self._loose_together = loose_together
        self._places: dict[tuple[str, str, str], str] = {}
        self._slices: list[ResourceSlice] = []
        self._classes: list[DeviceClass] = []
        self._nodes: dict[str, GivenNode] = {}
        self._claims: dict[ClaimName, ResourceClaim] = {}
        self._templates: dict[ClaimName, ClaimTemplate] = {}
        self._pods: list[tuple[Pod, str]] = []
        self._order: list[ClaimName | Pod] = []
        self._ignored: Counter[str] = Counter()

    def read(self, objects: Iterable[FileObject]) -> Problem:
        for item in objects:
            self._take(item)
        pods = {id(pod): self._claims_of(pod, where) for pod, where in self._pods}
        return Problem(
            slices=tuple(self._slices),
            classes=tuple(self._classes),
            nodes=self._nodes,
            claims=tuple(self._claims.values()),
            groups=tuple(self._groups(pods)),
            pods={(pod.metadata.namespace, pod.metadata.name): pods[id(pod)] for pod, _ in self._pods},
            ignored=dict(self._ignored),
            places={
                f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}": where
                for (kind, namespace, name), where in self._places.items()
                if kind in ("ResourceSlice", "ResourceClaim")
            },
        )

    def _take(self, item: FileObject) -> None:
        group, _, version = item.api_version.rpartition("/")
        known = {
            (_RESOURCE_API, "ResourceSlice"): self._take_slice,
            (_RESOURCE_API, "DeviceClass"): self._take_class,
            (_RESOURCE_API, "ResourceClaim"): self._take_claim,
            (_RESOURCE_API, "ResourceClaimTemplate"): self._take_template,
            ("", "Node"): self._take_node,
            ("", "Pod"): self._take_pod,
        }
        take = known.get((group, item.kind))
        if take is None:
            self._ignored[item.kind] += 1
            return
        if group == _RESOURCE_API and version not in _VERSIONS:
            raise InvalidObjectError(
                f"is {item.api_version}, which is not read",
                object_name=f"{item.where}: {item.kind}",
                field="apiVersion",
                next_step=f"write it as {_RESOURCE_API}/{_VERSIONS[0]}: `kubectl get -o yaml` of a cluster"
                " with Kubernetes 1.34 or later does",
            )
        take(item)

    def _take_slice(self, item: FileObject) -> None:
        found = item.decode(ResourceSlice)
        self._name(item, found.metadata, namespaced=False)
        self._slices.append(found)

    def _take_class(self, item: FileObject) -> None:
        found = item.decode(DeviceClass)
        self._name(item, found.metadata, namespaced=False)
        self._classes.append(found)

    def _take_node(self, item: FileObject) -> None:
        found = item.decode(Node)
        self._name(item, found.metadata, namespaced=False)
        facts = NodeFacts(
            name=found.metadata.name,
            labels=found.metadata.labels or {},
            declared_features=frozenset(found.status.declared_features or ()),
        )
        self._nodes[facts.name] = GivenNode(facts, decode_node(item.raw))

    def _take_claim(self, item: FileObject) -> None:
        found = item.decode(ResourceClaim)
        metadata = self._name(item, found.metadata)
        if found.allocation is None:
            check_derived(
                found.spec, object_name=f"{item.where}: ResourceClaim {metadata.name}", field="spec"
            )
        key = (metadata.namespace, metadata.name)
        self._claims[key] = msgspec.structs.replace(found, metadata=metadata)
        self._order.append(key)

    def _take_template(self, item: FileObject) -> None:
        found = item.decode(ClaimTemplate)
        metadata = self._name(item, found.metadata)
        where = f"{item.where}: ResourceClaimTemplate {metadata.name}"
        check_derived(found.spec.spec, object_name=where, field="spec.spec")
        self._templates[metadata.namespace, metadata.name] = found

    def _take_pod(self, item: FileObject) -> None:
        found = item.decode(Pod)
        metadata = self._name(item, found.metadata)
        pod = msgspec.structs.replace(found, metadata=metadata)
        if pod.status.phase not in ("Succeeded", "Failed") and pod.spec.resource_claims:
            self._pods.append((pod, f"{item.where}: Pod {metadata.namespace}/{metadata.name}"))
            self._order.append(pod)

    def _name(self, item: FileObject, metadata: Metadata, *, namespaced: bool = True) -> Metadata:
        """The metadata with its namespace filled in; InvalidObjectError if this object was there before."""
        if not metadata.name:
            raise InvalidObjectError(
                "is missing",
                object_name=f"{item.where}: {item.kind}",
                field="metadata.name",
                next_step="give it a name",
            )
        namespace = (metadata.namespace or _DEFAULT_NAMESPACE) if namespaced else ""
        key = (item.kind, namespace, metadata.name)
        if key in self._places:
            full = f"{namespace}/{metadata.name}" if namespace else metadata.name
            raise InvalidObjectError(
                f"is there twice: in {self._places[key]} too",
                object_name=f"{item.where}: {item.kind} {full}",
                next_step="leave one of them out",
            )
        self._places[key] = item.where
        return msgspec.structs.replace(metadata, namespace=namespace)

    # --- pods ---

    def _claims_of(self, pod: Pod, where: str) -> list[ClaimName]:
        """The keys of the pod's claims; those of templates are made where they are not there yet."""
        namespace = pod.metadata.namespace
        made = {s.name: s.resource_claim_name for s in pod.status.resource_claim_statuses or ()}
        keys: dict[ClaimName, None] = {}
        names: dict[str, str] = {}
        for index, entry in enumerate(pod.spec.resource_claims or ()):
            place = f"spec.resourceClaims[{index}]"
            before = names.setdefault(entry.name, place)
            if before != place:
                raise InvalidObjectError(
                    f"is there twice: in {before} too",
                    object_name=where,
                    field=f"{place}.name",
                    next_step="give each claim of the pod its own name",
                )
            if entry.resource_claim_name and entry.resource_claim_template_name:
                raise InvalidObjectError(
                    "names both a claim and a template",
                    object_name=where,
                    field=place,
                    next_step="leave resourceClaimName or resourceClaimTemplateName out",
                )
            if entry.resource_claim_name:
                self._need(
                    self._claims, (namespace, entry.resource_claim_name), where, place, "ResourceClaim"
                )
                keys[namespace, entry.resource_claim_name] = None
            elif entry.resource_claim_template_name:
                if entry.name in made and not made[entry.name]:
                    continue  # it turned out that the pod needs none there
                name = made.get(entry.name) or f"{pod.metadata.name}-{entry.name}"
                if (namespace, name) not in self._claims:
                    template = (namespace, entry.resource_claim_template_name)
                    self._need(self._templates, template, where, place, "ResourceClaimTemplate")
                    self._make(pod, name, self._templates[template])
                keys[namespace, name] = None
            else:
                raise InvalidObjectError(
                    "names neither a claim nor a template",
                    object_name=where,
                    field=place,
                    next_step="set resourceClaimName or resourceClaimTemplateName",
                )
        return list(keys)

    def _need(
        self, known: Mapping[ClaimName, object], key: ClaimName, where: str, place: str, kind: str
    ) -> None:
        if key not in known:
            raise InvalidObjectError(
                f"names {kind} {'/'.join(key)}, which is not among the objects",
                object_name=where,
                field=place,
                next_step="give it too, or leave the pod out",
            )

    def _make(self, pod: Pod, name: str, template: ClaimTemplate) -> None:
        namespace = pod.metadata.namespace
        uid = str(uuid5(NAMESPACE_URL, f"urn:tangram:claim:{namespace}/{name}"))
        self._claims[namespace, name] = ResourceClaim(
            metadata=Metadata(name=name, namespace=namespace, uid=uid), spec=template.spec.spec
        )

    # --- groups ---

    def _groups(self, pods: Mapping[int, Sequence[ClaimName]]) -> Iterator[Group]:
        used = {key for keys in pods.values() for key in keys}
        loose = dict.fromkeys(key for key in self._claims if key not in used and self._open(key))
        first = next(iter(loose), None)
        given: set[ClaimName] = set()
        for item in self._order:
            if isinstance(item, Pod):
                keys = pods[id(item)]
                open_ = [key for key in keys if self._open(key) and key not in given]
                given.update(open_)
                if open_:
                    yield Group(
                        pod=item,
                        claims=tuple(self._claims[key] for key in open_),
                        fixed=tuple(key for key in keys if key not in open_),
                    )
            elif item in loose and not self._loose_together:
                yield Group(claims=(self._claims[item],))
            elif item == first:
                yield Group(claims=tuple(self._claims[key] for key in loose))

    def _open(self, key: ClaimName) -> bool:
        return self._claims[key].allocation is None

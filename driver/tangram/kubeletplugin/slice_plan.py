"""From the slices that are there to the ones that are desired, in the fewest writes.

To a consumer (scheduler, autoscaler) a pool is the slices of its newest generation, and usable when there
are as many of them as each says (`resourceSliceCount`). It may see any prefix of our writes. So:

- One write that completes the desired state is atomic: it keeps the generation. So do creates that only
  bring back what is missing: until the last one the pool is incomplete, and the others have not changed.
- Any other change takes the next generation, and all slices with it. From the first write to the last the
  pool is incomplete, never mixed. Slices are created first: if the API server refuses one of those, the old
  generation is still whole. What is obsolete is deleted last, for it belongs to an old generation that
  nobody looks at any more; deleted first, it would make the old one incomplete early.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import msgspec

from tangram.kube.client import decode
from tangram.kube.objects import Metadata
from tangram.kubeletplugin.slice_compare import difference
from tangram.kubeletplugin.slices import JsonObject, Pool, slice_name


class _Object(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSlice:
    """A ResourceSlice as the API server has it, with all its fields."""

    metadata: Metadata
    spec: JsonObject

    @classmethod
    def decode(cls, data: bytes | msgspec.Raw) -> "StoredSlice":
        """Raises InvalidObjectError."""
        found = decode(data, _Object)
        return cls(metadata=found.metadata, spec=found.spec)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def pool_name(self) -> str:
        return str((self.spec.get("pool") or {}).get("name", ""))

    @property
    def generation(self) -> int:
        return int((self.spec.get("pool") or {}).get("generation", 0))

    def is_owned_by(self, node: "NodeIdentity") -> bool:
        """Whether the garbage collector deletes it with this node and no other."""
        return [(owner.kind, owner.uid) for owner in self.metadata.owner_references or ()] == [
            ("Node", node.uid)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """The node that owns the slices. A node that is deleted and made anew has another uid."""

    name: str
    uid: str

    def owner_references(self) -> list[JsonObject]:
        return [{"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid, "controller": True}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A slice to create (`replaces` None) or to change in place."""

    name: str
    spec: JsonObject
    replaces: StoredSlice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Creates, then updates, then deletes; `generation` is the pool's afterwards."""

    generation: int
    creates: tuple[Write, ...] = ()
    updates: tuple[Write, ...] = ()
    deletes: tuple[StoredSlice, ...] = ()


def plan_pool(
    *,
    driver_name: str,
    node: NodeIdentity,
    pool_name: str,
    pool: Pool,
    stored: Iterable[StoredSlice],
    floor_generation: int = 0,
    known_fields: Set[str] = frozenset(),
    dropped_fields: Set[str] = frozenset(),
) -> Plan:
    """The writes for one pool; `stored` are its slices on the server, by whatever name.

    `floor_generation`: the pool never goes below it, even if all its slices were deleted in between. A field
    in `dropped_fields` is one the server does not keep: that it is missing is no change. `known_fields` are
    those of which we know whether it keeps them. If slices lack nothing but fields that are not known (a new
    process on a server with feature gates off), one is written as a probe, not all with a new generation.
    """
    specs = pool.specs(driver_name=driver_name, node_name=node.name, pool_name=pool_name)
    names = [
        slice_name(index=index, driver_name=driver_name, node_name=node.name, pool_name=pool_name)
        for index in range(len(specs))
    ]
    # What is being deleted is as good as gone; a create answers 409 until it is.
    present = {each.name: each for each in stored if each.metadata.deletion_timestamp is None}
    newest = max([floor_generation, 1, *(each.generation for each in present.values())])

    missing: list[str] = []
    changed: list[str] = []
    unknown: set[str] = set()
    other = False
    for name, spec in zip(names, specs, strict=True):
        found = present.get(name)
        if found is None or found.generation < newest:
            missing.append(name)  # consumers ignore an older generation: as good as not there
            continue
        found_difference = difference(spec, found.spec)
        if found_difference.other or found_difference.missing - dropped_fields:
            changed.append(name)
            unknown |= found_difference.missing - known_fields
            other |= bool(found_difference.other)

    obsolete = [each for name, each in sorted(present.items()) if name not in set(names)]
    # Those of this generation would be counted in; of an older one they are ignored.
    in_the_way = any(each.generation == newest for each in obsolete)
    bump = len(changed) + bool(missing) + in_the_way > 1
    if bump and len(changed) > 1 and not (missing or in_the_way or other) and unknown:
        bump, changed = False, changed[:1]
    generation = newest + 1 if bump else newest

    creates, updates = [], []
    for name, spec in zip(names, specs, strict=True):
        found = present.get(name)
        spec["pool"]["generation"] = generation
        if found is None:
            creates.append(Write(name=name, spec=spec))
        elif bump or name in missing or name in changed or not found.is_owned_by(node):
            updates.append(Write(name=name, spec=_with_taint_times(spec, found.spec), replaces=found))
    return Plan(
        generation=generation,
        creates=tuple(creates),
        updates=tuple(updates),
        deletes=tuple(obsolete),
    )


def _with_taint_times(spec: JsonObject, stored: Mapping[str, Any]) -> JsonObject:
    """Taints that were there before keep the time they were added: else every update would renew it."""
    times = {
        (device.get("name"), taint.get("key"), taint.get("value"), taint.get("effect")): taint["timeAdded"]
        for device in stored.get("devices") or ()
        for taint in device.get("taints") or ()
        if taint.get("timeAdded")
    }

    if not times or "devices" not in spec:
        return spec

    def timed(device: JsonObject) -> JsonObject:
        if not device.get("taints"):
            return device
        return {**device, "taints": [with_time(taint, device["name"]) for taint in device["taints"]]}

    def with_time(taint: JsonObject, device_name: str) -> JsonObject:
        time = times.get((device_name, taint.get("key"), taint.get("value"), taint.get("effect")))
        return {"timeAdded": time, **taint} if time else taint

    return {**spec, "devices": [timed(device) for device in spec["devices"]]}

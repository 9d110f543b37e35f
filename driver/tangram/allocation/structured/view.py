"""The devices that one node can reach, in the order of search, and what selectors say of them.

Answers of selectors are remembered: they depend on the device and the text alone, and views are kept by their
cluster.
"""

from collections.abc import Hashable, Iterable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from tangram import DRIVER_NAME
from tangram.allocation.structured.cluster import Cluster, Device, DeviceId, PoolId, Slice
from tangram.allocation.structured.features import Fault, Features, Gate
from tangram.allocation.structured.nodes import NodeFacts
from tangram.allocation.structured.outcome import Code, FatalError
from tangram.allocation.structured.parameters import works
from tangram.allocation.structured.pools import Pool, gather, reaches_device
from tangram.base.errors import CelError, CelRuntimeError
from tangram.cel import CelDevice, Program, Reference, compiled
from tangram.cel.work import COMPILING, REFUSING
from tangram.model.devices import DRAINED_TAINT
from tangram.model.quantity import format_bytes
from tangram.model.semver import SemVer

_REMEMBERED = 64
"""Kinds of requests whose answers are kept per view."""
_MAXIMUM_VALUES = 4
"""Values of a device quoted for one selector."""


Bill = tuple[tuple[int, int], ...]
"""Answers of selectors, each by a hash that tells it from others, and the work that they take."""


class Verdict(NamedTuple):
    """Why a device does not match a request; `fatal` ends the decision, as upstream. `short`: the same
    without what is true of this device alone."""

    code: Code
    text: str
    fatal: bool = False
    short: str = ""


class Terms(NamedTuple):
    """What selectors of a request have to say. `controller`: on whose behalf classes are asked."""

    class_name: str
    class_selectors: tuple[str, ...]
    claim: str
    selectors: tuple[str, ...]
    controller: bool


class Place(NamedTuple):
    """A device and where it is published. A `poison` has no device: reaching it is fatal (1.34)."""

    device: Device | None
    slice: Slice | None
    pool: Pool
    poison: str = ""


class View:
    """The reachable part of a cluster; `places` in order of search, `pools` also those without a place."""

    def __init__(self, cluster: Cluster, node: NodeFacts, features: Features) -> None:
        self.node = node
        self.features = features
        self.pools = gather(cluster, node, features)
        self.places = tuple(_places(self.pools, features))
        self.by_pool: dict[PoolId, list[int]] = {}
        for index, place in enumerate(self.places):
            self.by_pool.setdefault(place.pool.id, []).append(index)
        self.positions: dict[DeviceId, int] = {
            place.device.id: index for index, place in enumerate(self.places) if place.device is not None
        }
        self._known: dict[Hashable, Matches] = {}

    def device(self, position: int) -> Device:
        """The device at a place that is no poison."""
        device = self.places[position].device
        assert device is not None
        return device

    def matches(self, terms: Terms) -> "Matches":
        """What selectors say, remembered."""
        key = (terms.class_selectors, terms.selectors, terms.controller)
        known = self._known.get(key)
        if known is None or known.terms != terms:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[key] = Matches(self, terms)
        return known


class Matches:
    """The verdicts of one kind of request; each is worked out when it is asked for."""

    def __init__(self, view: View, terms: Terms) -> None:
        self.terms = terms
        self._view = view
        self._verdicts: list[Verdict | bool | None] = [False] * len(view.places)
        self._bills: list[Bill] = [()] * len(view.places)
        self._equal_verdicts: dict[Verdict | None, Verdict | None] = {}
        self._equal_bills: dict[Bill, Bill] = {}

    def verdict(self, position: int) -> Verdict | None:
        """None if the device at this place matches."""
        known = self._verdicts[position]
        if known is False or known is True:
            found = self._judge(position)
            # Of many devices the same is true; thousands of nodes remember it.
            known = self._verdicts[position] = self._equal_verdicts.setdefault(found, found)
        return known

    def bill(self, position: int) -> Bill:
        """What the verdict has cost: each answer, by what tells it from others, and its price."""
        return self._bills[position]

    def _judge(self, position: int) -> Verdict | None:
        place = self._view.places[position]
        device, features = place.device, self._view.features
        if device is None or place.slice is None:
            return Verdict(Code.POOL, place.poison, fatal=True)
        if not features.on(Gate.DEVICE_BINDING_AND_STATUS) and device.wire.binding_conditions:
            return Verdict(Code.FEATURE, "has binding conditions, which are not honoured")
        if self.terms.controller and (refused := _not_ours(device)):
            return refused
        bill: list[tuple[int, int]] = []
        refused = self._selectors(device, bill)
        paid = tuple(bill)
        self._bills[position] = self._equal_bills.setdefault(paid, paid)
        if refused:
            return refused
        if place.slice.per_device:
            try:
                if not reaches_device(self._view.node, device):
                    return Verdict(Code.NODE, f"is not reachable from node {self._view.node.name}")
            except FatalError as error:
                return Verdict(Code.NODE, str(error), fatal=True)
        return None

    def _selectors(self, device: Device, bill: list[tuple[int, int]]) -> Verdict | None:
        terms, features = self.terms, self._view.features
        seen = device.guarded if terms.controller else device.cel
        for index, text in enumerate(terms.class_selectors):
            owner = f"class {terms.class_name}"
            if refused := _ask(text, seen, device, features, bill, owner=owner, index=index):
                return refused
        for index, text in enumerate(terms.selectors):
            if refused := _ask(text, device.cel, device, features, bill, owner="", index=index):
                return refused
        return None


def _places(pools: tuple[Pool, ...], features: Features) -> list[Place]:
    places = []
    for pool in pools:
        if pool.invalid:
            if features.has(Fault.INVALID_POOL_FATAL):
                places.append(Place(None, None, pool, f"pool {pool.id.pool} is invalid: {pool.invalid}"))
            continue
        if pool.incomplete and not features.has(Fault.INCOMPLETE_POOLS_USED):
            continue
        places += [Place(device, item, pool) for item in pool.slices for device in item.devices]
    return places


def _not_ours(device: Device) -> Verdict | None:
    """Where our controller decides, devices that are left to kube-scheduler are not its to give, and it gives
    none that does not work."""
    own = device.cel.attributes.get(DRIVER_NAME, {})
    if device.id.driver != DRIVER_NAME:
        return None
    if own.get("allocator") == "scheduler":
        return Verdict(Code.ALLOCATOR, "is allocated by kube-scheduler")
    if works(device):
        return None
    drained = any(taint.key == DRAINED_TAINT for taint in device.wire.taints or ())
    return Verdict(Code.UNHEALTHY, "drained" if drained else "unhealthy")


def _ask(
    text: str,
    seen: CelDevice,
    device: Device,
    features: Features,
    bill: list[tuple[int, int]],
    *,
    owner: str,
    index: int,
) -> Verdict | None:
    code = Code.CLASS if owner.startswith("class ") else Code.SELECTOR
    where = f"{owner}: selector #{index}" if owner else f"selector #{index}"
    program = compiled(text, features.environment)
    bill.append(
        (hash(text), COMPILING * program.size if isinstance(program, Program) else REFUSING * len(text))
    )
    if isinstance(program, CelError):
        return Verdict(code, f"{where}: CEL compile error: {program}", fatal=True)
    if device.has_lists and not features.reads_137 and not features.on(Gate.LIST_TYPE_ATTRIBUTES):
        return Verdict(
            code, f"{where}: CEL runtime error: attribute: unsupported attribute value", fatal=True
        )
    if features.is_basic and seen.allow_multiple_allocations:
        seen = replace(seen, allow_multiple_allocations=False)
    parts, answer = program.answer(seen)
    bill.append((hash((text, parts)), answer.work))
    if isinstance(answer.result, CelRuntimeError):
        return Verdict(code, f"{where} on device {device.id}: CEL runtime error: {answer.result}", fatal=True)
    if answer.result:
        return None
    what = f"is not of {owner}" if code is Code.CLASS else "does not match"
    short = f"not of device {owner}" if code is Code.CLASS else f"not selected by {_excerpt(text)}"
    return Verdict(code, f"{what}: {_excerpt(text)}{_found(program, seen)}", short=short)


def carries_guard(class_selectors: Iterable[str]) -> bool:
    """True if a selector of a class asks for the attribute `allocator` of our driver. That of one that does
    not compile is found by its words: so the claim gets a reason."""
    return any(map(_is_guard, class_selectors))


def reads(text: str) -> frozenset[Reference] | None:
    """The parts of a device that a selector's result depends on; None if it is not valid."""
    program = compiled(text)
    return None if isinstance(program, CelError) else program.references()


def _is_guard(text: str) -> bool:
    program = compiled(text)
    if isinstance(program, CelError):
        return DRIVER_NAME in text and "allocator" in text
    return any((part.domain, part.id) == (DRIVER_NAME, "allocator") for part in program.references())


def _found(program: Program, seen: CelDevice) -> str:
    """The values that a selector has read, for people: `, where model is A`."""
    values = []
    for part in program.parts:
        if part.domain is not None and part.id is not None and part.field in ("attributes", "capacity"):
            fields = seen.attributes if part.field == "attributes" else seen.capacity
            value = fields.get(part.domain, {}).get(part.id)
            values.append(f"{part.id} is {_text(value)}")
        elif part.field == "driver":
            values.append(f"driver is {seen.driver}")
    return f" ({', '.join(values[:_MAXIMUM_VALUES])})" if values else ""


def _text(value: object) -> str:
    if value is None:
        return "absent"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Fraction):
        return format_bytes(int(value)) if value.denominator == 1 and value >= 1024 else str(float(value))
    if isinstance(value, SemVer):
        return value.text
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value[:_MAXIMUM_VALUES]))}]"
    return str(value)


@lru_cache(maxsize=256)
def _excerpt(text: str, limit: int = 120) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= limit else one_line[: limit - 1] + "…"

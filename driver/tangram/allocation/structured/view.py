"""The devices that one node can reach, in the order of search, and what selectors say of them.

Answers of selectors are remembered: they depend on the device and the text alone, and views are kept by their
cluster.
"""

import re
from collections.abc import Hashable, Iterable
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from tangram import DRIVER_NAME
from tangram.allocation.structured.account import Account, Bill, compiling
from tangram.allocation.structured.cluster import Cluster, Device, DeviceId, PoolId, Slice
from tangram.allocation.structured.features import Fault, Features, Gate
from tangram.allocation.structured.nodes import NodeFacts
from tangram.allocation.structured.outcome import Code, FatalError
from tangram.allocation.structured.parameters import works
from tangram.allocation.structured.pools import Pool, gather, reaches_device
from tangram.base.errors import CelError, CelRuntimeError
from tangram.cel import CelDevice, Program, Reference, compiled, false_part
from tangram.model.devices import DRAINED_TAINT
from tangram.model.quantity import format_bytes
from tangram.model.semver import SemVer

_REMEMBERED = 64
"""Kinds of requests whose answers are kept per view."""
_REMEMBERED_ANSWERS = 1_000
"""Different answers of all kinds together, 0.7 KB each; a kind whose selectors tell each device from all
others has one per device."""
_UNLIKE_TEXT = re.compile(r"[-+0-9.]*|true|false|absent")
"""Texts that would be taken for something else."""
_MAXIMUM_VALUES = 4
"""Values of a device quoted for one selector."""


class Refused(msgspec.Struct, frozen=True, gc=False):
    """Why a device cannot be had for a request. `what` is put into words only when somebody reads it; `short`
    is the same without what is true of this device alone. `fatal` ends the decision, as upstream.

    Hostile decisions make very many: the collector of cycles, which they cannot be part of, need not look.
    """

    code: Code
    what: object
    short: str = ""
    fatal: bool = False

    @property
    def text(self) -> str:
        return str(self.what)


class Terms(NamedTuple):
    """What selectors of a request have to say. `controller`: on whose behalf classes are asked."""

    class_name: str
    class_selectors: tuple[str, ...]
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

    @property
    def answers(self) -> int:
        """How many different ones are remembered."""
        return sum(matches.answers for matches in self._known.values())

    def matches(self, terms: Terms) -> "Matches":
        """What selectors say, remembered."""
        known = self._known.get(terms)
        if known is None:
            if len(self._known) >= _REMEMBERED or self.answers >= _REMEMBERED_ANSWERS:
                self._known.clear()
            known = self._known[terms] = Matches(self, terms)
        return known


class _Selector(NamedTuple):
    """A selector, and how to tell of it. `guarded`: it is asked of what classes see of a device."""

    text: str
    guarded: bool
    code: Code
    name: str
    refusing: str
    short: str

    def refusal(self, program: Program, device: Device) -> Refused:
        """The verdict on devices that it does not select."""
        return Refused(self.code, _Refusal(self.refusing, program, device, self.guarded), short=self.short)

    def failure(self, text: str) -> Refused:
        """The verdict where it cannot be evaluated."""
        return Refused(self.code, f"{self.name}{text}", fatal=True)


def _selectors(terms: Terms) -> Iterable[_Selector]:
    for index, text in enumerate(terms.class_selectors):
        owner = f"class {terms.class_name}"
        refusing, short = f"is not of {owner}", f"not of device {owner}"
        yield _Selector(text, terms.controller, Code.CLASS, f"{owner}: selector #{index}", refusing, short)
    for index, text in enumerate(terms.selectors):
        refusing, short = "does not match", f"not selected by {_excerpt(text)}"
        yield _Selector(text, False, Code.SELECTOR, f"selector #{index}", refusing, short)


class _Refusal(msgspec.Struct, frozen=True, gc=False):
    """What a selector says against a device, put into words when somebody reads it: the term of it that is
    false, with the values that it reads as they are published."""

    refusing: str
    program: Program
    device: Device
    guarded: bool

    def __str__(self) -> str:
        seen = self.device.guarded if self.guarded else self.device.cel
        term = false_part(self.program, seen)
        return f"{self.refusing}: {_excerpt(term.text)}{_found(term.parts, self.device.cel)}"


class _Known(msgspec.Struct, frozen=True, gc=False):
    """Why the selectors refuse a device, if they do, and what they cost."""

    refused: Refused | None
    bill: Bill = ()


class Matches:
    """The verdicts of one kind of request; each is worked out when it is asked for, and once for all devices
    that are equal in what the selectors read."""

    def __init__(self, view: View, terms: Terms) -> None:
        self._view = view
        self._features = view.features
        self._environment = view.features.environment
        self._reads_lists = view.features.reads_137 or view.features.on(Gate.LIST_TYPE_ATTRIBUTES)
        self._controller = terms.controller
        self._selectors = tuple(_selectors(terms))
        self._verdicts: list[_Known | None] = [None] * len(view.places)
        # By what was read, or by what refuses: thousands of nodes remember it.
        self._equal: dict[Hashable, _Known] = {}

    @property
    def answers(self) -> int:
        """How many different ones were given so far."""
        return len(self._equal)

    def verdict(self, position: int, account: Account) -> Refused | None:
        """None if the device at this place matches. Raises TooDear if the account does not suffice."""
        known = self._verdicts[position]
        if known is None:
            known = self._verdicts[position] = self._judge(position, account)
        account.pay(known.bill)
        return known.refused

    def _judge(self, position: int, account: Account) -> _Known:
        place = self._view.places[position]
        device = place.device
        if device is None or place.slice is None:
            return _Known(Refused(Code.POOL, place.poison, fatal=True))
        refused = None
        if device.wire.binding_conditions and not self._features.on(Gate.DEVICE_BINDING_AND_STATUS):
            refused = Refused(Code.FEATURE, "has binding conditions, which are not honoured")
        elif self._controller:
            refused = _not_ours(device)
        if refused is not None:
            return self._equal.setdefault(refused, _Known(refused))
        known = self._select(device, account)
        if place.slice.per_device and known.refused is None:
            return _Known(_unreachable(self._view.node, device), known.bill)
        return known

    def _select(self, device: Device, account: Account) -> _Known:
        """What the selectors say, one after the other."""
        known = _Known(None)
        read: Hashable = ()
        for selector in self._selectors:
            program = account.program(selector.text, self._environment)
            if isinstance(program, CelError):
                bill = (*known.bill, compiling(selector.text, program))
                return _Known(selector.failure(f": CEL compile error: {program}"), bill)
            if (device.has_lists and not self._reads_lists) or device.unreadable:
                bill = (*known.bill, compiling(selector.text, program))
                lists = (name for name, value in device.attributes.items() if not value.scalar)
                where = f"device {device.id}, attribute {device.unreadable or next(lists)}"
                text = f" on {where}: CEL runtime error: unsupported attribute value"
                return _Known(selector.failure(text), bill)
            seen = device.guarded if selector.guarded else device.cel
            if seen.allow_multiple_allocations and self._features.is_basic:
                seen = replace(seen, allow_multiple_allocations=False)
            parts, answer = program.answer(seen)
            read = (read, parts)
            found = self._equal.get(read)
            if found is None:
                answered = (hash((selector.text, parts)), answer.work)
                bill = (*known.bill, compiling(selector.text, program), answered)
                account.pay(bill)
                if isinstance(answer.result, CelRuntimeError):
                    text = f" on device {device.id}: CEL runtime error: {answer.result}"
                    return _Known(selector.failure(text), bill)
                found = _Known(None if answer.result else selector.refusal(program, device), bill)
                self._equal[read] = found
            known = found
            if known.refused is not None:
                break
        return known


def _unreachable(node: NodeFacts, device: Device) -> Refused | None:
    try:
        if reaches_device(node, device):
            return None
    except FatalError as error:
        return Refused(Code.NODE, str(error), fatal=True)
    return Refused(Code.NODE, f"is not reachable from node {node.name}")


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


def _not_ours(device: Device) -> Refused | None:
    """Where our controller decides, devices that are left to kube-scheduler are not its to give, and it gives
    none that does not work."""
    own = device.cel.attributes.get(DRIVER_NAME, {})
    if device.id.driver != DRIVER_NAME:
        return None
    if own.get("allocator") == "scheduler":
        return Refused(Code.ALLOCATOR, "is allocated by kube-scheduler")
    if works(device):
        return None
    drained = any(taint.key == DRAINED_TAINT for taint in device.wire.taints or ())
    return Refused(Code.UNHEALTHY, "drained" if drained else "unhealthy")


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


def _found(parts: Iterable[Reference], seen: CelDevice) -> str:
    """The values that a selector has read, for people: `, where model is A`."""
    values = []
    for part in parts:
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
    return f'"{value}"' if isinstance(value, str) and _UNLIKE_TEXT.fullmatch(value) else str(value)


@lru_cache(maxsize=256)
def _excerpt(text: str, limit: int = 120) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= limit else one_line[: limit - 1] + "…"

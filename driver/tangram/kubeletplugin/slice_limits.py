"""The limits of the API, checked before anything is written (`k8s.io/api/resource/v1`, KEP-4381, KEP-4815).

The API server checks a slice by itself. What only a whole pool can break (a device twice, a counter set that
is nowhere) it accepts, and then nothing of the pool can be allocated: that is checked here too.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tangram.base.errors import SliceLimitError
from tangram.kubeletplugin.slices import Pool, Slice
from tangram.model.quantity import parse_quantity
from tangram.model.semver import SemVer

MAXIMUM_SLICES = 0xFFFFF
MAXIMUM_DEVICES = 128
MAXIMUM_DEVICES_WITH_EXTRAS = 64
MAXIMUM_ATTRIBUTES_AND_CAPACITIES = 32
MAXIMUM_ATTRIBUTE_VALUES = 48
MAXIMUM_ATTRIBUTE_BYTES = 64
MAXIMUM_TAINTS = 16
MAXIMUM_COUNTER_SETS = 8
MAXIMUM_COUNTERS_PER_SET = 32
MAXIMUM_CONSUMED_SETS = 2
MAXIMUM_BINDING_CONDITIONS = 4

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_SCALARS = ("int", "bool", "string", "version")
_LISTS = ("ints", "bools", "strings", "versions")

_Device = Mapping[str, Any]


def check_pool(*, pool_name: str, pool: Pool) -> None:
    """Raises SliceLimitError, naming the pool and, where one is at fault, the device."""
    names = Counter(str(device.get("name")) for each in pool.slices for device in each.devices)
    sets = Counter(
        str(counter_set.get("name")) for each in pool.slices for counter_set in each.shared_counters
    )
    try:
        _check_pool_name(pool_name)
        _at_most(len(pool.slices), MAXIMUM_SLICES, "slices in a pool")
        for each in pool.slices:
            _check_slice(each)
        _unique(names, "device")
        _unique(sets, "counter set")
        _check_references(pool)
    except SliceLimitError as error:
        raise SliceLimitError(
            f"pool {pool_name[:300]}: {error.cause}", device=error.device, next_step=error.next_step
        ) from None


def _check_pool_name(name: str) -> None:
    if len(name) > 253 or not all(_SUBDOMAIN.fullmatch(part) for part in name.split("/")):
        raise SliceLimitError("the name is not DNS subdomains separated by '/', at most 253 characters")


def _check_slice(each: Slice) -> None:
    if each.devices and each.shared_counters:
        raise SliceLimitError(
            "a slice has both devices and counter sets",
            next_step="publish the counter sets in slices of their own",
        )
    _at_most(
        len(each.shared_counters),
        MAXIMUM_COUNTER_SETS,
        "counter sets in a slice",
        next_step="spread them over more slices",
    )
    for counter_set in each.shared_counters:
        _check_counter_set(counter_set)
    for device in each.devices:
        with_name = str(device.get("name"))
        try:
            _check_device(device)
        except SliceLimitError as error:
            raise SliceLimitError(
                f"device {with_name[:300]}: {error.cause}", device=with_name, next_step=error.next_step
            ) from None
    _check_device_count(each)


def _check_device_count(each: Slice) -> None:
    extras = [device for device in each.devices if _has_extras(device)]
    limit = MAXIMUM_DEVICES_WITH_EXTRAS if extras else MAXIMUM_DEVICES
    if len(each.devices) <= limit:
        return
    # The first that is one too many, or the one that halves the limit for all.
    culprit = str((extras[0] if len(each.devices) <= MAXIMUM_DEVICES else each.devices[limit]).get("name"))
    raise SliceLimitError(
        f"{len(each.devices)} devices in a slice, at most {limit} are allowed"
        + (" where one has taints, counters or list attributes" if extras else "")
        + f" (device {culprit})",
        device=culprit,
        next_step="spread them over more slices",
    )


def _has_extras(device: _Device) -> bool:
    lists = (
        attribute for attribute in (device.get("attributes") or {}).values() if _values(attribute, _LISTS)
    )
    return bool(device.get("taints") or device.get("consumesCounters") or any(lists))


def _check_device(device: _Device) -> None:
    _label(device.get("name"), "its name")
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    _at_most(len(attributes) + len(capacity), MAXIMUM_ATTRIBUTES_AND_CAPACITIES, "attributes and capacities")
    values = 0
    for name, attribute in attributes.items():
        _qualified_name(name, "attribute")
        values += _check_attribute(name, attribute)
    _at_most(values, MAXIMUM_ATTRIBUTE_VALUES, "attribute values")
    for name, entry in capacity.items():
        _qualified_name(name, "capacity")
        _quantity(entry.get("value"), f"capacity {name}")
    _at_most(len(device.get("taints") or ()), MAXIMUM_TAINTS, "taints")
    consumed = device.get("consumesCounters") or ()
    _at_most(len(consumed), MAXIMUM_CONSUMED_SETS, "counter sets consumed")
    _unique(Counter(str(entry.get("counterSet")) for entry in consumed), "consumed counter set")
    for entry in consumed:
        _check_counters(entry, f"counters of {entry.get('counterSet')}")
    for field in ("bindingConditions", "bindingFailureConditions"):
        _at_most(len(device.get(field) or ()), MAXIMUM_BINDING_CONDITIONS, field)


def _check_attribute(name: str, attribute: Mapping[str, Any]) -> int:
    """How many values it has."""
    scalars, lists = _values(attribute, _SCALARS), _values(attribute, _LISTS)
    if len(scalars) + len(lists) != 1:
        raise SliceLimitError(
            f"attribute {name} needs exactly one of {', '.join((*_SCALARS, *_LISTS))}, as a non-empty value"
        )
    values = [*scalars, *(value for entry in lists for value in entry)]
    is_version = bool(attribute.get("version") or attribute.get("versions"))
    for value in values:
        if isinstance(value, str):
            _at_most(len(value.encode()), MAXIMUM_ATTRIBUTE_BYTES, f"bytes in attribute {name}")
        if is_version:
            try:
                SemVer(value)
            except (ValueError, TypeError) as error:
                raise SliceLimitError(f"attribute {name}: {error}") from None
    return len(values)


def _values(attribute: Mapping[str, Any], fields: Iterable[str]) -> list[Any]:
    """The fields that are set; an empty list is not."""
    return [attribute[field] for field in fields if attribute.get(field) not in (None, [], ())]


def _check_counter_set(counter_set: Mapping[str, Any]) -> None:
    _label(counter_set.get("name"), "the name of a counter set")
    _check_counters(counter_set, f"counters of set {counter_set['name']}")


def _check_counters(owner: Mapping[str, Any], what: str) -> None:
    counters = owner.get("counters") or {}
    if not counters:
        raise SliceLimitError(f"no {what}")
    _at_most(len(counters), MAXIMUM_COUNTERS_PER_SET, what)
    for name, counter in counters.items():
        _label(name, f"a name among the {what}")
        _quantity(counter.get("value"), f"counter {name}")


def _check_references(pool: Pool) -> None:
    counters = {
        counter_set["name"]: counter_set["counters"].keys()
        for each in pool.slices
        for counter_set in each.shared_counters
    }
    for each in pool.slices:
        for device in each.devices:
            for entry in device.get("consumesCounters") or ():
                name = entry.get("counterSet")
                unknown = entry["counters"].keys() - counters.get(name, {})
                if name not in counters or unknown:
                    what = (
                        f"counters {sorted(unknown)} of set {name}"
                        if name in counters
                        else f"counter set {name}"
                    )
                    raise SliceLimitError(
                        f"device {device['name']} consumes {what}, which the pool does not have",
                        device=str(device["name"]),
                    )


def _at_most(count: int, limit: int, what: str, *, next_step: str = "") -> None:
    if count > limit:
        raise SliceLimitError(f"{count} {what}, at most {limit} are allowed", next_step=next_step)


def _unique(names: Counter[str], what: str) -> None:
    for name, count in names.items():
        if count > 1:
            raise SliceLimitError(
                f"{what} {name[:300]} is there {count} times", device=name if what == "device" else ""
            )


def _label(name: object, what: str) -> None:
    if not isinstance(name, str) or not _LABEL.fullmatch(name):
        raise SliceLimitError(
            f"{what} ({str(name)[:80]!r}) is not a DNS label: lower-case letters, digits and '-', at most 63"
        )


def _qualified_name(name: str, what: str) -> None:
    domain, slash, identifier = name.rpartition("/")
    domain_is_valid = not slash or (len(domain) <= 63 and _SUBDOMAIN.fullmatch(domain))
    if not domain_is_valid or not _IDENTIFIER.fullmatch(identifier):
        raise SliceLimitError(
            f"{what} name {name[:120]!r} is not [DNS subdomain/]C identifier of at most 32 characters"
        )


def _quantity(value: object, what: str) -> None:
    try:
        parse_quantity(str(value))
    except ValueError as error:
        raise SliceLimitError(f"{what}: {error}") from None

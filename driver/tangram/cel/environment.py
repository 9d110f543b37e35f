"""What a selector may use, by version of Kubernetes.

These are the environments in which kube-scheduler evaluates selectors (`StoredExpressions` of
`k8s.io/apiserver/pkg/cel/environment`, extended by `k8s.io/dynamic-resource-allocation/cel`): everything
that a version knows, regardless of feature gates.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from tangram.base.errors import UsageError
from tangram.cel import types
from tangram.cel.checker import Declarations
from tangram.cel.declarations import Function, Library, merge
from tangram.cel.estimate import Declared
from tangram.cel.library.authorizer import AUTHORIZER
from tangram.cel.library.conversions import conversions
from tangram.cel.library.kubernetes import COMPARISONS, QUANTITIES, VERSIONS
from tangram.cel.library.kubernetes_lists import INCLUDES_36, INCLUDES_37, KUBERNETES_LISTS
from tangram.cel.library.lists import lists
from tangram.cel.library.map_insert import MAP_INSERT
from tangram.cel.library.named_formats import NAMED_FORMATS
from tangram.cel.library.network import NETWORK
from tangram.cel.library.optionals import OPTIONALS
from tangram.cel.library.regex import regex
from tangram.cel.library.sets import SETS
from tangram.cel.library.standard import ARITHMETIC, EQUALITY, LOGIC, ORDER, SIZE, texts
from tangram.cel.library.strings import strings
from tangram.cel.library.times import TIMES
from tangram.cel.library.urls import URLS
from tangram.cel.types import Type, map_of

LATEST = "k8s-1.37"
_MINORS = range(34, 38)
_VERSION = re.compile(r"k8s-1\.([0-9]{2})(?:\.[0-9]+)?")

_DOMAIN, _ID, _DRIVER, _VALUE, _ENTRIES = 63, 32, 63, 64, 32
"""Longest domain, id, name of a driver and value; most attributes and capacities of a device."""
_TYPE_NAMES: Mapping[str, Type] = {
    kind.name: kind
    for kind in (
        types.BOOL,
        types.BYTES,
        types.DOUBLE,
        types.DURATION,
        types.INT,
        types.LIST,
        types.MAP,
        types.NULL,
        types.STRING,
        types.TIMESTAMP,
        types.TYPE,
        types.UINT,
        types.OPTIONAL,
        types.IP,
        types.CIDR,
    )
}


@dataclass(frozen=True, slots=False, eq=False)
class Environment:
    """One version's functions and types. `Environment.of("k8s-1.36")` gives the same object every time.

    `list_attributes`: attributes may be lists (feature DRAListTypeAttributes; from 1.37 on selectors may
    always treat them so).
    """

    version: str
    list_attributes: bool = False
    _minor: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        match = _VERSION.fullmatch(self.version)
        if match is None or int(match[1]) not in _MINORS:
            known = ", ".join(f"k8s-1.{minor}" for minor in _MINORS)
            raise UsageError(f"there is no CEL environment {self.version!r}", next_step=f"use one of {known}")
        object.__setattr__(self, "_minor", int(match[1]))

    @staticmethod
    def of(version: str, *, list_attributes: bool = False) -> "Environment":
        """Raises UsageError for a version that is not known."""
        return _environment(version, list_attributes)

    @property
    def quoted_fields(self) -> bool:
        """Whether a field may be written in backticks."""
        return self._minor >= 37

    @property
    def old_optionals(self) -> bool:
        """Whether an optional loses a value of Kubernetes' types when it is read from a variable, and
        orValue() takes what is no optional.
        """
        return self._minor < 37

    @property
    def attribute_type(self) -> Type:
        """The type of an attribute's value, which is known at run time only."""
        if self._minor >= 37 or (self._minor == 36 and self.list_attributes):
            return types.DYN
        return types.ANY

    @property
    def results(self) -> tuple[Type, ...]:
        """The types that a selector may have."""
        if self._minor == 36 and self.list_attributes:
            return (types.BOOL, types.ANY, types.DYN)
        return (types.BOOL, self.attribute_type)

    @cached_property
    def functions(self) -> Mapping[str, Function]:
        return _functions(self._minor)

    @cached_property
    def declarations(self) -> Declarations:
        return Declarations(
            functions=self.functions,
            variables={"device": types.DEVICE},
            type_names=_TYPE_NAMES,
            device_fields={
                "driver": types.STRING,
                "attributes": map_of(types.STRING, map_of(types.STRING, self.attribute_type)),
                "capacity": map_of(types.STRING, map_of(types.STRING, types.QUANTITY)),
                "allowMultipleAllocations": types.BOOL,
            },
        )


@lru_cache(maxsize=16)
def _environment(version: str, list_attributes: bool) -> Environment:
    return Environment(version, list_attributes)


@lru_cache(maxsize=8)
def _functions(minor: int) -> Mapping[str, Function]:
    new_cel = minor >= 37
    """cel-go 0.29 instead of 0.26."""
    libraries: list[Library] = [
        LOGIC,
        EQUALITY,
        ARITHMETIC,
        ORDER,
        (SIZE,),
        texts(prefix_cost_index=1 if new_cel else 0),
        conversions(integer_durations=not new_cel),
        TIMES,
        URLS,
        regex(global_matches_cost=new_cel),
        *(() if new_cel else (KUBERNETES_LISTS,)),
        AUTHORIZER,
        OPTIONALS,
        QUANTITIES,
        strings(clamped=new_cel),
        SETS,
        NETWORK,
        NAMED_FORMATS,
        MAP_INSERT,
        VERSIONS,
        COMPARISONS,
        lists(bounded=new_cel),
    ]
    if new_cel:  # there the library of lists comes last, which decides between overloads of one name
        libraries += [KUBERNETES_LISTS, INCLUDES_37]
    elif minor == 36:
        libraries.append(INCLUDES_36)
    return merge(libraries)


def _map(key: int, item: Declared, *, any_field: bool = False) -> Declared:
    return Declared(_ENTRIES, key=Declared(key), item=item, any_field=any_field)


SIZES = Declared(
    fields={
        "device": Declared(
            fields={
                "driver": Declared(_DRIVER),
                "allowMultipleAllocations": Declared(1),
                "attributes": _map(_DOMAIN, _map(_ID, Declared(_VALUE), any_field=True)),
                "capacity": _map(_DOMAIN, _map(_ID, Declared(0))),
            }
        )
    }
)
"""How long the parts of a device may be, as Kubernetes declares it for estimates of cost."""

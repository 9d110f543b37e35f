"""Static types: enough to refuse, before any device is looked at, what can never work."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Type:
    """A type, such as `int` or `list(string)`."""

    name: str
    parameters: tuple["Type", ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))})" if self.parameters else self.name


BOOL = Type("bool")
INT = Type("int")
UINT = Type("uint")
DOUBLE = Type("double")
STRING = Type("string")
BYTES = Type("bytes")
NULL = Type("null")
QUANTITY = Type("quantity")
SEMVER = Type("semver")
DEVICE = Type("device")
DYN = Type("dyn")
"""Known at run time only."""
NUMBERS = (INT, UINT, DOUBLE)
OPAQUE = (QUANTITY, SEMVER)
"""Types of Kubernetes; unlike the others they may be compared with null."""


def list_of(item: Type) -> Type:
    return Type("list", (item,))


def map_of(key: Type, value: Type) -> Type:
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    return Type("optional", (value,))


LIST = list_of(DYN)
OPTIONAL = optional_of(DYN)

DEVICE_FIELDS = {
    "driver": STRING,
    "attributes": map_of(STRING, map_of(STRING, DYN)),
    "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
    "allowMultipleAllocations": BOOL,
}
"""The fields of the one variable, `device` (`CELDeviceSelector` of resource/v1)."""


def fits(actual: Type, wanted: Type) -> bool:
    """True if a value of type `actual` may turn out to be a `wanted`."""
    if DYN in (actual, wanted):
        return True
    if NULL in (actual, wanted) and (actual in OPAQUE or wanted in OPAQUE):
        return True
    return actual.name == wanted.name and all(map(fits, actual.parameters, wanted.parameters))


def join(types: Iterable[Type]) -> Type | None:
    """The one type that all of these may be; DYN as soon as one of them is dynamic; None if there is none."""
    joined: Type | None = None
    for kind in types:
        if joined is None or joined == kind:
            joined = kind
        elif not fits(kind, joined):
            return None
        elif DYN in (joined, kind):
            joined = DYN
        else:
            pairs = zip(joined.parameters, kind.parameters, strict=True)
            joined = Type(joined.name, tuple(join(pair) or DYN for pair in pairs))
    return DYN if joined is None else joined

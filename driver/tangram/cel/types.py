"""Static types, as declared and as inferred. At run time a type is a value too: `type(1) == int`."""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a type is made of."""

    ANY = "any"
    BOOL = "bool"
    BYTES = "bytes"
    DOUBLE = "double"
    DURATION = "duration"
    DYN = "dyn"
    ERROR = "error"
    INT = "int"
    LIST = "list"
    MAP = "map"
    NULL = "null"
    OPAQUE = "opaque"
    STRING = "string"
    STRUCT = "struct"
    TIMESTAMP = "timestamp"
    TYPE = "type"
    PARAMETER = "parameter"
    UINT = "uint"

    __hash__ = object.__hash__  # that of Enum is slow, and the checker looks up types all the time


@dataclass(frozen=True, slots=True)
class Type:
    """A type, such as `int` or `list(string)`."""

    kind: Kind
    name: str
    parameters: tuple["Type", ...] = ()

    def __hash__(self) -> int:
        return hash((self.name, self.parameters))

    def __str__(self) -> str:
        name = SHORT_NAMES.get(self.name, self.name)
        return f"{name}({', '.join(map(str, self.parameters))})" if self.parameters else name

    @property
    def is_dynamic(self) -> bool:
        """Known at run time only."""
        return self.kind is Kind.DYN or self.kind is Kind.ANY


SHORT_NAMES = {
    "null_type": "null",
    "optional_type": "optional",
    "google.protobuf.Duration": "duration",
    "google.protobuf.Timestamp": "timestamp",
    "google.protobuf.Any": "any",
    "kubernetes.DRADevice": "device",
    "kubernetes.Quantity": "quantity",
    "kubernetes.Semver": "semver",
    "kubernetes.URL": "URL",
    "kubernetes.NamedFormat": "format",
    "net.IP": "IP",
    "net.CIDR": "CIDR",
}
"""What messages call types whose own names tell a reader nothing."""

ANY = Type(Kind.ANY, "google.protobuf.Any")
BOOL = Type(Kind.BOOL, "bool")
BYTES = Type(Kind.BYTES, "bytes")
DOUBLE = Type(Kind.DOUBLE, "double")
DURATION = Type(Kind.DURATION, "google.protobuf.Duration")
DYN = Type(Kind.DYN, "dyn")
ERROR = Type(Kind.ERROR, "error")
INT = Type(Kind.INT, "int")
NULL = Type(Kind.NULL, "null_type")
STRING = Type(Kind.STRING, "string")
TIMESTAMP = Type(Kind.TIMESTAMP, "google.protobuf.Timestamp")
TYPE = Type(Kind.TYPE, "type")
UINT = Type(Kind.UINT, "uint")

DEVICE = Type(Kind.STRUCT, "kubernetes.DRADevice")
QUANTITY = Type(Kind.STRUCT, "kubernetes.Quantity")
SEMVER = Type(Kind.STRUCT, "kubernetes.Semver")
URL = Type(Kind.STRUCT, "kubernetes.URL")
FORMAT = Type(Kind.STRUCT, "kubernetes.NamedFormat")
IP = Type(Kind.OPAQUE, "net.IP")
CIDR = Type(Kind.OPAQUE, "net.CIDR")


def parameter(name: str) -> Type:
    """A type variable of a declaration, such as the T of `list(T)`."""
    return Type(Kind.PARAMETER, name)


def list_of(item: Type) -> Type:
    return Type(Kind.LIST, "list", (item,))


def map_of(key: Type, value: Type) -> Type:
    return Type(Kind.MAP, "map", (key, value))


def optional_of(value: Type) -> Type:
    return Type(Kind.OPAQUE, "optional_type", (value,))


def type_of(value: Type) -> Type:
    """The type of a type that is used as a value."""
    return Type(Kind.TYPE, "type", (value,))


def is_optional(kind: Type) -> bool:
    return kind.name == "optional_type"


def unwrap_optional(kind: Type) -> Type:
    """The type inside an optional; any other type itself."""
    return kind.parameters[0] if is_optional(kind) else kind


LIST = list_of(DYN)
MAP = map_of(DYN, DYN)
OPTIONAL = optional_of(DYN)

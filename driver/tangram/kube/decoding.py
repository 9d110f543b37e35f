"""JSON of the API to values: hostile input ends in an error that names object and field."""

import re
from typing import Any, NamedTuple, TypeVar

import msgspec

from tangram.base.errors import InvalidObjectError

T = TypeVar("T")

CORRECT_IT = "correct the object, or update Tangram if this Kubernetes version writes it so"
"""What to do about an object that cannot be read."""
_MAX_NAME = 300
_PATH = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")


class ObjectKey(NamedTuple):
    """What names an object within its resource; `namespace` is empty for cluster-scoped ones."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class _Metadata(msgspec.Struct, frozen=True, rename="camel", gc=False):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.namespace, self.name)


class Identity(msgspec.Struct, frozen=True, gc=False):
    """The part of any object that says which one it is, and which version of it."""

    metadata: _Metadata


class _Name(msgspec.Struct, gc=False):
    name: str
    namespace: str | None = None


class _Named(msgspec.Struct, gc=False):
    """What names an object in an error, whatever else is wrong with it."""

    metadata: _Name


_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind)
    return _decoders[kind]


def decode(data: bytes | msgspec.Raw, kind: type[T], *, where: str = "") -> T:
    """`data` as a `kind` (a msgspec Struct of `tangram.kube.objects`).

    Raises InvalidObjectError with the object's kind and name, and the path of the field where there is one;
    `where` is said first (the file, if it is not from the API).
    """
    try:
        value: T = _decoder(kind).decode(data)
    # RecursionError: a few kB of `[[[[…` under a field nobody reads.
    except (msgspec.DecodeError, RecursionError) as error:
        name = _describe(data, kind)
        raise _invalid(error, name=f"{where}: {name}" if where else name) from None
    return value


def identify(data: bytes | msgspec.Raw) -> Identity:
    """Name, namespace, uid and resourceVersion of any object; InvalidObjectError if it has no name."""
    return decode(data, Identity)


def _invalid(error: Exception, *, name: str) -> InvalidObjectError:
    text = str(error)
    found = _PATH.search(text)
    return InvalidObjectError(
        text[: found.start()] if found else text,
        object_name=name,
        field=found["path"] if found else "",
        next_step=CORRECT_IT,
    )


def _describe(data: bytes | msgspec.Raw, kind: type[Any]) -> str:
    label = "object" if kind is Identity else kind.__name__
    try:
        found: _Name = _decoder(_Named).decode(data).metadata
    except (msgspec.DecodeError, RecursionError):
        return f"{label} without a readable name"
    return f"{label} {str(ObjectKey(found.namespace or '', found.name))[:_MAX_NAME]}"

"""Bodies in Kubernetes' protobuf, which `kubectl create namespace` and `create configmap` send.

Only these two kinds, and of them what kubectl fills in: everything else comes as JSON, or can.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tangram.testing.apiserver.answers import bad_request, unsupported_media_type

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\0"
# By message and field number (generated.proto of the API): name and type.
_FIELDS: Mapping[str, Mapping[int, tuple[str, str]]] = {
    "Unknown": {1: ("type", "TypeMeta"), 2: ("raw", "bytes")},
    "TypeMeta": {1: ("apiVersion", "string"), 2: ("kind", "string")},
    "Namespace": {1: ("metadata", "ObjectMeta")},
    "ConfigMap": {1: ("metadata", "ObjectMeta"), 2: ("data", "map"), 4: ("immutable", "bool")},
    "ObjectMeta": {
        1: ("name", "string"),
        2: ("generateName", "string"),
        3: ("namespace", "string"),
        11: ("labels", "map"),
        12: ("annotations", "map"),
    },
    "Entry": {1: ("key", "string"), 2: ("value", "string")},
}


def parse(data: bytes) -> dict[str, Any]:
    """The object of a body; 400, and 415 for a kind that is not read here."""
    if not data.startswith(_MAGIC):
        raise bad_request("provided data does not appear to be a protobuf message")
    try:
        envelope = _message("Unknown", data.removeprefix(_MAGIC))
        kind = envelope["type"]["kind"]
        if kind not in _FIELDS:
            raise unsupported_media_type(
                f"a {kind} in protobuf is not served: send JSON or YAML (kubectl create -f)"
            )
        return {**envelope["type"], **_message(kind, envelope["raw"])}
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise bad_request(f"the protobuf message cannot be read: {error!r}") from error


def _message(name: str, data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, value in _fields(data):
        field, kind = _FIELDS[name].get(number, ("", ""))
        if not field:
            continue
        if kind == "map" and isinstance(value, bytes):
            entry = _message("Entry", value)
            found.setdefault(field, {})[entry.get("key", "")] = entry.get("value", "")
        elif kind == "bool":
            found[field] = bool(value)
        elif isinstance(value, bytes):
            found[field] = (
                value if kind == "bytes" else value.decode() if kind == "string" else _message(kind, value)
            )
    return found


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values: a varint, or the bytes of what has a length."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, position = _varint(data, position)
            yield number, value
        elif wire_type == 2:
            length, position = _varint(data, position)
            if position + length > len(data):
                raise IndexError("truncated")
            yield number, data[position : position + length]
            position += length
        else:
            position += {1: 8, 5: 4}[wire_type]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position

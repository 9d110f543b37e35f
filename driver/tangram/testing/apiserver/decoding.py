"""JSON as a Go API server reads and writes it: by the types of the schema.

Unknown fields are dropped (and named), values of a wrong type are refused, nulls and empty values vanish as
they do in Go's encoder, and what Go always writes is filled in.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from tangram.testing.apiserver.quantities import canonical
from tangram.testing.apiserver.schema import structs, written_defaults

_MAX_INT = 2**63
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6,}(Z|[+-]\d\d:\d\d)")
_GO_NAMES = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}


class DecodeError(Exception):
    """The text is the reason, in the words of Go's decoder."""


class Decoder:
    """One object. `unknown` gathers the paths of unknown fields, in their order."""

    def __init__(self) -> None:
        self.unknown: list[str] = []

    def struct(self, name: str, value: Any, *, path: str = "") -> dict[str, Any]:
        """`value` as the struct `name`; DecodeError."""
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise _mismatch(value, path, name)
        fields, result = structs()[name], {}
        for key, item in value.items():
            where = f"{path}.{key}" if path else key
            if key not in fields:
                self.unknown.append(where)
            elif (decoded := self._value(fields[key].type, item, where)) is not None:
                result[key] = decoded
        for key, default in written_defaults(name).items():
            if key not in result:
                kind = fields[key].type
                result[key] = self.struct(kind, {}) if default == {} else default
        return result

    def _value(self, kind: str, value: Any, path: str) -> Any:
        """None for what is left out: null, and lists and maps without elements."""
        if value is None:
            return None
        if kind.startswith("["):
            if not isinstance(value, list):
                raise _mismatch(value, path, f"[]{kind[1:-1]}")
            return [
                self._element(kind[1:-1], item, f"{path}[{index}]") for index, item in enumerate(value)
            ] or None
        if kind.startswith("{"):
            if not isinstance(value, dict):
                raise _mismatch(value, path, f"map[string]{kind[1:-1]}")
            return {
                key: self._element(kind[1:-1], item, f"{path}.{key}") for key, item in value.items()
            } or None
        return self._element(kind, value, path)

    def _element(self, kind: str, value: Any, path: str) -> Any:
        if kind in _SCALARS:
            return _SCALARS[kind](value, path)
        return self.struct(kind, value, path=path)


def _mismatch(value: Any, path: str, wanted: str) -> DecodeError:
    return DecodeError(
        f"json: cannot unmarshal {_GO_NAMES.get(type(value), 'null')} into Go struct field {path} "
        f"of type {wanted}"
    )


def _string(value: Any, path: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _mismatch(value, path, "string")
    return value


def _int(value: Any, path: str) -> int:
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -_MAX_INT <= value < _MAX_INT:
        raise _mismatch(value, path, "int64")
    return value


def _number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _mismatch(value, path, "float64")
    return value


def _bool(value: Any, path: str) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _mismatch(value, path, "bool")
    return value


def _bytes(value: Any, path: str) -> str:
    text = _string(value, path)
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DecodeError(f"illegal base64 data at {path}: {error}") from error
    return text


def _quantity(value: Any, path: str) -> str:
    if value is None:
        return "0"
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    try:
        return canonical(_string(text, path))
    except ValueError as error:
        raise DecodeError(f"quantities must match the regular expression, at {path}: {error}") from error


def _time(value: Any, path: str) -> str | None:
    if value is None:
        return None
    text = _string(value, path)
    if not _TIME.fullmatch(text):
        raise DecodeError(f'parsing time "{text}" at {path}: RFC 3339 is needed')
    return re.sub(r"\.\d+", "", text)


def _micro_time(value: Any, path: str) -> str | None:
    if value is None:
        return None
    text = _string(value, path)
    if not _MICRO_TIME.fullmatch(text):
        raise DecodeError(f'parsing time "{text}" at {path}: RFC 3339 with microseconds is needed')
    return text


def _int_or_string(value: Any, path: str) -> int | str:
    return _int(value, path) if isinstance(value, int) else _string(value, path)


def _any(value: Any, path: str) -> Any:
    del path
    return value


_SCALARS = {
    "string": _string,
    "int": _int,
    "number": _number,
    "bool": _bool,
    "bytes": _bytes,
    "quantity": _quantity,
    "time": _time,
    "microtime": _micro_time,
    "intorstring": _int_or_string,
    "any": _any,
}


def duplicate_fields(pairs: list[tuple[str, Any]], found: list[str]) -> Mapping[str, Any]:
    """An `object_pairs_hook` that notes keys given twice; the last one counts."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            found.append(key)
        result[key] = value
    return result

"""What transformMap() and transformMapEntry() are made of."""

from tangram.base.errors import CelRuntimeError
from tangram.cel.declarations import function, overload
from tangram.cel.equality import MISSING, find, map_key, plain_key
from tangram.cel.types import (
    map_of,
    parameter,
)
from tangram.cel.values import Budget, Value, type_name

_A, _B = parameter("A"), parameter("B")
_MAP = map_of(_A, _B)


def _insert(budget: Budget, entries: Value, key: Value, value: Value) -> dict[Value, Value]:
    budget.labour(len(entries) // 16)
    if find(entries, key) is not MISSING:
        raise CelRuntimeError(f"insert failed: key of type {type_name(key)} already exists")
    return {**entries, map_key(key): value}


def _insert_all(budget: Budget, entries: Value, more: Value) -> dict[Value, Value]:
    made = entries
    for key, value in more.items():
        made = _insert(budget, made, plain_key(key), value)
    return dict(made)


MAP_INSERT = (
    function(
        "cel.@mapInsert",
        overload("@mapInsert_map_key_value", (_MAP, _A, _B), _MAP, _insert, budgeted=True),
        overload("@mapInsert_map_map", (_MAP, _MAP), _MAP, _insert_all, budgeted=True),
    ),
)

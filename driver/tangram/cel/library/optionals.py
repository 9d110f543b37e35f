"""Optional values: cel-go's library. `or()` and `orValue()` are evaluated by the planner, which leaves out
their argument where it can.
"""

from tangram.base.errors import CelRuntimeError
from tangram.cel.declarations import function, method, overload
from tangram.cel.types import BOOL, list_of, optional_of, parameter
from tangram.cel.values import ABSENT, OptionalValue, Value, is_zero, type_name

_V = parameter("V")
_OPTIONAL = optional_of(_V)


def _value(optional: OptionalValue) -> Value:
    if optional is ABSENT:
        raise CelRuntimeError("value() of an optional that has none", next_step="use orValue(…)")
    return optional.opened()


def _unwrap(items: tuple[Value, ...]) -> tuple[Value, ...]:
    for item in items:
        if type(item) is not OptionalValue:
            raise CelRuntimeError(f"a value of type {type_name(item)} is not an optional")
    return tuple(item.opened() for item in items if item is not ABSENT)


OPTIONALS = (
    function("optional.of", overload("optional_of", (_V,), _OPTIONAL, OptionalValue)),
    function(
        "optional.ofNonZeroValue",
        overload(
            "optional_ofNonZeroValue",
            (_V,),
            _OPTIONAL,
            lambda value: ABSENT if is_zero(value) else OptionalValue(value),
        ),
    ),
    function("optional.none", overload("optional_none", (), _OPTIONAL, lambda: ABSENT)),
    function("value", method("optional_value", (_OPTIONAL,), _V, _value)),
    function("hasValue", method("optional_hasValue", (_OPTIONAL,), BOOL, lambda opt: opt is not ABSENT)),
    function("or", method("optional_or_optional", (_OPTIONAL, _OPTIONAL), _OPTIONAL)),
    function("orValue", method("optional_orValue_value", (_OPTIONAL, _V), _V)),
    function("optional.unwrap", overload("optional_unwrap", (list_of(_OPTIONAL),), list_of(_V), _unwrap)),
    function("unwrapOpt", method("optional_unwrapOpt", (list_of(_OPTIONAL),), list_of(_V), _unwrap)),
)

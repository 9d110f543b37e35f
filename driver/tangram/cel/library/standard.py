"""Operators and string functions that every CEL environment has.

CEL language definition, "List of Standard Definitions".
"""

from collections.abc import Callable, Sequence
from fractions import Fraction

from tangram.cel import ast
from tangram.cel.declarations import (
    Cost,
    Estimator,
    Function,
    Overload,
    ceil_cost,
    function,
    method,
    overload,
    per_character,
)
from tangram.cel.equality import MISSING, contains, equals, find
from tangram.cel.estimate import ONE, Estimate, Range, Sized, Sizes, per_character_of
from tangram.cel.library import arithmetic
from tangram.cel.library.ordering import compare
from tangram.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    Type,
    list_of,
    map_of,
    optional_of,
    parameter,
)
from tangram.cel.values import (
    MAPS,
    Budget,
    NamedFormat,
    Prefix,
    Sum,
    Url,
    Value,
    no_overload,
    size,
)
from tangram.cel.values import Address as AddressValue
from tangram.model.semver import SemVer

_A, _B = parameter("A"), parameter("B")
_LIST_A, _MAP_AB = list_of(_A), map_of(_A, _B)


# --- equality and membership -------------------------------------------------------------------------------

_UNIT_EQUALITY = frozenset({Fraction, Sum, SemVer, Url, AddressValue, Prefix, NamedFormat})
"""Types whose comparison Kubernetes counts as one unit."""
_UNIT_ESTIMATE = frozenset({"kubernetes.Quantity", "kubernetes.Semver", "net.IP", "net.CIDR"})


def _smaller(arguments: Sequence[Value], _: Value) -> int:
    return ceil_cost(min(size(arguments[0]), size(arguments[1])), 0.1)


def _equality(arguments: Sequence[Value], result: Value) -> int:
    return 1 if type(arguments[0]) in _UNIT_EQUALITY else _smaller(arguments, result)


def _smaller_estimate(_: Sizes, __: Sized | None, arguments: Sequence[Sized]) -> Estimate:
    left, right = ((argument.computed or _UNKNOWN).high for argument in arguments)
    high = min(left, right)
    return Estimate(Range(1 if high else 0, high).scaled(0.1))


_UNKNOWN = Range(0, 2**64 - 1)


def _equality_estimate(sizes: Sizes, receiver: Sized | None, arguments: Sequence[Sized]) -> Estimate:
    left, right = arguments
    if left.kind == right.kind:
        if left.kind.name in _UNIT_ESTIMATE:
            return Estimate(ONE)
        if left.kind.name == "kubernetes.NamedFormat":
            return Estimate(Range(1, 64).scaled(0.1))
        if left.kind.name == "kubernetes.URL":
            length = ONE if right.computed is None else right.computed
            return Estimate(Range(1, length.high).scaled(0.1))
    return _smaller_estimate(sizes, receiver, arguments)


def _equal(budget: Budget, left: Value, right: Value) -> bool:
    result = equals(left, right, budget)
    if result is None:
        raise no_overload("==", left, right)
    return result


def _not_equal(budget: Budget, left: Value, right: Value) -> bool:
    return equals(left, right, budget) is not True


def _in(budget: Budget, item: Value, container: Value) -> bool:
    if type(container) is tuple:
        return contains(container, item, budget)
    if type(container) in MAPS:
        return find(container, item) is not MISSING
    raise no_overload("in", item, container)


EQUALITY = (
    function(
        ast.EQUALS,
        overload("equals", (_A, _A), BOOL),
        dynamic=_equal,
        budgeted=True,
        cost=_equality,
        estimate=_equality_estimate,
    ),
    function(
        ast.NOT_EQUALS,
        overload("not_equals", (_A, _A), BOOL),
        dynamic=_not_equal,
        budgeted=True,
        cost=_smaller,
        estimate=_smaller_estimate,
    ),
    function(
        ast.IN,
        overload(
            "in_list",
            (_A, _LIST_A),
            BOOL,
            cost=lambda arguments, _: size(arguments[1]),
            estimate=per_character_of(1, factor=1),
        ),
        overload("in_map", (_A, _MAP_AB), BOOL),
        dynamic=_in,
        budgeted=True,
    ),
    function(
        ast.INDEX,
        overload("index_list", (_LIST_A, INT), _A),
        overload("index_map", (_MAP_AB, _A), _B),
        overload("optional_list_index_int", (optional_of(_LIST_A), INT), optional_of(_A)),
        overload("optional_map_index_value", (optional_of(_MAP_AB), _A), optional_of(_B)),
    ),
    function(
        ast.OPTIONAL_INDEX,
        overload("list_optindex_optional_int", (_LIST_A, INT), optional_of(_A)),
        overload("optional_list_optindex_optional_int", (optional_of(_LIST_A), INT), optional_of(_A)),
        overload("map_optindex_optional_value", (_MAP_AB, _A), optional_of(_B)),
        overload("optional_map_optindex_optional_value", (optional_of(_MAP_AB), _A), optional_of(_B)),
    ),
    function(ast.OPTIONAL_SELECT, overload("select_optional_field", (DYN, STRING), optional_of(_A))),
)

# --- logic -------------------------------------------------------------------------------------------------


def _not(value: Value) -> bool:
    if type(value) is bool:
        return not value
    raise no_overload("!", value)


LOGIC = (
    function(ast.CONDITIONAL, overload("conditional", (BOOL, _A, _A), _A)),
    function(ast.AND, overload("logical_and", (BOOL, BOOL), BOOL)),
    function(ast.OR, overload("logical_or", (BOOL, BOOL), BOOL)),
    function(ast.NOT, overload("logical_not", (BOOL,), BOOL), dynamic=_not),
    function(ast.NOT_STRICTLY_FALSE, overload("not_strictly_false", (BOOL,), BOOL)),
)

# --- arithmetic --------------------------------------------------------------------------------------------

_Signature = tuple[str, Type, Type, Type]


def _operator(
    name: str,
    call: Callable[..., Value],
    *signatures: _Signature,
    cost: Cost | None = None,
    costly: frozenset[str] = frozenset(),
    budgeted: bool = False,
) -> Function:
    return Function(
        name,
        tuple(
            Overload(id_, (left, right), result, cost=cost if id_ in costly else None)
            for id_, left, right, result in signatures
        ),
        dynamic=call,
        budgeted=budgeted,
    )


ARITHMETIC = (
    _operator(
        ast.ADD,
        arithmetic.add,
        ("add_bytes", BYTES, BYTES, BYTES),
        ("add_double", DOUBLE, DOUBLE, DOUBLE),
        ("add_duration_duration", DURATION, DURATION, DURATION),
        ("add_duration_timestamp", DURATION, TIMESTAMP, TIMESTAMP),
        ("add_timestamp_duration", TIMESTAMP, DURATION, TIMESTAMP),
        ("add_int64", INT, INT, INT),
        ("add_list", _LIST_A, _LIST_A, _LIST_A),
        ("add_string", STRING, STRING, STRING),
        ("add_uint64", UINT, UINT, UINT),
        cost=per_character(0, 1),
        costly=frozenset({"add_string", "add_bytes"}),
        budgeted=True,
    ),
    _operator(
        ast.SUBTRACT,
        arithmetic.subtract,
        ("subtract_double", DOUBLE, DOUBLE, DOUBLE),
        ("subtract_duration_duration", DURATION, DURATION, DURATION),
        ("subtract_int64", INT, INT, INT),
        ("subtract_timestamp_duration", TIMESTAMP, DURATION, TIMESTAMP),
        ("subtract_timestamp_timestamp", TIMESTAMP, TIMESTAMP, DURATION),
        ("subtract_uint64", UINT, UINT, UINT),
    ),
    _operator(
        ast.MULTIPLY,
        arithmetic.multiply,
        ("multiply_double", DOUBLE, DOUBLE, DOUBLE),
        ("multiply_int64", INT, INT, INT),
        ("multiply_uint64", UINT, UINT, UINT),
    ),
    _operator(
        ast.DIVIDE,
        arithmetic.divide,
        ("divide_double", DOUBLE, DOUBLE, DOUBLE),
        ("divide_int64", INT, INT, INT),
        ("divide_uint64", UINT, UINT, UINT),
    ),
    _operator(
        ast.MODULO,
        arithmetic.modulo,
        ("modulo_int64", INT, INT, INT),
        ("modulo_uint64", UINT, UINT, UINT),
    ),
    function(
        ast.NEGATE,
        overload("negate_double", (DOUBLE,), DOUBLE),
        overload("negate_int64", (INT,), INT),
        dynamic=arithmetic.negate,
    ),
)

# --- order -------------------------------------------------------------------------------------------------

_ORDERED = (
    ("bool", BOOL, BOOL),
    ("int64", INT, INT),
    ("int64_double", INT, DOUBLE),
    ("int64_uint64", INT, UINT),
    ("uint64", UINT, UINT),
    ("uint64_double", UINT, DOUBLE),
    ("uint64_int64", UINT, INT),
    ("double", DOUBLE, DOUBLE),
    ("double_int64", DOUBLE, INT),
    ("double_uint64", DOUBLE, UINT),
    ("string", STRING, STRING),
    ("bytes", BYTES, BYTES),
    ("timestamp", TIMESTAMP, TIMESTAMP),
    ("duration", DURATION, DURATION),
)


def _order(name: str, prefix: str, holds: Callable[[int], bool]) -> Function:
    def call(left: Value, right: Value) -> bool:
        return holds(compare(left, right))

    return function(
        name,
        *(
            overload(
                f"{prefix}_{suffix}",
                (left, right),
                BOOL,
                cost=_smaller if suffix in {"string", "bytes"} else None,
                estimate=_smaller_estimate if suffix in {"string", "bytes"} else None,
            )
            for suffix, left, right in _ORDERED
        ),
        dynamic=call,
    )


ORDER = (
    _order(ast.LESS, "less", lambda sign: sign < 0),
    _order(ast.LESS_EQUALS, "less_equals", lambda sign: sign <= 0),
    _order(ast.GREATER, "greater", lambda sign: sign > 0),
    _order(ast.GREATER_EQUALS, "greater_equals", lambda sign: sign >= 0),
)

# --- sizes and strings -------------------------------------------------------------------------------------


def _size(value: Value) -> int:
    if type(value) in {str, bytes, tuple, *MAPS}:
        return len(value)
    raise no_overload("size", value)


def _text(name: str, test: Callable[[str, str], bool]) -> Callable[[Value, Value], bool]:
    def call(text: Value, part: Value) -> bool:
        if type(text) is str and type(part) is str:
            return test(text, part)
        raise no_overload(name, text, part)

    return call


def _contains_cost(arguments: Sequence[Value], _: Value) -> int:
    text, part = arguments
    return ceil_cost(size(text), 0.1) * ceil_cost(size(part), 0.1)


def _contains_estimate(sizes: Sizes, receiver: Sized | None, arguments: Sequence[Sized]) -> Estimate | None:
    if receiver is None:
        return None
    return Estimate(sizes.of(receiver).scaled(0.1).times(sizes.of(arguments[0]).scaled(0.1)))


_SIZED = (("bytes", BYTES), ("list", _LIST_A), ("map", _MAP_AB), ("string", STRING))

SIZE = function(
    "size",
    *(overload(f"size_{name}", (kind,), INT) for name, kind in _SIZED),
    *(method(f"{name}_size", (kind,), INT) for name, kind in _SIZED),
    dynamic=_size,
)


def texts(*, prefix_cost_index: int) -> tuple[Function, ...]:
    """`prefix_cost_index`: by which argument startsWith() and endsWith() are priced; it was the text until
    cel-go 0.26, then the prefix, which the estimate always took.
    """

    def test(name: str, call: Callable[[str, str], bool], cost: Cost, estimate: Estimator) -> Function:
        one = method(
            f"{'ends' if name == 'endsWith' else 'starts' if name == 'startsWith' else 'contains'}_string",
            (STRING, STRING),
            BOOL,
            cost=cost,
            estimate=estimate,
        )
        return function(name, one, dynamic=_text(name, call))

    by_prefix = per_character(prefix_cost_index)
    return (
        test("startsWith", str.startswith, by_prefix, per_character_of(0)),
        test("endsWith", str.endswith, by_prefix, per_character_of(0)),
        test("contains", str.__contains__, _contains_cost, _contains_estimate),
    )

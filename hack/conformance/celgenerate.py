"""Generated CEL expressions: typed trees over all that the environment declares, at times wrong on purpose.

Left out is what docs/differences.md explains: loops over maps of several keys, whose order is random
upstream, variables bound to lists, which upstream changes in place, and quantities from which the least
integer is taken, or sums that are asked for an integer.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence

from conformance.celtexts import (
    BYTE_TEXTS,
    CIDRS,
    DOUBLES,
    DURATIONS,
    FORMATS,
    INTS,
    IPS,
    NAMES,
    NUMBERS,
    PATTERNS,
    QUANTITIES,
    STRINGS,
    TIMES,
    UINTS,
    URLS,
    VERSIONS,
    ZONES,
)
from tangram.cel.declarations import Function, Overload
from tangram.cel.environment import Environment
from tangram.cel.types import (
    BOOL,
    BYTES,
    CIDR,
    DOUBLE,
    DURATION,
    FORMAT,
    INT,
    IP,
    NULL,
    QUANTITY,
    SEMVER,
    STRING,
    TIMESTAMP,
    UINT,
    URL,
    Kind,
    Type,
    list_of,
    map_of,
    optional_of,
)
from tangram.cel.unify import Bindings, substitute, unify

Scope = Mapping[str, Type]

_LEAST_TAKEN = re.compile(r"\.sub\((dyn\()?-9223372036854775808\b")
_SUM = re.compile(r"\.(add|sub)\(")
_ASKED_FOR_INTEGER = re.compile(r"\.(is|as)Integer\(")


def _is_explained(text: str) -> bool:
    return bool(_LEAST_TAKEN.search(text) or (_SUM.search(text) and _ASKED_FOR_INTEGER.search(text)))


_SCALARS = (BOOL, INT, UINT, DOUBLE, STRING, BYTES, DURATION, TIMESTAMP, QUANTITY, SEMVER, URL, IP, CIDR)
_KEYS = (STRING, INT, UINT, BOOL)
_OWN = 'device.attributes["gpu.resource.admin"]'
_CAPACITY = 'device.capacity["gpu.resource.admin"]'
_TEXTS_FOR: Mapping[tuple[str, int], Sequence[str]] = {
    ("quantity", 0): QUANTITIES,
    ("isQuantity", 0): QUANTITIES,
    ("semver", 0): VERSIONS,
    ("isSemver", 0): VERSIONS,
    ("duration", 0): DURATIONS,
    ("timestamp", 0): TIMES,
    ("matches", 1): PATTERNS,
    ("find", 1): PATTERNS,
    ("findAll", 1): PATTERNS,
    ("url", 0): URLS,
    ("isURL", 0): URLS,
    ("ip", 0): IPS,
    ("isIP", 0): IPS,
    ("ip.isCanonical", 0): IPS,
    ("cidr", 0): CIDRS,
    ("isCIDR", 0): CIDRS,
    ("containsIP", 1): IPS,
    ("containsCIDR", 1): CIDRS,
    ("format", 0): FORMATS,
    ("format.named", 0): NAMES,
    ("int", 0): NUMBERS,
    ("uint", 0): NUMBERS,
    ("double", 0): NUMBERS,
    ("bool", 0): ('"true"', '"F"', '"x"'),
}
_PARTS = "FullYear Month DayOfYear DayOfMonth Date DayOfWeek Hours Minutes Seconds Milliseconds"
_ZONED = frozenset({f"get{part}" for part in _PARTS.split()})
_DEVICE: Mapping[Type, Sequence[str]] = {
    BOOL: (f"{_OWN}.healthy", "device.allowMultipleAllocations", f"{_OWN}.off", f"{_OWN}.nope"),
    INT: (f"{_OWN}.index", f"{_OWN}.neg", 'device.attributes["other.example.com"].x', f"{_OWN}.type"),
    STRING: ("device.driver", f"{_OWN}.type", f"{_OWN}.productName", f"{_OWN}.index", f"{_OWN}.empty"),
    SEMVER: (f"{_OWN}.driverVersion", f"{_OWN}.pre", f"{_OWN}.type"),
    QUANTITY: (f"{_CAPACITY}.memory", f"{_CAPACITY}.cores", f"{_CAPACITY}.nope"),
}
_LITERALS: Mapping[Type, Sequence[str]] = {
    BOOL: ("true", "false"),
    INT: INTS,
    UINT: UINTS,
    DOUBLE: DOUBLES,
    STRING: STRINGS,
    BYTES: BYTE_TEXTS,
    NULL: ("null",),
    DURATION: tuple(f"duration({text})" for text in DURATIONS[:8]),
    TIMESTAMP: tuple(f"timestamp({text})" for text in TIMES[:5]),
    QUANTITY: tuple(f"quantity({text})" for text in QUANTITIES[:9]),
    SEMVER: tuple(f"semver({text})" for text in VERSIONS[:5]),
    URL: tuple(f"url({text})" for text in URLS[:3]),
    IP: tuple(f"ip({text})" for text in IPS[:6]),
    CIDR: tuple(f"cidr({text})" for text in CIDRS[:4]),
    FORMAT: ("format.dns1123Label()", "format.uuid()", "format.labelValue()"),
}
_FIELDS = ("a", "abc", "gpu")
_TESTS = (
    f"has({_OWN}.type)",
    f"has({_OWN}.nope)",
    f"has({_CAPACITY}.memory)",
    'has(device.attributes["none"].x)',
)
_OPERATORS = {
    "_==_": "==",
    "_!=_": "!=",
    "_<_": "<",
    "_<=_": "<=",
    "_>_": ">",
    "_>=_": ">=",
    "_+_": "+",
    "_-_": "-",
    "_*_": "*",
    "_/_": "/",
    "_%_": "%",
    "@in": "in",
    "_&&_": "&&",
    "_||_": "||",
}
_LEFT_OUT = frozenset(
    {
        "validate",
        "getQuery",
        "lists.range",
        "_[?_]",
        "_?._",
        "@not_strictly_false",
        "cel.@mapInsert",
        "@sortByAssociatedKeys",
    }
    | {"path", "group", "serviceAccount", "resource", "subresource", "namespace", "name", "check", "errored"}
    | {"error", "allowed", "reason", "fieldSelector", "labelSelector"}
)


class Generator:
    """Expressions of one seed, for one environment."""

    def __init__(self, environment: Environment, seed: int) -> None:
        self._random = random.Random(seed)
        self._declared = [
            (function, overload)
            for function in environment.functions.values()
            if function.name not in _LEFT_OUT
            for overload in function.overloads
        ]
        self._by_result: dict[Type, list[tuple[Function, Overload, Bindings]]] = {}

    def expression(self) -> str:
        """A selector; about one in ten does not compile, more fail when evaluated."""
        while True:
            text = self._of(BOOL, self._random.choice((2, 2, 3, 3, 4)), {})
            if not _is_explained(text):
                return text

    def derivation(self) -> str:
        """The expression of a derived attribute, right and wrong as often."""
        while True:
            kind = self._random.choice((BOOL, INT, STRING, SEMVER))
            kind = list_of(kind) if self._chance(0.4) else kind
            text = self._of(kind, self._random.choice((1, 2, 2, 3)), {})
            if not _is_explained(text):
                return text

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _type(self, depth: int = 1) -> Type:
        if depth and self._chance(0.35):
            form = self._random.randrange(3)
            if form == 0:
                return list_of(self._type(depth - 1))
            if form == 1:
                return map_of(self._random.choice(_KEYS), self._type(depth - 1))
            return optional_of(self._type(depth - 1))
        return self._random.choice(_SCALARS)

    def _of(self, kind: Type, depth: int, scope: Scope) -> str:
        """An expression of a type."""
        if self._chance(0.012):
            kind = self._type()
        if kind.kind in {Kind.DYN, Kind.ANY, Kind.PARAMETER}:
            kind = self._type()
        text = self._make(kind, depth, scope)
        return f"dyn({text})" if self._chance(0.04) else text

    def _make(self, kind: Type, depth: int, scope: Scope) -> str:
        known = [name for name, other in scope.items() if other == kind]
        if known and self._chance(0.5):
            return self._random.choice(known)
        if depth <= 0 or self._chance(0.12):
            return self._leaf(kind, scope)
        way = self._random.random()
        if way < 0.62 and (made := self._call(kind, depth, scope)):
            return made
        if way < 0.80 and (made := self._macro(kind, depth, scope)):
            return made
        return self._syntax(kind, depth, scope)

    def _leaf(self, kind: Type, scope: Scope) -> str:
        if kind in _DEVICE and self._chance(0.45):
            return self._random.choice(_DEVICE[kind])
        if kind in _LITERALS:
            return self._random.choice(_LITERALS[kind])
        count = self._random.randrange(4)
        if kind.kind is Kind.LIST:
            items = [self._of(kind.parameters[0], 0, scope) for _ in range(count)]
            return f"[{', '.join(items)}]"
        if kind.kind is Kind.MAP:
            key, value = kind.parameters
            entries = [f"{self._key(key)}: {self._of(value, 0, scope)}" for _ in range(count)]
            return f"{{{', '.join(entries)}}}"
        if kind.name == "optional_type":
            inner = self._of(kind.parameters[0], 0, scope)
            return self._random.choice(
                ("optional.none()", f"optional.of({inner})", f"optional.ofNonZeroValue({inner})")
            )
        if kind.kind is Kind.TYPE:
            return self._random.choice(("int", "string", "type(1)", "list", "bool"))
        return "null"

    def _key(self, kind: Type) -> str:
        return self._random.choice(_LITERALS.get(kind, ('"a"', '"b"')))

    # --- calls ---------------------------------------------------------------------------------------------

    def _call(self, kind: Type, depth: int, scope: Scope) -> str:
        candidates = self._candidates(kind)
        if not candidates:
            return ""
        function, overload, bindings = self._random.choice(candidates)
        chosen = dict(bindings)
        arguments: list[str] = []
        for index, declared in enumerate(overload.parameters):
            wanted = self._concrete(declared, chosen)
            texts = _TEXTS_FOR.get((function.name, index))
            if wanted == STRING and texts and self._chance(0.8):
                arguments.append(self._random.choice(texts))
            elif wanted == STRING and index == 1 and function.name in _ZONED:
                arguments.append(self._random.choice(ZONES))
            else:
                arguments.append(self._of(wanted, depth - 1, scope))
        return self._written(function.name, overload, arguments)

    def _candidates(self, kind: Type) -> list[tuple[Function, Overload, Bindings]]:
        known = self._by_result.get(kind)
        if known is None:
            known = []
            for function, overload in self._declared:
                if overload.result.kind in {Kind.DYN, Kind.TYPE} and kind.kind is not Kind.TYPE:
                    continue
                bindings = unify((kind,), (overload.result,), {})
                if bindings is not None:
                    known.append((function, overload, bindings))
            self._by_result[kind] = known
        return known

    def _concrete(self, kind: Type, bindings: dict[Type, Type]) -> Type:
        """A type without variables; those not bound yet are bound to types drawn."""
        kind = substitute(kind, bindings)
        keys = _key_variables(kind)
        for variable in _variables(kind):
            bindings[variable] = self._random.choice(_KEYS) if variable in keys else self._type(0)
        return substitute(kind, bindings)

    def _written(self, name: str, overload: Overload, arguments: Sequence[str]) -> str:
        if name in _OPERATORS:
            left, right = arguments
            return f"({left} {_OPERATORS[name]} {right})"
        if name == "_[_]":
            return f"{_enclosed(arguments[0])}[{arguments[1]}]"
        if name == "_?_:_":
            return f"({arguments[0]} ? {arguments[1]} : {arguments[2]})"
        if name in {"-_", "!_"}:
            return f"{name[0]}({arguments[0]})"
        if overload.member:
            return f"{_enclosed(arguments[0])}.{name}({', '.join(arguments[1:])})"
        return f"{name}({', '.join(arguments)})"

    # --- macros and syntax ---------------------------------------------------------------------------------

    def _macro(self, kind: Type, depth: int, scope: Scope) -> str:
        ways: list[Callable[[Type, int, Scope], str]] = [self._bind]
        if kind == BOOL:
            ways += [self._quantifier, self._quantifier, self._quantifier_two, self._has, self._nest]
        if kind.kind is Kind.LIST:
            ways += [self._map, self._filter, self._transform_list, self._sort_by]
        if kind.kind is Kind.MAP:
            ways += [self._transform_map]
        if kind.name == "optional_type":
            ways += [self._opt_map, self._opt_flat_map]
        return self._random.choice(ways)(kind, depth, scope)

    def _name(self) -> str:
        return self._random.choice(("x", "y", "z", "device" if self._chance(0.02) else "w"))

    def _range(self, item: Type, depth: int, scope: Scope) -> str:
        return self._of(list_of(item), depth - 1, scope)

    def _quantifier(self, _: Type, depth: int, scope: Scope) -> str:
        name, item = self._name(), self._type(0)
        macro = self._random.choice(("all", "exists", "exists_one"))
        body = self._of(BOOL, depth - 1, {**scope, name: item})
        return f"{_enclosed(self._range(item, depth, scope))}.{macro}({name}, {body})"

    def _quantifier_two(self, _: Type, depth: int, scope: Scope) -> str:
        item = self._type(0)
        macro = self._random.choice(("all", "exists", "exists_one", "existsOne"))
        body = self._of(BOOL, depth - 1, {**scope, "i": INT, "v": item})
        return f"{_enclosed(self._range(item, depth, scope))}.{macro}(i, v, {body})"

    def _has(self, _: Type, depth: int, scope: Scope) -> str:
        if self._chance(0.6):
            return self._random.choice(_TESTS)
        fields = _enclosed(self._of(map_of(STRING, self._type(0)), depth - 1, scope))
        return f"has({fields}.{self._random.choice(_FIELDS)})"

    def _map(self, kind: Type, depth: int, scope: Scope) -> str:
        name, item = self._name(), self._type(0)
        inner = {**scope, name: item}
        body = self._of(kind.parameters[0], depth - 1, inner)
        where = f"{self._of(BOOL, depth - 2, inner)}, " if self._chance(0.3) else ""
        return f"{_enclosed(self._range(item, depth, scope))}.map({name}, {where}{body})"

    def _filter(self, kind: Type, depth: int, scope: Scope) -> str:
        name = self._name()
        body = self._of(BOOL, depth - 1, {**scope, name: kind.parameters[0]})
        return f"{_enclosed(self._of(kind, depth - 1, scope))}.filter({name}, {body})"

    def _transform_list(self, kind: Type, depth: int, scope: Scope) -> str:
        item = self._type(0)
        if kind.parameters[0] == INT and self._chance(0.3):
            return f"lists.range({self._random.choice(('0', '3', '-1', '12', '40'))})"
        body = self._of(kind.parameters[0], depth - 1, {**scope, "i": INT, "v": item})
        return f"{_enclosed(self._range(item, depth, scope))}.transformList(i, v, {body})"

    def _transform_map(self, kind: Type, depth: int, scope: Scope) -> str:
        item, (key, value) = self._type(0), kind.parameters
        inner = {**scope, "i": INT, "v": item}
        items = _enclosed(self._range(item, depth, scope))
        if key == INT:
            return f"{items}.transformMap(i, v, {self._of(value, depth - 1, inner)})"
        entry = f"{{{self._of(key, 0, inner)}: {self._of(value, depth - 1, inner)}}}"
        return f"{items}.transformMapEntry(i, v, {entry})"

    def _sort_by(self, kind: Type, depth: int, scope: Scope) -> str:
        name = self._name()
        key = self._random.choice((INT, STRING, DOUBLE, UINT, BOOL))
        body = self._of(key, depth - 2, {**scope, name: kind.parameters[0]})
        return f"{_enclosed(self._of(kind, depth - 1, scope))}.sortBy({name}, {body})"

    def _bind(self, kind: Type, depth: int, scope: Scope) -> str:
        name, value = self._name(), self._random.choice(_SCALARS[:8])
        body = self._of(kind, depth - 1, {**scope, name: value})
        return f"cel.bind({name}, {self._of(value, depth - 1, scope)}, {body})"

    def _nest(self, _: Type, depth: int, scope: Scope) -> str:
        """Bindings and loops within each other: what is bound is evaluated where it is first used."""
        known, opened = ["1", *(name for name, kind in scope.items() if kind == INT)], []
        for name in "abcd"[: self._random.randint(2, 4)]:
            start = self._sum(known)
            opened.append(self._random.choice((f"cel.bind({name}, {start}, ", f"[{start}, 2].all({name}, ")))
            known.append(name)
        body = self._of(BOOL, depth - 2, scope) if self._chance(0.1) else f"{known[-1]} < 3"
        return f"{''.join(opened)}{self._sum(known)} <= {self._sum(known)} || {body}{')' * len(opened)}"

    def _sum(self, known: Sequence[str]) -> str:
        one, other = self._random.choice(known), self._random.choice(known)
        return self._random.choice(
            (
                one,
                f"{one} + {other}",
                f"[{one}, {other}].map(e, e + {other})[0]",
                f"[[{one}].map(e, e)][0][0]",
            )
        )

    def _opt_map(self, kind: Type, depth: int, scope: Scope) -> str:
        name, item = self._name(), self._random.choice(_SCALARS[:8])
        body = self._of(kind.parameters[0], depth - 1, {**scope, name: item})
        return f"{_enclosed(self._of(optional_of(item), depth - 1, scope))}.optMap({name}, {body})"

    def _opt_flat_map(self, kind: Type, depth: int, scope: Scope) -> str:
        name, item = self._name(), self._random.choice(_SCALARS[:8])
        body = self._of(kind, depth - 1, {**scope, name: item})
        return f"{_enclosed(self._of(optional_of(item), depth - 1, scope))}.optFlatMap({name}, {body})"

    def _syntax(self, kind: Type, depth: int, scope: Scope) -> str:
        if kind.kind is Kind.LIST:
            item = kind.parameters[0]
            return f"[{', '.join(self._item(item, depth, scope) for _ in range(self._random.randrange(4)))}]"
        if kind.kind is Kind.MAP:
            key, value = kind.parameters
            made = [
                f"{self._key(key)}: {self._of(value, depth - 1, scope)}"
                for _ in range(self._random.randrange(3))
            ]
            return f"{{{', '.join(made)}}}"
        if kind.name == "optional_type":
            return self._optional_read(kind, depth, scope)
        if kind == BOOL and self._chance(0.5):
            symbol = self._random.choice((" && ", " || "))
            count = self._random.choice((2, 2, 3))
            return f"({symbol.join(self._of(BOOL, depth - 1, scope) for _ in range(count))})"
        form = self._random.randrange(4)
        if form == 0:
            fields = self._of(map_of(STRING, kind), depth - 1, scope)
            return f"{_enclosed(fields)}.{self._random.choice(_FIELDS)}"
        if form == 1:
            condition = self._of(BOOL, depth - 1, scope)
            return f"({condition} ? {self._of(kind, depth - 1, scope)} : {self._of(kind, depth - 1, scope)})"
        if form == 2:
            optional = _enclosed(self._of(optional_of(kind), depth - 1, scope))
            return f"{optional}.orValue({self._of(kind, depth - 1, scope)})"
        return self._leaf(kind, scope)

    def _item(self, item: Type, depth: int, scope: Scope) -> str:
        if self._chance(0.08):
            return f"?{self._of(optional_of(item), depth - 1, scope)}"
        return self._of(item, depth - 1, scope)

    def _optional_read(self, kind: Type, depth: int, scope: Scope) -> str:
        inner = kind.parameters[0]
        if inner in _DEVICE and self._chance(0.4):
            part, _, name = self._random.choice(_DEVICE[inner]).rpartition(".")
            return f"{part}.?{name}"
        if self._chance(0.5):
            fields = _enclosed(self._of(map_of(STRING, inner), depth - 1, scope))
            return f"{fields}.?{self._random.choice(_FIELDS)}"
        return f"{_enclosed(self._of(list_of(inner), depth - 1, scope))}[?{self._random.choice(INTS[:6])}]"


def _enclosed(text: str) -> str:
    """The text, in parentheses where something behind it would bind to its end only."""
    return text if text[0] not in "-!" and not text[0].isdigit() else f"({text})"


def _key_variables(kind: Type) -> set[Type]:
    """The variables that stand for keys of maps."""
    found = set(kind.parameters[:1]) if kind.kind is Kind.MAP else set()
    return found.union(*map(_key_variables, kind.parameters))


def _variables(kind: Type) -> list[Type]:
    if kind.kind is Kind.PARAMETER:
        return [kind]
    return [variable for inner in kind.parameters for variable in _variables(inner)]

"""Syntax tree → canonical text: parsing the text gives the same tree."""

from tangram.cel.ast import (
    Binary,
    Bind,
    Call,
    Comprehension,
    Conditional,
    Constant,
    Has,
    Identifier,
    Index,
    ListLiteral,
    Literal,
    Logic,
    MapLiteral,
    Node,
    Select,
    Unary,
)
from tangram.cel.parser import POWER
from tangram.cel.values import Uint

_UNARY_POWER = 6
_MEMBER_POWER = 7


def unparse(node: Node) -> str:
    """The canonical text of the tree."""
    match node:
        case Literal(value=value):
            return _constant(value)
        case Identifier(name=name):
            return name
        case Select(operand=operand, name=name, optional=optional):
            return f"{_at(operand, _MEMBER_POWER)}.{'?' if optional else ''}{name}"
        case Index(operand=operand, key=key, optional=optional):
            return f"{_at(operand, _MEMBER_POWER)}[{'?' if optional else ''}{unparse(key)}]"
        case Call(function=function, receiver=receiver, arguments=arguments):
            prefix = f"{_at(receiver, _MEMBER_POWER)}." if receiver is not None else ""
            return f"{prefix}{function}({', '.join(map(unparse, arguments))})"
        case ListLiteral(items=items):
            return f"[{', '.join(map(unparse, items))}]"
        case MapLiteral(entries=entries):
            return "{" + ", ".join(f"{unparse(key)}: {unparse(value)}" for key, value in entries) + "}"
        case Has(selection=selection):
            return f"has({unparse(selection)})"
        case Comprehension(macro=macro, items=range_, variable=variable, where=where, body=body):
            arguments = (body,) if where is None else (where, body)
            return f"{_at(range_, _MEMBER_POWER)}.{macro}({variable}, {', '.join(map(unparse, arguments))})"
        case Bind(variable=variable, value=value, body=body):
            return f"cel.bind({variable}, {unparse(value)}, {unparse(body)})"
        case _:
            return _operators(node)


def _operators(node: Unary | Binary | Logic | Conditional) -> str:
    match node:
        case Unary(operator=operator, operand=operand):
            text = _at(operand, _UNARY_POWER)
            # A minus before a digit is part of the number.
            return f"-({text})" if operator == "-" and text[0] in "0123456789." else operator + text
        case Binary(operator=operator, left=left, right=right):
            power = POWER[operator]
            return f"{_at(left, power)} {operator} {_at(right, power + 1)}"
        case Logic(operator=operator, operands=operands):
            power = POWER[operator]
            return f" {operator} ".join(_at(operand, power + 1) for operand in operands)
        case Conditional(condition=condition, then=then, otherwise=otherwise):
            return f"{_at(condition, 1)} ? {_at(then, 1)} : {unparse(otherwise)}"


def _at(node: Node, power: int) -> str:
    """The text of an operand, in parentheses where it binds less tightly than `power`."""
    text = unparse(node)
    return f"({text})" if _power(node) < power else text


def _power(node: Node) -> int:
    match node:
        case Conditional():
            return 0
        case Logic(operator=operator) | Binary(operator=operator):
            return POWER[operator]
        case Unary():
            return _UNARY_POWER
        case _:
            return _MEMBER_POWER


def _constant(value: Constant) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case Uint():
            return f"{int(value)}u"
        case str():
            return '"' + "".join(map(_escaped, value)) + '"'
        case bytes():
            return 'b"' + "".join(f"\\x{byte:02x}" for byte in value) + '"'
        case _:
            return repr(value)


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if " " <= character <= "~":
        return character
    return f"\\U{ord(character):08x}"

"""Tokens → syntax tree: a Pratt parser, which expands macros as it meets them.

Grammar: CEL language definition, "Syntax"; optional syntax (`.?`, `[?]`, `?item`): cel-go.
"""

from typing import cast

from tangram.base.errors import CelCompileError, CelNotSupportedError
from tangram.cel.ast import (
    ADD,
    AND,
    CONDITIONAL,
    DIVIDE,
    EQUALS,
    GREATER,
    GREATER_EQUALS,
    IN,
    INDEX,
    LESS,
    LESS_EQUALS,
    MODULO,
    MULTIPLY,
    NEGATE,
    NOT,
    NOT_EQUALS,
    OPTIONAL_INDEX,
    OPTIONAL_SELECT,
    OR,
    SUBTRACT,
    Call,
    Identifier,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
    Select,
    qualified_name,
)
from tangram.cel.lexer import Kind, Token, tokenize
from tangram.cel.macros import GLOBAL_MACROS, MACROS, USAGE, MacroError, Use
from tangram.cel.values import INT_MAXIMUM

MAXIMUM_LENGTH = 10 * 1024
"""Of an expression, in bytes of UTF-8 (`CELSelectorExpressionMaxLength` of resource/v1)."""
MAXIMUM_DEPTH = 50
"""Levels of nesting. Chains of `&&` or `||` are one level."""

OPERATORS = {
    "||": (1, OR),
    "&&": (2, AND),
    "==": (3, EQUALS),
    "!=": (3, NOT_EQUALS),
    "<": (3, LESS),
    "<=": (3, LESS_EQUALS),
    ">": (3, GREATER),
    ">=": (3, GREATER_EQUALS),
    "in": (3, IN),
    "+": (4, ADD),
    "-": (4, SUBTRACT),
    "*": (5, MULTIPLY),
    "/": (5, DIVIDE),
    "%": (5, MODULO),
}
"""How tightly each binary operator binds, and the function it stands for."""
_NO_OPERATOR = (0, "")
_RESERVED = frozenset(
    {"as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop"}
    | {"package", "namespace", "return", "var", "void", "while"}
)


def parse(text: str, *, quoted_fields: bool = True) -> Node:
    """The syntax tree of an expression. Raises CelCompileError. `quoted_fields`: allow names in backticks."""
    if len(text.encode("utf-8", "surrogatepass")) > MAXIMUM_LENGTH:
        raise CelCompileError(
            f"the expression is longer than {MAXIMUM_LENGTH} bytes", expression=text, offset=0
        )
    parser = _Parser(text, tokenize(text), quoted_fields=quoted_fields)
    tree = parser.expression()
    if parser.next.kind is not Kind.END:
        raise parser.error(f"expected the end of the expression, found {_named(parser.next)}")
    _check_depth(tree, text)
    return tree


class _Parser:
    def __init__(self, text: str, tokens: list[Token], *, quoted_fields: bool) -> None:
        self._text = text
        self._tokens = tokens
        self._quoted_fields = quoted_fields
        self._position = 0
        self._depth = 0

    @property
    def next(self) -> Token:
        return self._tokens[self._position]

    def error(self, cause: str, token: Token | None = None) -> CelCompileError:
        return CelCompileError(cause, expression=self._text, offset=(token or self.next).offset)

    def _take(self) -> Token:
        token = self.next
        self._position += token.kind is not Kind.END
        return token

    def _accept(self, *symbols: str) -> Token | None:
        if self.next.kind is Kind.SYMBOL and self.next.text in symbols:
            return self._take()
        return None

    def _expect(self, symbol: str) -> Token:
        token = self._accept(symbol)
        if token is None:
            raise self.error(f"expected {symbol!r}, found {_named(self.next)}")
        return token

    def _descend(self) -> None:
        self._depth += 1
        if self._depth > MAXIMUM_DEPTH:
            raise self.error(f"the expression is nested deeper than {MAXIMUM_DEPTH} levels")

    def expression(self) -> Node:
        """`condition ? then : otherwise`, or anything that binds more tightly."""
        self._descend()
        node = self._binary(1)
        if mark := self._accept("?"):
            then = self._binary(1)
            self._expect(":")
            node = Call(CONDITIONAL, None, (node, then, self.expression()), offset=mark.offset)
        self._depth -= 1
        return node

    def _power(self) -> tuple[int, str]:
        return OPERATORS.get(self.next.text, _NO_OPERATOR) if self.next.kind is Kind.SYMBOL else _NO_OPERATOR

    def _binary(self, minimum: int) -> Node:
        left = self._unary()
        while (found := self._power())[0] >= minimum:
            power, function = found
            token = self._take()
            operands = [left, self._binary(power + 1)]
            if function in {AND, OR}:
                while self._accept(token.text):
                    operands.append(self._binary(power + 1))
            left = Call(function, None, tuple(operands), offset=token.offset)
        return left

    def _unary(self) -> Node:
        token = self._accept("-", "!")
        if token is None:
            return self._member(self._primary())
        count = 1
        while self._accept(token.text):
            count += 1
        if count == 1 and token.text == "-" and type(self.next.value) in (int, float):
            value = cast("int | float", self._take().value)
            return self._member(Literal(-value, offset=token.offset))
        operand = self._member(self._primary())
        if count % 2 == 0:
            return operand
        return Call(NEGATE if token.text == "-" else NOT, None, (operand,), offset=token.offset)

    def _member(self, node: Node) -> Node:
        while token := self._accept(".", "["):
            optional = self._accept("?") is not None
            if token.text == "[":
                key = self.expression()
                self._expect("]")
                function = OPTIONAL_INDEX if optional else INDEX
                node = Call(function, None, (node, key), offset=token.offset)
                continue
            name = self._field_name()
            if not optional and name.kind is Kind.IDENTIFIER and self._accept("("):
                node = self._method(node, name)
            elif optional:
                field = Literal(name.text, offset=name.offset)
                node = Call(OPTIONAL_SELECT, None, (node, field), offset=token.offset)
            else:
                node = Select(node, name.text, offset=token.offset)
        if self.next.text == "{" and self.next.kind is Kind.SYMBOL and qualified_name(node):
            raise CelNotSupportedError(
                "a message literal is not supported", expression=self._text, offset=self.next.offset
            )
        return node

    def _field_name(self) -> Token:
        name = self._take()
        if name.kind is Kind.QUOTED and not self._quoted_fields:
            raise self.error("names in backticks are known from Kubernetes 1.37 on", name)
        if name.kind not in {Kind.IDENTIFIER, Kind.QUOTED}:
            raise self.error(f"expected a name, found {_named(name)}", name)
        return name

    def _primary(self) -> Node:
        token = self._take()
        if token.kind is Kind.LITERAL:
            if type(token.value) is int and token.value > INT_MAXIMUM:
                raise self.error(f"{token.text} does not fit 64 bits", token)
            return Literal(token.value, offset=token.offset)
        if token.kind is Kind.SYMBOL and token.text == "." and self.next.kind is Kind.IDENTIFIER:
            token = self._take()  # the name of something global, which it is anyway
        if token.kind is Kind.IDENTIFIER:
            return self._name(token)
        match token.text:
            case "(":
                node = self.expression()
                self._expect(")")
                return node
            case "[":
                return self._list(token)
            case "{":
                return self._map(token)
        raise self.error(f"expected a value, found {_named(token)}", token)

    def _name(self, token: Token) -> Node:
        if token.text in _RESERVED:
            raise self.error(f"{token.text!r} is a reserved word", token)
        if not self._accept("("):
            return Identifier(token.text, offset=token.offset)
        arguments = self._arguments()
        if macro := GLOBAL_MACROS.get((token.text, len(arguments))):
            use = Use(token.text, None, arguments, token.offset)
            try:
                return cast("Node", macro(use))
            except MacroError as error:
                raise self.error(str(error), token) from None
        if token.text == "has":
            raise self.error("has() takes one field, as in has(a.b)", token)
        return Call(token.text, None, arguments, offset=token.offset)

    def _method(self, receiver: Node, name: Token) -> Node:
        arguments = self._arguments()
        if macro := MACROS.get((name.text, len(arguments))):
            try:
                expanded = macro(Use(name.text, receiver, arguments, name.offset))
            except MacroError as error:
                raise self.error(str(error), name) from None
            if expanded is not None:
                return expanded
        elif name.text in USAGE and (name.text != "bind" or qualified_name(receiver) == "cel"):
            raise self.error(f"wrong number of arguments: write {USAGE[name.text]}", name)
        return Call(name.text, receiver, arguments, offset=name.offset)

    def _arguments(self) -> tuple[Node, ...]:
        if self._accept(")"):
            return ()
        arguments = [self.expression()]
        while self._accept(","):
            arguments.append(self.expression())
        self._expect(")")
        return tuple(arguments)

    def _list(self, start: Token) -> ListLiteral:
        """A trailing comma is allowed, and a comma alone."""
        items: list[Node] = []
        optional: set[int] = set()
        while not self._closed("]", empty=not items):
            if self._accept("?"):
                optional.add(len(items))
            items.append(self.expression())
            if not self._accept(","):
                self._expect("]")
                break
        return ListLiteral(tuple(items), frozenset(optional), offset=start.offset)

    def _map(self, start: Token) -> MapLiteral:
        entries: list[tuple[Node, Node]] = []
        optional: set[int] = set()
        while not self._closed("}", empty=not entries):
            if self._accept("?"):
                optional.add(len(entries))
            key = self.expression()
            self._expect(":")
            entries.append((key, self.expression()))
            if not self._accept(","):
                self._expect("}")
                break
        return MapLiteral(tuple(entries), frozenset(optional), offset=start.offset)

    def _closed(self, end: str, *, empty: bool) -> bool:
        if self._accept(end):
            return True
        if empty and self._accept(","):
            self._expect(end)
            return True
        return False


def _named(token: Token) -> str:
    if token.kind is Kind.END:
        return "the end of the expression"
    return repr(token.text if len(token.text) <= 40 else token.text[:39] + "…")


def _check_depth(tree: Node, text: str) -> None:
    """Chains such as `a.b.c` or `1 + 1 + 1` nest without parentheses; the passes below recurse on them."""
    pending = [(tree, 1)]
    while pending:
        node, depth = pending.pop()
        if depth > MAXIMUM_DEPTH:
            raise CelCompileError(
                f"the expression is nested deeper than {MAXIMUM_DEPTH} levels",
                expression=text,
                offset=node.offset,
            )
        pending.extend((child, depth + 1) for child in node.children())

"""Tokens → syntax tree: a Pratt parser. Macros become nodes of their own.

Grammar: CEL language definition, "Syntax"; macros: "Macros"; `cel.bind` and optional syntax: cel-go `ext`.
"""

from typing import cast

from tangram.base.errors import CelCompileError, CelNotSupportedError
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
    Macro,
    MapLiteral,
    Node,
    Select,
    Unary,
)
from tangram.cel.lexer import Kind, Token, tokenize
from tangram.cel.values import INT_MAXIMUM

MAXIMUM_LENGTH = 10 * 1024
"""Of an expression, in bytes of UTF-8 (`CELSelectorExpressionMaxLength` of resource/v1)."""
MAXIMUM_DEPTH = 50
"""Levels of nesting. Chains of `&&` or `||` are one level."""

POWER = {
    **dict.fromkeys(("||",), 1),
    **dict.fromkeys(("&&",), 2),
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in"), 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%"), 5),
}
"""How tightly each binary operator binds."""
_RESERVED = frozenset(
    {"as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop"}
    | {"package", "namespace", "return", "var", "void", "while"}
)
_MACROS = frozenset({"all", "exists", "exists_one", "map", "filter"})
_LATER_MACROS = frozenset(
    {"existsOne", "transformList", "transformMap", "transformMapEntry", "optMap", "optFlatMap", "sortBy"}
)


def parse(text: str) -> Node:
    """The syntax tree of an expression. Raises CelCompileError."""
    if len(text.encode("utf-8", "surrogatepass")) > MAXIMUM_LENGTH:
        raise CelCompileError(
            f"the expression is longer than {MAXIMUM_LENGTH} bytes", expression=text, offset=0
        )
    parser = _Parser(text, tokenize(text))
    tree = parser.expression()
    if parser.next.kind is not Kind.END:
        raise parser.error(f"expected the end of the expression, found {_named(parser.next)}")
    _check_depth(tree, text)
    return tree


class _Parser:
    def __init__(self, text: str, tokens: list[Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    @property
    def next(self) -> Token:
        return self._tokens[self._position]

    def error(self, cause: str, token: Token | None = None) -> CelCompileError:
        return CelCompileError(cause, expression=self._text, offset=(token or self.next).offset)

    def _not_yet(self, what: str, token: Token | None = None) -> CelNotSupportedError:
        offset = (token or self.next).offset
        return CelNotSupportedError(f"{what} is not supported yet", expression=self._text, offset=offset)

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
            node = Conditional(node, then, self.expression(), offset=mark.offset)
        self._depth -= 1
        return node

    def _binary(self, minimum: int) -> Node:
        left = self._unary()
        while self.next.kind is Kind.SYMBOL and POWER.get(self.next.text, 0) >= minimum:
            token = self._take()
            operator, power = token.text, POWER[token.text]
            right = self._binary(power + 1)
            if operator in {"&&", "||"}:
                operands = [left, right]
                while self._accept(operator):
                    operands.append(self._binary(power + 1))
                left = Logic("&&" if operator == "&&" else "||", tuple(operands), offset=token.offset)
            else:
                left = Binary(operator, left, right, offset=token.offset)
        return left

    def _unary(self) -> Node:
        token = self._accept("-", "!")
        if token is None:
            return self._member(self._primary())
        if token.text == "-" and type(self.next.value) in (int, float):
            literal = self._take()
            value = cast("int | float", literal.value)
            return self._member(Literal(-value, offset=token.offset))
        self._descend()
        operand = self._unary()
        self._depth -= 1
        return Unary("-" if token.text == "-" else "!", operand, offset=token.offset)

    def _member(self, node: Node) -> Node:
        while token := self._accept(".", "["):
            optional = self._accept("?") is not None
            if token.text == "[":
                key = self.expression()
                self._expect("]")
                node = Index(node, key, optional, offset=token.offset)
                continue
            name = self._take()
            if name.kind is not Kind.IDENTIFIER:
                raise self.error(f"expected a name, found {_named(name)}", name)
            if not optional and self._accept("("):
                node = self._method(node, name)
            else:
                node = Select(node, name.text, optional, offset=token.offset)
        if self.next.text == "{":
            raise self._not_yet("a message literal")
        return node

    def _primary(self) -> Node:
        token = self._take()
        if token.kind is Kind.LITERAL:
            return Literal(self._literal(token), offset=token.offset)
        if token.kind is Kind.IDENTIFIER:
            return self._name(token)
        match token.text:
            case "(":
                node = self.expression()
                self._expect(")")
                return node
            case "[":
                return ListLiteral(self._items("]"), offset=token.offset)
            case "{":
                return self._map(token)
            case "." if self.next.kind is Kind.IDENTIFIER:
                raise self._not_yet("a name with a leading dot", token)
        raise self.error(f"expected a value, found {_named(token)}", token)

    def _literal(self, token: Token) -> Constant:
        if type(token.value) is int and token.value > INT_MAXIMUM:
            raise self.error(f"{token.text} does not fit 64 bits", token)
        return token.value

    def _name(self, token: Token) -> Node:
        if token.text in _RESERVED:
            raise self.error(f"{token.text!r} is a reserved word", token)
        if self._accept("("):
            arguments = self._arguments()
            if token.text == "has":
                return self._has(token, arguments)
            return Call(token.text, None, arguments, offset=token.offset)
        return Identifier(token.text, offset=token.offset)

    def _arguments(self) -> tuple[Node, ...]:
        if self._accept(")"):
            return ()
        arguments = [self.expression()]
        while self._accept(","):
            arguments.append(self.expression())
        self._expect(")")
        return tuple(arguments)

    def _items(self, end: str) -> tuple[Node, ...]:
        """Items of a list literal up to `end`; a trailing comma is allowed."""
        items: list[Node] = []
        while not self._accept(end):
            if self.next.text == "?":
                raise self._not_yet("an optional item of a list")
            items.append(self.expression())
            if not self._accept(","):
                self._expect(end)
                break
        return tuple(items)

    def _map(self, start: Token) -> MapLiteral:
        entries: list[tuple[Node, Node]] = []
        while not self._accept("}"):
            if self.next.text == "?":
                raise self._not_yet("an optional entry of a map")
            key = self.expression()
            self._expect(":")
            entries.append((key, self.expression()))
            if not self._accept(","):
                self._expect("}")
                break
        return MapLiteral(tuple(entries), offset=start.offset)

    def _has(self, token: Token, arguments: tuple[Node, ...]) -> Has:
        if len(arguments) != 1 or not isinstance(arguments[0], Select) or arguments[0].optional:
            raise self.error("has() takes one field, as in has(a.b)", token)
        return Has(arguments[0], offset=token.offset)

    def _method(self, receiver: Node, name: Token) -> Node:
        arguments = self._arguments()
        if name.text in _MACROS:
            return self._comprehension(receiver, name, arguments)
        if name.text in _LATER_MACROS:
            raise self._not_yet(f"macro {name.text!r}", name)
        if name.text == "bind" and receiver == Identifier("cel"):
            if len(arguments) != 3:
                raise self.error("cel.bind() takes a variable, its value and an expression", name)
            variable, value, body = arguments
            return Bind(self._variable(variable, name), value, body, offset=name.offset)
        return Call(name.text, receiver, arguments, offset=name.offset)

    def _comprehension(self, items: Node, name: Token, arguments: tuple[Node, ...]) -> Comprehension:
        macro = cast("Macro", name.text)
        match arguments:
            case (variable, body):
                return Comprehension(macro, items, self._variable(variable, name), body, offset=name.offset)
            case (variable, where, body) if macro == "map":
                variable_name = self._variable(variable, name)
                return Comprehension(macro, items, variable_name, body, where, offset=name.offset)
            case (_, _, _) if macro in {"all", "exists"}:
                raise self._not_yet(f"{macro}() with two variables", name)
        raise self.error(f"{macro}() takes a variable and an expression, as in items.{macro}(x, x > 1)", name)

    def _variable(self, node: Node, macro: Token) -> str:
        if isinstance(node, Identifier):
            return node.name
        raise self.error(f"the first argument of {macro.text}() must be a simple name", macro)


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

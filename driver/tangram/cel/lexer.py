"""Text of a CEL expression → tokens. Grammar: CEL language definition, "Lexis"."""

import re
from dataclasses import dataclass
from enum import Enum, auto

from tangram.base.errors import CelCompileError
from tangram.cel.ast import Constant
from tangram.cel.values import INT_MAXIMUM, UINT_MAXIMUM, Uint


class Kind(Enum):
    LITERAL = auto()
    IDENTIFIER = auto()
    QUOTED = auto()
    """A name of a field in backticks, which may hold `.`, `-`, `/` and spaces."""
    SYMBOL = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """`text` is the source text; of a literal, `value` is what it stands for.

    An integer literal may be INT_MAXIMUM + 1: the parser accepts that behind a minus sign only.
    """

    kind: Kind
    text: str
    offset: int
    value: Constant = None


_TOKEN = re.compile(
    r"""
    (?P<space>(?:[ \t\n\f\r]+|//[^\n]*)+)
    |(?P<string>[bB]?(?:
        [rR](?:\"\"\".*?\"\"\"|'''.*?'''|"[^"\n\r]*"|'[^'\n\r]*')
        |\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''
        |"(?:[^\\\n\r"]|\\[^\n\r])*"|'(?:[^\\\n\r']|\\[^\n\r])*'
    ))
    |(?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    |(?P<integer>(?:0x[0-9a-fA-F]+|[0-9]+))(?P<unsigned>[uU])?
    |(?P<identifier>[_a-zA-Z][_a-zA-Z0-9]*)
    |`(?P<quoted>[_a-zA-Z0-9./\x20-]+)`
    |(?P<symbol>==|!=|<=|>=|&&|\|\||[-+*/%<>!?:.,()\[\]{}])
    """,
    re.VERBOSE | re.DOTALL,
)
_WORDS: dict[str, Constant] = {"true": True, "false": False, "null": None}
_ESCAPE = re.compile(
    r"\\(?:(?P<simple>[abfnrtv\\?\"'`])|[xX](?P<hex>[0-9a-fA-F]{2})|(?P<octal>[0-3][0-7]{2})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|(?P<bad>.))",
    re.DOTALL,
)
_SIMPLE = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))
_MAXIMUM_DIGITS = 30


def tokenize(text: str) -> list[Token]:
    """The tokens of an expression; the last one is END. Raises CelCompileError where there is none."""
    tokens = []
    offset = 0
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        if match is None:
            raise _error(_unknown(text[offset]), text, offset)
        if (token := _token(match, text)) is not None:
            tokens.append(token)
        offset = match.end()
    tokens.append(Token(Kind.END, "", len(text)))
    return tokens


def _unknown(character: str) -> str:
    if character in "\"'":
        return "a string begins here that does not end on its line"
    if character in "&|=":
        return f"{character!r} is not an operator, {2 * character!r} is"
    return f"{character!r} has no meaning here"


def _token(match: re.Match[str], text: str) -> Token | None:
    source, offset = match[0], match.start()
    match match.lastgroup:
        case "space":
            return None
        case "string":
            return Token(Kind.LITERAL, source, offset, _string(source, text, offset))
        case "float":
            value = float(source)
            if value == float("inf"):
                raise _error(f"{_short(source)} does not fit a double", text, offset)
            return Token(Kind.LITERAL, source, offset, value)
        case "integer" | "unsigned":
            return Token(Kind.LITERAL, source, offset, _integer(match, text))
        case "identifier" if source in _WORDS:
            return Token(Kind.LITERAL, source, offset, _WORDS[source])
        case "identifier" if source != "in":
            return Token(Kind.IDENTIFIER, source, offset)
        case "quoted":
            return Token(Kind.QUOTED, match["quoted"], offset)
        case _:
            return Token(Kind.SYMBOL, source, offset)


def _integer(match: re.Match[str], text: str) -> int:
    digits = match["integer"]
    significant = digits.removeprefix("0x").lstrip("0")
    value = UINT_MAXIMUM + 1
    if len(significant) <= _MAXIMUM_DIGITS:
        value = int(significant or "0", 16 if digits.startswith("0x") else 10)
    if match["unsigned"]:
        if value <= UINT_MAXIMUM:
            return Uint(value)
        raise _error(f"{_short(digits)}u does not fit 64 bits", text, match.start())
    if value > INT_MAXIMUM + 1:
        raise _error(f"{_short(digits)} does not fit 64 bits", text, match.start())
    return value


def _string(source: str, text: str, offset: int) -> str | bytes:
    prefix = re.match(r"[bBrR]*", source)
    assert prefix is not None
    binary, raw = "b" in prefix[0].lower(), "r" in prefix[0].lower()
    body = source[prefix.end() :].replace("\r\n", "\n").replace("\r", "\n")
    width = 3 if body[:3] in {'"""', "'''"} else 1
    body = body[width:-width]
    if binary:
        return body.encode("utf-8", "surrogatepass") if raw else _bytes(body, text, offset)
    return body if raw else _ESCAPE.sub(lambda match: _character(match, text, offset), body)


def _character(match: re.Match[str], text: str, offset: int) -> str:
    if match["simple"]:
        return _SIMPLE.get(match["simple"], match["simple"])
    if match["octal"]:
        return chr(int(match["octal"], 8))
    digits = match["hex"] or match["short"] or match["long"]
    if not digits:
        raise _error(f"there is no escape sequence \\{match['bad']}", text, offset)
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise _error(f"{match[0]} is not a Unicode character", text, offset)
    return chr(code)


def _bytes(body: str, text: str, offset: int) -> bytes:
    parts: list[bytes] = []
    end = 0
    for match in _ESCAPE.finditer(body):
        parts.append(body[end : match.start()].encode("utf-8", "surrogatepass"))
        end = match.end()
        if match["short"] or match["long"]:
            raise _error(f"{match[0]} is not allowed in bytes", text, offset)
        parts.append(_character(match, text, offset).encode("latin-1"))
    return b"".join((*parts, body[end:].encode("utf-8", "surrogatepass")))


def _short(digits: str) -> str:
    return digits if len(digits) <= _MAXIMUM_DIGITS else digits[:_MAXIMUM_DIGITS] + "…"


def _error(cause: str, text: str, offset: int) -> CelCompileError:
    return CelCompileError(cause, expression=text, offset=offset)

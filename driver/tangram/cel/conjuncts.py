"""Which part of a selector is false: the terms of `a && b && c` one by one, for telling people."""

from functools import lru_cache

from tangram.base.errors import CelError
from tangram.cel.device import CelDevice
from tangram.cel.lexer import Kind, tokenize
from tangram.cel.program import Program, compiled

_MOST = 16
"""Of a longer chain nobody wants to know."""


def false_part(program: Program, device: CelDevice) -> Program:
    """The first term of the selector that is false for a device for which the whole is false; the whole if it
    is no chain of `&&`."""
    for text in _terms(program.text):
        term = compiled(text, program.environment)
        if isinstance(term, CelError):
            break  # it is valid only together with the others
        if term.answer(device)[1].result is False:
            return term
    return program


@lru_cache(maxsize=256)
def _terms(text: str) -> tuple[str, ...]:
    """What stands between the `&&` that are in no brackets; nothing where something binds less than they."""
    depth, start, terms = 0, 0, []
    for token in tokenize(text):
        if token.kind is Kind.SYMBOL:
            depth += (token.text in "([{") - (token.text in ")]}")
            if not depth and token.text in ("||", "?", "&&"):
                if token.text != "&&":
                    return ()
                terms.append(text[start : token.offset].strip())
                start = token.offset + len(token.text)
    terms.append(text[start:].strip())
    return tuple(terms) if 1 < len(terms) <= _MOST else ()

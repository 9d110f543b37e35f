"""Small changes to Python source that a good test suite should notice. Pure.

Mutated are comparisons, Boolean and arithmetic operators, conditions, numbers, truth values, results and
statements; not texts, annotations, decorators, or what only names types.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr, ast.Pow: ast.Mult,
}  # fmt: skip
_ANNOTATIONS = ("annotation", "returns", "type_params", "bases", "decorator_list")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed place: `number` is its position among those of the file.

    `function` is the qualified name of the innermost function or class around it; `lines` are those of the
    innermost statement around it, without the statements in that one.
    """

    number: int
    line: int
    lines: frozenset[int]
    function: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.function or 'module'}: {self.before} → {self.after}"


def mutants(source: str) -> list[Mutant]:
    """All mutants of a module."""
    tree = ast.parse(source)
    owners = dict(_owners(tree, ""))
    found = []
    for number, (node, replace) in enumerate(_places(tree)):
        before = _text(node)
        first = node.ifs[0] if isinstance(node, ast.comprehension) else node
        line = getattr(first, "lineno", 0)
        owner = owners[line]
        lines = frozenset(other for other, another in owners.items() if another == owner)
        found.append(Mutant(number, line, lines, owner[1], before, _text(replace())))
    return found


def _owners(node: ast.AST, function: str) -> Iterator[tuple[int, tuple[ast.stmt, str]]]:
    """Of each line the statement it belongs to, and the function that is in; a later pair counts."""
    for child in ast.iter_child_nodes(node):
        inside = function
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{function}.{child.name}".lstrip(".")
        if isinstance(child, ast.stmt):
            last = child.end_lineno or child.lineno
            yield from ((line, (child, inside)) for line in range(child.lineno, last + 1))
        yield from _owners(child, inside)


def mutated(source: str, number: int) -> ast.Module:
    """The module with mutant `number` in it."""
    tree = ast.parse(source)
    for index, (node, replace) in enumerate(_places(tree)):
        if index == number:
            changed = ast.fix_missing_locations(ast.copy_location(replace(), node))
            result = _Replace(node, changed).visit(tree)
            assert isinstance(result, ast.Module)
            return ast.fix_missing_locations(result)
    raise ValueError(f"there is no mutant {number}")


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else super().generic_visit(node)


_Place = tuple[ast.AST, Callable[[], ast.AST]]


def _places(node: ast.AST) -> Iterator[_Place]:
    """Nodes with what could stand there instead, in the order of the source."""
    yield from _own(node)
    for name, value in ast.iter_fields(node):
        if name in _ANNOTATIONS or (name == "value" and _is_type(node)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _places(child)


def _is_type(node: ast.AST) -> bool:
    """Assignments at the top of modules that name types look like expressions with operators."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return False
    target = node.targets[0]
    return isinstance(target, ast.Name) and target.id.lstrip("_")[:1].isupper() and not target.id.isupper()


def _own(node: ast.AST) -> Iterator[_Place]:
    match node:
        case ast.Compare(left=left, ops=[first, *rest], comparators=others):
            other = _COMPARISONS[type(first)]()
            yield node, lambda: ast.Compare(left, [other, *rest], others)
        case ast.BoolOp(op=op, values=values):
            swapped = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield node, lambda: ast.BoolOp(swapped, values)
        case ast.BinOp(left=left, op=op, right=right) if not _is_text(left) and not _is_text(right):
            operator = _OPERATORS.get(type(op), ast.Sub)()
            yield node, lambda: ast.BinOp(left, operator, right)
        case ast.AugAssign(target=changed, op=op, value=value) if not _is_text(value):
            operator = _OPERATORS.get(type(op), ast.Sub)()
            yield node, lambda: ast.AugAssign(changed, operator, value)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield node, lambda: operand
        case ast.Constant(value=bool() as truth):
            yield node, lambda: ast.Constant(not truth)
        case ast.Constant(value=int() as number):
            yield node, lambda: ast.Constant(number + 1)
        case ast.If(test=test, body=body, orelse=orelse):
            yield node, lambda: ast.If(ast.Constant(False), body, orelse)
        case ast.IfExp(test=test, body=then, orelse=other_value):
            yield node, lambda: ast.IfExp(ast.UnaryOp(ast.Not(), test), then, other_value)
        case ast.comprehension(target=target, iter=source, ifs=[_, *ifs], is_async=is_async):
            yield node, lambda: ast.comprehension(target, source, ifs, is_async)
        case ast.Return(value=ast.expr() as value) if not _is_constant(value):
            yield node, lambda: ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.YieldFrom() | ast.Yield()):
            yield node, ast.Pass
        case ast.Continue():
            yield node, ast.Break
        case ast.Break():
            yield node, ast.Continue


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.comprehension):
        conditions = [f"if {ast.unparse(condition)}" for condition in node.ifs]
        return " ".join([f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}", *conditions])
    return ast.unparse(ast.fix_missing_locations(node)).partition("\n")[0][:90]

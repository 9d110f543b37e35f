"""Compiled expressions, and the cache of them."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

from tangram.base.errors import CelBudgetError, CelCompileError, CelRuntimeError
from tangram.cel.ast import Node
from tangram.cel.checker import Checked, check
from tangram.cel.device import CelDevice
from tangram.cel.environment import LATEST, SIZES, Environment
from tangram.cel.estimate import CostEstimator, Sizes
from tangram.cel.evaluation import Evaluation
from tangram.cel.literals import validate
from tangram.cel.parser import parse
from tangram.cel.planner import Planner
from tangram.cel.references import Reference, references
from tangram.cel.types import Type
from tangram.cel.values import ABSENT, MAXIMUM_COST, MAXIMUM_WORK, OptionalValue, Value, too_dear, type_name
from tangram.model.semver import SemVer

BUDGET = MAXIMUM_COST
"""What one evaluation may cost (`CELSelectorExpressionMaxCost` of resource/v1), in CEL's units."""

_REMEMBERED = 256
"""Answers kept per program: devices differ in few of the parts that a selector reads."""
_REMEMBERED_NODES = 100_000
"""Nodes of the programs that are kept, of which each takes less than 1 KB."""


T = TypeVar("T")


class Answer(NamedTuple, Generic[T]):
    """What an expression says of a device, or its error; `cost` in CEL's units, `work` in ours."""

    result: T | CelRuntimeError
    cost: int
    work: int


class Expression(ABC, Generic[T]):
    """An expression about a device, ready to be evaluated on any number of them; what for, subclasses say.

    `size`: nodes of its tree; `parts`: `references()` in order. Raises CelCompileError with line, column and
    cause for what `environment` does not accept.
    """

    wanted: str
    """What it must evaluate to, in words."""

    @abstractmethod
    def results(self) -> tuple[Type, ...]:
        """The static types that it may have."""

    @abstractmethod
    def converted(self, value: Value) -> T | CelRuntimeError:
        """What a value that it evaluates to stands for, or why for nothing."""

    def __init__(self, text: str, environment: Environment | None = None) -> None:
        self.text = text
        self.environment = environment or Environment.of(LATEST)
        tree = parse(text, quoted_fields=self.environment.quoted_fields)
        # What is read is decided before the check, which rewrites nothing.
        self._references = references(tree)
        checked = self._checked(tree)
        validate(checked, text)
        planner = Planner(checked, text, old_optionals=self.environment.old_optionals)
        self._run = planner.plan()
        self._slots = planner.slots
        self._work = planner.work
        self.size = planner.nodes
        self.parts = tuple(sorted(self._references, key=str))
        self._readers = tuple(map(_reader, self.parts))
        self._answers: dict[Hashable, Answer[T]] = {}

    def _checked(self, tree: Node) -> Checked:
        return check(tree, self.text, self.environment.declarations, self.results(), wanted=self.wanted)

    @cached_property
    def estimated_cost(self) -> int:
        """What one evaluation may cost at most, as the API server estimates it when it validates objects."""
        tree = parse(self.text, quoted_fields=self.environment.quoted_fields)
        return CostEstimator(Sizes(SIZES), self._checked(tree)).cost(tree).high

    def evaluate(self, device: CelDevice) -> T:
        """What it says of the device: of a selector, whether it holds.

        Raises CelRuntimeError where CEL has an error, such as a missing attribute; upstream, that aborts the
        allocation of the pod on all nodes.
        """
        result = self._evaluate(device).result
        if isinstance(result, CelRuntimeError):
            raise result
        return result

    def answer(self, device: CelDevice) -> tuple[Hashable, Answer[T]]:
        """The answer for a device, remembered for all that are equal in what is read of them, and the parts,
        which tell such devices apart from others.
        """
        parts = tuple([read(device) for read in self._readers])
        known = self._answers.get(parts)
        if known is None:
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            known = self._answers[parts] = self._evaluate(device)
        return parts, known

    def _evaluate(self, device: CelDevice) -> Answer[T]:
        evaluation = Evaluation(device, slots=self._slots, work=self._work)
        result: T | CelRuntimeError
        try:
            result = self.converted(self._run(evaluation))
        except CelRuntimeError as error:
            # Without its traceback: that would keep the whole evaluation in memory.
            result = error.with_traceback(None)
        if evaluation.cost > BUDGET or evaluation.work > MAXIMUM_WORK:
            result = too_dear()
        cost = BUDGET if isinstance(result, CelBudgetError) else min(evaluation.cost, BUDGET)
        return Answer(result, cost, evaluation.work)

    def references(self) -> frozenset[Reference]:
        """The parts of a device that the result depends on: equal parts, equal result."""
        return self._references

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"


class Program(Expression[bool]):
    """A selector."""

    wanted = "bool"

    def results(self) -> tuple[Type, ...]:
        return self.environment.results

    def converted(self, value: Value) -> bool | CelRuntimeError:
        if value is True or value is False:
            return bool(value)
        if type(value) is OptionalValue and value is not ABSENT and type(value.value) is bool:
            return bool(value.value)
        return CelRuntimeError(f"the expression evaluates to {type_name(value)}, not bool")

    def mask(self, devices: "list[CelDevice] | tuple[CelDevice, ...]") -> int:
        """Bit i is set if the selector holds for device i. Raises the error of the first it fails on."""
        mask = 0
        for index, device in enumerate(devices):
            result = self.answer(device)[1].result
            if isinstance(result, CelRuntimeError):
                raise result.with_traceback(None)
            mask |= result << index
        return mask


def _reader(part: Reference) -> Callable[[CelDevice], Hashable]:
    """Reads a part of a device as a value that is equal only where CEL cannot tell a difference."""
    field, domain, id_ = part
    if field == "driver":
        return lambda device: device.driver
    if field == "allowMultipleAllocations":
        return lambda device: device.allow_multiple_allocations
    if domain is None:
        return lambda device: _frozen(getattr(device, field))
    if id_ is None:
        return lambda device: _frozen(getattr(device, field).get(domain))
    if field == "attributes":
        return lambda device: _frozen(device.attributes.get(domain, _NOTHING).get(id_))
    return lambda device: _frozen(device.capacity.get(domain, _NOTHING).get(id_))


_NOTHING: Mapping[str, object] = {}


def _frozen(value: object) -> Hashable:
    """For Python 1, 1.0 and True are equal, and two versions that differ in build metadata only."""
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, SemVer):
        return (SemVer, value.text)
    if isinstance(value, Mapping):
        return tuple(sorted((key, _frozen(item)) for key, item in value.items()))
    if isinstance(value, tuple):
        return (tuple, *map(_frozen, value))
    return (type(value), value)


E = TypeVar("E", bound=Expression[Any])


class Programs(Generic[E]):
    """The expressions used last, as many as have so many nodes together, and what is wrong with texts that
    are none. `make` raises CelCompileError.
    """

    def __init__(self, make: Callable[[str, Environment | None], E], *, nodes: int) -> None:
        self._make = make
        self._nodes_left = nodes
        self._known: OrderedDict[tuple[str, Environment | None], E | CelCompileError] = OrderedDict()

    def get(self, text: str, environment: Environment | None) -> E | CelCompileError:
        key = (text, environment)
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        try:
            found: E | CelCompileError = self._make(text, environment)
        except CelCompileError as error:
            found = error.with_traceback(None)
        self._known[key] = found
        self._nodes_left -= _size(text, found)
        while self._nodes_left < 0 and len(self._known) > 1:
            (old, _), gone = self._known.popitem(last=False)
            self._nodes_left += _size(old, gone)
        return found


def _size(text: str, found: Expression[Any] | CelCompileError) -> int:
    return 8 + (found.size if isinstance(found, Expression) else len(text) // 100)


_programs = Programs(Program, nodes=_REMEMBERED_NODES)


def compiled(text: str, environment: Environment | None = None) -> Program | CelCompileError:
    """As `compile_expression`, but gives the error."""
    return _programs.get(text, environment)


def compile_expression(text: str, environment: Environment | None = None) -> Program:
    """The program of a CEL selector of a device class, claim or template.

    `environment`: what it may use, by version of Kubernetes; the latest by default. Raises CelCompileError
    with line, column and cause; CelNotSupportedError, which is one, for the few parts of CEL that are not
    evaluated here.
    """
    found = compiled(text, environment)
    if isinstance(found, CelCompileError):
        raise found.with_traceback(None)
    return found


def validate_expression(text: str, environment: Environment | None = None) -> Program:
    """As `compile_expression`, with the limit that the API server puts on what an expression may cost: raises
    CelCompileError if the estimate exceeds `BUDGET`.
    """
    program = compile_expression(text, environment)
    if program.estimated_cost > BUDGET:
        raise CelCompileError(
            f"the expression may cost up to {program.estimated_cost} units, more than {BUDGET}",
            expression=text,
            offset=0,
            next_step="use fewer or shorter lists, and fewer macros inside macros",
        )
    return program

"""Compiled expressions, and the cache of them."""

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import NamedTuple

from tangram.base.errors import CelRuntimeError
from tangram.cel.checker import check
from tangram.cel.closures import Evaluation
from tangram.cel.compiler import Compiler
from tangram.cel.device import CelDevice
from tangram.cel.parser import parse
from tangram.cel.references import Reference, references
from tangram.cel.values import type_name
from tangram.model.semver import SemVer

BUDGET = 1_000_000
"""What one evaluation may cost (`CELSelectorExpressionMaxCost` of resource/v1), in units near to CEL's."""


_REMEMBERED = 1024
"""Answers kept per program: devices differ in few of the parts that a selector reads."""


class Answer(NamedTuple):
    """What a selector says of a device, or its error; `cost` in units of `BUDGET`."""

    result: bool | CelRuntimeError
    cost: int


class Program:
    """A selector, ready to be evaluated on any number of devices."""

    __slots__ = ("_answers", "_cost", "_readers", "_references", "_run", "_slots", "text")

    def __init__(self, text: str) -> None:
        tree = parse(text)
        check(tree, text)
        compiler = Compiler(text)
        self.text = text
        self._run = compiler.compile(tree, {})
        self._cost = compiler.cost
        self._slots = compiler.slots
        self._references = references(tree)
        self._readers = tuple(map(_reader, sorted(self._references, key=str)))
        self._answers: dict[Hashable, Answer] = {}

    def evaluate(self, device: CelDevice) -> bool:
        """True if the selector holds for the device.

        Raises CelRuntimeError where CEL has an error, such as a missing attribute; upstream, that aborts the
        allocation of the pod on all nodes.
        """
        result = self._evaluate(device).result
        if isinstance(result, CelRuntimeError):
            raise result
        return result

    def answer(self, device: CelDevice) -> tuple[Hashable, Answer]:
        """The answer for a device, remembered for all that are equal in what the selector reads of them; and
        these parts, which tell such devices apart from others.
        """
        parts = tuple([read(device) for read in self._readers])
        known = self._answers.get(parts)
        if known is None:
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            known = self._answers[parts] = self._evaluate(device)
        return parts, known

    def _evaluate(self, device: CelDevice) -> Answer:
        evaluation = Evaluation(device, slots=self._slots, units=BUDGET - self._cost)
        try:
            result = self._run(evaluation)
        except CelRuntimeError as error:
            # Without its traceback: that would keep the whole evaluation in memory.
            result = error.with_traceback(None)
        if result is not True and result is not False and not isinstance(result, CelRuntimeError):
            result = CelRuntimeError(f"the expression evaluates to {type_name(type(result))}, not bool")
        return Answer(result, BUDGET - max(evaluation.left, 0))

    def references(self) -> frozenset[Reference]:
        """The parts of a device that the result depends on: equal parts, equal result."""
        return self._references

    def __repr__(self) -> str:
        return f"Program({self.text!r})"


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
    return (type(value), value)


@lru_cache(maxsize=256)
def compile_expression(text: str) -> Program:
    """The program of a CEL selector of a device class, claim or template.

    Raises CelCompileError with line, column and cause; CelNotSupportedError, which is one, for valid CEL that
    this version does not evaluate yet.
    """
    return Program(text)

"""Compiled expressions, and the cache of them."""

from functools import lru_cache

from tangram.base.errors import CelRuntimeError
from tangram.cel.checker import check
from tangram.cel.closures import Evaluation
from tangram.cel.compiler import Compiler
from tangram.cel.device import CelDevice
from tangram.cel.parser import parse
from tangram.cel.references import Reference, references
from tangram.cel.values import type_name

BUDGET = 1_000_000
"""What one evaluation may cost (`CELSelectorExpressionMaxCost` of resource/v1), in units near to CEL's."""


class Program:
    """A selector, ready to be evaluated on any number of devices."""

    __slots__ = ("_cost", "_references", "_run", "_slots", "text")

    def __init__(self, text: str) -> None:
        tree = parse(text)
        check(tree, text)
        compiler = Compiler(text)
        self.text = text
        self._run = compiler.compile(tree, {})
        self._cost = compiler.cost
        self._slots = compiler.slots
        self._references = references(tree)

    def evaluate(self, device: CelDevice) -> bool:
        """True if the selector holds for the device.

        Raises CelRuntimeError where CEL has an error, such as a missing attribute; upstream, that aborts the
        allocation of the pod on all nodes.
        """
        evaluation = Evaluation(device, slots=self._slots, units=BUDGET - self._cost)
        result = self._run(evaluation)
        if result is True or result is False:
            return result is True
        raise CelRuntimeError(f"the expression evaluates to {type_name(type(result))}, not bool")

    def references(self) -> frozenset[Reference]:
        """The parts of a device that the result depends on: equal parts, equal result."""
        return self._references

    def __repr__(self) -> str:
        return f"Program({self.text!r})"


@lru_cache(maxsize=256)
def compile_expression(text: str) -> Program:
    """The program of a CEL selector of a device class, claim or template.

    Raises CelCompileError with line, column and cause; CelNotSupportedError, which is one, for valid CEL that
    this version does not evaluate yet.
    """
    return Program(text)

"""The CEL environment of Dynamic Resource Allocation: compile a selector once, evaluate it on devices.

Semantics follow `k8s.io/dynamic-resource-allocation/cel`: one variable `device`, an unknown domain is an
empty map, an unknown id an error, `has()` guards it. What is not built is refused by name when compiling.
"""

from tangram.cel.device import CelDevice
from tangram.cel.program import Program, compile_expression
from tangram.cel.references import Reference

__all__ = ["CelDevice", "Program", "Reference", "compile_expression"]

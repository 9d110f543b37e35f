"""The CEL environment of Dynamic Resource Allocation: compile a selector once, evaluate it on devices.

Semantics, costs and limits follow `k8s.io/dynamic-resource-allocation/cel` of Kubernetes 1.34 to 1.37: one
variable `device`, an unknown domain is an empty map, an unknown id an error, `has()` guards it. What differs
is in docs/differences.md.
"""

from tangram.cel.conjuncts import false_part
from tangram.cel.derived import Derivation, derivation
from tangram.cel.device import CelDevice, by_domain
from tangram.cel.environment import Environment
from tangram.cel.program import Program, compile_expression, compiled, validate_expression
from tangram.cel.references import Reference

__all__ = [
    "CelDevice",
    "Derivation",
    "Environment",
    "Program",
    "Reference",
    "by_domain",
    "compile_expression",
    "compiled",
    "derivation",
    "false_part",
    "validate_expression",
]

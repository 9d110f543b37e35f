"""CEL selectors, asked of Kubernetes' own library and of `tangram.cel`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from conformance.oracle import Oracle
from tangram.base.errors import CelCompileError, CelError, CelRuntimeError
from tangram.cel import CelDevice, Environment, derivation
from tangram.cel.program import BUDGET, Program
from tangram.model.quantity import parse_quantity
from tangram.model.semver import SemVer

DRIVER = "gpu.resource.admin"
DEVICE: Mapping[str, Any] = {
    "name": "gpu-0",
    "attributes": {
        "type": {"string": "gpu"},
        "allocator": {"string": "controller"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "empty": {"string": ""},
        "healthy": {"bool": True},
        "off": {"bool": False},
        "index": {"int": 3},
        "neg": {"int": -5},
        "driverVersion": {"version": "570.86.15"},
        "pre": {"version": "1.2.3-rc.1+build5"},
        "resource.kubernetes.io/numaNode": {"int": 0},
        "other.example.com/x": {"int": 7},
    },
    "capacity": {"memory": {"value": "80Gi"}, "cores": {"value": "100"}},
}
"""The device that all selectors look at (resource/v1, Device)."""
_PER_QUESTION = 200


class Answer(NamedTuple):
    """`outcome`: `true`, `false`, `error` (when evaluated), `invalid` (when compiled) or `crash`."""

    outcome: str
    cost: int = 0
    estimated_cost: int = 0
    text: str = ""

    @property
    def short(self) -> str:
        """Without the text of the error, which is nobody's contract."""
        if self.outcome in {"invalid", "crash"}:
            return self.outcome
        return f"{self.outcome} {self.cost} {self.estimated_cost}"


def cel_device(device: Mapping[str, Any], driver: str = DRIVER) -> CelDevice:
    attributes: dict[str, dict[str, object]] = {}
    for name, attribute in device["attributes"].items():
        domain, _, id_ = name.rpartition("/")
        ((kind, value),) = attribute.items()
        if kind == "version":
            value = SemVer(value)
        elif kind == "versions":
            value = [*map(SemVer, value)]
        attributes.setdefault(domain or driver, {})[id_] = tuple(value) if isinstance(value, list) else value
    capacity: dict[str, dict[str, Any]] = {}
    for name, entry in device["capacity"].items():
        domain, _, id_ = name.rpartition("/")
        capacity.setdefault(domain or driver, {})[id_] = parse_quantity(entry["value"])
    multiple = bool(device.get("allowMultipleAllocations"))
    return CelDevice(
        driver=driver, attributes=attributes, capacity=capacity, allow_multiple_allocations=multiple
    )


def ours(expression: str, environment: Environment, device: CelDevice) -> Answer:
    """What `tangram.cel` says. Anything but an error of CEL is a fault and passes."""
    try:
        program = Program(expression, environment)
    except CelCompileError as error:
        return Answer("invalid", text=str(error).partition("\n")[0])
    result, cost, _ = program.answer(device)[1]
    if isinstance(result, CelRuntimeError):
        return Answer("error", cost, program.estimated_cost, result.cause)
    return Answer(str(result).lower(), cost, program.estimated_cost)


def ours_derived(expression: str, environment: Environment, device: CelDevice) -> Answer:
    """As `ours`, of the expression of a derived attribute."""
    found = derivation(expression, environment)
    if isinstance(found, CelError):
        return Answer("invalid", text=str(found).partition("\n")[0])
    result, cost, _ = found.answer(device)[1]
    if isinstance(result, CelRuntimeError):
        return Answer("error", cost, found.estimated_cost, result.cause)
    return Answer(_derived_text(result), cost, found.estimated_cost)


def _derived_text(value: object) -> str:
    """As resource/v1 writes an attribute."""
    kinds: Mapping[type, str] = {bool: "bool", int: "int", str: "string", SemVer: "version"}
    if not isinstance(value, tuple):
        return repr({kinds[type(value)]: value.text if isinstance(value, SemVer) else value})
    items = [item.text if isinstance(item, SemVer) else item for item in value]
    return repr({f"{kinds[type(value[0])]}s": items} if items else {})


def theirs_derived(
    oracle: Oracle, expressions: Iterable[str], device: Mapping[str, Any] = DEVICE
) -> Iterator[Answer]:
    """As `theirs`, of expressions of derived attributes; from 1.37 on."""
    for some in batched_sequence(expressions, _PER_QUESTION):
        question = {"expressions": some, "driver": DRIVER, "device": device, "derived": True}
        for answer in oracle.ask({"cel": {**question, "consumableCapacity": True}})["answers"]:
            found = _answer(answer)
            yield found._replace(outcome=repr(answer["attribute"])) if "attribute" in answer else found


def theirs(
    oracle: Oracle, expressions: Iterable[str], device: Mapping[str, Any] = DEVICE, *, repeat: int = 1
) -> Iterator[Answer]:
    """What Kubernetes says, in order."""
    for answer in raw_answers(oracle, expressions, device, repeat=repeat):
        yield _answer(answer)


def raw_answers(
    oracle: Oracle, expressions: Iterable[str], device: Mapping[str, Any] = DEVICE, *, repeat: int = 1
) -> Iterator[dict[str, Any]]:
    """The answers of hack/oracle as they are (type `celAnswer`)."""
    for some in batched_sequence(expressions, _PER_QUESTION):
        question = {"expressions": some, "driver": DRIVER, "device": device, "repeat": repeat}
        yield from oracle.ask({"cel": {**question, "consumableCapacity": True}})["answers"]


def batched_sequence(items: Iterable[str], size: int) -> Iterator[Sequence[str]]:
    batch: list[str] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _answer(answer: Mapping[str, Any]) -> Answer:
    error = answer.get("error", "")
    if answer["kind"] == "panic" or error.startswith("internal error"):
        return Answer("crash", text=error)
    if answer["kind"] == "invalid":
        return Answer("invalid", text=error)
    cost = min(answer["cost"], BUDGET)
    outcome = "error" if answer["kind"] == "error" else str(answer["value"]).lower()
    return Answer(outcome, cost, answer["estimatedCost"], error)


def agree(our: Answer, their: Answer) -> bool:
    """Equal but for the text of errors; where Kubernetes crashes, ours is right whatever it is."""
    return their.outcome == "crash" or our.short == their.short or _LOST in our.text


_LOST = "has lost its value"
"""An optional that upstream fills with an error in place of a value; where that ends up in a list, ours fails
earlier and so costs less."""

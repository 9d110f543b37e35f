"""The device that the tables look at, and how they write down what comes out."""

import re

from tangram.base.errors import CelCompileError, CelNotSupportedError, CelRuntimeError
from tangram.cel import CelDevice, compile_expression
from tangram.model.quantity import parse_quantity
from tangram.model.semver import SemVer

OWN = "gpu.resource.admin"
_OWN_ATTRIBUTES = f'device.attributes["{OWN}"]'
_OWN_CAPACITY = f'device.capacity["{OWN}"]'
DEVICE = CelDevice(
    driver=OWN,
    attributes={
        OWN: {
            "type": "gpu",
            "allocator": "controller",
            "healthy": True,
            "index": 3,
            "productName": "NVIDIA H100 80GB HBM3",
            "neg": -5,
            "driverVersion": SemVer("570.86.15"),
            "pre": SemVer("1.2.3-rc.1+build5"),
        },
        "resource.kubernetes.io": {"numaNode": 0},
        "other.example.com": {"x": 7},
    },
    capacity={OWN: {"memory": parse_quantity("80Gi"), "cores": parse_quantity("100")}},
)


def expand(text: str) -> str:
    """`@` stands for the driver's own attributes, `%.` for its capacities."""
    text = re.sub(r"@(?=[.\[ )]|$|,)", _OWN_ATTRIBUTES, text)
    return re.sub(r"%(?=\.)", _OWN_CAPACITY, text)


def outcome(text: str) -> bool | str:
    """The value of an expression for DEVICE, or `invalid: …`, `unsupported: …`, `error: …` with the cause."""
    try:
        program = compile_expression(expand(text))
    except CelNotSupportedError as error:
        return f"unsupported: {error.cause}"
    except CelCompileError as error:
        return f"invalid: {error.cause}"
    try:
        return program.evaluate(DEVICE)
    except CelRuntimeError as error:
        return f"error: {error.cause.replace(_OWN_ATTRIBUTES, '@').replace(_OWN_CAPACITY, '%')}"

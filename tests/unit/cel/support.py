"""The device that the tests look at, and how they write down what comes out."""

from conformance.selectors import DEVICE as DEVICE_OBJECT
from conformance.selectors import DRIVER, cel_device
from conformance.themes import expand
from tangram.base.errors import CelCompileError, CelNotSupportedError, CelRuntimeError
from tangram.cel import Environment, compile_expression

OWN = DRIVER
DEVICE = cel_device(DEVICE_OBJECT)
_OWN_ATTRIBUTES, _OWN_CAPACITY = expand("@."), expand("%.x").removesuffix("x")


def outcome(text: str, environment: Environment | None = None) -> bool | str:
    """The value of an expression for DEVICE, or `invalid: …`, `unsupported: …`, `error: …` with the cause."""
    try:
        program = compile_expression(expand(text), environment)
    except CelNotSupportedError as error:
        return f"unsupported: {error.cause}"
    except CelCompileError as error:
        return f"invalid: {error.cause}"
    try:
        return program.evaluate(DEVICE)
    except CelRuntimeError as error:
        return f"error: {error.cause.replace(_OWN_ATTRIBUTES, '@.').replace(_OWN_CAPACITY, '%.')}"

"""Which devices of a node a request may take, regardless of who holds what.

Answers are remembered per (node's devices, request terms): selectors are pure functions of a device, and a
node's devices are replaced as a whole when its slices change.
"""

from functools import lru_cache
from typing import NamedTuple

from tangram.allocation.devices import Device, NodeDevices
from tangram.allocation.reasons import Code, Refusal
from tangram.allocation.requests import DeviceRequest
from tangram.api import Demand, DeviceFacts
from tangram.base.errors import CelRuntimeError, TangramError
from tangram.cel import Program


class Eligibility(NamedTuple):
    """`mask`: bits of the devices that satisfy the request; `refusals`: per device its refusal, or None."""

    mask: int
    refusals: tuple[Refusal | None, ...]


class SelectorError(TangramError):
    """A selector failed on a device. Fatal for the pod, as in kube-scheduler (`resource/v1/types.go`)."""


def eligibility(node: NodeDevices, request: DeviceRequest) -> Eligibility:
    """Evaluates class, selectors and demand of a request on every device of a node.

    Raises SelectorError where an expression fails (e.g. "no such key") on a device.
    """
    return _eligibility(node, request.class_name, request.class_selectors, request.selectors, request.demand)


@lru_cache(maxsize=16384)
def _eligibility(
    node: NodeDevices,
    class_name: str,
    class_selectors: tuple[Program, ...],
    selectors: tuple[Program, ...],
    demand: Demand | None,
) -> Eligibility:
    refusals = tuple(
        _refusal(device, class_name, class_selectors, selectors, demand) for device in node.devices
    )
    return Eligibility(sum(1 << i for i, refusal in enumerate(refusals) if refusal is None), refusals)


def _refusal(
    device: Device,
    class_name: str,
    class_selectors: tuple[Program, ...],
    selectors: tuple[Program, ...],
    demand: Demand | None,
) -> Refusal | None:
    if not device.healthy:
        return Refusal(Code.UNHEALTHY, "unhealthy")
    for program in class_selectors:
        if not _holds(program, device, guarded=True):
            return Refusal(Code.CLASS_SELECTOR, f"not of device class {class_name}")
    for program in selectors:
        if not _holds(program, device, guarded=False):
            return Refusal(Code.SELECTOR, f"not selected by {_excerpt(program.text)}")
    if demand is not None:
        facts = DeviceFacts(
            memory_bytes=device.memory_bytes,
            nominal_gb=device.nominal_gb,
            gpu_type=device.gpu_type,
            product_name=device.product_name,
        )
        if refused := demand.accepts(facts):
            return Refusal(Code.DEMAND, refused)
    return None


def _holds(program: Program, device: Device, *, guarded: bool) -> bool:
    try:
        return program.evaluate(device.guarded if guarded else device.cel)
    except CelRuntimeError as error:
        raise SelectorError(
            f"selector {_excerpt(program.text)} failed on device {device.id.device} of {device.id.pool}: "
            f"{error.cause}",
            next_step='guard an attribute that not every device has with has(device.attributes["…"].name)',
        ) from error


def _excerpt(text: str, limit: int = 120) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= limit else one_line[: limit - 1] + "…"

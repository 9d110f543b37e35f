"""Which devices of a node a request may take, regardless of who holds what.

Answers are remembered per node's devices and request terms: selectors are pure functions of a device, and a
node's devices are replaced as a whole when its slices change.
"""

from collections.abc import Hashable
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

from tangram.allocation.devices import Device, NodeDevices
from tangram.allocation.effort import Bill, Effort
from tangram.allocation.reasons import Code, Refusal
from tangram.allocation.requests import DeviceRequest
from tangram.base.errors import CelRuntimeError, TangramError
from tangram.cel import CelDevice, Program

_REMEMBERED = 64
"""Kinds of requests whose answers are kept per node."""


class SelectorError(TangramError):
    """A selector cannot be evaluated. Fatal for the pod, as in kube-scheduler (`resource/v1/types.go`)."""


class Eligibility(NamedTuple):
    """`mask`: bits of the devices that satisfy the request; `refusals`: per device its refusal, or None.

    `failure` is set where a selector failed on a device. `questions`: how often a selector was asked; `bill`:
    the price of each answer, with what tells it from others.
    """

    mask: int
    refusals: tuple[Refusal | None, ...]
    failure: SelectorError | None
    questions: int
    bill: Bill


_known: WeakKeyDictionary[NodeDevices, dict[Hashable, Eligibility]] = WeakKeyDictionary()


def eligibility(node: NodeDevices, request: DeviceRequest, effort: Effort) -> Eligibility:
    """Evaluates class, selectors and demand of a request on every device of a node.

    Raises SelectorError where an expression fails (e.g. "no such key") on a device, or where the decision has
    spent what it may on evaluations.
    """
    terms = (request.class_name, request.class_selectors, request.selectors, request.demand)
    known = _known.setdefault(node, {})
    answer = known.get(terms)
    if answer is None:
        answer = _Judge(request, effort).judge(node)
        if len(known) >= _REMEMBERED:
            known.clear()
        known[terms] = answer
    else:
        effort.spend(answer.questions)
        if not effort.settle(answer.bill):
            raise _too_dear(request)
    if answer.failure is not None:
        raise answer.failure.with_traceback(None)
    return answer


class _Judge:
    """One request on the devices of one node, paying as it goes."""

    def __init__(self, request: DeviceRequest, effort: Effort) -> None:
        self._request = request
        self._effort = effort
        self._questions = 0
        self._bill: dict[Hashable, int] = {}

    def judge(self, node: NodeDevices) -> Eligibility:
        refusals: list[Refusal | None] = []
        failure: SelectorError | None = None
        for device in node.devices:
            verdict = self._verdict(device)
            if isinstance(verdict, SelectorError):
                failure = verdict
                break
            refusals.append(verdict)
        mask = sum(1 << index for index, refusal in enumerate(refusals) if refusal is None)
        bill = _interned(tuple(self._bill.items()))
        return Eligibility(mask, tuple(refusals), failure, self._questions, bill)

    def _verdict(self, device: Device) -> Refusal | SelectorError | None:
        request = self._request
        if not device.healthy:
            return Refusal(Code.UNHEALTHY, "unhealthy")
        for program in request.class_selectors:
            held = self._ask(program, device.guarded)
            if isinstance(held, CelRuntimeError):
                return _failure(program, device, held)
            if not held:
                return Refusal(Code.CLASS_SELECTOR, f"not of device class {request.class_name}")
        for program in request.selectors:
            held = self._ask(program, device.cel)
            if isinstance(held, CelRuntimeError):
                return _failure(program, device, held)
            if not held:
                return Refusal(Code.SELECTOR, f"not selected by {_excerpt(program.text)}")
        if request.demand is not None and (refused := request.demand.accepts(device.facts)):
            return Refusal(Code.DEMAND, refused)
        return None

    def _ask(self, program: Program, device: CelDevice) -> bool | CelRuntimeError:
        """Raises SelectorError if that is more than may be spent."""
        parts, answer = program.answer(device)
        item = (program, parts)
        self._questions += 1
        self._bill[item] = answer.cost
        if not self._effort.spend(1) or not self._effort.pay(item, answer.cost):
            raise _too_dear(self._request)
        return answer.result


@lru_cache(maxsize=1024)
def _interned(bill: Bill) -> Bill:
    """Equal bills as one object, which is quickly recognised: equal nodes have equal bills."""
    return bill


def _too_dear(request: DeviceRequest) -> SelectorError:
    return SelectorError(
        f"the selectors of request {request.name} cost too much to evaluate on so many different devices",
        next_step="make them shorter, without nested all(), exists(), map() or filter()",
    )


def _failure(program: Program, device: Device, error: CelRuntimeError) -> SelectorError:
    return SelectorError(
        f"selector {_excerpt(program.text)} failed on device {device.id.device} of {device.id.pool}: "
        f"{error.cause}",
        next_step=error.next_step,
    )


def _excerpt(text: str, limit: int = 120) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= limit else one_line[: limit - 1] + "…"

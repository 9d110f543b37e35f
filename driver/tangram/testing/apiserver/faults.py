"""Faults on demand: refusals, lost answers, hung requests."""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from tangram.base.errors import ApiError
from tangram.kube.resources import Resource

Verb = Literal["get", "list", "watch", "create", "update", "patch", "delete"]

_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(slots=True, kw_only=True, eq=False)
class Fault:
    """What happens to the next `times` requests that match; fields left empty match everything.

    `error` is answered; None cuts the connection without an answer. With `stall` the request first hangs
    until `release`. With `executed` the request takes effect before its answer is lost or hangs.
    """

    verb: Verb | None = None
    resource: Resource | None = None
    subresource: str | None = None
    name: str = ""
    times: int = 1
    error: ApiError | None = None
    stall: bool = False
    executed: bool = False
    hits: int = field(default=0, init=False)
    released: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def release(self) -> None:
        """Lets stalled requests go on, as if nothing had been."""
        self.released.set()

    def matches(self, *, verb: str, resource: Resource, subresource: str, name: str) -> bool:
        """Whether this request is to fail."""
        return (
            self.times > 0
            and self.verb in {None, verb}
            and self.resource in {None, resource}
            and self.subresource in {None, subresource}
            and self.name in {"", name}
        )


class Faults:
    """The faults that wait for a request. The first that matches is used."""

    def __init__(self) -> None:
        self._pending: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        """Arms a fault."""
        self._pending.append(fault)
        return fault

    def answer(
        self,
        status: int,
        *,
        verb: Verb | None = None,
        resource: Resource | None = None,
        times: int = 1,
        reason: str = "",
        message: str = "injected fault",
        retry_after_s: float | None = None,
    ) -> Fault:
        """The next `times` matching requests are refused with `status`."""
        error = ApiError(
            message,
            status=status,
            reason=reason or _REASONS.get(status, "Unknown"),
            retry_after_s=retry_after_s,
        )
        return self.add(Fault(verb=verb, resource=resource, times=times, error=error))

    def drop(
        self,
        *,
        verb: Verb | None = None,
        resource: Resource | None = None,
        times: int = 1,
        executed: bool = False,
    ) -> Fault:
        """The next `times` matching requests get no answer; with `executed` they take effect all the same."""
        return self.add(Fault(verb=verb, resource=resource, times=times, executed=executed))

    def stall(
        self,
        *,
        verb: Verb | None = None,
        resource: Resource | None = None,
        times: int = 1_000_000,
        executed: bool = False,
    ) -> Fault:
        """Matching requests hang until `release` of the returned fault; with `executed` they take effect
        before that."""
        return self.add(Fault(verb=verb, resource=resource, times=times, stall=True, executed=executed))

    def clear(self) -> None:
        """Forgets all faults and releases what hangs."""
        for fault in self._pending:
            fault.times = 0
            fault.release()
        self._pending.clear()

    def take(self, *, verb: str, resource: Resource, subresource: str, name: str) -> Fault | None:
        """The fault for a request, if any; it counts as used."""
        for fault in self._pending:
            if fault.matches(verb=verb, resource=resource, subresource=subresource, name=name):
                fault.times -= 1
                fault.hits += 1
                if not fault.times and not fault.stall:
                    self._pending.remove(fault)
                return fault
        return None

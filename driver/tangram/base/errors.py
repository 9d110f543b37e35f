"""The one exception tree. Every error says what happened, and what to do next.

    TangramError
    ├── UsageError                  bad input or usage (exit code 2)
    │   ├── ConfigurationError      a setting, flag, environment variable or file
    │   ├── InvalidObjectError      an object of the API or a file: names object and field
    │   └── CelError                a CEL expression
    │       ├── CelCompileError     it is not valid: syntax, names, types
    │       │   └── CelNotSupportedError  it is valid CEL that this version cannot evaluate yet
    │       └── CelRuntimeError     it failed for one device
    │           └── CelBudgetError  it costs too much to evaluate
    ├── KubeError                   the Kubernetes API
    │   ├── UnreachableError        no answer: connection, TLS, timeout
    │   └── ApiError                an answer other than success
    │       ├── UnauthorizedError   401
    │       ├── ForbiddenError      403
    │       ├── NotFoundError       404
    │       ├── ConflictError       409
    │       ├── AlreadyExistsError  409 on create
    │       ├── ExpiredError        410
    │       ├── InvalidError        422
    │       ├── TooManyRequestsError 429
    │       └── ServerError         5xx
    ├── HardwareError               a GPU, or the library that talks to it
    │   ├── DriverUnavailableError  no driver, or not loaded yet: a state, retried
    │   ├── GpuLostError            this GPU does not answer any more
    │   ├── GpuBusyError            something uses the GPU or the instance: try again once it has ended
    │   ├── NoRoomError             no free slices, or instances, on the GPU for what was to be created
    │   ├── NotSupportedError       this GPU or driver cannot do that at all
    │   └── HardwareTimeoutError    a call outlived its deadline
    ├── PrepareError                a claim cannot be prepared on this node
    │   ├── ClaimNotPreparableError the claim itself: not allocated, another uid, another node
    │   └── DeviceHeldError         a device is held by another claim
    ├── StateError                  held state on disk cannot be read or written
    ├── SliceLimitError             a ResourceSlice would break a limit of the API
    └── LeadershipLostError         this process is no longer the active controller

Infeasible is not an error: `tangram.allocation` returns it as a value with reasons.
"""

from collections.abc import Mapping

_LONGEST_TEXT = 4096


class TangramError(Exception):
    """Base of all errors of this package.

    `cause` is one sentence without a full stop; `next_step` tells the reader what to do about it
    (empty where there is nothing to do but wait). What cannot be printed (control characters, half
    characters, changes of the writing direction) is shown as an escape: much of it comes from users.
    """

    exit_code = 1

    def __init__(self, cause: str, *, next_step: str = "") -> None:
        super().__init__(cause)
        self.cause = _printable(cause)
        self.next_step = _printable(next_step)

    def __str__(self) -> str:
        return f"{self.cause}; {self.next_step}" if self.next_step else self.cause


def _printable(text: str) -> str:
    if len(text) > _LONGEST_TEXT:
        text = f"{text[: _LONGEST_TEXT - 1]}…"
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\n" else ascii(character)[1:-1]
        for character in text
    )


class UsageError(TangramError):
    """Bad input or usage."""

    exit_code = 2


class ConfigurationError(UsageError):
    """A setting, flag, environment variable or configuration file is wrong."""


class InvalidObjectError(UsageError):
    """An object (of the API, or in a file) is wrong; `field` is its path, e.g. `spec.devices.requests[0]`."""

    def __init__(self, cause: str, *, object_name: str, field: str = "", next_step: str = "") -> None:
        where = f"{object_name}: {field}" if field else object_name
        super().__init__(f"{where}: {cause}", next_step=next_step)
        self.object_name = object_name
        self.field = field
        self.problem = cause


class CelError(UsageError):
    """A CEL expression is wrong, or went wrong for a device."""


class CelCompileError(CelError):
    """A CEL expression is not valid; `line` and `column` (from 1) say where, the message shows the place."""

    def __init__(self, cause: str, *, expression: str, offset: int, next_step: str = "") -> None:
        super().__init__(cause, next_step=next_step)
        before = expression[:offset]
        self.line = before.count("\n") + 1
        self.column = offset - (before.rfind("\n") + 1) + 1
        self._excerpt = _excerpt(expression.split("\n")[self.line - 1], column=self.column)

    def __str__(self) -> str:
        where = f"column {self.column}" if self.line == 1 else f"line {self.line}, column {self.column}"
        return f"CEL {where}: {super().__str__()}\n{self._excerpt}"


class CelNotSupportedError(CelCompileError):
    """The expression uses a part of CEL that this version does not evaluate yet. Never silently false."""


class CelRuntimeError(CelError):
    """Evaluating a CEL expression failed for one device, for example at an attribute that it lacks."""


class CelBudgetError(CelRuntimeError):
    """Evaluating the expression costs more than is allowed. No `||` absorbs this."""


def _excerpt(line: str, *, column: int, width: int = 72) -> str:
    """The part of the line around the column, with a caret below."""
    start = max(0, column - 1 - width // 2)
    shown = line[start : start + width].replace("\t", " ")
    return f"  {shown}\n  {' ' * (column - 1 - start)}^"


class KubeError(TangramError):
    """The Kubernetes API did not do what was asked."""


class UnreachableError(KubeError):
    """No answer from the API server: connection refused or cut, TLS failure, timeout."""


class ApiError(KubeError):
    """The API server answered with something other than success.

    `status` is the HTTP code, `reason` the machine-readable reason of the Status object, `details` what else
    a server means to put into it.
    """

    def __init__(
        self,
        cause: str,
        *,
        status: int,
        reason: str = "",
        next_step: str = "",
        retry_after_s: float | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(cause, next_step=next_step)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.details = details or {}


class UnauthorizedError(ApiError):
    """401: the credentials are missing or no longer valid."""


class ForbiddenError(ApiError):
    """403: RBAC or admission does not allow this."""


class NotFoundError(ApiError):
    """404: no such object."""


class ConflictError(ApiError):
    """409: the object changed since it was read."""


class AlreadyExistsError(ApiError):
    """409 with reason AlreadyExists: an object of that name is there."""


class ExpiredError(ApiError):
    """410: the resourceVersion or continue token is too old; list again."""


class InvalidError(ApiError):
    """422: the API server's validation refused the object."""


class TooManyRequestsError(ApiError):
    """429: slow down; `retry_after_s` says for how long."""


class ServerError(ApiError):
    """5xx: the API server failed; try again."""


class HardwareError(TangramError):
    """A GPU, or the library that talks to it, failed."""


class DriverUnavailableError(HardwareError):
    """The GPU driver is absent or not loaded yet. A state that may pass, not a crash."""


class GpuLostError(HardwareError):
    """One GPU does not answer any more."""

    def __init__(self, cause: str, *, uuid: str, next_step: str = "") -> None:
        super().__init__(cause, next_step=next_step)
        self.uuid = uuid


class GpuBusyError(HardwareError):
    """A process or an instance uses what was to be changed or destroyed (NVML IN_USE)."""


class NoRoomError(HardwareError):
    """No free slices, engines or instances for what was to be created (NVML INSUFFICIENT_RESOURCES)."""


class NotSupportedError(HardwareError):
    """This GPU, its mode or its driver cannot do that (NOT_SUPPORTED, FUNCTION_NOT_FOUND)."""


class HardwareTimeoutError(HardwareError):
    """A hardware call did not return within its deadline."""


class PrepareError(TangramError):
    """A claim cannot be prepared on this node."""


class ClaimNotPreparableError(PrepareError):
    """The claim itself is at fault: not allocated, deleted and re-created, or meant for another node."""


class DeviceHeldError(PrepareError):
    """A device of the claim is held by another claim; retryable once that one is unprepared.

    `holder` is `namespace/name` of that claim (its uid where no more is known), `holder_uid` its uid.
    """

    def __init__(
        self, cause: str, *, device: str, holder: str, holder_uid: str = "", next_step: str = ""
    ) -> None:
        super().__init__(cause, next_step=next_step)
        self.device = device
        self.holder = holder
        self.holder_uid = holder_uid


class StateError(TangramError):
    """Held state on disk cannot be read or written."""


class SliceLimitError(TangramError):
    """A ResourceSlice would break a limit of the API; `device` names the culprit."""

    def __init__(self, cause: str, *, device: str = "", next_step: str = "") -> None:
        super().__init__(cause, next_step=next_step)
        self.device = device


class LeadershipLostError(TangramError):
    """This process is no longer the active controller and must stop writing."""

"""Answers of the API other than success, as the errors of `tangram.base.errors`."""

from collections.abc import Mapping

import msgspec

from tangram.base.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    UnauthorizedError,
)

# A Status may quote the whole refused object: what goes into logs and events stays readable.
_MAX_MESSAGE = 1024
# A server (or a proxy before it) must not be able to put us to sleep for a day.
_MAX_RETRY_AFTER_S = 60.0

_ERRORS: Mapping[int, type[ApiError]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: ExpiredError,
    422: InvalidError,
    429: TooManyRequestsError,
}

_NEXT_STEPS: Mapping[int, str] = {
    401: "check the token or client certificate of the kubeconfig or service account",
    403: "grant the missing permission to this service account (RBAC), or see which admission rule refuses",
}


class _Details(msgspec.Struct, rename="camel", gc=False):
    retry_after_seconds: float | None = None


class _Status(msgspec.Struct, rename="camel", gc=False):
    """`metav1.Status`, as far as it is read here."""

    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: _Details | None = None


_STATUS = msgspec.json.Decoder(_Status)


def api_error(
    *, status: int, body: bytes | msgspec.Raw, request: str, retry_after: str | None = None
) -> ApiError:
    """The error for an HTTP answer; `retry_after` is its header (seconds; a date is ignored)."""
    parsed = _parse(body)
    message = _bounded(parsed.message or bytes(body).decode(errors="replace").strip() or "no message")
    retry_after_s = parsed.details.retry_after_seconds if parsed.details else None
    if retry_after and retry_after.isascii() and retry_after.isdigit():
        retry_after_s = float(retry_after)
    reason = _bounded(parsed.reason or "")
    kind = _ERRORS.get(status, ServerError if status >= 500 else ApiError)
    if kind is ConflictError and reason == "AlreadyExists":
        kind = AlreadyExistsError
    return kind(
        f"{request}: {status} {reason or 'without a reason'}: {message}",
        status=status,
        reason=reason,
        next_step=_NEXT_STEPS.get(status, ""),
        retry_after_s=None if retry_after_s is None else min(max(retry_after_s, 0.0), _MAX_RETRY_AFTER_S),
    )


def stream_error(status: msgspec.Raw, *, request: str) -> ApiError:
    """The error for the object of a watch event of type ERROR: a Status that carries its own code."""
    return api_error(status=_parse(status).code or 500, body=status, request=request)


def _parse(body: bytes | msgspec.Raw) -> _Status:
    try:
        return _STATUS.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return _Status()  # a proxy's HTML page, or nothing


def _bounded(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"

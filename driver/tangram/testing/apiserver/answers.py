"""Refusals of the API server, as errors of the one tree and as `metav1.Status` objects."""

from collections.abc import Sequence
from typing import Any

from tangram.base.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ExpiredError,
    InvalidError,
    NotFoundError,
)
from tangram.kube.resources import Resource


def qualified(resource: Resource) -> str:
    """`pods`, `resourceclaims.resource.k8s.io`."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def not_found(resource: Resource, name: str) -> NotFoundError:
    """404."""
    return NotFoundError(f'{qualified(resource)} "{name}" not found', status=404, reason="NotFound")


def no_such_path() -> NotFoundError:
    """404 of a path that serves nothing."""
    return NotFoundError("the server could not find the requested resource", status=404, reason="NotFound")


def already_exists(resource: Resource, name: str) -> AlreadyExistsError:
    """409 on create."""
    return AlreadyExistsError(
        f'{qualified(resource)} "{name}" already exists', status=409, reason="AlreadyExists"
    )


def conflict(resource: Resource, name: str, why: str = "") -> ConflictError:
    """409 on a precondition."""
    why = why or (
        "the object has been modified; please apply your changes to the latest version and try again"
    )
    return ConflictError(
        f'Operation cannot be fulfilled on {qualified(resource)} "{name}": {why}',
        status=409,
        reason="Conflict",
    )


def invalid(resource: Resource, name: str, problems: Sequence[str]) -> InvalidError:
    """422: `problems` are `<field path>: <kind of error>: <detail>`."""
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
    return InvalidError(f'{kind} "{name}" is invalid: {text}', status=422, reason="Invalid")


def bad_request(why: str) -> ApiError:
    """400."""
    return ApiError(why, status=400, reason="BadRequest")


def expired(why: str = "too old resource version") -> ExpiredError:
    """410."""
    return ExpiredError(why, status=410, reason="Expired")


def status_object(error: ApiError) -> dict[str, Any]:
    """The Status a client gets for `error`."""
    status: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.cause,
        "reason": error.reason,
        "code": error.status,
    }
    if error.retry_after_s is not None:
        status["details"] = {"retryAfterSeconds": int(error.retry_after_s)}
    return status

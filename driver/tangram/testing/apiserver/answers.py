"""Refusals of the API server, as errors of the one tree and as `metav1.Status` objects."""

from collections.abc import Sequence
from typing import Any

from tangram.base.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    ServerError,
)
from tangram.kube.resources import Resource
from tangram.testing.apiserver.problems import Problem


def qualified(resource: Resource) -> str:
    """`pods`, `resourceclaims.resource.k8s.io`."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def not_found(resource: Resource, name: str) -> NotFoundError:
    """404."""
    return NotFoundError(
        f'{qualified(resource)} "{name}" not found',
        status=404,
        reason="NotFound",
        details=_details(resource, name),
    )


def no_such_path() -> NotFoundError:
    """404 of a path that serves nothing."""
    return NotFoundError("the server could not find the requested resource", status=404, reason="NotFound")


def already_exists(resource: Resource, name: str, *, deleting: bool = False) -> AlreadyExistsError:
    """409 on create."""
    return AlreadyExistsError(
        f'{"object is being deleted: " if deleting else ""}{qualified(resource)} "{name}" already exists',
        status=409,
        reason="AlreadyExists",
        details=_details(resource, name),
    )


def conflict(
    resource: Resource, name: str, why: str = "", *, subresource: str = "", kind: str = ""
) -> ConflictError:
    """409 on a precondition; `kind` is the one in the details, if it is not the resource."""
    why = why or (
        "the object has been modified; please apply your changes to the latest version and try again"
    )
    what = f"{qualified(resource)}/{subresource}" if subresource else qualified(resource)
    details = _details(resource, name)
    if subresource or kind:
        details["kind"] = kind or f"{resource.plural}/{subresource}"
    return ConflictError(
        f'Operation cannot be fulfilled on {what} "{name}": {why}',
        status=409,
        reason="Conflict",
        details=details,
    )


def forbidden(resource: Resource, name: str, why: str) -> ForbiddenError:
    """403."""
    return ForbiddenError(
        f'{qualified(resource)} "{name}" is forbidden: {why}',
        status=403,
        reason="Forbidden",
        details=_details(resource, name),
    )


def invalid(resource: Resource, name: str, problems: Sequence[Problem]) -> InvalidError:
    """422 of an object."""
    # events.k8s.io is a view of core/v1, whose validation speaks of itself.
    group = "" if resource.kind == "Event" else resource.group
    return invalid_kind(resource.kind, name, problems, group=group)


def invalid_kind(kind: str, name: str, problems: Sequence[Problem], *, group: str = "") -> InvalidError:
    """422 of anything: `kind` may also be that of the options of a request, or empty for a patch."""
    what = f"{kind}.{group}" if group else kind
    text = str(problems[0]) if len(problems) == 1 else f"[{', '.join(map(str, problems))}]"
    causes = [
        {"reason": f"FieldValue{each.kind}", "message": str(each).partition(": ")[2], "field": each.field}
        for each in problems
    ]
    details: dict[str, object] = {"name": name, "group": group, "kind": kind}
    return InvalidError(
        f'{what} "{name}" is invalid: {text}',
        status=422,
        reason="Invalid",
        details={key: value for key, value in details.items() if value} | {"causes": causes},
    )


def bad_patch(why: str) -> InvalidError:
    """422 of a patch whose result is no object of its kind."""
    return invalid_kind("", "", [Problem("Invalid", "patch", why)])


def bad_request(why: str) -> ApiError:
    """400."""
    return ApiError(why, status=400, reason="BadRequest")


def not_allowed() -> ApiError:
    """405."""
    why = "the server does not allow this method on the requested resource"
    return ApiError(why, status=405, reason="MethodNotAllowed")


def not_acceptable() -> ApiError:
    """406."""
    why = "only the following media types are accepted: application/json, application/yaml"
    return ApiError(why, status=406, reason="NotAcceptable")


def unsupported_media_type(why: str) -> ApiError:
    """415."""
    return ApiError(why, status=415, reason="UnsupportedMediaType")


def internal(why: str) -> ServerError:
    """500 without a reason: an error that no part of a real server has translated."""
    return ServerError(why, status=500)


def expired(why: str = "too old resource version") -> ExpiredError:
    """410."""
    return ExpiredError(why, status=410, reason="Expired")


def status_object(error: ApiError) -> dict[str, Any]:
    """The Status a client gets for `error`."""
    details = dict(error.details)
    if error.retry_after_s is not None:
        details["retryAfterSeconds"] = int(error.retry_after_s)
    status: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.cause,
        "reason": error.reason,
        "details": details,
        "code": error.status,
    }
    return {key: value for key, value in status.items() if value or key == "metadata"}


def deleted(resource: Resource, *, name: str, uid: str) -> dict[str, Any]:
    """The Status that answers a deletion which is done."""
    details = {**_details(resource, name), "uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _details(resource: Resource, name: str) -> dict[str, object]:
    details = {"name": name, "group": resource.group, "kind": resource.plural}
    return {key: value for key, value in details.items() if value}
